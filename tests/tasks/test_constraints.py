"""Multi-constraint tasks: each can be solved, each requirement is really checked, and none is passed by getting round it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.errors import VerifierError
from environments.hardening import HardeningConfig, validate
from environments.protocols import Document, Outcome
from environments.resources import Resources
from environments.sandbox import CodePool
from environments.vault import Vault
from environments.verifiers.constrained_tests import FIXTURES, RUN, STATIC, ConstrainedTests
from environments.verifiers.fixture import VerifierFixture
from kg.concept import Passage
from tasks.kinds.constraints import COUNT_BY_LEVEL, constrained, draft
from tasks.kinds.draft import Draft, Material
from tasks.standalone import Documented, documented
from tasks.synthesis import to_task

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def pool() -> Iterator[CodePool]:
    with CodePool() as made:
        yield made


@pytest.fixture(scope="module")
def drafts(pool: CodePool) -> list[tuple[Documented, Draft]]:
    found: list[tuple[Documented, Draft]] = []
    for i, function in enumerate(documented("toolz", module="toolz.itertoolz")):
        passage = Passage("d", function.title, function.package, function.licence, function.doc)
        made = constrained(random.Random(i), function, passage, 1 + i % 3, pool)
        if isinstance(made, Draft):
            found.append((function, made))
    return found


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_fixture(fixture: VerifierFixture, pool: CodePool) -> None:
    verifier = ConstrainedTests(pool)
    if fixture.status == "no-verdict":
        with pytest.raises(VerifierError):
            verifier.verify(None, fixture.outcome, fixture.payload)  # type: ignore[arg-type]
        return
    verdicts = [verifier.verify(None, fixture.outcome, fixture.payload) for _ in range(fixture.runs)]  # type: ignore[arg-type]
    assert verdicts[0].status == fixture.status
    assert verdicts[0].score == pytest.approx(fixture.score, abs=1e-6)
    assert all(v == verdicts[0] for v in verdicts)


def test_several_functions_become_tasks_with_as_many_requirements_as_the_level_wants(drafts: list[tuple[Documented, Draft]]) -> None:
    assert len(drafts) >= 4
    for _, made in drafts:
        constraints = made.payload["constraints"]
        assert 3 <= len(constraints) <= COUNT_BY_LEVEL[made.level]
        assert constraints.keys() <= {*STATIC, *RUN}
        assert made.prompt.count("\n- ") == len(constraints) + 1


def test_the_reference_passes_and_the_packages_own_text_does_not(drafts: list[tuple[Documented, Draft]], pool: CodePool) -> None:
    verifier = ConstrainedTests(pool)
    for function, made in drafts:
        reference = str(made.demonstrations[1].messages[0].calls[0].arguments["source"])
        assert verifier.verify(None, Outcome(reference), made.payload).status == "pass"  # type: ignore[arg-type]
        own = verifier.verify(None, Outcome(function.source), made.payload)  # type: ignore[arg-type]
        assert own.status == "fail"
        assert own.parts["tests"] == 1.0
        assert "docstring" in own.evidence["broken_constraints"]


def test_a_task_is_sound(drafts: list[tuple[Documented, Draft]], tmp_path: Path, pool: CodePool) -> None:
    with Resources(Vault(tmp_path), pool=pool) as resources:
        for _, made in drafts[:3]:
            rows = validate(to_task(made, "n", "b", resources.vault), resources, HardeningConfig(run="r", reference_runs=2))
            assert [f"{row.check_name}: {row.observed} {row.detail}" for row in rows if not row.ok] == []


def test_state_between_calls_is_seen(pool: CodePool) -> None:
    payload = {"entry": "solve", "inputs": [[1], [2], [3]], "outputs": [1, 2, 3], "constraints": {"stateless": True}}
    counts = "seen = []\ndef solve(x):\n    seen.append(x)\n    return len(seen)\n"
    verdict = ConstrainedTests(pool).verify(None, Outcome(counts), payload)  # type: ignore[arg-type]
    assert (verdict.status, verdict.parts["tests"], verdict.evidence["broken_constraints"]) == ("fail", 1.0, ["stateless"])


def test_it_is_drafted_from_a_document(drafts: list[tuple[Documented, Draft]]) -> None:
    function, made = drafts[0]
    document = Document("d", f"toolz.{function.title.rsplit('.', 1)[-1]}", f"f(...)\n\n{function.doc}", "toolz", function.licence)
    again = draft(random.Random(0), Material(("n",), (), (document,)), made.level)
    assert again is not None
    assert again.kind == "constraints"
    assert draft(random.Random(0), Material(("n",), (), ()), 1) is None
