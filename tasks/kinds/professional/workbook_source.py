"""`workbook.py`, a file of the task: sandboxes have no spreadsheet library, so the workspace brings the few lines that write one."""

WORKBOOK = '''"""save(path, {sheet name: [[cell, ...], ...]}): a plain .xlsx with text and number cells."""
import zipfile
from xml.sax.saxutils import escape, quoteattr

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
REL = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACK = "http://schemas.openxmlformats.org/package/2006/"
TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml."


def _cell(value):
    if isinstance(value, str):
        return f'<c t="inlineStr"><is><t xml:space="preserve">{escape(value)}</t></is></c>'
    return f"<c><v>{value}</v></c>"


def save(path, sheets):
    head = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'
    n = range(1, len(sheets) + 1)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("[Content_Types].xml", f'{head}<Types xmlns="{PACK}content-types"><Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Default Extension="xml" ContentType="application/xml"/><Override PartName="/xl/workbook.xml" ContentType="{TYPE}sheet.main+xml"/>' + "".join(f'<Override PartName="/xl/worksheets/sheet{i}.xml" ContentType="{TYPE}worksheet+xml"/>' for i in n) + "</Types>")
        out.writestr("_rels/.rels", f'{head}<Relationships xmlns="{PACK}relationships"><Relationship Id="rId1" Type="{REL}/officeDocument" Target="xl/workbook.xml"/></Relationships>')
        out.writestr("xl/workbook.xml", f'{head}<workbook xmlns="{MAIN}" xmlns:r="{REL}"><sheets>' + "".join(f'<sheet name={quoteattr(name)} sheetId="{i}" r:id="rId{i}"/>' for i, name in zip(n, sheets)) + "</sheets></workbook>")
        out.writestr("xl/_rels/workbook.xml.rels", f'{head}<Relationships xmlns="{PACK}relationships">' + "".join(f'<Relationship Id="rId{i}" Type="{REL}/worksheet" Target="worksheets/sheet{i}.xml"/>' for i in n) + "</Relationships>")
        for i, rows in zip(n, sheets.values()):
            body = "".join("<row>" + "".join(map(_cell, row)) + "</row>" for row in rows)
            out.writestr(f"xl/worksheets/sheet{i}.xml", f'{head}<worksheet xmlns="{MAIN}"><sheetData>{body}</sheetData></worksheet>')
'''  # noqa: E501
