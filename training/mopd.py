"""Multi-teacher on-policy distillation: nine experts into one student, on the student's own samples (Kimi K3 report, eq. 15).

Each step samples every cell (domain, effort) with the student, which is shown the effort; the cell's frozen teacher scores
the student's own tokens without the effort message, for it never saw one. The clipped log-ratio is a per-token advantage in
the same objective as RL. The student starts at the cold start's weights and never sees a teacher's trace.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from environments.errors import InputError
from environments.harness.config import effort_message
from environments.task import DOMAINS, EFFORTS, Domain, Effort
from environments.trace import Segment
from training import checkpoint, trainer
from training.batches import micro_batches, pad, sampled_logprobs
from training.context import StageContext, expert_stage
from training.engine.embedded import EmbeddedEngine
from training.expert import mean, pick, stable_seed
from training.metrics import Metrics
from training.model import Llama
from training.objectives import K25Config, reverse_kl_reward
from training.optim import adamw, warmup_decay
from training.rollout import Job, Rollout, sample
from training.trainer import MICRO_TOKENS, Trajectory

log = logging.getLogger(__name__)

STAGE = "student"
CELLS: tuple[tuple[Domain, Effort], ...] = tuple((d, e) for d in DOMAINS for e in EFFORTS)


def teacher_view(segment: Segment, effort_tokens: list[int]) -> tuple[list[int], list[int]]:
    """The student's tokens and mask without the effort message. A sub-agent is shown none.

    Raises:
        InputError: the message is not where the harness puts it.
    """
    tokens, mask = list(segment.tokens), list(segment.loss_mask)
    width = len(effort_tokens)
    for start in range(len(tokens) - width):
        if tokens[start : start + width] == effort_tokens:
            return tokens[:start] + tokens[start + width :], mask[:start] + mask[start + width :]
    if segment.fork == "subagent":
        return tokens, mask
    raise InputError("the student's prompt holds no effort message", "sample the student with an effort")


@torch.no_grad()
def teacher_logprobs(teacher: Llama, views: list[tuple[list[int], list[int]]]) -> list[list[float]]:
    """The teacher's log-probs of the sampled tokens of each view, in order."""
    out: list[list[float]] = [[] for _ in views]
    for indices in micro_batches([len(v[0]) for v in views], MICRO_TOKENS):
        ids_BT = pad([views[i][0] for i in indices], torch.long)
        mask_BT = pad([views[i][1] for i in indices], torch.float32)
        logprobs_BT, _ = sampled_logprobs(teacher, ids_BT, mask_BT)
        for row, i in enumerate(indices):
            out[i] = logprobs_BT[row][mask_BT[row] > 0].tolist()
    return out


