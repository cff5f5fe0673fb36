"""Train, validation and held-out by whole graph branches, then without leakage.

Two steps. First every branch goes to one split, so that each domain's task counts come close to the target shares and
branches that share passages or answers tend to stay together. Then a validation or held-out task goes when its hidden
answer, or a passage or document that supports it, still occurs in a training task. A dropped task is reported, not lost.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from environments.errors import ConfigError
from environments.task import TaskSpec

Split = Literal["train", "validation", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "validation", "heldout")
DEFAULT_SHARES: dict[Split, float] = {"train": 0.8, "validation": 0.08, "heldout": 0.12}
"""Held-out gets more than validation: the bootstrap intervals of nine cells come from it."""

_MAX_SWEEPS = 30
"""Local search settles within about five sweeps on 200 branches; this only bounds a cycle of equal costs."""
_EMPTY_COST = 1.0
"""Cost of a domain without any task in a split: more than any imbalance it could buy, since shares differ by less than 1."""
_CONFLICT_COST = 1.0
"""Cost of losing all tasks to leakage, on the same scale as the squared imbalance."""


@dataclass(frozen=True)
class Dropped:
    """A task that no split may hold, the split it would have been in, and why."""

    task: TaskSpec
    split: Split
    reason: str


@dataclass(frozen=True)
class SplitResult:
    """Every given task, in exactly one of the four; `branches` says where each branch went."""

    train: tuple[TaskSpec, ...]
    validation: tuple[TaskSpec, ...]
    heldout: tuple[TaskSpec, ...]
    dropped: tuple[Dropped, ...]
    branches: dict[str, Split] = field(default_factory=dict)

    def by_split(self) -> dict[Split, tuple[TaskSpec, ...]]:
        """The three splits by name, as `tasks.dataset.publish` takes them."""
        return {"train": self.train, "validation": self.validation, "heldout": self.heldout}


def split_tasks(
    tasks: Sequence[TaskSpec],
    answer_key: Callable[[TaskSpec], set[str]],
    *,
    shares: Mapping[Split, float] | None = None,
    seed: int = 0,
) -> SplitResult:
    """Split by branch and drop what leaks. The same tasks, shares and seed give the same result, in whatever order they come.

    Args:
        answer_key: The hidden answers of a task as strings that must not recur in training (a number with its unit, a
            normalised final state, ...). An empty set means the task has no answer that could leak.
        shares: Target share of tasks by split and domain; they sum to 1. Default 0.80 / 0.08 / 0.12.

    Raises:
        ConfigError: shares are negative, name an unknown split or do not sum to 1.
    """
    targets = _checked(DEFAULT_SHARES if shares is None else shares)
    unique: dict[str, TaskSpec] = {}
    copies: list[TaskSpec] = []
    for task in tasks:
        if task.task_id in unique:
            copies.append(task)
        else:
            unique[task.task_id] = task
    ordered = [unique[i] for i in sorted(unique)]
    keys = {t.task_id: _leak_keys(t, answer_key(t)) for t in ordered}
    branches = _assign(ordered, keys, targets, seed)

    held: dict[Split, list[TaskSpec]] = {s: [] for s in SPLITS}
    trained: dict[str, str] = {}
    for task in ordered:
        if branches[task.provenance.branch] == "train":
            held["train"].append(task)
            for key in keys[task.task_id]:
                trained.setdefault(key, task.task_id)
    dropped = [Dropped(t, branches[t.provenance.branch], f"duplicate: task {t.task_id} was given more than once") for t in copies]
    for task in ordered:
        split = branches[task.provenance.branch]
        if split == "train":
            continue
        leaked = sorted(keys[task.task_id] & trained.keys())
        if leaked:
            kind, _, value = leaked[0].partition(":")
            more = f" (and {len(leaked) - 1} more)" if len(leaked) > 1 else ""
            dropped.append(Dropped(task, split, f"{kind}: {value[:60]} occurs in training task {trained[leaked[0]]}{more}"))
        else:
            held[split].append(task)
    return SplitResult(tuple(held["train"]), tuple(held["validation"]), tuple(held["heldout"]), tuple(dropped), branches)


def _checked(shares: Mapping[Split, float]) -> dict[Split, float]:
    unknown = sorted(set(shares) - set(SPLITS))
    if unknown:
        raise ConfigError(f"unknown split {unknown[0]!r}", f"use only {', '.join(SPLITS)}")
    if any(not v >= 0 for v in shares.values()) or abs(sum(shares.values()) - 1) > 1e-6:
        raise ConfigError(f"split shares {dict(shares)} are not shares", "give non-negative numbers that sum to 1")
    return {s: float(shares.get(s, 0.0)) for s in SPLITS}


def _leak_keys(task: TaskSpec, answers: Iterable[str]) -> frozenset[str]:
    """What must not occur on both sides; the prefix is the reason that is reported."""
    provenance = task.provenance
    return frozenset(
        [f"answer:{a}" for a in answers]
        + [f"passage:{h}" for h in provenance.material_hashes]
        + [f"document:{d}" for d in provenance.document_ids]
    )


def _assign(tasks: Sequence[TaskSpec], keys: Mapping[str, frozenset[str]], targets: Mapping[Split, float], seed: int) -> dict[str, Split]:
    """Greedy by size, then single moves until none lowers the cost (squared imbalance + empty cells + leaking tasks)."""
    members: dict[str, list[TaskSpec]] = defaultdict(list)
    for task in tasks:
        members[task.provenance.branch].append(task)
    names = sorted(members)
    random.Random(seed).shuffle(names)
    names.sort(key=lambda b: -len(members[b]))
    counts = {b: Counter(str(t.domain) for t in members[b]) for b in names}
    totals: Counter[str] = Counter()
    for count in counts.values():
        totals.update(count)
    conflicts = _conflicts(members, keys)
    wanted = [s for s in SPLITS if targets[s] > 0]
    filled: dict[Split, Counter[str]] = {s: Counter() for s in SPLITS}
    placed: dict[str, Split] = {}

    def imbalance(split: Split) -> float:
        return sum((filled[split][d] / n - targets[split]) ** 2 + (_EMPTY_COST if not filled[split][d] else 0.0) for d, n in totals.items())

    def cost_of(branch: str, split: Split) -> float:
        """Cost that depends on `branch` going to `split`, the other branches as placed."""
        before = {s: imbalance(s) for s in wanted}
        filled[split].update(counts[branch])
        cost = sum(before[s] for s in wanted if s != split) + imbalance(split)
        filled[split].subtract(counts[branch])
        lost = 0
        for other, (mine, theirs) in conflicts[branch].items():
            there = placed.get(other)
            if there is None or there == split or "train" not in (there, split):
                continue
            lost += theirs if split == "train" else mine
        return cost + _CONFLICT_COST * lost / len(tasks)

    for branch in names:
        best = min(wanted, key=lambda s: (cost_of(branch, s), -targets[s]))
        placed[branch] = best
        filled[best].update(counts[branch])
    for _ in range(_MAX_SWEEPS):
        moved = False
        for branch in names:
            here = placed.pop(branch)
            filled[here].subtract(counts[branch])
            costs = {s: cost_of(branch, s) for s in wanted}
            best = min(wanted, key=lambda s: costs[s])
            best = best if costs[best] < costs[here] - 1e-12 else here
            placed[branch] = best
            filled[best].update(counts[branch])
            moved |= best != here
        if not moved:
            break
    return dict(sorted(placed.items()))


def _conflicts(members: Mapping[str, Sequence[TaskSpec]], keys: Mapping[str, frozenset[str]]) -> dict[str, dict[str, tuple[int, int]]]:
    """For each pair of branches: tasks of the first with a key of the second, and the other way round."""
    holders: dict[str, set[str]] = defaultdict(set)
    for branch, tasks in members.items():
        for task in tasks:
            for key in keys[task.task_id]:
                holders[key].add(branch)
    touching: dict[str, Counter[str]] = {b: Counter() for b in members}
    for branch, tasks in members.items():
        for task in tasks:
            others = {b for key in keys[task.task_id] for b in holders[key]} - {branch}
            touching[branch].update(others)
    return {b: {o: (n, touching[o][b]) for o, n in sorted(others.items())} for b, others in touching.items()}
