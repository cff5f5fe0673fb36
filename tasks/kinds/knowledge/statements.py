"""Statements that prose makes about a document's subject: (subject, relation, value, passage), read by patterns.

Precision comes before recall: a sentence counts only when its subject is the document's, which holds for a definition's opening
sentence and for sentences that begin with the title or a pronoun for it. Hedged sentences and those with two readings are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from environments.answers.dates import parse_date
from environments.answers.names import plain
from environments.answers.quantities import parse_quantity
from environments.families.search import short_title
from environments.protocols import Document
from kg.concept import Passage

Relation = Literal["introduced", "creator", "added_in", "clock"]
Kind = Literal["date", "name", "version", "quantity"]

_VERB = (
    r"(?:(?:first |originally |jointly |initially |formally )?(?:developed|created|designed|invented|introduced|released|written"
    r"|published|founded|proposed|launched|implemented|announced))"
)
_MADE = r"(?:(?:first |originally |initially )?(?:developed|created|designed|invented|written|proposed|devised))"
_MONTH = (
    r"(?:January|February|March|April|May|June|July|August|September|October|November|December"
    r"|Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\.?"
)
_DATE = rf"(?:\d{{4}}-\d\d-\d\d|(?:\d{{1,2}} )?{_MONTH},? \d{{4}}|{_MONTH} \d{{1,2}}, \d{{4}}|\d{{4}})"
_WHEN = re.compile(rf"\b{_VERB}\b([^.;()]{{0,90}}?)\s*\b(?:in|on)\s+(?:the )?({_DATE})(?![\d-]|s\b|'s|/\d| *(?:-|to|and) *\d)")
_BY = re.compile(
    r"\b" + _MADE + r"\s+by\s+((?:[A-Z][\w.&+'/-]*)(?:\s+(?:(?:de|van|von|der|&)\s+)?[A-Z][\w.&+'/-]*){0,4})"
    r"(?!\s+[A-Z])(?!\s*,\s*(?:and |[A-Z]))"
    r"(?=\s*(?:$|[,;()<]|\.(?:\s|$)|\b(?:in|at|from|for|as|to|on|while|during|who|which|and is|and was|around|circa|ca)\b))"
)
_CLOCK = re.compile(
    r"\b(?:running at|runs at|clocked at|clock (?:rate|speed|frequency) of|operat(?:ing|es) at)"
    r"\s+(?:up to\s+)?(\d+(?:\.\d+)?\s?(?:k|M|G)Hz)"
)
_ADDED = re.compile(r"\.\. versionadded::\s*v?(\d+(?:\.\d+){1,2})(?![\w.])")
_HEDGED = re.compile(
    r"\b(?:not|never|about|around|circa|ca|approximately|probably|perhaps|rumou?red|claimed|supposedly|might|may have"
    r"|planned|expected|should be|will be|unlike|similar to|successor|predecessor|superseded|replaced|later"
    r"|version of which|based on|derived from|implementation of)\b",
    re.IGNORECASE,
)
_CUT = re.compile(r"(?:^|[. ])[A-Z]\.?$|^.{1,2}$|\bDr$")
"""Ends of names that a full stop cut off."""
_CLAUSE = re.compile(r"\b(?:which|that|who|whose|being|to|where|when)\b|\(\s*$|\(announced|\(released")
_BE = re.compile(r"(?:\([^)]*\) )?(?:\S+ ){1,5}?(?:was|were|is|has been)(?: \w+ly)?(?: first)? $")
_REFERRING = re.compile(
    r"^(?:It|This|The (?:language|system|program|company|computer|machine|method|algorithm|protocol|project"
    r"|processor|standard|chip|product|game|software|editor|compiler|package|format|firm|first version))\b"
)


@dataclass(frozen=True)
class Statement(Passage):
    """`subject` has `value` in `relation`, says the quoted sentence."""

    subject: str
    relation: Relation
    value: str
    kind: Kind
    scope: str
    """Within which values may be compared: the package of a version, else empty."""


def sentences(text: str) -> Iterator[str]:
    """The prose sentences of a text without cross-reference braces and category marks, blanks squeezed."""
    for paragraph in re.split(r"\n\s*\n", text):
        flat = re.sub(r"[{}]", "", " ".join(paragraph.split()))
        for sentence in re.split(r"(?<=[a-z0-9)\"'][.!?])\s+(?=[A-Z(\"])", flat):
            yield sentence.strip()


@lru_cache(maxsize=20_000)
def statements(document: Document) -> tuple[Statement, ...]:
    """What the document says about its own subject, one value a relation; two different values leave the relation out."""
    found: dict[Relation, tuple[str, Kind, str] | None] = {}
    for relation, value, kind, quote in _read(document):
        if relation not in found:
            found[relation] = (value, kind, quote)
        elif (held := found[relation]) is not None and plain(held[0]) != plain(value):
            found[relation] = None
    scope = document.title.split(".")[0]
    return tuple(
        Statement(
            document.document_id,
            document.title,
            document.source,
            document.licence,
            held[2],
            short_title(document.title),
            relation,
            held[0],
            held[1],
            scope if relation == "added_in" else "",
        )
        for relation, held in found.items()
        if held is not None
    )


def _read(document: Document) -> Iterator[tuple[Relation, str, Kind, str]]:
    if " " not in document.title and "." in document.title:
        yield from _version(document)
        return
    body = document.text
    if (mark := re.search(r"<[\w ,/&-]+>", body[:400])) is not None:
        body = body[mark.end() :]
    opening = True
    for sentence in sentences(body):
        if len(sentence) < 15:
            continue
        about = opening or _names(sentence, document.title) or _REFERRING.match(sentence) is not None
        if about and len(sentence) < 500:
            yield from _prose(sentence, opening)
        opening = False


def _version(document: Document) -> Iterator[tuple[Relation, str, Kind, str]]:
    """The version of an API object: the directive that stands alone, outside the description of any one parameter."""
    found = [(m.group(1), m.start(), m.end()) for m in _ADDED.finditer(document.text)]
    if len(found) == 1 and document.text.count(".. version") == 1:
        value, start, end = found[0]
        line = document.text.rfind("\n", 0, start) + 1
        if start - line < 4 and "Parameters\n" not in document.text[:start] and "Returns\n" not in document.text[:start]:
            yield "added_in", value, "version", " ".join(document.text[max(0, start - 160) : end].split())


def _names(sentence: str, title: str) -> bool:
    return plain(sentence).startswith(plain(title) + " ")


def _prose(sentence: str, opening: bool) -> Iterator[tuple[Relation, str, Kind, str]]:
    """An opening sentence describes the subject up to the verb; in a later one the verb must follow `it was`."""

    def about(before: str) -> bool:
        free = _HEDGED.search(before) is None and _CLAUSE.search(before) is None
        return free and (_BE.fullmatch(before) is not None or (opening and ". " not in before))

    when = list(_WHEN.finditer(sentence))
    if len(when) == 1 and len(set(re.findall(r"(?<!\d)(?:1[89]|20)\d\d(?!\d)", sentence))) == 1:
        date = parse_date(when[0].group(2))
        if date is not None and 1700 <= date.year <= 2030 and about(sentence[: when[0].start()]) and not _HEDGED.search(when[0].group(1)):
            yield "introduced", str(date), "date", sentence
    by = list(_BY.finditer(sentence))
    if (
        len(by) == 1
        and _CUT.search(by[0].group(1)) is None
        and about(sentence[: by[0].start()])
        and " and " not in sentence[by[0].end() : by[0].end() + 6]
    ):
        yield "creator", by[0].group(1).rstrip("."), "name", sentence
    clock = list(_CLOCK.finditer(sentence))
    if (
        len(clock) == 1
        and sentence.count("Hz") == 1
        and parse_quantity(clock[0].group(1)) is not None
        and (opening or _REFERRING.match(sentence))
        and not _HEDGED.search(sentence[: clock[0].start()])
    ):
        yield "clock", clock[0].group(1), "quantity", sentence
