"""The declared form of an answer, and how well a submission fills it."""

from __future__ import annotations

import re
from typing import Literal, Self

from pydantic import Field, model_validator

from environments.answers.dates import parse_date, same_date
from environments.answers.names import plain, same_name
from environments.answers.numbers import parse_number, same_number
from environments.answers.quantities import parse_quantity, same_quantity
from environments.task import Frozen

Kind = Literal["number", "quantity", "date", "name", "version", "text", "boolean"]
Shape = Literal["one", "set", "list"]
MAX_ITEMS = 200
_BOOLEANS = {"yes": True, "true": True, "no": False, "false": False}
_VERSION = re.compile(r"(?:version\s+|v)?(\d+(?:\.\d+)*)(?:\s*|-)?((?:a|b|rc|alpha|beta|dev)[\d.]*)?")


class AnswerForm(Frozen):
    """What is accepted. `values` has one item for `one`; each item lists its spellings, the preferred one first."""

    kind: Kind
    shape: Shape = "one"
    values: tuple[tuple[str, ...], ...] = Field(min_length=1, max_length=MAX_ITEMS)
    tolerance: float = Field(default=0.0, ge=0, le=0.2)
    """Relative, for numbers and quantities."""
    partial: bool = False
    """Whether a set or list that is right in part scores in part; it never passes."""

    @model_validator(mode="after")
    def _reads(self) -> Self:
        if self.shape == "one" and len(self.values) != 1:
            raise ValueError(f"one answer is declared, {len(self.values)} are given")
        for spellings in self.values:
            if not spellings or not all(self._valid(s) for s in spellings):
                raise ValueError(f"{spellings!r:.80} does not read as {self.kind}")
        return self

    def _valid(self, text: str) -> bool:
        read = {"number": parse_number, "quantity": parse_quantity, "date": parse_date}.get(self.kind)
        if self.kind == "boolean":
            return text.lower() in _BOOLEANS
        if self.kind == "version":
            return version(text) is not None
        return bool(plain(text)) if read is None else read(text) is not None

    def same(self, got: str, expected: str) -> bool:
        """Whether one item answers another."""
        got = got.strip().strip("\"'`*").strip()
        if not got or len(got) > 300:
            return False
        if self.kind == "number":
            left, right = parse_number(got), parse_number(expected)
            return left is not None and right is not None and same_number(left, right, self.tolerance)
        if self.kind == "quantity":
            return same_quantity(got, expected, max(self.tolerance, 1e-9))
        if self.kind == "date":
            return same_date(got, expected)
        if self.kind == "boolean":
            read = _BOOLEANS.get(got.rstrip(".").lower())
            return read is not None and read == _BOOLEANS[expected.lower()]
        if self.kind == "version":
            return (read_version := version(got)) is not None and read_version == version(expected)
        if self.kind == "name":
            return same_name(got, expected)
        return plain(got) == plain(expected)

    def items(self, answer: str) -> list[str]:
        """The submission's items: split at semicolons or lines where there are any, else at commas (of names: not `Last, First`)."""
        if self.shape == "one":
            return [answer]
        text = answer.strip().strip("[](){}")
        found = re.split(r"[;\n]", text) if re.search(r"[;\n]", text.strip()) else re.split(r",(?!\d{3}(?!\d))|\band\b", text)
        return [re.sub(r"^\s*(?:[-*•]|\d{1,3}[.)])\s+", "", item).strip() for item in found if item.strip()]

    def score(self, answer: str) -> tuple[float, int]:
        """(score in [0, 1], items given). Each expected item counts once; F1 where partial credit is declared."""
        given = self.items(answer)
        if not given or len(given) > 2 * MAX_ITEMS:
            return 0.0, len(given)
        if self.shape == "list":
            hits = sum(any(self.same(g, s) for s in spellings) for g, spellings in zip(given, self.values, strict=False))
        else:
            left = list(given)
            hits = 0
            for spellings in self.values:
                found = next((i for i, g in enumerate(left) if any(self.same(g, s) for s in spellings)), None)
                if found is not None:
                    del left[found]
                    hits += 1
        if hits == len(self.values) == len(given):
            return 1.0, len(given)
        return (min(2 * hits / (len(given) + len(self.values)), 0.99) if self.partial else 0.0), len(given)


def version(text: str) -> tuple[tuple[int, ...], str] | None:
    """A version's numbers without zeros at the end, and its pre-release part; `v1.4.0` is `1.4`."""
    match = _VERSION.fullmatch(text.strip().lower())
    if match is None or len(text) > 40:
        return None
    numbers = [int(n) for n in match.group(1).split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers), match.group(2) or ""
