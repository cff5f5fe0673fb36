"""Notebook tasks: mathematics, logic and data science over files, worked out in several cells of a stateful interpreter."""

from __future__ import annotations

import random

from environments.task import Budgets, InitialState
from kg.concept import Passage
from tasks.kinds.draft import Demonstration, Draft, KindSpec, Material, call
from tasks.kinds.notebook.problems import BRANCHES


def draft(rng: random.Random, material: Material, level: int) -> Draft | None:
    """The level sets the size of the data. The reference computes its answer in the sandbox and hands it in from there."""
    problem = rng.choice(BRANCHES)(rng, level)
    if problem is None:
        return None
    about = f"For notes on {material.names[0]}. " if material.names else ""
    return Draft(
        kind="notebook",
        family="reasoning",
        domain="general",
        level=level,
        prompt=f"{about}{problem.prompt}",
        tools=("python", "submit"),
        budgets=Budgets(steps=24, output_tokens=6_000, wall_s=240, submissions=1),
        verifier_kind="notebook",
        payload={"results": list(problem.results)},
        passages=tuple(Passage.of(d, d.text[:200]) for d in material.documents[:1]),
        demonstrations=(Demonstration(problem.branch, tuple(call("python", code=cell) for cell in problem.cells)),),
        initial_state=InitialState(files=problem.files),
    )


NOTEBOOK = KindSpec("notebook", "reasoning", "general", (1, 2, 3), draft)
