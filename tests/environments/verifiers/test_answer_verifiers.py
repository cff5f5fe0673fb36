"""The answer verifiers against the fixtures they ship."""

from __future__ import annotations

from typing import Any

import pytest

from environments.resources import Resources
from environments.vault import Vault
from environments.verifiers import atomic_facts, judge_payload, reasoning_scorer, typed_answer
from environments.verifiers.fixture import VerifierFixture
from tests.environments.verifiers.test_verifiers import make_task

VERIFIERS: tuple[tuple[Any, tuple[VerifierFixture, ...]], ...] = (
    (atomic_facts.AtomicFacts, atomic_facts.FIXTURES),
    (typed_answer.TypedAnswer, typed_answer.FIXTURES),
    (reasoning_scorer.ReasoningScorer, reasoning_scorer.FIXTURES),
)


@pytest.mark.parametrize(
    ("kind", "fixture"), [pytest.param(v.kind, f, id=f"{v.kind}-{f.case}-{f.name}") for v, fixtures in VERIFIERS for f in fixtures]
)
def test_fixture(kind: str, fixture: VerifierFixture, tmp_path: Any) -> None:
    if kind == "reasoning_scorer":
        pytest.importorskip("reasoning_gym")
    with Resources(Vault(tmp_path / "vault")) as resources:
        verdicts = [judge_payload(make_task(kind, "0" * 64), fixture.outcome, fixture.payload, resources) for _ in range(fixture.runs)]
    assert verdicts[0].status == fixture.status
    assert verdicts[0].score == (None if fixture.score is None else pytest.approx(fixture.score, abs=1e-8))
    assert all(v == verdicts[0] for v in verdicts)
