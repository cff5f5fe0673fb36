"""`general_agent`: the plan is loaded into the world's database, and every constraint is a query that must say 1.

No plan is compared with a stored one: whatever keeps all constraints and, where the task asks for the least, reaches the least,
passes. A plan that is not complete scores 0 (empty plans keep most constraints). A complete one scores the share of constraints
that it keeps, times least / reached where a least is asked for; below 1 unless all is right.
"""

from __future__ import annotations

import copy
import sqlite3
from typing import Any, ClassVar

from environments.errors import InputError, VerifierError
from environments.families.general_agent import database
from environments.protocols import Outcome
from environments.task import InitialState, TaskSpec
from environments.verdict import Verdict
from environments.verifiers.fixture import VerifierFixture

_STEPS = 2_000_000
"""Virtual-machine instructions of SQLite that one query may take."""


class GeneralAgentVerifier:
    """Payload: `{"constraints": [{"name", "sql"}], "least": {"sql", "value"} | null}`; queries read the view `chosen`."""

    kind: str = "general_agent"
    version: int = 1
    bounded: ClassVar[bool] = True

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict:
        """Raises VerifierError when the payload has no constraints, or a query of it fails."""
        if not isinstance(payload, dict) or not payload.get("constraints"):
            raise VerifierError("the payload of general_agent has no constraints", "synthesise the task again")
        tables = task.initial_state.tables
        slots = {row["name"] for row in tables.get("slots", ())}
        valid = {(row["slot"], row["id"]) for row in tables.get("options", ())}
        plan = [(row.get("slot"), row.get("option")) for row in outcome.tables.get("plan", [])]
        complete = len(plan) == len(slots) and {slot for slot, _ in plan} == slots and set(plan) <= valid
        parts = {"complete": float(complete), "submitted": float(outcome.submission is not None)}
        if not complete or outcome.submission is None:
            return Verdict.decide(0.0, parts=parts, evidence={"slots": len(slots), "filled": len(plan)})
        rows = [{"slot": slot, "option": option} for slot, option in plan]
        try:
            world = database(tables["slots"], tables["options"], tables["links"], rows)
        except InputError as error:
            raise VerifierError(error.message, error.fix) from error
        try:
            kept = {c["name"]: _says(world, c["sql"]) == 1 for c in payload["constraints"]}
            least = payload.get("least")
            reached = _says(world, least["sql"]) if least else 0
        finally:
            world.close()
        parts |= {name: float(ok) for name, ok in kept.items()}
        score = sum(kept.values()) / len(kept)
        best = True
        if least:
            best = reached <= least["value"]
            parts["least"] = 1.0 if best else max(0.0, least["value"] / reached)
            score *= parts["least"]
        right = best and all(kept.values())
        evidence = {"kept": sum(kept.values()), "constraints": len(kept), "reached": reached}
        return Verdict.decide(1.0 if right else min(score, 1 - 1e-9), parts=parts, evidence=evidence)

    def mutations(self, payload: Any) -> list[tuple[str, Any]]:
        """Each constraint turned round, one more that nothing keeps, and a least that is lower than can be."""
        mutated = []
        for i, constraint in enumerate(payload["constraints"]):
            changed = copy.deepcopy(payload)
            changed["constraints"][i]["sql"] = f"SELECT NOT ({constraint['sql']})"
            mutated.append((f"turned:{constraint['name']}", changed))
        more = copy.deepcopy(payload)
        more["constraints"].append({"name": "never", "sql": "SELECT 0"})
        mutated.append(("never", more))
        if payload.get("least"):
            lower = copy.deepcopy(payload)
            lower["least"]["value"] -= 1
            mutated.append(("lower", lower))
        return mutated

    def wrong_outcomes(self, outcome: Outcome, payload: Any) -> list[tuple[str, Outcome]]:
        """Not submitted; a slot empty, one twice, an id that there is not, and another slot's option."""
        plan = outcome.tables["plan"]
        swapped = [{**row, "option": plan[(i + 1) % len(plan)]["option"]} for i, row in enumerate(plan)]
        faults: dict[str, list[dict[str, Any]]] = {
            "one_missing": plan[:-1],
            "one_twice": [*plan, dict(plan[0])],
            "unknown_id": [*plan[:-1], {**plan[-1], "option": "no such id"}],
            "swapped": swapped,
        }
        wrong = [(name, Outcome(outcome.submission, {"plan": rows}, outcome.tool_calls)) for name, rows in faults.items()]
        return [("not_submitted", Outcome(None, outcome.tables, outcome.tool_calls)), *wrong]


