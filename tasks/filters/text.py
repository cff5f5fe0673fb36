"""What of a task is compared: its prompt and the state it starts from, as words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from environments.task import TaskSpec, canonical_json

_WORD = re.compile(r"\w+(?:[.\-]\w+)*")


def words(text: str) -> list[str]:
    """Case-folded words; a dotted name or a decimal number is one."""
    return _WORD.findall(text.casefold())


def prompt_words(task: TaskSpec) -> list[str]:
    """Words of what the user says."""
    return words(" ".join(m.content for m in task.prompt))


def state_words(task: TaskSpec) -> list[str]:
    """Words of the files and tables that an episode starts from; the world's seed is no content."""
    return words(canonical_json({"files": task.initial_state.files, "tables": task.initial_state.tables}))


def shingles(tokens: list[str], width: int) -> set[str]:
    """Runs of `width` words; a shorter text is one run."""
    return {" ".join(tokens[i : i + width]) for i in range(max(1, len(tokens) - width + 1))} if tokens else set()


def shares(sets: Iterable[set[str]]) -> dict[str, int]:
    """In how many sets each shingle is."""
    count: dict[str, int] = {}
    for one in sets:
        for shingle in one:
            count[shingle] = count.get(shingle, 0) + 1
    return count
