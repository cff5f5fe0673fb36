"""`final_state`: the world's tables must end up exactly as expected, and the agent must have said that it is done.

Rows are matched by a key column (the payload's `keys`, else `id`, `name` or the first column). Cells compare with their
types (`30` is neither `"30"` nor `30.0`). Partial credit is the share of the cells to change that are right, times the share of
all other cells that are still as they were; so doing nothing scores 0, and so does wrecking everything else.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from environments.errors import VerifierError
from environments.protocols import Outcome
from environments.task import InitialState, TaskSpec
from environments.verdict import Verdict
from environments.verifiers.equality import same_value
from environments.verifiers.fixture import VerifierFixture

_Cell = tuple[str, str, str]
_ABSENT = object()


def _cells(tables: Mapping[str, Iterable[Mapping[str, Any]]], keys: Mapping[str, str]) -> dict[_Cell, Any]:
    """Every cell by (table, row key, column); the n-th row with the same key has its own key."""
    found: dict[_Cell, Any] = {}
    for table, rows in tables.items():
        seen: Counter[str] = Counter()
        for row in rows:
            key = repr(row.get(keys[table])) if table in keys else repr(sorted(row.items(), key=lambda item: item[0]))
            seen[key] += 1
            for column, value in row.items():
                found[table, f"{key}#{seen[key]}", column] = value
    return found


def _key_columns(payload: Any) -> dict[str, str]:
    """The column that names a row, by table: the payload's choice, else `id` or `name`, else the first."""
    found = {
        t: next((c for c in ("id", "name") if c in rows[0]), next(iter(rows[0])))
        for t, rows in payload["tables"].items()
        if rows and rows[0]
    }
    return {**found, **(payload.get("keys") or {})}


def _same(left: dict[_Cell, Any], right: dict[_Cell, Any], cell: _Cell) -> bool:
    a, b = left.get(cell, _ABSENT), right.get(cell, _ABSENT)
    return a is b if a is _ABSENT or b is _ABSENT else same_value(a, b)


