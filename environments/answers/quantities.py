"""Numbers with units, on pint: `1.5 kB` is `1500 bytes`, `2.5 MHz` is `2500 kHz`; `512` bare is no length at all."""

from __future__ import annotations

import functools
import re
from decimal import Decimal
from typing import Any

from environments.answers.numbers import parse_number

_SPLIT = re.compile(
    r"\s*([+-]?[\d.,_\u202f\u00a0]*\d(?:[eE][+-]?\d{1,3})?|[a-z-]+(?: [a-z-]+){0,5}?)"
    r"[\s-]*([A-Za-z\u00b5\u03bc%\u00b0\"][\w/^*\u00b5\u03bc\"\u00b0 -]{0,40})\s*\.?\s*"
)
_SPELLINGS = {
    "kb": "kilobyte", "KB": "kilobyte", "MB": "megabyte", "GB": "gigabyte", "TB": "terabyte", "kbytes": "kilobyte", "Kbytes": "kilobyte",
    "Mbytes": "megabyte", "Gbytes": "gigabyte", "bps": "bit/second", "kbps": "kilobit/second", "Kbps": "kilobit/second",
    "Mbps": "megabit/second", "Gbps": "gigabit/second", "kb/s": "kilobit/second", "Kb/s": "kilobit/second", "Mb/s": "megabit/second",
    "Gb/s": "gigabit/second", "KB/s": "kilobyte/second", "MB/s": "megabyte/second", "khz": "kilohertz", "mhz": "megahertz",
    "ghz": "gigahertz",
    "KHz": "kilohertz", "Khz": "kilohertz", "Mhz": "megahertz", "Ghz": "gigahertz", "in": "inch", '"': "inch",
    "sec": "second", "secs": "second", "Bits": "bit", "Bytes": "byte",
    "hours": "hour", "K": "kilobyte",
}  # fmt: skip
"""Spellings of computing's units that pint reads otherwise or not at all: `kb/s` is a bit rate, `KB` a thousand bytes."""
_KNOWN = re.compile(r"[A-Za-z]+(?:/[A-Za-z]+)?")


@functools.cache
def _registry() -> Any:
    import pint

    return pint.UnitRegistry(cache_folder=None)


@functools.lru_cache(maxsize=512)
def _unit(text: str) -> Any:
    spelled = _SPELLINGS.get(text, text).replace(" per ", "/")
    if _KNOWN.fullmatch(spelled) is None:
        return None
    try:
        return _registry().Unit(spelled)
    except Exception:  # noqa: BLE001 - pint raises its own, the tokenizer's and the parser's errors on text that is no unit
        return None


def parse_quantity(text: str) -> tuple[Decimal, Any] | None:
    """(number, unit) that the whole text spells; None when it is no number with a known unit."""
    match = _SPLIT.fullmatch(text.strip())
    if match is None or len(text) > 100:
        return None
    number, unit = parse_number(match.group(1)), _unit(match.group(2).strip())
    return None if number is None or unit is None else (number, unit)


def same_quantity(got: str, expected: str, relative: float = 1e-9) -> bool:
    """Whether both spell the same amount, in whichever units of the same dimension."""
    left, right = parse_quantity(got), parse_quantity(expected)
    if left is None or right is None or left[1].dimensionality != right[1].dimensionality:
        return False
    if _is_data(left[1]) != _is_data(right[1]):  # pint counts bits as dimensionless
        return False
    a = float(left[0]) * float(_registry().Quantity(1.0, left[1]).to_base_units().magnitude)
    b = float(right[0]) * float(_registry().Quantity(1.0, right[1]).to_base_units().magnitude)
    return abs(a - b) <= relative * abs(b)


def _is_data(unit: Any) -> bool:
    return "bit" in str(unit) or "byte" in str(unit)
