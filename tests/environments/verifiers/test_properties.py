"""What holds for any submission and any state."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.errors import VerifierError
from environments.protocols import Outcome
from environments.task import InitialState, TaskSpec
from environments.verifiers.equality import same_value
from environments.verifiers.exact_number import ExactNumber, parse_number
from environments.verifiers.final_state import FinalState
from tests.environments.verifiers.test_verifiers import make_task

TASK = make_task("exact_number", "0" * 64)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.integers(), st.sampled_from(["{}", " {}\n", "+{}", "{}.0", "00{}", "{}.000"]))
def test_every_spelling_of_a_number_is_read(number: int, spelling: str) -> None:
    text = spelling.format(number)
    expected = None if number < 0 and spelling[0] in "+0" else number  # "+-5" and "00-5" are no numbers
    assert parse_number(text) == expected


@given(st.text())
def test_whatever_is_read_as_a_number_python_reads_alike(text: str) -> None:
    number = parse_number(text)
    if number is not None:
        assert float(text) == pytest.approx(float(number), rel=1e-12)


@given(st.text() | st.none(), st.integers(-999, 999))
def test_exactly_the_number_passes(text: str | None, answer: int) -> None:
    verdict = ExactNumber().verify(TASK, Outcome(text), {"answer": str(answer)})
    assert (verdict.status == "pass") == (parse_number(text) == answer)


@given(JSON)
def test_a_value_is_the_same_as_itself_and_its_copy(value: Any) -> None:
    import copy

    assert same_value(value, copy.deepcopy(value))


@given(JSON, JSON)
def test_sameness_is_symmetric_and_implies_equality_but_for_nan(left: Any, right: Any) -> None:
    assert same_value(left, right) == same_value(right, left)
    if same_value(left, right) and "nan" not in repr(left):
        assert left == right


_CELL = st.integers(-2, 2) | st.booleans() | st.none() | st.sampled_from(["0", "1"])
_TABLE = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), _CELL, min_size=1, max_size=4)


def _task(rows: dict[str, Any]) -> TaskSpec:
    return make_task("final_state", "0" * 64, InitialState(tables={"t": tuple({"name": n, "value": v} for n, v in rows.items())}))


@given(_TABLE, _TABLE, _TABLE, st.booleans())
def test_a_state_passes_exactly_when_it_is_the_expected_one_and_was_submitted(
    before: dict[str, Any], wanted: dict[str, Any], final: dict[str, Any], submitted: bool
) -> None:
    def rows(values: dict[str, Any]) -> list[dict[str, Any]]:
        return [{"name": n, "value": v} for n, v in values.items()]

    outcome = Outcome("" if submitted else None, {"t": rows(final)})
    if same_value(before, wanted):
        with pytest.raises(VerifierError, match="doing nothing would pass"):
            FinalState().verify(_task(before), outcome, {"tables": {"t": rows(wanted)}})
        return
    verdict = FinalState().verify(_task(before), outcome, {"tables": {"t": rows(wanted)}})
    assert (verdict.status == "pass") == (submitted and same_value(final, wanted))
    if same_value(final, before):
        assert verdict.score == 0.0
