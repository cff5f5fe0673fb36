"""How good each task constructor is, and how the sampler shifts towards those that are.

A generator is a task type at a level. DeepSeek-V4.1 scores what constructs its tasks by validity times difficulty; here
validity is the share of decided candidates that passed every check and no exploit, and difficulty is one minus the mean score
of the policies' episodes. Both are posterior means under a uniform prior (Laplace's rule of succession), so that a generator
without a history scores 1/2 * 1/2, and few candidates move it little.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from environments.records import ConstructorRow, RolloutRow, TaskRow
from tasks.distribution import Cell

VALID = frozenset({"published", "split"})
"""Statuses of candidates whose checks all passed; the split leaves some of them out for reasons that are not theirs."""
INVALID = frozenset({"synthesis", "validation", "probe"})
_COPY = "duplicate:"


def generator(kind: str, level: int) -> str:
    """Name of a generator."""
    return f"{kind}/{level}"


def outcomes(run: str, learned: str, tasks: Iterable[TaskRow], rollouts: Iterable[RolloutRow]) -> list[ConstructorRow]:
    """What became of a finished run's generators. Candidates that nobody decided on and episodes without a score do not count.

    Args:
        run: the run that learns.
        learned: the run that it learns from, whose rows the others are.
    """
    of: dict[str, str] = {}
    decided: dict[str, list[bool]] = {}
    for task in tasks:
        name = of[task.task_id] = generator(task.kind, task.level)
        if task.status in VALID | INVALID and not task.reject_reason.startswith(_COPY):
            decided.setdefault(name, []).append(task.status in VALID)
    played: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout.score is not None and rollout.task_id in of:
            played.setdefault(of[rollout.task_id], []).append(rollout.score)
    return [
        ConstructorRow(
            run=run,
            learned_run=learned,
            generator=name,
            candidates=len(decided.get(name, ())),
            valid=sum(decided.get(name, ())),
            episodes=len(played.get(name, ())),
            solved=sum(played.get(name, ())),
        )
        for name in sorted({*decided, *played})
    ]


def scores(history: Iterable[ConstructorRow]) -> dict[str, float]:
    """Validity times difficulty by generator, 0 to 1, over all runs of the history; a run that is in it twice counts once."""
    sums: dict[str, list[float]] = {}
    for row in {(row.learned_run, row.generator): row for row in history}.values():
        held = sums.setdefault(row.generator, [0, 0, 0, 0])
        for i, value in enumerate((row.candidates, row.valid, row.episodes, row.solved)):
            held[i] += value
    return {
        name: (valid + 1) / (candidates + 2) * (1 - (solved + 1) / (episodes + 2))
        for name, (candidates, valid, episodes, solved) in sums.items()
    }


def shifted(weights: Mapping[Cell, float], found: Mapping[str, float], exploration: float) -> dict[Cell, float]:
    """Weights moved towards generators that score, their sum kept.

    A weight w becomes w * (e + (1 - e) * s / S) with e the exploration, s its generator's score and S the mean score under the
    weights: no generator falls below the share e of its target. Without any score nothing moves.
    """
    if not found:
        return dict(weights)
    score = {cell: found.get(generator(cell.kind, cell.level), 0.25) for cell in weights}
    mean = sum(weights[c] * score[c] for c in weights) / (sum(weights.values()) or 1.0)
    return {cell: weight * (exploration + (1 - exploration) * score[cell] / mean if mean else 1.0) for cell, weight in weights.items()}
