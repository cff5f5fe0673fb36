"""The stages of a run: what each needs, which part of the configuration and which code decide its result.

From these follow the cache keys: a stage is up to date when its record carries the key that its inputs, its configuration
and its code give today. Nothing here runs anything, so `--dry-run` reads the same truth as a run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from environments.errors import ConfigError
from environments.task import DOMAINS
from flows.config import RunConfig
from flows.steps.keys import stage_code, step_key
from flows.workspace import RunDirectory, StepRecord


@dataclass(frozen=True)
class Stage:
    """One stage. `sections` are configuration keys, dotted below the top; `code` is a key of `flows.steps.keys.CODE`."""

    name: str
    needs: tuple[str, ...]
    sections: tuple[str, ...]
    code: str
    says: str


def expert(domain: str, effort: str) -> str:
    """Name of an expert's stage."""
    return f"expert-{domain}-{effort}"


EXPERTS: tuple[tuple[str, str], ...] = tuple((d, e) for e in ("max", "high", "low") for d in DOMAINS)
"""The nine cells in training order: every `max` first, since `high` and `low` branch from an early checkpoint of it."""


_POLICY = ("seed", "training.policy", "training.rows")
_BEFORE = ("publish", "select", "cold_start", "budgets")
_TASKS = ("training.effort", "training.rl_tasks_per_domain")


def _stages() -> dict[str, Stage]:
    experts = [
        Stage(
            expert(domain, effort),
            _BEFORE if effort == "max" else (*_BEFORE, expert(domain, "max")),
            (*_POLICY, *_TASKS, "training.expert"),
            "training",
            f"train the {domain} expert at effort {effort}",
        )
        for domain, effort in EXPERTS
    ]
    nine = (*_BEFORE, *(stage.name for stage in experts))
    stages = [
        Stage("corpus", (), ("corpus",), "corpus", "index the documents"),
        Stage("grow", ("corpus",), ("seed", "graph"), "grow", "grow the concept graph"),
        Stage("synthesize", ("corpus", "grow"), ("seed", "synthesis"), "synthesize", "write candidate tasks"),
        Stage("validate", ("corpus", "synthesize"), ("hardening",), "validate", "check every task by execution"),
        Stage("probe", ("corpus", "synthesize", "validate"), ("hardening",), "probe", "try exploits on every valid task"),
        Stage("publish", ("grow", "synthesize", "validate", "probe"), ("seed", "dataset"), "publish", "split and publish the dataset"),
        Stage("select", ("publish",), ("selection",), "select", "choose the tasks of reinforcement learning"),
        Stage("cold_start", ("corpus", "publish"), (*_POLICY, "training.sft"), "training", "train the cold start"),
        Stage(
            "budgets",
            ("select", "cold_start"),
            (*_POLICY, *_TASKS, "training.evaluation.tasks_per_domain"),
            "training",
            "measure the effort budgets on the cold start",
        ),
        *experts,
        Stage("distill", nine, (*_POLICY, *_TASKS, "training.mopd"), "training", "distil nine experts into one student"),
        Stage("evaluate", (*nine, "distill"), (*_POLICY, *_TASKS, "training.evaluation"), "training", "evaluate on held-out tasks"),
    ]
    return {stage.name: stage for stage in stages}


STAGES: dict[str, Stage] = _stages()
GROUPS: dict[str, tuple[str, ...]] = {
    "grow": ("grow",),
    "synthesize": ("synthesize",),
    "validate": ("validate",),
    "probe": ("probe",),
    "publish": ("publish",),
    "train": ("cold_start", "budgets", *(expert(d, e) for d, e in EXPERTS)),
    "distill": ("distill",),
    "evaluate": ("evaluate",),
    "run": ("evaluate",),
}
"""What each command aims at; everything before it follows from `needs`."""


class Plan:
    """The stages of one run with their keys as of now."""

    def __init__(self, run: RunDirectory, config: RunConfig) -> None:
        self.run = run
        self.config = config
        self._fresh: dict[str, StepRecord] = {}
        """Records seen to be up to date; within one process they stay so."""

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return self.config.model_dump(mode="json")

    def _section(self, dotted: str) -> Any:
        value: Any = self._settings
        for part in dotted.split("."):
            value = value[part]
        return value

    def key(self, name: str) -> str | None:
        """The key a stage must have to be up to date; None while something it needs is not."""
        stage = _stage(name)
        needs: dict[str, str] = {}
        for needed in stage.needs:
            record = self.record(needed)
            if record is None:
                return None
            needs[needed] = record.content
        return step_key(name, {"config": {s: self._section(s) for s in stage.sections}, "needs": needs}, stage_code(stage.code))

    def record(self, name: str) -> StepRecord | None:
        """The stage's record if it is finished and up to date."""
        if name not in self._fresh:
            key = self.key(name)
            record = None if key is None else self.run.finished(name, key)
            if record is None:
                return None
            self._fresh[name] = record
        return self._fresh[name]

    def result(self, name: str) -> dict[str, Any]:
        """The figures of a finished stage.

        Raises:
            ConfigError: it is not finished.
        """
        record = self.record(name)
        if record is None:
            raise ConfigError(f"the stage {name} of run {self.run.name!r} is not finished", "run it with --resume")
        return record.result

    def closure(self, targets: Iterable[str]) -> list[str]:
        """The targets and everything before them, in the order they run."""
        wanted: set[str] = set()

        def visit(name: str) -> None:
            if name not in wanted:
                for needed in _stage(name).needs:
                    visit(needed)
                wanted.add(name)

        for target in targets:
            visit(target)
        return [name for name in STAGES if name in wanted]

    def todo(self, targets: Iterable[str]) -> list[tuple[Stage, bool]]:
        """Every stage on the way to the targets, with True when it is up to date."""
        return [(STAGES[name], self.record(name) is not None) for name in self.closure(targets)]


def _stage(name: str) -> Stage:
    if name not in STAGES:
        raise ConfigError(f"there is no stage {name!r}", f"use one of: {', '.join(STAGES)}")
    return STAGES[name]
