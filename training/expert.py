"""RL of one expert: one domain, one reasoning effort (Kimi K3 report, sections 4.1.2 and 4.1.3; K2.5 objective).

`max` starts at the cold start under a generous budget. `high` and `low` branch from an early `max` checkpoint, which still
shows all lengths, and are paid only within their tighter budgets. Experts never see the effort message: each is one effort.
"""

from __future__ import annotations

import logging
import random
import time
from collections import Counter
from typing import Any

from environments.errors import CorruptArtifactError, InputError
from environments.records import RewardRow
from environments.task import Domain, Effort, TaskSpec
from training import checkpoint, trainer
from training.context import StageContext, expert_stage
from training.effort import Budget0, budget, effort_reward
from training.engine.embedded import EmbeddedEngine
from training.metrics import Metrics
from training.model import Llama
from training.objectives import K25Config, group_advantages
from training.optim import adamw, warmup_decay
from training.rollout import Job, Rollout, sample
from training.trainer import Trajectory

log = logging.getLogger(__name__)


def stable_seed(*parts: object) -> int:
    """A 63-bit seed that depends on nothing but its parts."""
    return random.Random("/".join(map(str, parts))).getrandbits(63)


def pick(tasks: list[TaskSpec], count: int, *seed: object) -> list[TaskSpec]:
    """`count` tasks for one step, in equal parts by level; the same for the same seed parts."""
    rng = random.Random("/".join(map(str, seed)))
    levels: dict[int, list[TaskSpec]] = {}
    for task in tasks:
        levels.setdefault(task.level, []).append(task)
    order = sorted(levels)
    return [rng.choice(levels[order[i % len(order)]]) for i in range(count)]


def load_budgets(context: StageContext) -> Budget0:
    """b0 as the `budgets` stage sealed it.

    Raises:
        InputError: that stage has not run.
        CorruptArtifactError: its file does not read back.
    """
    path = context.stage_dir("budgets") / "b0.json"
    if not path.exists():
        raise InputError("stage budgets has not finished", "run it first, or resume the run")
    try:
        return Budget0.model_validate_json(path.read_bytes())
    except ValueError as error:
        raise CorruptArtifactError(f"{path} is not a table of budgets", "delete the folder and resume the run") from error


