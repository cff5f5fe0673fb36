"""The constructor's score: valid times hard, few candidates count little, and nobody's share vanishes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.records import ConstructorRow, RolloutRow, TaskRow
from tasks.constructor import generator, outcomes, scores, shifted
from tasks.distribution import Cell
from tasks.sampling import SynthesisConfig, targets


def task(number: int, status: str, level: int = 1, reason: str = "") -> TaskRow:
    text = dict.fromkeys(("family", "domain", "branch", "split", "prompt", "spec_json", "verifier_kind", "verifier_sha256"), "")
    made: dict[str, Any] = {**text, "run": "old", "task_id": f"t{number}", "kind": "lookup", "level": level, "status": status}
    rest = {"reject_reason": reason, "verifier_version": 1, "synthesizer": "s", "synthesizer_version": "1", "licence": "MIT"}
    return TaskRow(**made, **rest)


def rollout(number: int, score: float | None) -> RolloutRow:
    values = {name: "" if field.annotation is str else 0 for name, field in RolloutRow.model_fields.items() if field.is_required()}
    return RolloutRow.model_validate({**values, "run": "old", "task_id": f"t{number}", "score": score, "within_budget": None})


def row(name: str, candidates: int, valid: int, episodes: int, solved: float, learned: str = "old") -> ConstructorRow:
    return ConstructorRow(
        run="new", learned_run=learned, generator=name, candidates=candidates, valid=valid, episodes=episodes, solved=solved
    )


def test_outcomes_count_what_was_decided() -> None:
    tasks = [
        task(0, "published"),
        task(1, "split", reason="answer: shared"),
        task(2, "validation", reason="null passed"),
        task(3, "synthesis", reason="duplicate: exact copy of t0"),
        task(4, "candidate"),
        task(5, "probe", level=2, reason="constant_answer passed"),
    ]
    episodes = [rollout(0, 1.0), rollout(0, 0.0), rollout(1, 0.5), rollout(1, None), rollout(99, 1.0)]
    found = {r.generator: r for r in outcomes("new", "old", tasks, episodes)}
    assert found["lookup/1"] == row("lookup/1", 3, 2, 3, 1.5)
    assert found["lookup/2"] == row("lookup/2", 1, 0, 0, 0)
    assert len(found) == 2


def test_score_is_validity_times_difficulty_over_all_runs_each_once() -> None:
    history = [row("a/1", 8, 8, 8, 2), row("a/1", 8, 8, 8, 2), row("a/1", 0, 0, 0, 0, "older"), row("b/1", 8, 0, 8, 2)]
    found = scores(history)
    assert found["a/1"] == pytest.approx(9 / 10 * 7 / 10)
    assert found["b/1"] == pytest.approx(1 / 10 * 7 / 10)
    assert scores([]) == {}
    assert scores([row("c/1", 0, 0, 0, 0)])["c/1"] == 0.25


CELLS = [Cell(kind, level) for kind in ("a", "b") for level in (1, 2)]


@given(
    st.fixed_dictionaries({cell: st.floats(0.01, 10) for cell in CELLS}),
    st.fixed_dictionaries({generator(c.kind, c.level): st.floats(0.001, 1) for c in CELLS}),
    st.floats(0.05, 1),
)
def test_shares_move_towards_scores_keep_their_sum_and_never_fall_below_the_floor(
    weights: dict[Cell, float], found: dict[str, float], exploration: float
) -> None:
    moved = shifted(weights, found, exploration)
    assert sum(moved.values()) == pytest.approx(sum(weights.values()))
    for cell, weight in weights.items():
        assert moved[cell] >= exploration * weight * (1 - 1e-9)
    ratio = {cell: moved[cell] / weights[cell] for cell in CELLS}
    for one in CELLS:
        for other in CELLS:
            if found[generator(one.kind, one.level)] > found[generator(other.kind, other.level)]:
                assert ratio[one] >= ratio[other] - 1e-9
    assert shifted(weights, {}, exploration) == weights


def test_targets_follow_the_history_within_a_domain() -> None:
    config = SynthesisConfig(tasks={"general": 300, "agent": 300, "coding": 0})
    found = targets(config, scores([row("lookup/1", 98, 98, 98, 97), row("lookup/3", 98, 98, 98, 9)]))
    by_level = {c.level: n for c, n in found.items() if c.kind == "lookup"}
    assert sum(by_level.values()) == 300
    assert by_level[1] < by_level[2] < by_level[3]
    assert {n for c, n in found.items() if c.kind == "settings"} == {100}
