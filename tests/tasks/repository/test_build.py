"""From candidate to task: what is accepted, and at which stage and why the others are rejected. Real test runs in real sandboxes."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.protocols import Outcome
from environments.sandbox.base import Backend
from environments.verifiers.repository_tests import RepositoryTests
from tasks.repository.build import BuiltTask, build
from tasks.repository.candidate import Rejected
from tasks.repository.store import load, read_rejected, save, save_manifest
from tests.tasks.repository.small import AFTER, BEFORE, NEW_TEST, candidate

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


def rejected(backend: Backend, **parts: object) -> tuple[str, str]:
    made = build(candidate(**parts), backend, runs=2)  # type: ignore[arg-type]
    assert isinstance(made, Rejected), made
    return made.stage, made.reason


def test_a_fix_becomes_a_task_with_counted_tests(task: BuiltTask) -> None:
    assert task.payload["fail_to_pass"] == ["tests/test_wordy.py::test_more_spaces"]
    assert task.payload["pass_to_pass"] == ["tests/test_wordy.py::test_longest", "tests/test_wordy.py::test_two_words"]
    assert (task.row.fail_to_pass, task.row.pass_to_pass, task.row.flaky, task.row.runs) == (1, 2, (), 3)
    assert task.row.controls == len(task.payload["control_ids"]) >= 1


def test_the_agent_sees_neither_the_fix_nor_the_hidden_test_nor_history(task: BuiltTask) -> None:
    assert sorted(task.files) == ["README.md", "tests/test_wordy.py", "wordy/__init__.py"]
    everything = "\n".join([*task.files.values(), task.prompt])
    assert "words_without_empty_ones" not in everything
    assert "def test_more_spaces" not in everything
    assert "no longer counts" not in everything


def test_the_reference_edits_give_the_fixed_file(task: BuiltTask) -> None:
    text = task.files["wordy/__init__.py"]
    for message in task.reference:
        for call in message.calls:
            if call.tool == "edit":
                assert text.count(call.arguments["old"]) == 1
                text = text.replace(call.arguments["old"], call.arguments["new"])
    assert text == AFTER


def test_it_is_the_same_again(backend: Backend, task: BuiltTask) -> None:
    assert build(candidate(), backend) == task


def test_flaky_tests_are_left_out_and_named(backend: Backend) -> None:
    flaky = NEW_TEST + "\n\ndef test_hash():\n    assert hash('b') % 2\n"  # each run has another hash seed
    built = build(candidate(after={"tests/test_wordy.py": flaky}), backend, runs=4)
    assert isinstance(built, BuiltTask), built
    assert built.row.flaky == ("tests/test_wordy.py::test_hash",)
    assert built.row.pass_to_pass == 2


def test_a_fix_that_breaks_another_test_is_rejected(backend: Backend) -> None:
    broken = AFTER.replace("key=len", "key=str")
    stage, reason = rejected(backend, after={"wordy/__init__.py": broken})
    assert (stage, "breaks 1 tests: tests/test_wordy.py::test_longest" in reason) == ("design", True)


def test_a_fix_without_a_test_that_shows_it_is_rejected(backend: Backend) -> None:
    stage, reason = rejected(backend, after={"tests/test_wordy.py": NEW_TEST.replace("one   two  three", "one two three")})
    assert (stage, reason) == ("design", "no test fails before the fix and passes after it")


def test_a_tree_that_cannot_be_imported_is_rejected(backend: Backend) -> None:
    assert rejected(backend, after={"wordy/__init__.py": "import a_module_that_is_nowhere\n"})[0] == "buildability"


def test_a_test_session_that_leaves_early_is_rejected(backend: Backend) -> None:
    stage, reason = rejected(backend, after={"tests/test_wordy.py": NEW_TEST + "\n\ndef test_leave():\n    import os\n    os._exit(0)\n"})
    assert (stage, "did not come to its end" in reason) == ("buildability", True)


def test_a_closed_licence_is_rejected(backend: Backend) -> None:
    assert rejected(backend, licence="Proprietary") == ("environment", "the licence 'Proprietary' is not among those that may be used")


def test_a_hidden_test_in_the_agents_files_is_rejected(backend: Backend) -> None:
    stage, reason = rejected(backend, before={"tests/copy_of_test.py": NEW_TEST})
    assert (stage, "is in the agent's files" in reason) == ("environment", True)


@pytest.mark.parametrize("place", ["tests/solution_notes.txt", "README.rst"])
def test_the_solution_in_the_agents_files_is_found(backend: Backend, place: str) -> None:
    stage, reason = rejected(backend, before={place: "# how it is done\n" + AFTER})
    assert (stage, "lines of the fix in /workspace" in reason) == ("self-test", True)


def test_an_installed_copy_of_the_package_is_found(backend: Backend) -> None:
    made = candidate(before={"pluggy/__init__.py": BEFORE}, after={"pluggy/__init__.py": AFTER})
    found = build(made, backend, runs=1)
    assert isinstance(found, Rejected)
    assert (found.stage, "an installed copy of pluggy" in found.reason) == ("self-test", True)


def test_the_verifier_ignores_what_is_planted_beside_the_source(backend: Backend, task: BuiltTask) -> None:
    hook = b"import os\nos._exit(0)\n"
    planted = dict.fromkeys(
        ("conftest.py", "wordy/conftest.py", "wordy/sitecustomize.py", "pytest.py", "json.py", "tests/test_wordy.py"), hook
    )
    verifier = RepositoryTests(backend)
    fixed = {"wordy/__init__.py": AFTER.encode(), **planted}
    assert verifier.judge(Outcome("", files=fixed), task.payload).status == "pass"
    assert verifier.judge(Outcome("", files={**fixed, "wordy/__init__.py": BEFORE.encode()}), task.payload).score == 0.0


def test_tasks_survive_the_disk_and_rejects_are_kept(tmp_path: Path, task: BuiltTask) -> None:
    save(tmp_path, task)
    assert load(tmp_path) == ()  # the manifest is written last
    save_manifest(tmp_path, [task.row], [Rejected(name="other", stage="design", reason="why")])
    assert load(tmp_path) == (task,)
    assert read_rejected(tmp_path) == (Rejected(name="other", stage="design", reason="why"),)
