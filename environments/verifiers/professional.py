"""`professional`: a spreadsheet is checked cell by cell, its findings as a set, and a memo fact by fact.

Partial credit is the mean of three parts, and only all of them pass: *cells*, the share of the wanted cells that hold the wanted
value; *findings*, F1 of the listed (entry, finding) pairs, so that listing every row costs precision; *memo*, the share of facts
that are stated. A fact is stated when the lines that carry its label hold one number, the right one. A workbook with macros, formulas in
wanted cells, hidden or further sheets, external parts or document types, or of too many bytes, is not read: cells and findings are 0.
"""

from __future__ import annotations

import copy
import io
import re
import zipfile
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, ClassVar

from environments.errors import VerifierError
from environments.protocols import Outcome
from environments.task import TaskSpec
from environments.verdict import Verdict
from environments.verifiers.fixture import VerifierFixture

FILE_BYTES = 1 << 18
UNPACKED_BYTES = 4 << 20
PARTS = 64
ROWS = 2_000
"""Of one sheet that are read."""
TOLERANCE = Decimal("0.005")
_FORBIDDEN = re.compile(r"vba|macro|externallink|embeddings|activex|ctrlprops|connections|customxml", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\w.,])[-−]?(?:\d{1,3}(?:[,' \u00a0\u202f]\d{3})+|\d+)(?:\.\d+)?(?![\w]|\.\d)")


class _Refused(Exception):
    """Why a workbook is not read."""


def sheets_of(data: bytes, wanted: set[str]) -> dict[str, list[list[Any]]]:
    """Values of a workbook's sheets, by name; formulas stay text. Raises _Refused for what is not plain, small and visible."""
    if len(data) > FILE_BYTES:
        raise _Refused(f"it has {len(data)} bytes, {FILE_BYTES} are read")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as parts:
            infos = parts.infolist()
            if len(infos) > PARTS or sum(i.file_size for i in infos) > UNPACKED_BYTES:
                raise _Refused("it unpacks to too much")
            if strange := [i.filename for i in infos if _FORBIDDEN.search(i.filename)]:
                raise _Refused(f"it holds {strange[0]:.60}")
            for info in infos:
                with parts.open(info) as stream:  # the directory may lie about sizes
                    text = stream.read(UNPACKED_BYTES + 1)
                if len(text) > UNPACKED_BYTES or b"<!DOCTYPE" in text or b"<!ENTITY" in text or b"macroEnabled" in text:
                    raise _Refused(f"its part {info.filename:.60} is not plain")
        import openpyxl  # here only: judges of other kinds do not need it

        book = openpyxl.load_workbook(io.BytesIO(data), data_only=False, keep_links=False)
        if set(book.sheetnames) != wanted:
            raise _Refused(f"its sheets are {', '.join(book.sheetnames)[:80]}")
        found: dict[str, list[list[Any]]] = {}
        for sheet in book.worksheets:
            if sheet.sheet_state != "visible" or sheet.max_row > ROWS or sheet.max_column > 64:
                raise _Refused(f"its sheet {sheet.title} is hidden or too large")
            found[sheet.title] = [list(row) for row in sheet.iter_rows(values_only=True)]
        return found
    except _Refused:
        raise
    except Exception as error:  # the boundary: whatever an agent's file does to a reader is the file's fault
        raise _Refused(f"it does not read as a workbook: {type(error).__name__}") from error


def _decimal(value: Any) -> Decimal | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e15:
        return None
    return Decimal(str(value))


def same_cell(got: Any, wanted: Any) -> bool:
    """A number within half a cent, a text as it is; a formula, or a number as text, is neither."""
    if isinstance(wanted, str) and not _is_amount(wanted):
        return isinstance(got, str) and got.strip() == wanted
    number = _decimal(got)
    return number is not None and abs(number - Decimal(str(wanted))) <= TOLERANCE


def _is_amount(text: str) -> bool:
    return re.fullmatch(r"-?\d+\.\d\d", text) is not None


def numbers_in(text: str) -> set[Decimal]:
    """The numbers of a text: `1,234.50`, `1 234.5` and `1234.50` are one number."""
    return {Decimal(re.sub(r"[,' \u00a0\u202f]", "", m).replace("−", "-")).normalize() for m in _NUMBER.findall(text)}


def _stated(memo: str, fact: Mapping[str, Any]) -> bool:
    lines = [line.lower() for line in memo.splitlines() if str(fact["label"]).lower() in line.lower()]
    if "text" in fact:
        others = [o for o in fact["others"] if any(o.lower() in line for line in lines)]
        return bool(lines) and all(str(fact["text"]).lower() in line for line in lines) and not others
    return numbers_in("\n".join(lines)) == {Decimal(str(fact["value"])).normalize()}


class ProfessionalVerifier:
    """Payload: `{"table": [[header...], [key, cell...]...], "findings": [[entry, finding]...], "facts": [{"label", "value"}]}`.

    A fact may have `text` and `others` (names that must not stand there) in place of `value`. Amounts are text with two decimals.
    """

    kind: str = "professional"
    version: int = 1
    timeout_s: ClassVar[float] = 20.0
    REPORT: ClassVar[str] = "report.xlsx"
    MEMO: ClassVar[str] = "memo.txt"

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict:
        """Raises VerifierError when the payload lacks a part."""
        if not isinstance(payload, dict) or not all(payload.get(name) for name in ("table", "findings", "facts")):
            raise VerifierError("the payload of professional lacks table, findings or facts", "synthesise the task again")
        if outcome.submission is None:
            return Verdict.decide(0.0, evidence={"reason": "nothing was submitted"})
        evidence: dict[str, Any] = {}
        cells = findings = 0.0
        try:
            sheets = sheets_of(outcome.files.get(self.REPORT, b""), {"totals", "findings"})
            cells, findings = _cells(sheets["totals"], payload["table"]), _f1(sheets["findings"], payload["findings"])
        except _Refused as refused:
            evidence["report"] = str(refused)
        memo = outcome.files.get(self.MEMO, b"")
        stated = 0.0
        if len(memo) <= 20_000:
            text = memo.decode(errors="replace")
            stated = sum(_stated(text, fact) for fact in payload["facts"]) / len(payload["facts"])
        parts = {"cells": cells, "findings": findings, "memo": stated}
        right = all(part == 1 for part in parts.values())
        return Verdict.decide(1.0 if right else min(sum(parts.values()) / 3, 1 - 1e-9), parts=parts, evidence=evidence)

    def mutations(self, payload: Any) -> list[tuple[str, Any]]:
        """A cell, a finding or a fact changed; a finding more and one less."""
        mutated: list[tuple[str, Any]] = []

        def change(name: str, edit: Any) -> None:
            changed = copy.deepcopy(payload)
            edit(changed)
            mutated.append((name, changed))

        change("cell", lambda p: p["table"][-1].__setitem__(-1, "987654.32"))
        change("row_more", lambda p: p["table"].append(["no such account", *p["table"][-1][1:]]))
        change("finding_more", lambda p: p["findings"].append(["E0", "duplicate"]))
        change("finding_changed", lambda p: p["findings"].__setitem__(0, [p["findings"][0][0], "other"]))
        for i in range(len(payload["facts"])):
            change(f"fact_{i}", lambda p, i=i: p["facts"].__setitem__(i, {"label": p["facts"][i]["label"], "value": "987654.32"}))
        return mutated

    def wrong_outcomes(self, outcome: Outcome, payload: Any) -> list[tuple[str, Outcome]]:
        """A file missing, cut or empty; a number of the memo changed, and every number said at once; not submitted."""
        report, memo = outcome.files[self.REPORT], outcome.files[self.MEMO]
        everything = " ".join(str(f["label"]) for f in payload["facts"]) + " " + " ".join(map(str, range(3_000)))
        files: dict[str, dict[str, bytes]] = {
            "no_report": {self.MEMO: memo},
            "no_memo": {self.REPORT: report},
            "cut_report": {self.REPORT: report[: len(report) // 2], self.MEMO: memo},
            "other_number": {self.REPORT: report, self.MEMO: re.sub(rb"[1-8]", lambda m: bytes([m[0][0] + 1]), memo)},
            "all_numbers": {self.REPORT: report, self.MEMO: everything.encode()},
            "contradiction": {self.REPORT: report, self.MEMO: memo + f"\n{payload['facts'][0]['label']}: 1234567\n".encode()},
        }
        wrong = [(name, Outcome(outcome.submission, {}, outcome.tool_calls, found)) for name, found in files.items()]
        return [("not_submitted", Outcome(None, {}, outcome.tool_calls, outcome.files)), *wrong]


def _cells(rows: list[list[Any]], table: list[list[Any]]) -> float:
    """Share of the wanted cells that are right, of all cells wanted or given: one too many costs as one too few."""
    filled = [[cell for cell in row if cell is not None] for row in rows]
    filled = [row for row in filled if row]
    by_key: dict[str, list[Any]] = {}
    for row in filled[1:]:
        by_key.setdefault(str(row[0]).strip(), row)
    wanted = sum(map(len, table))
    given = sum(map(len, filled))
    header = [isinstance(c, str) and c.strip().lower() == w for c, w in zip(filled[0] if filled else [], table[0], strict=False)]
    right: int = sum(header)
    for row in table[1:]:
        got = by_key.get(str(row[0]), [])
        right += sum(same_cell(g, w) for g, w in zip(got, row, strict=False))
    return right / max(wanted, given)


def _f1(rows: list[list[Any]], wanted: list[list[str]]) -> float:
    """F1 over the pairs; a pair twice counts as wrong the second time."""
    given = [(str(row[0]).strip(), str(row[1]).strip().lower()) for row in rows[1:] if len(row) >= 2 and row[0] is not None]
    right = len(set(given) & {(entry, finding) for entry, finding in wanted})
    return 2 * right / (len(given) + len(wanted))


def workbook(sheets: Mapping[str, list[list[Any]]]) -> bytes:
    """A plain workbook, for fixtures and tests."""
    import openpyxl

    book = openpyxl.Workbook()
    book.remove(book.worksheets[0])
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


_PAYLOAD = {
    "table": [["account", "count", "total"], ["travel", 2, "1250.50"]],
    "findings": [["E7", "duplicate"]],
    "facts": [{"label": "total booked", "value": "1250.50"}],
}
_SHEETS: dict[str, list[list[Any]]] = {
    "totals": [["account", "count", "total"], ["travel", 2, 1250.5]],
    "findings": [["entry", "finding"], ["E7", "duplicate"]],
}
_MEMO = b"Total booked: 1,250.50 euros."


def _fixture(
    name: str, case: Any, status: Any, score: float | None, memo: bytes = _MEMO, payload: Any = _PAYLOAD, runs: int = 1, **sheets: Any
) -> VerifierFixture:
    files = {"report.xlsx": workbook({**_SHEETS, **sheets}), "memo.txt": memo}
    return VerifierFixture(name, case, payload, Outcome("", files=files), status, score, runs=runs)


FIXTURES: tuple[VerifierFixture, ...] = (
    _fixture("all right", "full", "pass", 1.0),
    _fixture("number spelled otherwise", "full", "pass", 1.0, memo=b"The total booked is 1 250.5 euros."),
    _fixture("memo wrong", "partial", "fail", 2 / 3, memo=b"Total booked: 1250.60"),
    _fixture("two numbers", "partial", "fail", 2 / 3, memo=b"Total booked: 1250.50 or 1300"),
    _fixture("formula", "partial", "fail", (5 / 6 + 2) / 3, totals=[["account", "count", "total"], ["travel", 2, "=1250.5"]]),
    _fixture(
        "every row listed",
        "partial",
        "fail",
        (2 + 2 / 11) / 3,
        findings=[["entry", "finding"], *([f"E{i}", "duplicate"] for i in range(10))],
    ),
    _fixture("a further sheet", "partial", "fail", 1 / 3, notes=[["x"]]),
    VerifierFixture("nothing", "zero", _PAYLOAD, Outcome(None), "fail", 0.0),
    VerifierFixture("no files", "zero", _PAYLOAD, Outcome(""), "fail", 0.0),
    VerifierFixture(
        "no workbook", "malformed", _PAYLOAD, Outcome("", files={"report.xlsx": b"PK\x03\x04", "memo.txt": b"\xff"}), "fail", 0.0
    ),
    _fixture("payload without findings", "malformed", "no-verdict", None, payload={**_PAYLOAD, "findings": []}),
    _fixture("repeated", "determinism", "pass", 1.0, runs=5),
)
