"""The gate: validate, attack, close what can be closed, decide. Whatever was found is kept, also of rejected tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from environments.errors import InfrastructureError
from environments.families import make_environment
from environments.hardening.attempt import MakeEnvironment
from environments.hardening.config import HardeningConfig
from environments.hardening.probe import probe
from environments.hardening.validate import validate
from environments.records import ProbeRow, ValidationRow
from environments.resources import Resources
from environments.task import TaskSpec

REPAIRS: dict[str, str] = {
    "brute_force_submit": "one submission",
    "work_after_finish": "one submission",
}
"""What closes an exploit. All others reject the task: hidden tests that the public examples answer, an answer that the prompt
states, or a constant function cannot be closed without writing another task."""


@dataclass(frozen=True)
class Decision:
    """What became of one task."""

    task: TaskSpec
    """As it may be published: the repaired one when it was repaired."""
    status: Literal["accepted", "rejected", "undecided"]
    stage: str
    """`validation`, `probe`, `duplicate` or `infrastructure`; empty when accepted."""
    reason: str
    validations: list[ValidationRow] = field(default_factory=list)
    probes: list[ProbeRow] = field(default_factory=list)
    repaired_from: str = ""
    """Task id before the repair, else empty. Rows of both versions are in the lists."""
    sandbox_calls: int = 0

    @property
    def accepted(self) -> bool:
        """True when the task may train a model."""
        return self.status == "accepted"


def gate(
    tasks: Iterable[TaskSpec], resources: Resources, config: HardeningConfig, make: MakeEnvironment = make_environment
) -> list[Decision]:
    """A decision a task, in order.

    A machine failure is tried once more and then leaves the task *undecided*: neither accepted nor rejected. The second of two
    tasks with one id is rejected as a duplicate.
    """
    decisions, seen = [], set()
    for task in tasks:
        if task.task_id in seen:
            decisions.append(Decision(task, "rejected", "duplicate", f"task {task.task_id} was already decided"))
            continue
        seen.add(task.task_id)
        decisions.append(_decide_twice(task, resources, config, make))
    return decisions


def _decide_twice(task: TaskSpec, resources: Resources, config: HardeningConfig, make: MakeEnvironment) -> Decision:
    try:
        return _decide(task, resources, config, make)
    except InfrastructureError:
        try:
            return _decide(task, resources, config, make)
        except InfrastructureError as error:
            return Decision(task, "undecided", "infrastructure", str(error))


def _decide(task: TaskSpec, resources: Resources, config: HardeningConfig, make: MakeEnvironment) -> Decision:
    calls = resources.pool.calls
    validations = validate(task, resources, config, make)
    if reason := _unsound(validations):
        return Decision(task, "rejected", "validation", reason, validations, sandbox_calls=resources.pool.calls - calls)
    probes = probe(task, resources, config, make)
    won = [p for p in probes if p.succeeded]
    repaired_from = ""
    if won and config.repair and task.budgets.submissions > 1 and all(p.exploit in REPAIRS for p in won):
        repaired_from = task.task_id
        task = task.model_copy(update={"budgets": task.budgets.model_copy(update={"submissions": 1})})
        task = TaskSpec.model_validate(task.model_dump())  # a fresh one: a copy would keep the cached id
        again = validate(task, resources, config, make)
        validations += again
        if reason := _unsound(again):
            return Decision(
                task, "rejected", "validation", f"after repair: {reason}", validations, probes, repaired_from, resources.pool.calls - calls
            )
        fresh = probe(task, resources, config, make)
        probes += fresh
        won = [p for p in fresh if p.succeeded]
    calls = resources.pool.calls - calls
    if won:
        reason = ", ".join(f"{p.exploit} ({p.exploit_class})" for p in won)
        return Decision(task, "rejected", "probe", f"hacked by {reason}", validations, probes, repaired_from, calls)
    return Decision(task, "accepted", "", "", validations, probes, repaired_from, calls)


def _unsound(validations: list[ValidationRow]) -> str:
    return ", ".join(f"{row.check_name} gave {row.observed} instead of {row.expected}" for row in validations if not row.ok)
