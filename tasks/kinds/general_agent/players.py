"""Embedded players of different strength, and what they reach.

All see the whole world and judge plans by the constraints; they differ in how far they look. `random` takes anything; `greedy`
improves each slot once, in a random order; `search` improves until nothing helps, from several starts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tasks.kinds.general_agent.world import Constraint, Plan, World


@dataclass(frozen=True)
class Problem:
    """A world with its constraints; the cheapest plan that keeps them all is wanted where `least`, else any."""

    world: World
    constraints: tuple[Constraint, ...]
    least: bool
    broken: dict[Plan, int]
    """How many constraints each plan breaks."""
    cost: dict[Plan, int]

    @classmethod
    def of(cls, world: World, constraints: Sequence[Constraint], least: bool) -> Problem:
        """Every plan tried."""
        broken = {p: sum(not c.holds(world.rows(p), world.links) for c in constraints) for p in world.plans}
        return cls(world, tuple(constraints), least, broken, dict(zip(world.plans, world.costs, strict=True)))

    def plus(self, constraint: Constraint) -> Problem:
        """With one more."""
        rows, links = self.world.rows, self.world.links
        broken = {p: count + (not constraint.holds(rows(p), links)) for p, count in self.broken.items()}
        return Problem(self.world, (*self.constraints, constraint), self.least, broken, self.cost)

    @property
    def feasible(self) -> list[Plan]:
        """Plans that keep every constraint."""
        return [plan for plan, count in self.broken.items() if not count]

    @property
    def right(self) -> frozenset[Plan]:
        """Plans that solve it."""
        feasible = self.feasible
        best = min((self.cost[p] for p in feasible), default=0)
        return frozenset(p for p in feasible if not self.least or self.cost[p] == best)

    def value(self, plan: Plan) -> tuple[int, int]:
        """Smaller is better."""
        return self.broken[plan], self.cost[plan] if self.least else 0


Player = Callable[[Problem, random.Random], Plan]


def play_random(problem: Problem, rng: random.Random) -> Plan:
    """Anything for each slot."""
    return tuple(rng.randrange(len(found)) for found in problem.world.options)


def _sweep(problem: Problem, rng: random.Random, plan: Plan) -> Plan:
    for slot in rng.sample(range(len(plan)), len(plan)):
        others = [(*plan[:slot], i, *plan[slot + 1 :]) for i in range(len(problem.world.options[slot]))]
        plan = min(others, key=problem.value)
    return plan


def play_greedy(problem: Problem, rng: random.Random) -> Plan:
    """Each slot improved once."""
    return _sweep(problem, rng, play_random(problem, rng))


def play_search(problem: Problem, rng: random.Random, starts: int = 4) -> Plan:
    """Improved until nothing helps; the best of several starts."""
    found = []
    for _ in range(starts):
        plan, before = play_greedy(problem, rng), None
        while plan != before:
            before, plan = plan, _sweep(problem, rng, plan)
        found.append(plan)
    return min(found, key=problem.value)


PLAYERS: dict[str, Player] = {"random": play_random, "greedy": play_greedy, "search": play_search}


def solved(problem: Problem, player: Player, tries: int, seed: str) -> int:
    """In how many of so many seeded tries a player solves it."""
    right = problem.right
    return sum(player(problem, random.Random(f"{seed}/{i}")) in right for i in range(tries))


def pass_at_k(tries: int, right: int, k: int) -> float:
    """The unbiased estimate of pass@k (Chen et al. 2021, arXiv 2107.03374, eq. 1)."""
    return 1.0 - math.comb(tries - right, k) / math.comb(tries, k)
