"""Targets as whole numbers, and the distance of what came."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.distribution import apportion, total_variation
from tasks.sampling import SynthesisConfig, targets

WEIGHTS = st.dictionaries(st.integers(0, 30), st.floats(0, 1000, allow_subnormal=False), max_size=12)


@given(st.integers(0, 5000), WEIGHTS)
def test_counts_sum_to_the_total_and_each_is_within_one_of_its_share(total: int, weights: dict[int, float]) -> None:
    counts = apportion(total, weights)
    whole = sum(weights.values())
    assert counts.keys() == weights.keys()
    assert sum(counts.values()) == (total if whole else 0)
    for key, weight in weights.items():
        assert abs(counts[key] - (total * weight / whole if whole else 0)) < 1 + 1e-6
        assert weight or not counts[key]


def test_a_negative_weight_is_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        apportion(3, {"a": -1.0})
    with pytest.raises(ValueError, match="not negative"):
        SynthesisConfig(shapes={"single": -1.0})
    with pytest.raises(ValueError, match="finite"):
        SynthesisConfig(kind_weights={"lookup": float("inf")})


@given(st.lists(st.sampled_from("abc"), max_size=30))
def test_distance_is_zero_for_the_target_itself_and_never_above_one(found: list[str]) -> None:
    target = {key: float(found.count(key)) for key in "abc"}
    assert total_variation(target, found) == pytest.approx(0)
    assert 0 <= total_variation({"a": 1.0}, found) <= 1 + 1e-9
    assert total_variation({"z": 1.0}, found) == pytest.approx(1)


def test_weights_of_levels_and_shapes_divide_a_types_share() -> None:
    tasks = {"general": 100, "agent": 0, "coding": 60}
    config = SynthesisConfig(tasks=tasks, level_weights={3: 2.0}, shapes={"single": 3.0, "siblings": 1.0}, kinds=("lookup", "function"))
    wanted = {(c.kind, c.level, c.shape): n for c, n in targets(config).items()}
    assert sum(n for (kind, _, _), n in wanted.items() if kind == "lookup") == 100
    assert sum(n for (kind, level, _), n in wanted.items() if kind == "lookup" and level == 3) == pytest.approx(50, abs=1)
    assert sum(n for (_, _, shape), n in wanted.items() if shape == "siblings") == pytest.approx(40, abs=6), "one for each of six cells"
