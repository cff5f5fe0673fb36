"""Who else says so: passages of other documents that state the same, near-copies left out."""

from __future__ import annotations

import re

from environments.answers.dates import parse_date
from environments.answers.names import plain
from environments.protocols import SearchSource
from kg.concept import Passage
from tasks.kinds.knowledge.statements import Statement, sentences

NEEDED = 2
"""Independent passages behind an answer that is not computed."""
HITS = 12
COPIED = 0.5
"""Share of the shorter passage's word triples in the other from which one was copied from the other."""


def near_copy(left: str, right: str) -> bool:
    """Whether one passage was copied from the other; passages under three words are compared whole."""
    a, b = _triples(left), _triples(right)
    return not a or not b or len(a & b) >= COPIED * min(len(a), len(b))


def independent_passages(statement: Statement, source: SearchSource, limit: int = 4) -> list[Passage]:
    """The statement and passages of other documents whose one sentence names subject and value, no two of them near-copies."""
    found: list[Passage] = [statement]
    value = _spelled(statement)
    subject = re.compile(rf"(?<!\w){re.escape(plain(statement.subject))}(?!\w)")
    for hit in source.search(f"{statement.subject} {statement.value}", HITS):
        if len(found) >= limit or any(hit.document_id == p.document_id for p in found):
            continue
        document = source.open(hit.document_id)
        for sentence in sentences(document.text):
            text = plain(sentence)
            if len(sentence) < 500 and subject.search(text) and value.search(text) and not any(near_copy(sentence, p.quote) for p in found):
                found.append(Passage.of(document, sentence))
                break
    return found


def _spelled(statement: Statement) -> re.Pattern[str]:
    date = parse_date(statement.value) if statement.kind == "date" else None
    return re.compile(rf"(?<!\w){re.escape(str(date.year) if date else plain(statement.value))}(?!\w)")


def _triples(text: str) -> set[tuple[str, ...]]:
    words = plain(text).split()
    return {tuple(words[i : i + 3]) for i in range(len(words) - 2)}
