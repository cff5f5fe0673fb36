"""General-agent tasks (DeepSeek-V3.2): a synthesised database behind tools, a plan to make, constraints that a verifier executes."""

from __future__ import annotations

import random
from dataclasses import asdict

from environments.families.general_agent import SCHEMAS
from environments.task import Budgets, InitialState
from kg.concept import Passage
from tasks.kinds.draft import Demonstration, Draft, KindSpec, Material, call
from tasks.kinds.general_agent.harden import harden
from tasks.kinds.general_agent.solution import objections, program
from tasks.kinds.general_agent.world import draw

SIZES = {1: (3, 6), 2: (3, 8), 3: (4, 7)}
"""(slots, options for each) by level."""
QUOTE_CHARS = 200


def draft(rng: random.Random, material: Material, level: int) -> Draft | None:
    """Level 1: any plan that keeps the constraints. Levels 2 and 3: the cheapest such plan, ever harder for the reference player."""
    schema = SCHEMAS[rng.choice(sorted(SCHEMAS))]
    world = draw(rng, schema, *SIZES[level])
    least = level > 1
    hardened = harden(rng, world, level, least)
    if hardened is None:
        return None
    problem, history = hardened
    source = program(problem)
    tools = (*schema.tools, "python", "submit")
    if reasons := objections(source, schema.tools, [row["id"] for found in world.options for row in found]):
        raise AssertionError(f"our own solution is not clean: {reasons[0]}")
    cost = schema.numbers[0]
    lines = [schema.request.format(slots=", ".join(world.slots)), *(f"- {c.text}" for c in problem.constraints)]
    lines.append(
        f"Of all plans that keep these, make one with the least total {cost.said}." if least else "Any plan that keeps these will do."
    )
    about = f"It is for a group that works on {material.names[0]}. " if material.names else ""
    values = "; ".join(f"{column}: {', '.join(found)}" for column, found in schema.groups)
    best = min(problem.cost[p] for p in problem.right)
    return Draft(
        kind="general_agent",
        family="assistant",
        domain="agent",
        level=level,
        prompt=f"{about}{chr(10).join(lines)}\nValues: {values}. Fill every {schema.slot}, then submit.",
        tools=tools,
        budgets=Budgets(steps=80, output_tokens=8_000, wall_s=300, submissions=1),
        verifier_kind="general_agent",
        payload={
            "constraints": [{"name": c.name, "sql": c.sql} for c in problem.constraints],
            "least": {"sql": f"SELECT SUM({cost.column}) FROM chosen", "value": best} if least else None,
            "hardening": [asdict(step) for step in history],
        },
        passages=tuple(Passage.of(d, d.text[:QUOTE_CHARS]) for d in material.documents[:1]),
        demonstrations=(Demonstration("program", (call("python", code=source), call("submit"))),),
        initial_state=InitialState(tables=world.tables()),
    )


GENERAL_AGENT = KindSpec("general_agent", "assistant", "agent", (1, 2, 3), draft)
