"""Facts that a document states and that can be checked: the defaults in a function's documented signature."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from environments.protocols import Document
from kg.concept import Passage

MAX_CHARS = 10
"""Longer values are expressions, not something to remember."""
FLAGS = frozenset({"None", "True", "False", "0", "1", "-1", "0.0", "1.0"})
"""Values so common that whoever guesses one of them is often right: they fill tables up, no task asks for them."""

_DEFAULT = re.compile(
    r"""(?<![\w.])([a-z][A-Za-z_]{1,19})(?:\s*:\s*[\w\[\], .|]+?)?"""  # a name, perhaps its annotation
    r"""\s*=\s*('[A-Za-z_\-]+'|-?\d+(?:\.\d*)?(?:e-?\d+)?|None|True|False)(?=\s*[,)\n])"""  # its default, up to the next parameter
)


@dataclass(frozen=True)
class Fact(Passage):
    """`parameter` of `title` defaults to `value` (as spelled, without quotes), says the quoted passage."""

    parameter: str
    value: str

    @property
    def integer(self) -> int | None:
        """The value as a whole number, when it is one."""
        return int(self.value) if self.value.lstrip("-").isdigit() else None


def defaults(document: Document) -> list[Fact]:
    """The plain defaults (numbers, words, flags) in the document's signature, which is its first paragraph."""
    signature = document.text.split("\n\n", 1)[0]
    if "(" not in signature or len(signature) > 4000:
        return []
    found: dict[str, str] = {}
    for name, value in _DEFAULT.findall(signature):
        found.setdefault(name, value.strip("'"))
    passage = " ".join(signature.split())[:600]
    return [
        Fact(document.document_id, document.title, document.source, document.licence, passage, name, value)
        for name, value in found.items()
        if len(value) <= MAX_CHARS
    ]


def askable(facts: Iterable[Fact]) -> list[Fact]:
    """Those whose value cannot well be guessed."""
    return [f for f in facts if f.value not in FLAGS]


def integers(facts: Iterable[Fact]) -> list[Fact]:
    """Those whose value is a whole number from 2 to 9,999."""
    return [f for f in facts if f.integer is not None and 2 <= f.integer <= 9_999]