def _says(world: sqlite3.Connection, query: str) -> int:
    """The one number that a query of the payload gives."""
    ticks = iter(range(_STEPS // 1000))
    world.set_progress_handler(lambda: next(ticks, None) is None, 1000)
    try:
        row = world.execute(query).fetchone()
    except sqlite3.Error as error:
        raise VerifierError(f"a constraint cannot be executed: {error}", "synthesise the task again") from error
    finally:
        world.set_progress_handler(None, 0)
    if row is None or not isinstance(row[0], int):
        raise VerifierError(f"a constraint gives {row!r:.60} where a number is wanted", "synthesise the task again")
    return row[0]


_WORLD = InitialState(
    tables={
        "slots": ({"n": 1, "name": "night 1"}, {"n": 2, "name": "night 2"}),
        "options": tuple({"id": f"S{i}", "slot": f"night {1 + i // 2}", "price": 50 + 10 * i, "city": "AB"[i % 2]} for i in range(4)),
        "links": tuple({"a": a, "b": b, "cost": int(a != b) * 30} for a in "AB" for b in "AB"),
    }
)
_PAYLOAD = {
    "constraints": [
        {"name": "distinct", "sql": "SELECT COUNT(*) = COUNT(DISTINCT city) FROM chosen"},
        {"name": "total", "sql": "SELECT SUM(price) <= 130 FROM chosen"},
    ],
    "least": {"sql": "SELECT SUM(price) FROM chosen", "value": 130},
}


def _fixture(
    name: str, case: Any, plan: tuple[str, ...], status: Any, score: float | None, payload: Any = _PAYLOAD, runs: int = 1
) -> VerifierFixture:
    rows = [{"slot": f"night {i}", "option": option} for i, option in enumerate(plan, 1)]
    return VerifierFixture(name, case, payload, Outcome("done", {"plan": rows}), status, score, _WORLD, runs)


FIXTURES: tuple[VerifierFixture, ...] = (
    _fixture("one of two cheapest", "full", ("S0", "S3"), "pass", 1.0),
    _fixture("the other", "full", ("S1", "S2"), "pass", 1.0),
    _fixture("one constraint broken", "partial", ("S0", "S2"), "fail", 0.5),
    _fixture("too dear and not distinct", "zero", ("S1", "S3"), "fail", 0.0),
    _fixture("incomplete", "zero", ("S0",), "fail", 0.0),
    _fixture("empty", "zero", (), "fail", 0.0),
    _fixture("no such option", "malformed", ("S0", "S9"), "fail", 0.0),
    VerifierFixture("no plan", "malformed", _PAYLOAD, Outcome("done"), "fail", 0.0, _WORLD),
    VerifierFixture("not submitted", "zero", _PAYLOAD, Outcome(None, {"plan": [{"slot": "night 1", "option": "S0"}]}), "fail", 0.0, _WORLD),
    _fixture("no constraints", "malformed", ("S0", "S3"), "no-verdict", None, {"constraints": []}),
    _fixture("a query that is none", "malformed", ("S0", "S3"), "no-verdict", None, {"constraints": [{"name": "x", "sql": "SELEC 1"}]}),
    _fixture("repeated", "determinism", ("S0", "S3"), "pass", 1.0, runs=5),
)
