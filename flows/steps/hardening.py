"""Shards of validation and of exploit probes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from environments.hardening import HardeningConfig, probe, validate
from environments.records import ProbeRow, Row, ValidationRow
from environments.resources import Resources
from environments.tables import write_rows
from environments.task import TaskSpec
from flows.steps.candidates import read_candidates, resources, specs
from flows.steps.shards import StepOutput
from flows.workspace import RunDirectory

R = TypeVar("R", bound=Row)


def validate_shard(run: RunDirectory, step: str, corpus: str, task_ids: list[str], config: dict[str, Any]) -> StepOutput:
    """Every check on every task of the shard."""
    rows = _each(run, corpus, task_ids, config, validate)
    named = [row.model_copy(update={"run": run.name}) for row in rows]
    bad = Counter(row.task_id for row in named if not row.ok)
    return StepOutput((write_rows(run.part(ValidationRow.TABLE, step), ValidationRow, named),), {"tasks": len(task_ids), "valid": len(task_ids) - len(bad)})


def probe_shard(run: RunDirectory, step: str, corpus: str, task_ids: list[str], config: dict[str, Any]) -> StepOutput:
    """Every exploit on every task of the shard."""
    rows = _each(run, corpus, task_ids, config, probe)
    named = [row.model_copy(update={"run": run.name}) for row in rows]
    hacked = {row.task_id for row in named if row.succeeded}
    return StepOutput((write_rows(run.part(ProbeRow.TABLE, step), ProbeRow, named),), {"tasks": len(task_ids), "hacked": len(hacked)})


def _each(
    run: RunDirectory, corpus: str, task_ids: Sequence[str], config: dict[str, Any], check: Callable[[TaskSpec, Resources, HardeningConfig], Sequence[R]]
) -> list[R]:
    wanted = set(task_ids)
    tasks = specs([row for row in read_candidates(run) if row.task_id in wanted])
    parsed = HardeningConfig.model_validate(config)
    with resources(run, corpus) as shared:
        return [row for task in tasks for row in check(task, shared, parsed)]