class FinalState:
    """Payload: `{"tables": {name: [row, ...]}, "initial": {...}?, "keys": {name: column}?}`; `initial` defaults to the task's.

    "Done" is a submission that is not None: a family whose `submit` takes nothing stores an empty text.
    """

    kind: str = "final_state"
    version: int = 1
    bounded: ClassVar[bool] = True

    def _parts(self, task: TaskSpec, payload: Any) -> tuple[dict[str, str], dict[_Cell, Any], dict[_Cell, Any]]:
        if not isinstance(payload, dict) or not isinstance(payload.get("tables"), dict) or not payload["tables"]:
            raise VerifierError("the payload of final_state has no tables", "synthesise the task again")
        tables = payload["tables"]
        keys = _key_columns(payload)
        initial = _cells(payload.get("initial") or task.initial_state.tables, keys)
        expected = _cells(tables, keys)
        if all(_same(initial, expected, cell) for cell in initial.keys() | expected.keys()):
            raise VerifierError("the expected state equals the initial one, so doing nothing would pass", "synthesise the task again")
        return keys, initial, expected

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict:
        """Raises VerifierError when the payload has no tables, or when doing nothing would pass."""
        keys, initial, expected = self._parts(task, payload)
        final = _cells(outcome.tables, keys)
        every = initial.keys() | expected.keys() | final.keys()
        to_change = {cell for cell in initial.keys() | expected.keys() if not _same(initial, expected, cell)}
        to_keep = every - to_change
        right = sum(_same(final, expected, cell) for cell in to_change)
        kept = sum(_same(final, expected, cell) for cell in to_keep)
        parts = {
            "changed": right / len(to_change),
            "untouched": kept / len(to_keep) if to_keep else 1.0,
            "submitted": 0.0 if outcome.submission is None else 1.0,
        }
        evidence = {"cells_to_change": len(to_change), "changed_right": right, "other_cells": len(to_keep), "others_untouched": kept}
        exact = right == len(to_change) and kept == len(to_keep) and outcome.submission is not None
        score = parts["changed"] * parts["untouched"] * parts["submitted"]
        return Verdict.decide(1.0 if exact else min(score, 1 - 1e-9), parts=parts, evidence=evidence)

    def mutations(self, payload: Any) -> list[tuple[str, Any]]:
        """Payloads that expect something else: every value zero, every value one constant, one cell each (first, middle, last) off."""
        mutated = []
        keys = _key_columns(payload)
        cells = [(t, i, c) for t, rows in payload["tables"].items() for i, row in enumerate(rows) for c in row if c != keys.get(t)]
        for name, value in (("zero", 0), ("constant", -987654321)):
            changed = copy.deepcopy(payload)
            for table, i, column in cells:
                changed["tables"][table][i][column] = value
            mutated.append((name, changed))
        for table, i, column in sorted({cells[0], cells[len(cells) // 2], cells[-1]}) if cells else []:
            changed = copy.deepcopy(payload)
            changed["tables"][table][i][column] = _other(changed["tables"][table][i][column])
            mutated.append((f"partial:{table}.{i}.{column}", changed))
        fewer = copy.deepcopy(payload)
        next(iter(fewer["tables"].values())).pop()
        mutated.append(("row_missing", fewer))
        return [(name, p) for name, p in mutated if not same_value(p["tables"], payload["tables"])]

    def wrong_outcomes(self, outcome: Outcome, payload: Any) -> list[tuple[str, Outcome]]:
        """The reference's outcome with one fault each: a cell off (8 rows at most), a row lost, a row added, not submitted."""
        keys = _key_columns(payload)
        wrong: list[tuple[str, Outcome]] = [("not_submitted", Outcome(None, outcome.tables, outcome.tool_calls))]
        spots = [(t, i) for t, rows in outcome.tables.items() for i in range(len(rows))][:8]
        for table, i in spots:
            tables = copy.deepcopy(outcome.tables)
            column = next((c for c in tables[table][i] if c != keys.get(table)), keys.get(table, ""))
            tables[table][i][column] = _other(tables[table][i][column])
            wrong.append((f"cell:{table}.{i}.{column}", Outcome(outcome.submission, tables, outcome.tool_calls)))
        for name in ("row_lost", "row_added"):
            tables = copy.deepcopy(outcome.tables)
            rows = next(iter(tables.values()), [])
            if rows:
                tables[next(iter(tables))] = rows[:-1] if name == "row_lost" else [*rows, dict(rows[0])]
                wrong.append((name, Outcome(outcome.submission, tables, outcome.tool_calls)))
        return wrong


def _other(value: Any) -> Any:
    """A value of the same type that is not `value`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    return f"{value}~" if isinstance(value, str) else 0


def _rows(**settings: Any) -> list[dict[str, Any]]:
    return [{"name": name, "value": value} for name, value in settings.items()]


_INITIAL = InitialState(tables={"settings": tuple(_rows(limit=10, depth=3, width=80, strict=False))})
_PAYLOAD = {"tables": {"settings": _rows(limit=20, depth=4, width=80, strict=False)}}


def _fixture(
    name: str, case: Any, submission: str | None, status: Any, score: float | None, payload: Any = _PAYLOAD, runs: int = 1, **settings: Any
) -> VerifierFixture:
    return VerifierFixture(name, case, payload, Outcome(submission, {"settings": _rows(**settings)}), status, score, _INITIAL, runs)


FIXTURES: tuple[VerifierFixture, ...] = (
    _fixture("all right", "full", "", "pass", 1.0, limit=20, depth=4, width=80, strict=False),
    _fixture("rows in another order", "full", "", "pass", 1.0, strict=False, width=80, depth=4, limit=20),
    _fixture("not submitted", "zero", None, "fail", 0.0, limit=20, depth=4, width=80, strict=False),
    _fixture("nothing done", "zero", "", "fail", 0.0, limit=10, depth=3, width=80, strict=False),
    _fixture("half done", "partial", "", "fail", 0.5, limit=20, depth=3, width=80, strict=False),
    # 6 cells must stay (4 names, width, strict); one of them did not.
    _fixture("one too many", "partial", "", "fail", 5 / 6, limit=20, depth=4, width=81, strict=False),
    _fixture("wrong type", "partial", "", "fail", 0.5, limit="20", depth=4, width=80, strict=False),
    _fixture("false is not zero", "partial", "", "fail", 5 / 6, limit=20, depth=4, width=80, strict=0),
    VerifierFixture("table lost", "malformed", _PAYLOAD, Outcome("", {}), "fail", 0.0, _INITIAL),
    _fixture(
        "inaction would pass",
        "malformed",
        "",
        "no-verdict",
        None,
        {"tables": {"settings": _rows(limit=10, depth=3, width=80, strict=False)}},
        limit=10,
    ),
    _fixture("payload without tables", "malformed", "", "no-verdict", None, {"tables": {}}, limit=10),
    _fixture("repeated", "determinism", "", "pass", 1.0, runs=5, limit=20, depth=4, width=80, strict=False),
)
