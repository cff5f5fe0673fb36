"""Numbers as people spell them: thousands separators, percent, scientific notation, magnitudes and English words."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation

_GROUPED = re.compile(r"[+-]?\d{1,3}(?:([,_'\u2019\u00a0\u202f ])\d{3})(?:\1\d{3})*(?:\.\d+)?(?:e[+-]?\d{1,3})?")
_PLAIN = re.compile(r"[+-]?(?:\d{1,60}(?:\.\d{0,60})?|\.\d{1,60})(?:e[+-]?\d{1,3})?")
_POWER = re.compile(r"([+-]?\d[\d.]*)\s*(?:x|\*|\u00d7)\s*10\s*(?:\^|\*\*)\s*([+-]?\d{1,3})")
_UNITS = dict(
    zip(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ],
        range(20),
        strict=True,
    )
)
_TENS = dict(zip(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"], range(20, 100, 10), strict=True))
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}


def parse_number(text: str) -> Decimal | None:
    """The one number that the whole text spells; a percentage is a hundredth of it. None when it spells none.

    `1,234.5`, `1 234`, `1_234`, `1.2e3`, `1.2 x 10^3`, `12%`, `3.5 million`, `twenty-one`, `minus two hundred and five`.
    A comma before other than three digits is no separator: `1,5` is not a number here.
    """
    text = text.strip().strip("$\u20ac\u00a3~").strip().lower().replace("\u2212", "-")
    if len(text) > 200:
        return None
    for suffix in ("%", "percent", "per cent"):
        if text.endswith(suffix):
            number = parse_number(text[: -len(suffix)])
            return None if number is None else number / 100
    if (power := _POWER.fullmatch(text)) is not None and (base := _digits(power.group(1))) is not None:
        return base.scaleb(int(power.group(2)))
    if (number := _digits(text)) is not None:
        return number
    head, _, scale = text.rpartition(" ")
    if scale in _SCALES and (number := _digits(head.strip())) is not None:
        return number * _SCALES[scale]
    return _words(text)


def same_number(left: Decimal, right: Decimal, relative: float = 0.0) -> bool:
    """Equal, or within a share of the right one."""
    return left == right or abs(left - right) <= abs(right) * Decimal(str(relative))


def _digits(text: str) -> Decimal | None:
    if (grouped := _GROUPED.fullmatch(text)) is not None:
        text = text.replace(grouped.group(1), "")
    if not text.isascii() or _PLAIN.fullmatch(text) is None:
        return None
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _words(text: str) -> Decimal | None:
    sign = 1
    for minus in ("minus ", "negative "):
        if text.startswith(minus):
            sign, text = -1, text[len(minus) :]
    total = current = 0
    last = ""  # what came before: rules out `two three` and `twenty thirty`
    words = [w for w in re.split(r"[\s-]+", text) if w]
    if not words or words[0] == "and" or words[-1] == "and":
        return None
    for word in words:
        if word == "and":
            kind = last
        elif word in _UNITS:
            kind = "unit"
            if last == "unit" or (last == "tens" and not 1 <= _UNITS[word] <= 9):
                return None
            current += _UNITS[word]
        elif word in _TENS:
            kind = "tens"
            if last in ("unit", "tens"):
                return None
            current += _TENS[word]
        elif word == "hundred":
            kind = "hundred"
            if not 1 <= current <= 9:
                return None
            current *= 100
        elif word in _SCALES:
            kind = "scale"
            if not current or (total and _SCALES[word] >= total):
                return None
            total, current = total + current * _SCALES[word], 0
        else:
            return None
        last = kind
    return Decimal(sign * (total + current))
