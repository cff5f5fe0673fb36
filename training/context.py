"""What every training stage is handed: where to read, where to write, with which settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from environments.errors import CorruptArtifactError, InputError
from environments.files import replacing
from environments.harness.config import HarnessConfig
from environments.harness.presets import PRESETS
from environments.harness.sampler import HarnessSampler
from environments.harness.xtml import Xtml
from environments.records import CallRow, HarnessRow, RewardRow, RolloutRow, Row, SegmentRow, SubagentRow
from environments.resources import Resources
from environments.tables import R, write_rows
from environments.task import Domain, Effort, TaskSpec, canonical_json
from environments.trace_rows import harness_row, trace_rows
from tasks import dataset
from training.checkpoint import read_state
from training.config import TrainingConfig
from training.rollout import Rollout
from training.tokenizer import XtmlTokenizer

DONE = "done.json"


@dataclass
class StageContext:
    """One run's folders and settings. Stages write below `run_dir/training`, tables below `run_dir/tables`."""

    run_dir: Path
    config: TrainingConfig
    resources: Resources
    executor: Executor | None = None

    @property
    def harness(self) -> HarnessConfig:
        """The harness of cold start and evaluation."""
        return PRESETS[self.config.harness.presets[0]]

    def harness_for(self, *group: object) -> HarnessConfig:
        """The harness of a task group; the same whenever it is asked for."""
        return self._harnesses.draw("-".join(map(str, group)))

    @cached_property
    def _harnesses(self) -> HarnessSampler:
        return self.config.harness.sampler(self.config.seed)

    @property
    def run(self) -> str:
        return self.run_dir.name

    def stage_dir(self, stage: str) -> Path:
        """Folder of a stage such as `cold_start`, `expert-coding-max`, `student`."""
        return self.run_dir / "training" / stage

    @cached_property
    def tokenizer(self) -> XtmlTokenizer:
        """The run's tokenizer, which the cold start trains."""
        return XtmlTokenizer.load(self.stage_dir("cold_start") / "tokenizer")

    @cached_property
    def codec(self) -> Xtml:
        return Xtml(self.tokenizer)

    def tasks(self, split: str, domain: Domain | None = None) -> list[TaskSpec]:
        """Published tasks, in a stable order.

        Raises:
            InputError: there are none.
        """
        found = sorted(dataset.load(self.run_dir / "dataset", split=split, domain=domain), key=lambda t: t.task_id)
        if not found:
            raise InputError(
                f"the dataset has no {split} tasks for {domain or 'any domain'}", "grow more nodes or synthesise more tasks a node"
            )
        return found

    def selected(self, domain: Domain) -> list[TaskSpec]:
        """The training tasks that RL uses: those that the run's stored catalogue query chose, else all."""
        path = self.run_dir / "training" / "selection.json"
        wanted: set[str] | None = set(json.loads(path.read_text())["task_ids"]) if path.exists() else None
        found = [t for t in self.tasks("train", domain) if wanted is None or t.task_id in wanted]
        by_level: dict[int, list[TaskSpec]] = {}
        for task in found:
            by_level.setdefault(task.level, []).append(task)
        share = self.config.rl_tasks_per_domain // max(len(by_level), 1)
        return [t for level in sorted(by_level) for t in by_level[level][:share]]

    def checkpoint(self, stage: str) -> Path:
        """The sealed weights of a finished stage.

        Raises:
            InputError: the stage has not finished.
        """
        if not self.finished(stage):
            raise InputError(f"stage {stage} has not finished", "run it first, or resume the run")
        return self.stage_dir(stage) / "final"

    def finished(self, stage: str) -> bool:
        return (self.stage_dir(stage) / DONE).exists()

    def done(self, stage: str) -> dict[str, Any]:
        """What a finished stage reported."""
        try:
            return dict(json.loads((self.stage_dir(stage) / DONE).read_text()))
        except (OSError, ValueError) as error:
            raise CorruptArtifactError(f"{stage}/{DONE} cannot be read", "delete it and resume the run") from error

    def seal(self, stage: str, result: dict[str, Any]) -> dict[str, Any]:
        """Mark a stage finished; written last."""
        with replacing(self.stage_dir(stage) / DONE) as part:
            part.write_text(json.dumps(result, indent=1))
        return result

    def checkpoint_id(self, stage: str) -> str:
        return str(read_state(self.checkpoint(stage))["checkpoint_id"])

    def write_rollouts(
        self,
        part: str,
        stage: str,
        step: int,
        rollouts: Sequence[Rollout],
        *,
        policy: str,
        checkpoint: str,
        teachers: Sequence[str] | None = None,
        budgets: Sequence[float] | None = None,
    ) -> None:
        """Write a table part with these episodes, transcripts and evidence included."""
        rows = []
        for i, r in enumerate(rollouts):
            job, verdict = r.job, r.verdict
            rows.append(
                RolloutRow(
                    run=self.run,
                    trajectory_id=job.trajectory_id,
                    task_id=job.task.task_id,
                    stage=stage,
                    policy=policy,
                    checkpoint_id=checkpoint,
                    domain=job.task.domain,
                    effort=job.effort or "",
                    step=step,
                    teacher=teachers[i] if teachers else "",
                    stop=r.stop,
                    output_tokens=r.output_tokens,
                    thinking_tokens=r.thinking_tokens,
                    tool_calls=r.tool_calls,
                    malformed_calls=r.malformed_calls,
                    status=verdict.status if verdict else "infrastructure",
                    score=verdict.score if verdict else None,
                    evidence=canonical_json(verdict.evidence) if verdict else "",
                    within_budget=None if budgets is None else r.effort_tokens <= budgets[i],
                    transcript=self.codec.transcript(r.tokens),
                    harness_sha256=job.harness.sha256,
                    wall_s=r.wall_s,
                )
            )
        found = trace_rows(self.run, [r.trace(policy, teachers[i] if teachers else None) for i, r in enumerate(rollouts)])
        self._write(part, SegmentRow, found.segments)
        self._write(part, CallRow, found.calls)
        if found.subagents:
            self._write(part, SubagentRow, found.subagents)
        for sha256, harness in {r.job.harness.sha256: r.job.harness for r in rollouts}.items():
            if not self._part(HarnessRow, sha256).exists():  # the same at every step
                self._write(sha256, HarnessRow, [harness_row(self.run, harness)])
        self._write(part, RolloutRow, rows)  # last: who finds an episode finds all of it

    def _part(self, model: type[Row], part: str) -> Path:
        return self.run_dir / "tables" / model.TABLE / f"{part}.parquet"

    def _write(self, part: str, model: type[R], rows: Sequence[R]) -> None:
        write_rows(self._part(model, part), model, rows)

    def write_rewards(self, part: str, rows: Sequence[RewardRow]) -> None:
        self._write(part, RewardRow, rows)


def expert_stage(domain: Domain, effort: Effort) -> str:
    """Stage name of an expert."""
    return f"expert-{domain}-{effort}"
