"""Shards of validation and of exploit probes, with the repair of what a probe can close."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from environments.errors import InfrastructureError
from environments.hardening import HardeningConfig, gate, probe, validate
from environments.hardening.gate import REPAIRS
from environments.records import ProbeRow, TaskRow, ValidationRow
from environments.tables import read_rows, write_rows
from environments.task import TaskSpec
from flows.steps.candidates import read_candidates, resources, specs, task_row
from flows.steps.shards import StepOutput
from flows.workspace import RunDirectory

log = logging.getLogger(__name__)

T = TypeVar("T")
UNDECIDED_SHARE = 0.05
"""Share of a shard's tasks that machine failures may leave undecided; beyond it the machine is at fault and the shard fails."""
REPAIRED = "repaired.parquet"


def validate_shard(run: RunDirectory, step: str, corpus: str, task_ids: list[str], config: dict[str, Any]) -> StepOutput:
    """Every check on every task of the shard."""
    settings = HardeningConfig.model_validate({**config, "run": run.name})
    with resources(run, corpus) as shared:
        found = _each(_tasks(run, task_ids), lambda task: validate(task, shared, settings))
    rows = [row for _, rows in found for row in rows]
    valid = sum(all(row.ok for row in rows) for _, rows in found)
    part = write_rows(run.part(ValidationRow.TABLE, step), ValidationRow, rows)
    return StepOutput((part,), {"tasks": len(task_ids), "valid": valid, "undecided": len(task_ids) - len(found)})


def probe_shard(run: RunDirectory, step: str, corpus: str, task_ids: list[str], config: dict[str, Any]) -> StepOutput:
    """Every exploit on every task of the shard. A task whose only exploits can be closed is repaired, and checked again as a whole."""
    settings = HardeningConfig.model_validate({**config, "run": run.name})
    validations: list[ValidationRow] = []
    repaired: list[TaskRow] = []
    with resources(run, corpus) as shared:

        def attack(task: TaskSpec) -> list[ProbeRow]:
            rows = probe(task, shared, settings)
            won = [row.exploit for row in rows if row.succeeded]
            if not (won and settings.repair and task.budgets.submissions > 1 and all(name in REPAIRS for name in won)):
                return rows
            decision = gate([task], shared, settings)[0]
            if not decision.accepted:
                return rows
            validations.extend(row for row in decision.validations if row.task_id == decision.task.task_id)
            repaired.append(task_row(run.name, decision.task))
            return rows + [row for row in decision.probes if row.task_id == decision.task.task_id]

        found = _each(_tasks(run, task_ids), attack)
    rows = [row for _, rows in found for row in rows]
    outputs = [
        write_rows(run.part(ProbeRow.TABLE, step), ProbeRow, rows),
        write_rows(run.part(ValidationRow.TABLE, step), ValidationRow, validations),
        write_rows(run.stages / step / REPAIRED, TaskRow, repaired),
    ]
    hacked = {row.task_id for row in rows if row.succeeded}
    figures = {"tasks": len(task_ids), "hacked": len(hacked), "repaired": len(repaired), "undecided": len(task_ids) - len(found)}
    return StepOutput(tuple(outputs), figures)


def read_repaired(run: RunDirectory, outputs: Sequence[str]) -> list[TaskRow]:
    """The repaired tasks among the outputs (relative paths) of the probe stage."""
    return [row for path in outputs if Path(path).name == REPAIRED for row in read_rows(run.root / path, TaskRow)]


def _tasks(run: RunDirectory, task_ids: Sequence[str]) -> list[TaskSpec]:
    wanted = set(task_ids)
    return specs([row for row in read_candidates(run) if row.task_id in wanted])


def _each(tasks: Sequence[TaskSpec], check: Callable[[TaskSpec], T]) -> list[tuple[TaskSpec, T]]:
    """The outcome of each task that the machine let us decide; a failing machine is asked twice.

    Raises:
        InfrastructureError: more than `UNDECIDED_SHARE` of the tasks (and more than one) stay undecided.
    """
    found: list[tuple[TaskSpec, T]] = []
    undecided = 0
    for task in tasks:
        for attempt in (1, 2):
            try:
                found.append((task, check(task)))
                break
            except InfrastructureError as error:
                log.warning("%s: %s", task.task_id, error)
                if attempt == 2:
                    undecided += 1
                    if undecided > max(1, UNDECIDED_SHARE * len(tasks)):
                        raise
    return found
