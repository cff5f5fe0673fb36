"""Where a trace comes from: a file that holds one as JSON, or the tables of a run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from environments.errors import CorruptArtifactError, InputError
from environments.harness.xtml import Xtml
from environments.records import CallRow, RewardRow, RolloutRow, SegmentRow, SubagentRow
from environments.trace import Trace
from environments.trace_rows import TraceRows, read_trace
from flows.workspace import RunDirectory
from tasks import catalog_queries as ask
from tasks.catalog import load_run
from training.tokenizer import XtmlTokenizer

Spell = Callable[[Sequence[int]], list[str]]
"""Texts of tokens, one each."""


@dataclass(frozen=True)
class Found:
    """A trace with what is known around it."""

    trace: Trace
    where: str
    task: str = ""
    """Kind and level of the task, where its row is at hand."""
    reward: RewardRow | None = None
    spell: Spell | None = None
    """None where the tokenizer is not at hand."""
    harness: dict[str, Any] = field(default_factory=dict)


def find_trace(wanted: str, run: RunDirectory | None, tokenizer: Path | None = None) -> Found:
    """The trace that `wanted` names.

    Args:
        wanted: a JSON file of a Trace; or an episode of `run` by its id or the beginning of it, or `best` or `worst`.
        tokenizer: folder of the tokenizer; a run's own is known.

    Raises:
        InputError: nothing is named so, or more than one episode.
        CorruptArtifactError: the file or the rows are no whole trace.
    """
    file = Path(wanted)
    if file.suffix == ".json" or file.is_file():
        return Found(_from_file(file), str(file), spell=_speller(tokenizer))
    if run is None:
        raise InputError(f"there is no file {wanted!r:.80}", "name a trace's JSON file, or an episode with --name RUN")
    with load_run(run.root, skip_corrupt=True) as connection:
        rollout = _rollout(ask.episodes_named(connection, wanted), wanted, run.name)
        key = rollout.trajectory_id
        rows = TraceRows(
            ask.rows_of_episode(connection, SegmentRow, key),
            ask.rows_of_episode(connection, CallRow, key),
            ask.rows_of_episode(connection, SubagentRow, key),
        )
        rewards = ask.rows_of_episode(connection, RewardRow, key)
        task, harness = ask.around_episode(connection, rollout)
    return Found(
        read_trace(rollout, rows),
        f"run {run.name}, {rollout.stage}" + (f", step {rollout.step}" if rollout.step >= 0 else ""),
        task,
        rewards[0] if rewards else None,
        _speller(tokenizer or run.training / "cold_start" / "tokenizer"),
        json.loads(harness or "{}"),
    )


def _from_file(file: Path) -> Trace:
    try:
        return Trace.model_validate_json(file.read_bytes())
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror})", "name a JSON file that holds a trace") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CorruptArtifactError(f"{file} holds no trace: {where}: {first['msg']}", "write it with Trace.model_dump_json()") from error


def _rollout(rows: list[RolloutRow], wanted: str, run: str) -> RolloutRow:
    if not rows:
        raise InputError(
            f"run {run!r} has no episode {wanted!r:.60}", "take an id from `ninefold catalog --query 'select trajectory_id from episodes'`"
        )
    if len(rows) > 1 and rows[0].trajectory_id != wanted:
        known = ", ".join(r.trajectory_id for r in rows)
        raise InputError(f"several episodes of run {run!r} begin with {wanted!r:.60}", f"write more: {known}")
    return rows[0]


def _speller(folder: Path | None) -> Spell | None:
    if folder is None or not (folder / "xtml.json").is_file():
        return None
    codec = Xtml(XtmlTokenizer.load(folder))
    return lambda ids: [codec.transcript([i]) for i in ids]
