"""The run-time half of the proof: the solution program runs in the task's own sandbox, with the tools as its only way to the data."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from environments.environment import Environment
from environments.families import make_environment
from environments.families.general_agent import SCHEMAS
from environments.protocols import Outcome
from environments.resources import Resources
from environments.task import InitialState, TaskSpec, ToolCall
from environments.verifiers.general_agent import GeneralAgentVerifier
from tasks.kinds.general_agent.solution import objections

Make = Callable[[TaskSpec, Resources], Environment]


def twin(state: InitialState, rng: random.Random) -> InitialState:
    """The same world with other ids in another order: no plan that was written down beforehand fits it."""
    tables = dict(state.tables)
    options = rng.sample(tables["options"], len(tables["options"]))
    ids = rng.sample(range(10_000, 100_000), len(options))
    tables["options"] = tuple({**row, "id": f"T{i}"} for row, i in zip(options, ids, strict=True))
    return state.model_copy(update={"tables": tables})


def unproved(
    source: str, task: TaskSpec, payload: Any, resources: Resources, rng: random.Random, make: Make = make_environment
) -> list[str]:
    """Why a solution program is not proved to solve the task through its tools alone; empty when it is.

    Raises:
        InfrastructureError: a sandbox failed; nothing is known about the program.
    """
    schema = next(s for s in SCHEMAS.values() if s.tools[0] in task.tools)
    reasons = objections(source, schema.tools, [str(row["id"]) for row in task.initial_state.tables["options"]])
    if reasons:
        return reasons
    nothing = dict(task.initial_state.tables) | {"options": ({**task.initial_state.tables["options"][0], "slot": "none"},)}
    worlds = {
        "task": (task.initial_state, "pass"),
        "twin": (twin(task.initial_state, rng), "pass"),
        "empty world": (task.initial_state.model_copy(update={"tables": nothing}), "fail"),
    }
    for name, (state, expected) in worlds.items():
        world = TaskSpec.model_validate(task.model_copy(update={"initial_state": state}).model_dump())
        called, outcome = _run(source, world, resources, make)
        if foreign := called - set(schema.tools):
            reasons.append(f"{name}: it called {sorted(foreign)[0]}")
        if name != "empty world" and schema.tools[1] not in called:
            reasons.append(f"{name}: it read no {schema.option}")
        verdict = GeneralAgentVerifier().verify(world, outcome, payload)
        if verdict.status != expected:
            reasons.append(f"{name}: {verdict.status} instead of {expected}")
    return reasons


def _run(source: str, task: TaskSpec, resources: Resources, make: Make) -> tuple[set[str], Outcome]:
    called: set[str] = set()
    with make(task, resources) as environment:
        environment.on_call = lambda call, answer, error: called.add(call.tool)
        environment.setup()
        environment.step(ToolCall(tool="python", arguments={"code": source}))
        environment.step(ToolCall(tool="submit"))
        outcome = environment.finalize()
    return called, outcome
