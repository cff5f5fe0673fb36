"""Hardening step by step: one more constraint as long as the reference player's pass rate falls and pass@k stays above zero.

After DeepSeek-V3.2's general agents (report, section 3.2.3), where tasks get harder while some of many attempts still pass.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from tasks.kinds.general_agent.players import PLAYERS, Problem, pass_at_k, solved
from tasks.kinds.general_agent.world import World, proposal

TRIES = 48
K = 8
REFERENCE = "greedy"
PROPOSALS = 10
"""Constraints tried at a step; the first that makes it harder is taken."""
RATES = {1: (0.35, 0.85), 2: (0.1, 0.55), 3: (0.0, 0.25)}
"""(above, at most): the reference player's pass rate by level."""
LIMITS = {1: (2, 4), 2: (3, 6), 3: (4, 8)}
"""(at least, at most) so many constraints."""
MAX_RANDOM = 0.03
"""Share of all plans that may be right, so that a random plan is none."""


@dataclass(frozen=True)
class Step:
    """What one step of the hardening came to."""

    constraint: str
    pass_rate: float
    """Of the reference player."""
    pass_at_k: float
    feasible: int
    """Plans that keep all constraints so far."""


def harden(rng: random.Random, world: World, level: int, least: bool) -> tuple[Problem, tuple[Step, ...]] | None:
    """A problem in the level's band with its history, or None when no constraint leads there."""
    problem = Problem.of(world, (), least)
    seed = str(rng.random())
    rate, history = 1.0, [Step("", 1.0, 1.0, len(world.plans))]
    (above, most), (fewest, limit) = RATES[level], LIMITS[level]
    for _ in range(limit):
        taken = {c.name for c in problem.constraints}
        feasible = problem.feasible
        for _ in range(PROPOSALS):
            constraint = proposal(rng, world, feasible)
            if constraint.name in taken or all(constraint.holds(world.rows(p), world.links) for p in feasible):
                continue
            harder = problem.plus(constraint)
            right = solved(harder, PLAYERS[REFERENCE], TRIES, seed)
            now = pass_at_k(TRIES, right, K)
            # At least as hard: without a least to reach, one constraint alone is often no hindrance yet.
            if now > 0 and right / TRIES > above and (right / TRIES < rate or (rate == 1 and right == TRIES)):
                problem, rate = harder, right / TRIES
                history.append(Step(constraint.name, rate, now, len(harder.feasible)))
                break
        else:
            return None
        if len(problem.constraints) >= fewest and rate <= most and len(problem.right) <= MAX_RANDOM * len(world.plans):
            return problem, tuple(history)
    return None
