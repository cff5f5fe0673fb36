"""Dates of whichever precision: `1987`, `April 1987`, `1987-04-02`. A date answers another when it says as much and the same."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from dateutil import parser

_MONTH = (
    r"(?:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?"
    r"|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)"
)
_FORMS = re.compile(
    rf"\d{{4}}|\d{{4}}-\d{{1,2}}(?:-\d{{1,2}})?|\d{{4}}/\d{{1,2}}/\d{{1,2}}|{_MONTH}\.?,? \d{{4}}|\d{{4}} {_MONTH}"
    rf"|\d{{1,2}}(?:st|nd|rd|th)? (?:of )?{_MONTH}\.?,? \d{{4}}|{_MONTH}\.? \d{{1,2}}(?:st|nd|rd|th)?,? \d{{4}}|\d{{4}} {_MONTH} \d{{1,2}}",
    re.IGNORECASE,
)
"""Forms with one reading only: `03/04/2005` is no date here, since half the world reads it the other way."""


@dataclass(frozen=True, order=True)
class PartialDate:
    """A date to the precision that was stated: 0 for what was not."""

    year: int
    month: int = 0
    day: int = 0

    @property
    def precision(self) -> int:
        """1 a year, 2 a month, 3 a day."""
        return 1 + bool(self.month) + bool(self.day)

    def to(self, precision: int) -> PartialDate:
        """The same date, less precise."""
        return PartialDate(self.year, self.month if precision > 1 else 0, self.day if precision > 2 else 0)

    def __str__(self) -> str:
        return "-".join(f"{n:02d}" for n in (self.year, self.month, self.day)[: self.precision])


def parse_date(text: str) -> PartialDate | None:
    """The date that the whole text spells, as precise as it is; None when it spells none or leaves two readings."""
    text = re.sub(r"^(?:in|on|ca?\.?|circa|about)\s+", "", " ".join(text.split()), flags=re.IGNORECASE).rstrip(".")
    if _FORMS.fullmatch(text) is None:
        return None
    if text.isdigit():
        return PartialDate(int(text)) if int(text) else None
    try:  # what differs between two defaults was not stated
        one, two = (parser.parse(text.replace(" of ", " "), default=datetime(2000, month, month, tzinfo=UTC)) for month in (1, 2))
    except (ValueError, OverflowError):
        return None
    return PartialDate(one.year, one.month if one.month == two.month else 0, one.day if one.day == two.day else 0)


def same_date(got: str, expected: str) -> bool:
    """Whether `got` says the expected date, at least as precisely; what it says beyond that is not checked."""
    left, right = parse_date(got), parse_date(expected)
    return left is not None and right is not None and left.precision >= right.precision and left.to(right.precision) == right
