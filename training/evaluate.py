"""Sampled pass@1 within budgets, with bootstrap intervals over tasks.

One set of episodes serves every effort's budget where the policy was shown no effort; passes count only within the budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from environments.harness.loop import run_messages
from environments.records import EvaluationRow
from environments.tables import read_rows, write_rows
from environments.task import DOMAINS, EFFORTS, Domain, Effort, TaskSpec
from training import trivial
from training.context import StageContext, expert_stage
from training.effort import Budget0, budget
from training.engine.embedded import EmbeddedEngine
from training.expert import load_budgets, stable_seed
from training.model import Llama
from training.rollout import Job, Rollout, sample


@dataclass(frozen=True)
class Score:
    """One episode's figures."""

    task: TaskSpec
    passed: bool
    output_tokens: int
    effort_tokens: int


def held_out(context: StageContext, domain: Domain, count: int) -> list[TaskSpec]:
    """The held-out tasks that are evaluated: an equal share of each level, in a stable order."""
    found = context.tasks("heldout", domain)
    levels = sorted({t.level for t in found})
    share = max(1, count // len(levels))
    return [t for level in levels for t in [t for t in found if t.level == level][:share]]


def play(context: StageContext, model: Llama, tasks: Sequence[TaskSpec], samples: int, effort: Effort | None, label: str) -> list[Rollout]:
    """Sample every task `samples` times; episodes whose infrastructure failed are left out."""
    engine = EmbeddedEngine(model, rows=context.config.rows)
    jobs = [
        Job(
            f"{label}-{effort or 'any'}-{t.task_id}-{k}",
            t,
            stable_seed(context.config.seed, label, effort, t.task_id, k),
            effort=effort,
            harness=context.harness,
        )
        for t in tasks
        for k in range(samples)
    ]
    rollouts = sample(engine, jobs, context.resources, context.codec)
    return sorted((r for r in rollouts if r.verdict is not None), key=lambda r: r.job.trajectory_id)


def interval(passes: Sequence[float], tasks: Sequence[str], draws: int, seed: int) -> tuple[float, float]:
    """95% percentile bootstrap of the mean, resampling tasks (the samples of a task are not independent)."""
    by_task: dict[str, list[float]] = {}
    for value, task in zip(passes, tasks, strict=True):
        by_task.setdefault(task, []).append(value)
    means = np.array([np.mean(v) for v in by_task.values()])
    if len(means) == 0:
        return 0.0, 0.0
    rng = np.random.default_rng(seed)
    resampled = means[rng.integers(0, len(means), (draws, len(means)))].mean(1)
    return float(np.percentile(resampled, 2.5)), float(np.percentile(resampled, 97.5))


def row(
    context: StageContext,
    policy: str,
    checkpoint_id: str,
    domain: Domain,
    effort: Effort | None,
    level: int,
    scores: Sequence[Score],
    b0: Budget0,
) -> EvaluationRow:
    """One cell: `effort` names the budget that counts; None counts every pass."""
    config = context.config
    mine = [s for s in scores if level in (0, s.task.level)]
    budgets = [budget(s.task, domain, effort, b0, config.effort) if effort else float("inf") for s in mine]
    within = [float(s.passed and s.effort_tokens <= b) for s, b in zip(mine, budgets, strict=True)]
    low, high = interval(within, [s.task.task_id for s in mine], config.evaluation.bootstrap, config.seed)
    count = max(len(mine), 1)
    return EvaluationRow(
        run=context.run,
        policy=policy,
        checkpoint_id=checkpoint_id,
        domain=domain,
        effort=effort or "",
        level=level,
        tasks=len({s.task.task_id for s in mine}),
        samples=len(mine),
        pass_rate=sum(within) / count,
        pass_low=low,
        pass_high=high,
        pass_unbudgeted=sum(s.passed for s in mine) / count,
        mean_tokens=sum(s.output_tokens for s in mine) / count,
        mean_effort_tokens=sum(s.effort_tokens for s in mine) / count,
        budget=sum(budgets) / count if effort else 0.0,
    )


def rows_by_level(
    context: StageContext, policy: str, checkpoint_id: str, domain: Domain, effort: Effort | None, scores: Sequence[Score], b0: Budget0
) -> list[EvaluationRow]:
    """The cell over all levels (level 0) and at each."""
    return [
        row(context, policy, checkpoint_id, domain, effort, level, scores, b0) for level in (0, *sorted({s.task.level for s in scores}))
    ]


def scores_of(rollouts: Sequence[Rollout]) -> list[Score]:
    return [Score(r.job.task, r.passed, r.output_tokens, r.effort_tokens) for r in rollouts]


def evaluate_policy(context: StageContext, policy: str) -> list[EvaluationRow]:
    """Evaluate one of `cold_start`, `expert-<domain>-<effort>`, `student`, `trivial`; writes its table parts.

    - cold start: each domain, under every effort's budget, without an effort message;
    - expert: its own domain under its own budget, and under the `low` budget (what a cut would leave); smaller samples elsewhere;
    - student: each domain at each effort, with the message;
    - trivial: constant answer, copy from the prompt, no tools.
    """
    part = context.run_dir / "tables" / EvaluationRow.TABLE / f"{policy}.parquet"
    if part.exists():
        return read_rows(part, EvaluationRow)
    settings = context.config.evaluation
    b0 = load_budgets(context)
    rows: list[EvaluationRow] = []
    kept: list[Rollout] = []
    if policy == "trivial":
        rows = _trivial(context, b0)
    else:
        stage = policy
        model, checkpoint_id = Llama.load(context.checkpoint(stage)), context.checkpoint_id(stage)
        for domain in DOMAINS:
            tasks = held_out(context, domain, settings.tasks_per_domain)
            if policy == "student":
                for effort in EFFORTS:
                    rollouts = play(context, model, tasks, settings.samples, effort, policy)
                    rows += rows_by_level(context, policy, checkpoint_id, domain, effort, scores_of(rollouts), b0)
                    kept += rollouts
                continue
            own = policy == "cold_start" or policy.startswith(f"expert-{domain}-")
            rollouts = play(
                context,
                model,
                tasks if own else held_out(context, domain, settings.cross_tasks),
                settings.samples if own else 1,
                None,
                policy,
            )
            kept += rollouts
            counted: list[Effort | None] = (
                [None, *EFFORTS] if policy == "cold_start" else [e for e in EFFORTS if own and policy == expert_stage(domain, e)] or [None]
            )
            if policy == expert_stage(domain, "max"):
                counted.append("low")
            for counted_effort in counted:
                rows += rows_by_level(context, policy, checkpoint_id, domain, counted_effort, scores_of(rollouts), b0)
        context.write_rollouts(f"evaluation-{policy}", "evaluation", -1, kept, policy=policy, checkpoint=checkpoint_id)
    write_rows(part, EvaluationRow, rows)
    return rows


def _trivial(context: StageContext, b0: Budget0) -> list[EvaluationRow]:
    """Policies that do not try, through the message interface, on the same held-out tasks."""
    rows = []
    for domain in DOMAINS:
        train = context.tasks("train", domain)
        tasks = held_out(context, domain, context.config.evaluation.tasks_per_domain)
        for policy in trivial.policies(domain, train, context.resources):
            scores = []
            for task in tasks:
                trace = run_messages(policy, task, context.resources)
                scores.append(
                    Score(task, trace.verdict is not None and trace.verdict.status == "pass", trace.output_tokens, trace.output_tokens)
                )
            rows += rows_by_level(context, f"trivial-{policy.name}", "", domain, None, scores, b0)
    return rows


def evaluate(context: StageContext, policies: Sequence[str]) -> dict[str, Any]:
    """Evaluate several policies and seal a stage named after the first. Returns their pass rates by cell."""
    result = {}
    for policy in policies:
        for r in evaluate_policy(context, policy):
            if r.level == 0:
                result[f"{r.policy}/{r.domain}/{r.effort or 'any'}"] = r.pass_rate
    return result
