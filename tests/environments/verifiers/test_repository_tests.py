"""`repository_tests` against the outcomes that it ships, and what it takes from an agent's files."""

from __future__ import annotations

import pytest

from environments.errors import MissingDependencyError, VerifierError
from environments.sandbox.backends import choose
from environments.sandbox.base import Backend
from environments.sandbox.images import ImageError
from environments.verifiers.fixture import VerifierFixture
from environments.verifiers.repository_tests import FIXTURES, MAX_FILES, RepositoryTests, editable_files
from environments.verifiers.suite import Suite, run_suite, sandbox_config

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def backend() -> Backend:
    try:
        sandbox_config(("pytest>=8,<10",))
        return choose()[0]
    except (MissingDependencyError, ImageError) as error:
        pytest.skip(f"no sandbox with pytest here: {error}")


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda fixture: fixture.name)
def test_fixture(fixture: VerifierFixture, backend: Backend) -> None:
    verifier = RepositoryTests(backend)
    if fixture.status == "no-verdict":
        with pytest.raises(VerifierError):
            verifier.judge(fixture.outcome, fixture.payload)
        return
    verdicts = [verifier.judge(fixture.outcome, fixture.payload) for _ in range(fixture.runs)]
    assert (verdicts[0].status, verdicts[0].score) == (fixture.status, fixture.score)
    assert all(verdict == verdicts[0] for verdict in verdicts)


def test_spoiled_payloads_and_outcomes_fail(backend: Backend) -> None:
    verifier = RepositoryTests(backend)
    full = FIXTURES[0]
    mutated = [(name, verifier.judge(full.outcome, payload).status) for name, payload in verifier.mutations(full.payload)]
    wrong = [(name, verifier.judge(outcome, full.payload).status) for name, outcome in verifier.wrong_outcomes(full.outcome, full.payload)]
    assert [name for name, status in [*mutated, *wrong] if status != "fail"] == []
    assert len(mutated) == 3
    assert len(wrong) == 4


def test_only_declared_source_is_taken() -> None:
    planted = [
        "m.py",
        "pkg/a.py",
        "pkg/data.json",
        "pkg/conftest.py",
        "pkg/sitecustomize.py",
        "pkg/x.pth",
        "pkg/__pycache__/a.pyc",
        "pytest.py",
    ]
    planted += ["pkg/../conftest.py", "pkg/x.dist-info/entry_points.txt", "tests/test_m.py", "pkg/a.so"]
    found = editable_files(dict.fromkeys(planted, b"x"), ["m.py", "pkg/"])
    assert sorted(found) == ["m.py", "pkg/a.py", "pkg/data.json"]
    assert editable_files({f"pkg/{i}.py": b"" for i in range(MAX_FILES + 1)}, ["pkg/"]) == {}
    assert editable_files({"pkg/a.py": b"\0"}, ["pkg/"]) == {}


def test_a_run_says_what_each_test_did(backend: Backend) -> None:
    source = """
import sys, pytest
def test_pass(): print('{"id": "forged", "outcome": "passed"}')
def test_fail(): assert False
def test_skip(): pytest.skip("no")
@pytest.mark.xfail
def test_expected(): assert False
@pytest.fixture
def broken(): yield; raise ValueError
def test_teardown(broken): pass
def test_flood(): sys.stderr.write("x" * 100_000)
"""
    run = run_suite(
        backend, Suite(("tests/test_a.py",)), {"tests/test_a.py": source.encode(), "pytest.ini": b"[pytest]\naddopts = --collect-only"}
    )
    said = {name.partition("::")[2]: outcome for name, outcome in run.outcomes.items()}
    assert said == {
        "test_pass": "passed",
        "test_fail": "failed",
        "test_skip": "skipped",
        "test_expected": "xfailed",
        "test_teardown": "failed",
        "test_flood": "passed",
    }
    assert run.finished


def test_a_run_that_hangs_or_cannot_be_collected_says_so(backend: Backend) -> None:
    hangs = run_suite(backend, Suite(("test_a.py",), timeout_s=3), {"test_a.py": b"def test_a():\n    while True: pass\n"})
    assert (hangs.finished, hangs.timed_out, hangs.reason()) == (False, True, "the tests did not end in time")
    broken = run_suite(
        backend, Suite(("test_a.py", "test_b.py")), {"test_a.py": b"import nothing_like_this", "test_b.py": b"def test_b(): pass"}
    )
    assert broken.passed == {"test_b.py::test_b"}
    assert "nothing_like_this" in broken.broken["test_a.py"]
