"""The target distribution as counts: how many tasks of which type, level and shape of node set each domain wants."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

from tasks.node_sets import Shape

K = TypeVar("K")


@dataclass(frozen=True)
class Cell:
    """One cell of the target distribution; its domain is its type's."""

    kind: str
    level: int
    shape: Shape = "single"


@dataclass(frozen=True)
class Shortfall:
    """What of a cell could not be supplied, and why."""

    cell: Cell
    wanted: int
    supplied: int
    reason: str


def apportion(total: int, weights: Mapping[K, float]) -> dict[K, int]:
    """Whole numbers that sum to `total` (to 0 without any weight), each within one of its share: rounding of running sums.

    Raises:
        ValueError: a negative weight.
    """
    if any(weight < 0 for weight in weights.values()):
        raise ValueError("weights are not negative")
    whole = sum((Fraction(weight) for weight in weights.values()), Fraction(0))
    counts: dict[K, int] = {}
    running, given = Fraction(0), 0
    for key, weight in weights.items():
        running += Fraction(weight)
        upto = int(total * running / whole) if whole else 0
        counts[key], given = upto - given, upto
    return counts


def total_variation(target: Mapping[K, float], realised: Iterable[K]) -> float:
    """Half the summed difference of the shares of two distributions, 0 to 1. Nothing realised is as far away as can be."""
    counts = Counter(realised)
    whole, found = sum(target.values()), sum(counts.values())
    if not whole or not found:
        return float(bool(whole) != bool(found))
    return sum(abs(target.get(key, 0) / whole - counts[key] / found) for key in {*target, *counts}) / 2
