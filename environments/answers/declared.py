"""Where the answer stands in a submission: between the declared marks, after a last `Answer:`, or the whole text."""

from __future__ import annotations

import re

MAX_CHARS = 8_000
"""Longer submissions are not read: no declared answer needs as much, and no scorer should be handed more."""

_MARKED = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_LAST_LINE = re.compile(r"(?:^|\n)[ \t]*(?:the\s+)?(?:final\s+)?answer[ \t]*(?:is[ \t]*:?|:)[ \t]*([^\n]+?)[ \t]*\Z", re.IGNORECASE)


def declared_answer(text: str | None) -> str | None:
    """The one answer that a submission declares, without surrounding blanks.

    Returns:
        None when there is none: nothing was submitted, it is too long, or its marks hold different answers.
    """
    if not isinstance(text, str) or len(text) > MAX_CHARS or not text.strip():
        return None
    marked = {" ".join(found.split()): found.strip() for found in _MARKED.findall(text)}
    if marked:
        return next(iter(marked.values())) or None if len(marked) == 1 else None
    if "<answer>" in text.lower():
        return None  # never closed
    last = _LAST_LINE.search(text.rstrip())
    return last.group(1).strip() if last else text.strip()
