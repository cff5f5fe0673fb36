"""From bytes to text: what kind of content it is, its characters, the main text of HTML (Trafilatura), its licence.

What comes out is data. Nothing in it is run, loaded or followed, and the text is not edited beyond what the extractor does.
"""

from __future__ import annotations

import codecs
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass

import lxml.etree  # type: ignore[import-untyped]
import lxml.html  # type: ignore[import-untyped]

from environments.search.web import licence
from environments.search.web.outcome import RefusedError

log = logging.getLogger(__name__)

VERSION = 1
"""Raised when the same bytes would give another text."""
MAX_TEXT_CHARS = 40_000
"""Longer documents are cut here, as those of the local corpus are."""
MIN_TEXT_CHARS = 40
"""A shorter main text says nothing."""
MAX_ELEMENTS = 30_000
MAX_DEPTH = 240
"""Of HTML elements. A page beyond is not made for reading, and the extractor's time grows faster than its size: 59,000 links
took it 16 s, 15,000 paragraphs 1."""

_HEAD = 4096
_HTML = re.compile(rb"<(?:!doctype\s+html|html|head|body)[\s>]", re.I)
_META = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([a-zA-Z0-9_.:-]{1,40})""", re.I)
_HEADER = re.compile(r"""charset\s*=\s*["']?([a-zA-Z0-9_.:-]{1,40})""", re.I)
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_NO_CHARSETS = frozenset({"idna", "punycode", "unicode_escape", "raw_unicode_escape", "utf-7", "undefined", "mbcs", "oem"})
"""Python codecs that are no web charset."""
_GUESSED = [
    *("cp1250", "cp1251", "cp1252", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp1258", "iso8859_2", "koi8_r", "koi8_u"),
    *("big5", "gb18030", "euc_jp", "shift_jis", "iso2022_jp", "euc_kr"),
]
"""What pages that do not say are written in; a guess among all of Python's codecs fits noise too."""
_BROKEN_SHARE = 0.05
"""Share of characters that cannot be read beyond which a text counts as undecodable."""
_CONTROLS = bytes(b for b in range(32) if b not in b"\t\n\r\f\x1b\x08")
_BINARY_SHARE = 0.02


@dataclass(frozen=True)
class Extracted:
    """Text of a document, and what it says about itself."""

    title: str
    text: str
    licence: str
    scripted: bool = False
    """HTML with scripts and hardly any text: probably made by JavaScript."""


def is_html(body: bytes, media_type: str) -> bool:
    """Whether content is HTML: it says so and looks like markup, or looks like an HTML page whatever it says."""
    kind = media_type.partition(";")[0].strip().lower()
    head = body[:_HEAD].replace(b"\0", b"")
    if _HTML.search(head):
        return True
    return kind in ("text/html", "application/xhtml+xml") and b"<" in head


def decode(body: bytes, media_type: str = "") -> str:
    """Characters of a text: by its byte order mark, as UTF-8 where that fits, by the header, the meta element, or as guessed.

    What fits UTF-8 is hardly ever anything else, whatever it calls itself; only ISO-2022 hides in seven bits.

    Raises:
        RefusedError: `binary`, or `undecodable` when too much of it is no character in any of these.
    """
    mark = next((name for mark, name in _MARKS if body.startswith(mark)), "")
    if not mark or mark == "utf-8":
        head = body[:_HEAD]
        if b"\0" in body[: 16 * _HEAD] or len(head.translate(None, _CONTROLS)) < len(head) * (1 - _BINARY_SHARE):
            raise RefusedError("binary", "the content is no text")
    stated = [m[1] for m in (_HEADER.search(media_type),) if m] + [m[1].decode() for m in (_META.search(body[:_HEAD]),) if m]
    if not mark and b"\x1b" not in body:
        try:
            return body.decode("utf-8")
        except UnicodeDecodeError:
            pass
    for name in [mark] if mark else [*stated, "utf-8"]:
        if (text := _decode(body, name, marked=bool(mark))) is not None:
            return text
    from charset_normalizer import from_bytes

    guess = from_bytes(body[: 16 * _HEAD], cp_isolation=_GUESSED).best()
    text = body.decode(guess.encoding if guess is not None else "utf-8", "replace")
    broken = text.count("\ufffd") + sum(map(text.count, "\x80\x81\x8d\x8f\x90\x9d"))
    if broken > _BROKEN_SHARE * max(1, len(text)):
        raise RefusedError("undecodable", f"{broken} of {len(text)} characters cannot be read")
    return text


def _decode(body: bytes, name: str, *, marked: bool) -> str | None:
    """The text in a named encoding, with a few broken characters replaced; None when the name or the content is wrong."""
    try:
        found = codecs.lookup(name).name
        if found in _NO_CHARSETS or found.replace("-", "_") in _NO_CHARSETS:
            return None
        if found.startswith(("utf-16", "utf-32")) and not marked:  # any bytes are some UTF-16; true ones hold zeros and were refused
            return None
        text = body.decode("cp1252" if found in ("iso8859-1", "ascii") else found, "replace")  # as the WHATWG's encoding standard says
    except (LookupError, ValueError, AssertionError):
        return None
    return text if text.count("\ufffd") <= _BROKEN_SHARE / 10 * len(text) else None


def extract(body: bytes, media_type: str, address: str, link_header: str = "") -> Extracted:
    """Title, text and licence of a document.

    Raises:
        RefusedError: `binary`, `undecodable`, `unsupported_type`, `too_complex`, or `no_text` for a page without a main text.
    """
    try:
        return _extract(body, media_type, address, link_header)
    except RefusedError:
        raise
    except Exception as error:  # the boundary where a page that breaks a parser becomes an outcome
        log.warning("%s broke the extractor", address, exc_info=True)
        raise RefusedError("no_text", f"the extractor failed on it ({type(error).__name__})") from error


def _extract(body: bytes, media_type: str, address: str, link_header: str) -> Extracted:
    if body.startswith(b"%PDF-"):
        raise RefusedError("unsupported_type", "a PDF: these are not read")
    text = decode(body, media_type)
    if not is_html(body, media_type):
        if len(text.strip()) < MIN_TEXT_CHARS:
            raise RefusedError("no_text", f"{len(text.strip())} characters of text")
        first = next((line.strip(" #=\t") for line in text.splitlines() if line.strip(" #=\t")), "")
        stated = licence.of_links(licence.of_link_header(link_header))
        return Extracted(first[:200], text[:MAX_TEXT_CHARS], stated if stated != licence.UNKNOWN else licence.spdx_line(text))
    return _html(text, address, link_header)


def _html(text: str, address: str, link_header: str) -> Extracted:
    import trafilatura

    tree = _tree(text)
    scripted = _scripted(tree)
    declared, links = _links(tree)
    name = licence.of_links([*licence.of_link_header(link_header), *declared], links)
    title = _title(tree)
    found = trafilatura.extract(tree, url=address, include_comments=False, include_tables=True, deduplicate=False) or ""
    if len(found.strip()) < MIN_TEXT_CHARS and not scripted:
        raise RefusedError("no_text", f"no main text in {len(text)} characters of HTML")
    return Extracted(title or address, found[:MAX_TEXT_CHARS], name, scripted and len(found.strip()) < 5 * MIN_TEXT_CHARS)


def _tree(text: str) -> lxml.html.HtmlElement:
    parser = lxml.html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True, huge_tree=False)
    try:
        tree = lxml.html.document_fromstring(text.encode("utf-8", "replace"), parser=parser)
    except (lxml.etree.LxmlError, ValueError, AssertionError) as error:
        raise RefusedError("no_text", f"HTML that does not parse ({type(error).__name__})") from error
    count, depth, deepest = 0, 0, 0
    for event, _ in lxml.etree.iterwalk(tree, events=("start", "end")):
        if event == "start":
            count, depth = count + 1, depth + 1
            deepest = max(deepest, depth)
            if count > MAX_ELEMENTS or deepest > MAX_DEPTH:
                raise RefusedError("too_complex", f"HTML of more than {MAX_ELEMENTS} elements or {MAX_DEPTH} levels")
        else:
            depth -= 1
    return tree


def _title(tree: lxml.html.HtmlElement) -> str:
    for path in ("//meta[@property='og:title']/@content", "//head/title//text()", "//h1//text()"):
        found: Sequence[str] = tree.xpath(path)
        if title := " ".join(" ".join(found[:20]).split()):
            return title[:200]
    return ""


def _links(tree: lxml.html.HtmlElement) -> tuple[list[str], list[str]]:
    """(addresses with rel=license, all addresses)."""
    declared, links = [], []
    for element in tree.iter("a", "link", "area"):
        address = (element.get("href") or "").strip()[:500]
        if "license" in (element.get("rel") or "").lower().split():
            declared.append(address)
        links.append(address)
    return declared, links


def _scripted(tree: lxml.html.HtmlElement) -> bool:
    """Whether scripts may make the page's text: there are some, and without them the body says little."""
    if next(tree.iter("script"), None) is None:
        return False
    shown = tree.xpath("string-length(normalize-space(//body))") or 0
    hidden = sum(len(" ".join((e.text or "").split())) for e in tree.iter("script", "style", "noscript", "template"))
    return float(shown) - hidden < 5 * MIN_TEXT_CHARS
