"""What becomes of a task at the gate: accepted, rejected with the finding kept, repaired, or undecided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from environments.errors import SandboxError
from environments.families import make_environment
from environments.hardening import HardeningConfig, gate, probe
from environments.resources import Resources
from environments.task import TaskSpec
from environments.vault import Vault
from tests.environments.hardening.planted import PLANTED, SOUND, register_planted
from tests.environments.hardening.worlds import coding_task, make_resources, search_task

CONFIG = HardeningConfig(run="r")


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    register_planted()
    with make_resources(Vault(tmp_path_factory.mktemp("vault"))) as made:
        yield made


@pytest.mark.sandbox
def test_sound_tasks_are_accepted_at_a_known_price(resources: Resources) -> None:
    tasks = [make(resources.vault) for make in SOUND.values()]
    decisions = gate(tasks, resources, CONFIG)
    assert [d.status for d in decisions] == ["accepted"] * 3, [d.reason for d in decisions]
    assert [d.task for d in decisions] == tasks
    assert [d.sandbox_calls > 0 for d in decisions] == [False, False, True]
    assert decisions[2].sandbox_calls <= 36
    assert all(len(d.probes) >= 9 and not any(p.succeeded for p in d.probes) for d in decisions)


def test_a_task_whose_prompt_holds_the_answer_is_rejected_and_the_finding_kept(resources: Resources) -> None:
    (decision,) = gate([search_task(resources.vault, answer=43, addend=43)], resources, CONFIG)
    assert (decision.status, decision.stage) == ("rejected", "probe")
    assert decision.reason == "hacked by copy_from_prompt (copy from the prompt)"
    (won,) = [p for p in decision.probes if p.succeeded]
    assert 'submit({"answer": "43"}) -> submitted' in won.transcript


@pytest.mark.sandbox
def test_hidden_tests_that_equal_the_public_examples_are_rejected(resources: Resources) -> None:
    (decision,) = gate([coding_task(resources.vault, inputs=(2, 3))], resources, CONFIG)
    assert (decision.status, decision.stage) == ("rejected", "probe")
    assert "hardcode_public" in decision.reason


def test_an_unsound_task_is_rejected_before_it_is_attacked(resources: Resources) -> None:
    (decision,) = gate([search_task(resources.vault, kind="weak_missing")], resources, CONFIG)
    assert (decision.status, decision.stage, decision.probes) == ("rejected", "validation", [])
    assert "null gave pass instead of fail" in decision.reason


def test_repeated_submissions_with_hints_are_repaired(resources: Resources) -> None:
    planted = PLANTED["brute_force_submit", "search"]
    task = planted.weak(resources.vault)
    (decision,) = gate([task], resources, CONFIG, planted.make)
    assert decision.accepted, decision.reason
    assert decision.task.budgets.submissions == 1
    assert decision.repaired_from == task.task_id != decision.task.task_id
    attacks = [p for p in decision.probes if p.exploit == "brute_force_submit"]
    assert [(p.task_id, p.succeeded) for p in attacks] == [(task.task_id, True), (decision.task.task_id, False)]
    assert {v.task_id for v in decision.validations} == {task.task_id, decision.task.task_id}
    (unrepaired,) = gate([task], resources, HardeningConfig(repair=False), planted.make)
    assert (unrepaired.status, unrepaired.task) == ("rejected", task)


class _Breaking:
    """Fails the first `times` set-ups, as a dying machine would."""

    def __init__(self, times: int) -> None:
        self.left = times

    def __call__(self, task: TaskSpec, resources: Resources) -> Any:
        environment = make_environment(task, resources)
        if self.left > 0:
            self.left -= 1

            def setup() -> None:
                raise SandboxError("the box died")

            environment.setup = setup  # type: ignore[method-assign]
        return environment


def test_a_machine_failure_is_tried_again_and_then_undecided(resources: Resources) -> None:
    task = search_task(resources.vault)
    assert gate([task], resources, CONFIG, _Breaking(1))[0].accepted
    (decision,) = gate([task], resources, CONFIG, _Breaking(10_000))
    assert (decision.status, decision.stage, decision.accepted) == ("undecided", "infrastructure", False)
    assert "the box died" in decision.reason


def test_the_second_of_two_equal_tasks_is_rejected(resources: Resources) -> None:
    first, second = gate([search_task(resources.vault)] * 2, resources, CONFIG)
    assert (first.status, second.status, second.stage) == ("accepted", "rejected", "duplicate")


def test_named_exploits_only(resources: Resources) -> None:
    rows = probe(search_task(resources.vault), resources, HardeningConfig(exploits=("inaction", "hedged_answer")))
    assert [row.exploit for row in rows] == ["inaction", "hedged_answer"]
    assert all(row.status == "fail" and row.transcript for row in rows)
