"""Notebook tasks: reference cells, run in the sandbox, agree with an independent computation; exploits fail."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from environments.resources import Resources
from environments.verifiers import judge_payload
from environments.verifiers.notebook import FIXTURES, NotebookVerifier, VerifierFixture
from tasks.kinds.draft import Draft, call
from tasks.kinds.notebook import draft
from tasks.kinds.notebook.problems import BRANCHES
from tests.tasks.kinds import play


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    with play.resources(tmp_path_factory.mktemp("notebook")) as made:
        yield made


def made(level: int, branch: str = "") -> Draft:
    drafts = (draft(random.Random(seed), play.MATERIAL, level) for seed in range(300))
    return next(d for d in drafts if d is not None and branch in d.demonstrations[0].style)


@pytest.mark.sandbox
@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("branch", ["data science", "mathematics", "logic"])
def test_reference_agrees_with_the_other_computation(branch: str, level: int, resources: Resources) -> None:
    found = made(level, branch)
    messages = found.demonstrations[0].messages
    assert len(messages) >= 3
    verdict = play.verdict_of(found, messages, resources)
    assert verdict.score == 1, verdict
    # Without the cells before it the last one has nothing to work with.
    assert play.verdict_of(found, messages[-1:], resources).score == 0
    assert play.verdict_of(found, (call("submit", answer="0,0,north"[: 3 if branch == "mathematics" else 9]),), resources).reward == 0


@pytest.mark.slow
@pytest.mark.sandbox
def test_the_gate_finds_it_sound(resources: Resources) -> None:
    for branch in ("data science", "mathematics", "logic"):
        play.assert_sound(made(1, branch), resources)


def test_same_seed_same_draft() -> None:
    assert made(2) == made(2)
    assert len(BRANCHES) == 3


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda f: f"{f.case}-{f.name}")
def test_fixture(fixture: VerifierFixture, resources: Resources) -> None:
    task = play.task_of(made(1), resources)
    for _ in range(fixture.runs):
        verdict = judge_payload(task, fixture.outcome, fixture.payload, resources)
        assert (verdict.status, verdict.score) == (fixture.status, fixture.score)


def test_fixture_fails_every_mutation(resources: Resources) -> None:
    task, full, verifier = play.task_of(made(1), resources), FIXTURES[0], NotebookVerifier()
    for name, payload in verifier.mutations(full.payload):
        assert verifier.verify(task, full.outcome, payload).status == "fail", name
    for name, outcome in verifier.wrong_outcomes(full.outcome, full.payload):
        assert verifier.verify(task, outcome, full.payload).status == "fail", name