def run(context: StageContext, domain: Domain, effort: Effort) -> dict[str, Any]:
    """Train one expert to its last step, resuming from its newest checkpoint. Returns what `done.json` says.

    Raises:
        InputError: the cold start, the budgets or the `max` expert it branches from are missing.
    """
    config, settings = context.config, context.config.expert
    stage = expert_stage(domain, effort)
    directory = context.stage_dir(stage)
    if context.finished(stage):
        return context.done(stage)
    branch = expert_stage(domain, "max")
    parent = (
        context.checkpoint("cold_start") if effort == "max" else context.stage_dir(branch) / "checkpoints" / f"step_{settings.branch_step}"
    )
    parent_id = str(checkpoint.read_state(parent)["checkpoint_id"])
    steps = (settings.steps_max if effort == "max" else settings.steps_other)[domain]
    b0 = load_budgets(context)
    tasks = context.selected(domain)
    objective = K25Config(settings.log_ratio_low, settings.log_ratio_high, settings.log_ratio_penalty)

    resumed = checkpoint.latest(directory)
    model = Llama.load(resumed or parent)
    optimizer = adamw(model.train_last(settings.layers), settings.lr)
    first = 0
    if resumed is not None:
        state = checkpoint.read_state(resumed)
        checkpoint.load_optimizer(resumed, optimizer)
        first = int(state["step"])
        fed = Counter(state["fed"])
    else:
        fed = Counter()
        if effort == "max":
            checkpoint.save(directory / "checkpoints" / "step_0", model, optimizer, {"step": 0, "parent_id": parent_id, "fed": {}})
    metrics = Metrics(directory, steps, resume_at=first)
    engine = EmbeddedEngine(model, rows=config.rows, version=first)
    for step in range(first, steps):
        started = time.monotonic()
        chosen = pick(tasks, settings.prompts, config.seed, stage, step)
        jobs = [
            Job(f"{stage}-{step}-{g}-{k}", task, stable_seed(config.seed, stage, step, g, k), group=g, harness=harness)
            for g, task in enumerate(chosen)
            for harness in [context.harness_for(stage, step, g)]
            for k in range(settings.samples)
        ]
        rollouts = [r for r in sample(engine, jobs, context.resources, context.codec) if r.verdict is not None]
        rollouts.sort(key=lambda r: r.job.trajectory_id)
        sampled_s = time.monotonic() - started
        judged = [r for r in rollouts if r.verdict is not None and r.verdict.status in ("pass", "fail", "tainted")]
        budgets = [budget(r.job.task, domain, effort, b0, config.effort) for r in judged]
        outcomes = [float(r.passed) for r in judged]
        rewards = [effort_reward(o, r.effort_tokens, b) for o, r, b in zip(outcomes, judged, budgets, strict=True)]
        advantages = group_advantages(rewards, [r.job.group for r in judged])
        for group in optimizer.param_groups:
            group["lr"] = settings.lr * warmup_decay(step, steps, settings.warmup_steps)
        weighted = [a * (settings.negative_weight if a < 0 else 1.0) for a in advantages]
        useful = [i for i, a in enumerate(advantages) if a != 0.0]
        report: dict[str, float] = {"skipped": 1.0}
        if useful:
            parts = [(i, s) for i in useful for s in judged[i].trained]
            batch = [Trajectory(s.tokens, s.logprobs, s.loss_mask) for _, s in parts]
            for _ in range(settings.epochs):
                report = trainer.step(
                    model, optimizer, batch, trainer.per_sequence([weighted[i] for i, _ in parts]), objective, settings.max_grad_norm
                )
            engine.refresh(step + 1)
        fed.update(judged[i].job.task.task_id for i in useful)
        _record(context, stage, step, effort, judged, rewards, outcomes, advantages, budgets, parent_id)
        metrics.write(
            step,
            reward=mean(rewards),
            pass_rate=mean(outcomes),
            within_budget=mean([float(r.effort_tokens <= b) for r, b in zip(judged, budgets, strict=True)]),
            pass_within_budget=mean([float(o > 0 and r.effort_tokens <= b) for o, r, b in zip(outcomes, judged, budgets, strict=True)]),
            output_tokens=mean([r.output_tokens for r in judged]),
            malformed=mean([r.malformed_calls for r in judged]),
            infrastructure_failures=len(jobs) - len(rollouts),
            useful_share=len(useful) / max(len(judged), 1),
            sample_s=sampled_s,
            step_s=time.monotonic() - started,
            **{f"train_{k}": v for k, v in report.items()},
        )
        done = step + 1
        if done % settings.checkpoint_every == 0 or done in (settings.branch_step, steps):
            checkpoint.save(
                directory / "checkpoints" / f"step_{done}", model, optimizer, {"step": done, "parent_id": parent_id, "fed": dict(fed)}
            )
            checkpoint.prune(directory, keep={f"step_{settings.branch_step}"} if effort == "max" else set())
    identity = checkpoint.save(directory / "final", model, None, {"step": steps, "parent_id": parent_id, "fed": dict(fed)})
    return context.seal(
        stage, {"checkpoint_id": identity, "parent_id": parent_id, "steps": steps, "domain": domain, "effort": effort, "fed": dict(fed)}
    )


def mean(values: list[float] | list[int]) -> float:
    return sum(values) / len(values) if values else 0.0


def _record(
    context: StageContext,
    stage: str,
    step: int,
    effort: Effort,
    rollouts: list[Rollout],
    rewards: list[float],
    outcomes: list[float],
    advantages: list[float],
    budgets: list[float],
    checkpoint_id: str,
) -> None:
    part = f"{stage}-{step:04d}"
    context.write_rollouts(part, "expert", step, rollouts, policy=stage, checkpoint=f"{stage}@{step}", budgets=budgets)
    context.write_rewards(
        part,
        [
            RewardRow(
                run=context.run,
                trajectory_id=r.job.trajectory_id,
                reward=reward,
                outcome_reward=outcome,
                advantage=advantage,
                budget_tokens=b,
                effort_tokens=r.effort_tokens,
            )
            for r, reward, outcome, advantage, b in zip(rollouts, rewards, outcomes, advantages, budgets, strict=True)
        ],
    )
