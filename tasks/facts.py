"""Facts that a document states and that can be checked: integer defaults in a function's documented signature."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from environments.protocols import Document

MIN_VALUE, MAX_VALUE = 2, 9_999
"""What a task may ask for: 0 and 1 are mostly flags; longer numbers are hash primes and memory sizes."""

_DEFAULT = re.compile(r"(?<![\w.])([a-z][A-Za-z_]{2,19})(?:\s*:\s*[\w\[\], .|]+?)?\s*=\s*(\d{1,5})(?=\s*[,)\n])")


@dataclass(frozen=True)
class Fact:
    """`parameter` of `title` defaults to `value`, says `passage` of the document."""

    title: str
    parameter: str
    value: int
    document_id: str
    passage: str
    source: str
    licence: str


def askable(facts: Iterable[Fact]) -> list[Fact]:
    """Those whose value is worth asking for."""
    return [f for f in facts if f.value >= MIN_VALUE]


def integer_defaults(document: Document) -> list[Fact]:
    """The integer defaults, flags included, in the document's signature, which is its first paragraph. No signature gives none."""
    signature = document.text.split("\n\n", 1)[0]
    if "(" not in signature or len(signature) > 4000:
        return []
    found: dict[str, int] = {}
    for name, value in _DEFAULT.findall(signature):
        if int(value) <= MAX_VALUE:
            found.setdefault(name, int(value))
    return [Fact(document.title, name, value, document.document_id, " ".join(signature.split())[:600], document.source, document.licence) for name, value in found.items()]
