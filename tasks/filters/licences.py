"""Licences of the passages that a task was written from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

PERMISSIVE: tuple[str, ...] = (
    "0BSD",
    "Apache License 2.0",
    "Apache Software License",
    "Apache-2.0",
    "BSD License",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC-BY-4.0",
    "CC-BY-SA-4.0",
    "CC0-1.0",
    "GFDL-1.1-or-later",
    "GFDL-1.3-or-later",
    "ISC",
    "LLVM-exception",
    "MIT",
    "MIT License",
    "MPL-2.0",
    "PSF-2.0",
    "Python-2.0",
    "Unlicense",
    "Zlib",
)
"""Licences that allow a quoted passage to be passed on with its source named."""
_JOINED = re.compile(r"\s*;\s*|\s+AND\s+|\s+WITH\s+", re.I)
_CHOICE = re.compile(r"\s+OR\s+", re.I)


def refused(licences: Iterable[str], allowed: Sequence[str]) -> str:
    """The first licence that is not allowed, or `none is known`; empty when all are.

    SPDX expressions: every part of an AND must be allowed, and one part of an OR.
    """
    known = {name.casefold() for name in allowed}
    found = list(licences)
    if not found:
        return "none is known"
    for licence in found:
        for part in _JOINED.split(licence.replace("(", " ").replace(")", " ").strip()):
            if not any(choice.strip().casefold() in known for choice in _CHOICE.split(part)):
                return f"{part.strip() or 'unknown'!r:.80} is not among those allowed"
    return ""
