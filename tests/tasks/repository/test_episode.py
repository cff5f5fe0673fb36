"""A repository task played: the reference passes, the unsound outcomes fail, and no attack of the catalogue gets through."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from environments.families.repository import make_repository_environment
from environments.hardening import HardeningConfig, validate
from environments.hardening.attempt import Attempt, replay
from environments.hardening.exploits import Exploit
from environments.hardening.probe import attack
from environments.hardening.repository_exploits import REPOSITORY_PLAYS
from environments.protocols import Document
from environments.resources import Resources
from environments.sandbox.base import Backend
from environments.task import TaskSpec
from environments.vault import Vault
from tasks.kinds import repository
from tasks.kinds.draft import Material
from tasks.repository.build import BuiltTask
from tasks.repository.store import save, save_manifest
from tasks.synthesis import to_task

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory, backend: Backend) -> Iterator[Resources]:
    with Resources(Vault(tmp_path_factory.mktemp("vault")), sandboxes=backend) as made:
        yield made


@pytest.fixture(scope="module")
def spec(task: BuiltTask, resources: Resources) -> TaskSpec:
    return to_task(repository.draft_built(task), "node", "branch", resources.vault)


def test_the_reference_passes_and_every_spoiled_variant_fails(spec: TaskSpec, resources: Resources) -> None:
    rows = validate(spec, resources, HardeningConfig(run="r", reference_runs=2), make_repository_environment)
    assert [f"{row.check_name}: {row.observed}, {row.detail}" for row in rows if not row.ok] == []
    assert {"reference", "null", "mutation:spoiled_tests", "mutation:outcome:leaves_at_import"} <= {row.check_name for row in rows}


@pytest.mark.parametrize("name", sorted(REPOSITORY_PLAYS))
def test_no_attack_passes(name: str, spec: TaskSpec, resources: Resources) -> None:
    exploit_class, plays = REPOSITORY_PLAYS[name]
    row = attack(spec, Exploit(name, exploit_class, ("coding",), plays), resources, HardeningConfig(run="r"), make_repository_environment)
    assert not row.succeeded, row.transcript
    assert row.status in ("fail", "tainted"), row.transcript


def test_the_attacks_on_outcomes_would_pass_without_the_controls(spec: TaskSpec, resources: Resources) -> None:
    """The positive control: what patches the runner passes every true test, so it is the spoiled ones that find it."""
    _, plays = REPOSITORY_PLAYS["repository_patched_runner"]
    seen = []
    for play in plays(Attempt(spec, resources, make_repository_environment)):
        attempt = Attempt(spec, resources, make_repository_environment)
        play(attempt)
        verdict = attempt.finish().verdict
        seen.append((verdict.status, verdict.evidence["fail_to_pass"], verdict.evidence["pass_to_pass"]))
    assert seen[0] == ("tainted", "1 of 1", "2 of 2")


def test_an_agent_can_run_the_tests_that_it_sees(spec: TaskSpec, resources: Resources) -> None:
    attempt = Attempt(spec, resources, make_repository_environment)
    said = attempt.call("bash", command="python3 -m pytest -q tests 2>&1 | tail -1; git log 2>&1 | head -1; ls -a")
    assert "2 passed" in said
    assert ".git" not in said.splitlines()
    attempt.submit()
    assert attempt.finish().verdict.status == "fail"


def test_it_is_drafted_for_material_about_its_package(
    task: BuiltTask, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("tasks")
    save(folder, task)
    save_manifest(folder, [task.row], [])
    monkeypatch.setenv(repository.FOLDER, str(folder))
    about = Material(("n",), ("words",), (Document("d", "wordy.count_words", "text", "wordy", "MIT"),))
    other = Material(("n",), ("words",), (Document("d", "numpy.sum", "text", "numpy", "BSD"),))
    made = repository.draft(random.Random(0), about, repository.level_of(task))
    assert made is not None
    assert (made.payload, made.prompt) == (task.payload, task.prompt)
    assert repository.draft(random.Random(0), about, 3) is None
    assert repository.draft(random.Random(0), other, repository.level_of(task)) is None


def test_replays_leave_the_same_files(spec: TaskSpec, resources: Resources) -> None:
    messages = resources.vault.get_reference(spec.reference_sha256)
    first, second = (replay(spec, messages, resources, make_repository_environment) for _ in range(2))
    assert first.outcome.files == second.outcome.files
    assert first.verdict == second.verdict