def run(context: StageContext) -> dict[str, Any]:
    """Distil, resuming from the newest checkpoint. Returns what `done.json` says.

    Raises:
        InputError: a teacher is missing, or does not descend from the student's cold start.
    """
    config, settings = context.config, context.config.mopd
    directory = context.stage_dir(STAGE)
    if context.finished(STAGE):
        return context.done(STAGE)
    start = context.checkpoint("cold_start")
    start_id = context.checkpoint_id("cold_start")
    teachers: dict[tuple[Domain, Effort], Llama] = {}
    teacher_ids: dict[tuple[Domain, Effort], str] = {}
    for domain, effort in CELLS:
        path = context.checkpoint(expert_stage(domain, effort))
        _require_descent(context, domain, effort, start_id)
        teachers[domain, effort] = Llama.load(path)
        teacher_ids[domain, effort] = str(checkpoint.read_state(path)["checkpoint_id"])
    effort_messages = {e: context.codec.encode(effort_message(e)) for e in EFFORTS}
    tasks = {d: context.selected(d) for d in DOMAINS}
    objective = K25Config(settings.log_ratio_low, settings.log_ratio_high, settings.log_ratio_penalty)

    resumed = checkpoint.latest(directory)
    model = Llama.load(resumed or start)
    optimizer = adamw(model.train_last(settings.layers), settings.lr)
    state: dict[str, Any] = checkpoint.read_state(resumed) if resumed else {"step": 0, "fed": {}}
    if resumed is not None:
        checkpoint.load_optimizer(resumed, optimizer)
    first, fed = int(state["step"]), Counter(state["fed"])
    metrics = Metrics(directory, settings.steps, resume_at=first)
    engine = EmbeddedEngine(model, rows=config.rows, version=first)
    for step in range(first, settings.steps):
        started = time.monotonic()
        jobs = [
            Job(
                f"{STAGE}-{step}-{domain}-{effort}-{i}",
                task,
                stable_seed(config.seed, STAGE, step, domain, effort, i),
                effort=effort,
                harness=context.harness_for(STAGE, step, domain, effort, i),
            )
            for domain, effort in CELLS
            for i, task in enumerate(pick(tasks[domain], settings.prompts_per_cell, config.seed, STAGE, step, domain, effort))
        ]
        rollouts = sorted(
            (r for r in sample(engine, jobs, context.resources, context.codec) if r.verdict is not None),
            key=lambda r: r.job.trajectory_id,
        )
        parts = [(_cell(r), s) for r in rollouts for s in r.trained]
        scores: list[list[float]] = [[] for _ in parts]
        for cell in CELLS:  # ordered by teacher, so that one is at work at a time
            mine = [i for i, (c, _) in enumerate(parts) if c == cell]
            views = [teacher_view(parts[i][1], effort_messages[cell[1]]) for i in mine]
            for i, values in zip(mine, teacher_logprobs(teachers[cell], views), strict=True):
                scores[i] = values
        batch = [Trajectory(s.tokens, s.logprobs, s.loss_mask) for _, s in parts]

        def advantages(indices: list[int], logprobs_BT: Tensor, mask_BT: Tensor, scores: list[list[float]] = scores) -> Tensor:
            teacher_BT = torch.zeros_like(logprobs_BT)
            for row, i in enumerate(indices):
                teacher_BT[row, mask_BT[row] > 0] = torch.tensor(scores[i])
            return reverse_kl_reward(teacher_BT, logprobs_BT, mask_BT, settings.reward_clip)

        rate = settings.lr * warmup_decay(step, settings.steps, settings.warmup_steps, floor=0.1)
        for group in optimizer.param_groups:
            group["lr"] = rate
        report = trainer.step(model, optimizer, batch, advantages, objective, settings.max_grad_norm)
        engine.refresh(step + 1)
        fed.update(r.job.task.task_id for r in rollouts)
        divergence = {
            cell: _kl([s for c, s in parts if c == cell], [scores[i] for i, (c, _) in enumerate(parts) if c == cell]) for cell in CELLS
        }
        if step == 0:
            for (domain, effort), value in divergence.items():
                if value > settings.max_initial_kl:
                    log.warning(
                        "teacher %s/%s starts %.3f nats a token from the student (over %.2f): distillation may be slow",
                        domain,
                        effort,
                        value,
                        settings.max_initial_kl,
                    )
        context.write_rollouts(
            f"{STAGE}-{step:04d}",
            "mopd",
            step,
            rollouts,
            policy=STAGE,
            checkpoint=f"{STAGE}@{step}",
            teachers=[teacher_ids[_cell(r)] for r in rollouts],
        )
        metrics.write(
            step,
            reverse_kl=mean(list(divergence.values())),
            pass_rate=mean([float(r.passed) for r in rollouts]),
            **{f"tokens_{e}": mean([r.output_tokens for r in rollouts if r.job.effort == e]) for e in EFFORTS},
            infrastructure_failures=len(jobs) - len(rollouts),
            step_s=time.monotonic() - started,
            **{f"train_{k}": v for k, v in report.items()},
        )
        done = step + 1
        if done % settings.checkpoint_every == 0 or done == settings.steps:
            checkpoint.save(
                directory / "checkpoints" / f"step_{done}", model, optimizer, {"step": done, "parent_id": start_id, "fed": dict(fed)}
            )
            checkpoint.prune(directory, keep=set())
    identity = checkpoint.save(directory / "final", model, None, {"step": settings.steps, "parent_id": start_id, "fed": dict(fed)})
    return context.seal(
        STAGE,
        {
            "checkpoint_id": identity,
            "parent_id": start_id,
            "steps": settings.steps,
            "teachers": {f"{d}-{e}": i for (d, e), i in teacher_ids.items()},
            "fed": dict(fed),
        },
    )


def _cell(rollout: Rollout) -> tuple[Domain, Effort]:
    assert rollout.job.effort is not None
    return rollout.job.task.domain, rollout.job.effort


def _kl(segments: list[Segment], scores: list[list[float]]) -> float:
    """Monte-Carlo estimate of KL(student || teacher), nats a token."""
    ratios = [
        s - t
        for segment, ts in zip(segments, scores, strict=True)
        for s, t in zip((lp for lp, m in zip(segment.logprobs, segment.loss_mask, strict=True) if m), ts, strict=True)
    ]
    return mean(ratios)


def _require_descent(context: StageContext, domain: Domain, effort: Effort, start_id: str) -> None:
    """Accept a teacher only when its ancestry leads back to the student's start."""
    parent = str(context.done(expert_stage(domain, effort))["parent_id"])
    if parent == start_id:
        return
    branch = context.stage_dir(expert_stage(domain, "max")) / "checkpoints" / f"step_{context.config.expert.branch_step}"
    branch_state = checkpoint.read_state(branch)
    if parent != branch_state["checkpoint_id"] or branch_state["parent_id"] != start_id:
        raise InputError(
            f"the {domain}/{effort} teacher descends from {parent}, not from the cold start {start_id}",
            "train the experts again from this cold start",
        )
