"""Every verifier against the fixtures it ships, and `judge` against verifiers that misbehave."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from environments import verifiers
from environments.errors import SandboxError
from environments.protocols import Outcome
from environments.resources import Resources
from environments.task import Budgets, InitialState, Message, Provenance, TaskSpec, VerifierRef
from environments.vault import Vault
from environments.verdict import Verdict
from environments.verifiers import ENTRIES, fixtures_of, judge, register
from environments.verifiers.equality import same_value
from environments.verifiers.fixture import VerifierFixture


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    with Resources(Vault(tmp_path_factory.mktemp("vault"))) as made:
        yield made


def make_task(kind: str, sha256: str, initial_state: InitialState | None = None) -> TaskSpec:
    return TaskSpec(
        family="search",
        domain="general",
        kind="t",
        level=1,
        prompt=(Message(role="user", content="?"),),
        initial_state=initial_state or InitialState(),
        tools=("submit",),
        budgets=Budgets(steps=4, output_tokens=100, wall_s=5, submissions=1),
        hidden_verifier=VerifierRef(kind=kind, sha256=sha256, entry=ENTRIES.get(kind, "x:Y")),
        reference_sha256="",
        provenance=Provenance(node_ids=(), branch="b", document_ids=(), material_hashes=(), synthesizer="t", synthesizer_version="1"),
        licence="MIT",
    )


FIXTURES = {kind: fixtures_of(kind) for kind in ("exact_number", "exact_values", "final_state", "hidden_tests")}
"""The other verifiers' fixtures are run beside their tasks."""
CASES = [
    pytest.param(kind, fixture, id=f"{kind}-{fixture.case}-{fixture.name}") for kind, fixtures in FIXTURES.items() for fixture in fixtures
]


@pytest.mark.sandbox
@pytest.mark.parametrize(("kind", "fixture"), CASES)
def test_fixture(kind: str, fixture: VerifierFixture, resources: Resources) -> None:
    task = make_task(kind, resources.vault.put(fixture.payload), fixture.initial_state)
    verdicts = [judge(task, fixture.outcome, resources) for _ in range(fixture.runs)]
    assert verdicts[0].status == fixture.status
    assert verdicts[0].score == (None if fixture.score is None else pytest.approx(fixture.score, abs=1e-8))
    assert (verdicts[0].score == 1.0) == (fixture.status == "pass")
    assert all(v == verdicts[0] for v in verdicts)


def test_every_verifier_ships_every_case() -> None:
    for kind in ENTRIES:
        fixtures = fixtures_of(kind)
        assert {"full", "zero", "malformed", "determinism"} <= {f.case for f in fixtures}, kind
        module, _, name = ENTRIES[kind].partition(":")
        assert getattr(__import__(module, fromlist=[name]), name).kind == kind


@pytest.mark.sandbox
@pytest.mark.parametrize("kind", list(FIXTURES))
def test_the_full_fixture_fails_every_mutated_payload_and_every_wrong_outcome_fails(kind: str, resources: Resources) -> None:
    fixture = next(f for f in FIXTURES[kind] if f.case == "full")
    task = make_task(kind, resources.vault.put(fixture.payload), fixture.initial_state)
    verifier: Any = verifiers.verifier_for(kind, resources)
    mutations = verifier.mutations(fixture.payload)
    assert len(mutations) >= 3
    for name, payload in mutations:
        assert verifiers.judge_payload(task, fixture.outcome, payload, resources).status == "fail", name
    wrong = verifier.wrong_outcomes(fixture.outcome, fixture.payload)
    assert len(wrong) >= 3
    for name, outcome in wrong:
        assert judge(task, outcome, resources).status == "fail", name


class _Says:
    kind, version, timeout_s = "says", 1, 0.3

    def __init__(self, answer: Callable[[], Any]) -> None:
        self.answer = answer

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Any:
        return self.answer()


def _crash() -> None:
    raise ZeroDivisionError("boom")


def _hang() -> None:
    time.sleep(2)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "nan": (lambda: math.nan, "NonFiniteRewardError"),
    "infinite": (lambda: math.inf, "NonFiniteRewardError"),
    "1.5": (lambda: 1.5, "NonFiniteRewardError"),
    "text": (lambda: "1", "NonFiniteRewardError"),
    "true": (lambda: True, "NonFiniteRewardError"),
    "object": (object, "NonFiniteRewardError"),
    "nothing": (lambda: None, "NonFiniteRewardError"),
    "crash": (_crash, "ZeroDivisionError"),
    "hang": (_hang, "VerifierError"),
    "verdict around validation": (lambda: Verdict.model_construct(status="pass", score=7.0, parts={}, evidence={}), "ValidationError"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_verifier_gives_no_verdict(name: str, resources: Resources) -> None:
    answer, error = BAD[name]
    register("says", lambda _: _Says(answer))
    verdict = judge(make_task("says", resources.vault.put({})), Outcome("1"), resources)
    assert (verdict.status, verdict.score, verdict.reward, verdict.evidence["error"]) == ("no-verdict", None, None, error)


def test_a_score_from_a_registered_verifier_counts(resources: Resources) -> None:
    register("says", lambda _: _Says(lambda: 0.25))
    verdict = judge(make_task("says", resources.vault.put({})), Outcome("1"), resources)
    assert (verdict.status, verdict.score, verdict.reward) == ("fail", 0.25, 0.0)


def test_infrastructure_failures_pass_through(resources: Resources) -> None:
    def dead() -> None:
        raise SandboxError("the box died")

    register("says", lambda _: _Says(dead))
    with pytest.raises(SandboxError, match="the box died"):
        judge(make_task("says", resources.vault.put({})), Outcome("1"), resources)


def test_missing_payload_and_unknown_kind_give_no_verdict(resources: Resources, tmp_path: Path) -> None:
    missing = judge(make_task("exact_number", "0" * 64), Outcome("1"), resources)
    assert (missing.status, missing.evidence["error"]) == ("no-verdict", "CorruptArtifactError")
    unknown = judge(make_task("no_such_kind", resources.vault.put({})), Outcome("1"), resources)
    assert unknown.status == "no-verdict"
    assert "no_such_kind" in unknown.evidence["reason"]


@pytest.mark.sandbox
def test_the_expected_values_never_enter_the_sandbox(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    call = type(resources.pool).call
    monkeypatch.setattr(type(resources.pool), "call", lambda self, *a, **k: seen.append((a, k)) or call(self, *a, **k))
    task = make_task("hidden_tests", resources.vault.put({"entry": "solve", "inputs": [[3]], "outputs": ["a-secret-output"]}))
    assert judge(task, Outcome("def solve(x): return x"), resources).status == "fail"
    assert seen
    assert "a-secret-output" not in repr(seen)
    assert "a-secret-output" not in repr(judge(task, Outcome("def solve(x): return x"), resources))


class _Always(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (1, 1, True),
        (1, True, False),
        (1, 1.0, False),
        (0.0, -0.0, True),
        (math.nan, math.nan, True),
        (math.nan, 0.0, False),
        ([1, "a"], [1, "a"], True),
        ([1], [True], False),
        ({"a": [None]}, {"a": [None]}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ((1,), [1], False),
        ((1,), (1,), False),
        (_Always(3), 4, False),
        (_Always(3), _Always(4), False),
    ],
)
def test_same_value(left: Any, right: Any, same: bool) -> None:
    assert same_value(left, right) is same
