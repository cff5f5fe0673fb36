"""Office workflows: the rules are executed, careless work is seen in the final state, exploits fail."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from environments.families.office import OfficeEnvironment
from environments.hardening import HardeningConfig, probe, replay, validate
from environments.resources import Resources
from environments.task import ToolCall
from tasks.kinds.draft import Draft
from tasks.kinds.general_agent.office import draft
from tests.tasks.kinds import play


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    with play.resources(tmp_path_factory.mktemp("office")) as made:
        yield made


def made(level: int, start: int = 0) -> Draft:
    return next(d for seed in range(start, start + 400) if (d := draft(random.Random(seed), play.MATERIAL, level)) is not None)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_sound_over_many_desks(level: int, resources: Resources) -> None:
    for start in range(0, 800, 400):
        task = play.task_of(made(level, start), resources)
        config = HardeningConfig()
        assert [(r.check_name, r.detail) for r in validate(task, resources, config) if not r.ok] == []
        assert [p.exploit for p in probe(task, resources, config) if p.succeeded] == []


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_letter_less_or_another_status_fails(level: int, resources: Resources) -> None:
    found = made(level)
    task, messages = play.task_of(found, resources), list(found.demonstrations[0].messages)
    for i, message in enumerate(messages):
        if message.calls[0].tool in ("file_letter", "reserve_units"):
            verdict = replay(task, messages[:i] + messages[i + 1 :], resources).verdict
            assert verdict.reward == 0
            assert verdict.score is not None
            assert 0 < verdict.score < 1


def test_what_cannot_be_is_refused(resources: Resources) -> None:
    environment = OfficeEnvironment(play.task_of(made(1), resources))
    environment.setup()

    def said(tool: str, **arguments: object) -> str:
        return str(environment.step(ToolCall(tool=tool, arguments=arguments)))

    assert said("read_letter", letter="L99") == "no such letter"
    assert said("reserve_units", item="bolts", units=-3) == said("reserve_units", item="bolts", units=10_000) == "not possible"
    assert said("reserve_units", item="gold", units=1) == said("units_left", item="gold") == "no such item"
    assert said("customer_standing", name="x") == "no such customer"
    assert said("file_letter", letter="L01", status="lost").startswith("not possible")
    assert said("file_letter", letter="L01", status="refused") == "filed"
    assert said("file_letter", letter="L01", status="shipped") == "not possible: it is refused"
    assert '"L01"' not in said("list_letters")


def test_same_seed_same_draft() -> None:
    assert made(3) == made(3)
