"""Train, validation and held-out by whole graph branches, then without leakage.

Two steps. First every branch goes to one split, so that each domain's task counts come close to the target shares and
branches that share passages or answers tend to stay together. Then, wherever a validation or held-out task still shares its
hidden answer, a passage or a document with a training task, one of the two sides goes. A dropped task is reported, not lost.

Which side: popular documents are used all over the graph, and dropping every held-out task that touches one can leave next
to none. So the cheapest set of tasks is dropped (a minimum cut), a task weighing as much as its split is small. With
`protect_train=True` only validation and held-out tasks go.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

from environments.errors import ConfigError
from environments.task import TaskSpec

Split = Literal["train", "validation", "heldout"]
SPLITS: tuple[Split, ...] = ("train", "validation", "heldout")
DEFAULT_SHARES: dict[Split, float] = {"train": 0.8, "validation": 0.08, "heldout": 0.12}
"""Held-out gets more than validation: the bootstrap intervals of nine cells come from it."""

_MAX_SWEEPS = 30
"""Local search settles within about five sweeps on 200 branches; this only bounds a cycle of equal costs."""
_EMPTY_COST = 10.0
"""Extra cost of a domain without any task in a split, on top of the imbalance of 1 that it is."""
_CONFLICT_COST = 1.0
"""Cost of losing all tasks to leakage: as much as one domain's split missing its share entirely."""


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
    protect_train: bool = False,
) -> SplitResult:
    """Split by branch and drop what leaks. The same tasks, shares and seed give the same result, in whatever order they come.

    Args:
        answer_key: The hidden answers of a task as strings that must not occur on both sides (a number with its unit, a
            normalised final state, ...). An empty set means the task has no answer that could leak.
        shares: Target share of tasks by split and domain; they sum to 1. Default 0.80 / 0.08 / 0.12.
        protect_train: Never drop a training task for leakage, whatever it costs the other splits.

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
    where = {t.task_id: branches[t.provenance.branch] for t in ordered}
    gone = _cheapest_drops(ordered, keys, where, targets, protect_train)

    # By side (training or not) and key: a kept task that holds it.
    kept_with: dict[bool, dict[str, str]] = {True: {}, False: {}}
    for task in ordered:
        if task.task_id not in gone:
            for key in keys[task.task_id]:
                kept_with[where[task.task_id] == "train"].setdefault(key, task.task_id)
    held: dict[Split, list[TaskSpec]] = {s: [] for s in SPLITS}
    dropped = [Dropped(t, where[t.task_id], f"duplicate: task {t.task_id} was given more than once") for t in copies]
    for task in ordered:
        split = where[task.task_id]
        if task.task_id not in gone:
            held[split].append(task)
            continue
        others = kept_with[split != "train"]
        key = min(keys[task.task_id] & others.keys())
        kind, _, value = key.partition(":")
        dropped.append(Dropped(task, split, f"{kind}: {value[:60]} occurs in {where[others[key]]} task {others[key]}"))
    return SplitResult(tuple(held["train"]), tuple(held["validation"]), tuple(held["heldout"]), tuple(dropped), branches)


def _cheapest_drops(
    tasks: Sequence[TaskSpec],
    keys: Mapping[str, frozenset[str]],
    where: Mapping[str, Split],
    targets: Mapping[Split, float],
    protect_train: bool,
) -> set[str]:
    """Ids of the tasks to drop so that no key occurs on both sides, at the least total weight.

    Training tasks, keys and the other tasks form a network: source -> training task -> key -> other task -> sink. Only the
    first and last edges can be cut, each at its task's weight, so a minimum cut is the cheapest choice (König's theorem,
    weighted). The cut nearest the source is taken, which is unique: the result does not depend on the solver.
    """
    sides: dict[bool, set[str]] = {True: set(), False: set()}
    for task in tasks:
        sides[where[task.task_id] == "train"] |= keys[task.task_id]
    shared = sides[True] & sides[False]
    if not shared:
        return set()
    involved = [t.task_id for t in tasks if keys[t.task_id] & shared]
    at = {name: i for i, name in enumerate(involved)} | {key: len(involved) + i for i, key in enumerate(sorted(shared))}
    source, sink = len(at), len(at) + 1
    weight = {split: round(1000 / share) if share > 0 else 0 for split, share in targets.items()}
    never = 1 + sum(weight[where[t]] for t in involved)
    edges: list[tuple[int, int, int]] = []
    for name in involved:
        if where[name] == "train":
            edges.append((source, at[name], never if protect_train else weight["train"]))
            edges += [(at[name], at[key], never) for key in keys[name] if key in at]
        else:
            edges.append((at[name], sink, weight[where[name]]))
            edges += [(at[key], at[name], never) for key in keys[name] if key in at]
    rows, columns, capacities = zip(*edges, strict=True)
    size = len(at) + 2
    capacity = csr_array((np.array(capacities, dtype=np.int32), (rows, columns)), shape=(size, size))
    flow = maximum_flow(capacity, source, sink).flow
    residual = (capacity - flow).tocsr()
    residual.eliminate_zeros()
    reached = set(breadth_first_order(residual, source, return_predecessors=False).tolist())
    return {name for name in involved if (at[name] in reached) != (where[name] == "train")}


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
        """Relative, so that a small split is held to its share as firmly as a large one."""
        off = ((filled[split][d] / n / targets[split] - 1) ** 2 + (0.0 if filled[split][d] else _EMPTY_COST) for d, n in totals.items())
        return sum(off)

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
        # The largest branches first, each where most is missing of its domains: a large one fits only a large split.
        missing = {s: sum((targets[s] * totals[d] - filled[s][d]) * n for d, n in counts[branch].items()) for s in wanted}
        best = max(wanted, key=lambda s: missing[s])
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
