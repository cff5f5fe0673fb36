"""What an environment still accepts once its submissions are spent or its episode is over."""

from __future__ import annotations

from typing import Any

import pytest

from environments.environment import Environment
from environments.errors import AgentError
from environments.families import make_environment
from environments.resources import Resources
from environments.task import ToolCall
from environments.vault import Vault
from tests.environments.small_tasks import BUDGETS, make_resources, settings_task

EVERY_CALL = (
    ToolCall(tool="get", arguments={"name": "width"}),
    ToolCall(tool="set", arguments={"name": "width", "value": "9"}),
    ToolCall(tool="submit"),
    ToolCall(tool="no_such_tool"),
    ToolCall(tool="set", malformed="{"),
)


@pytest.fixture
def resources(tmp_path_factory: pytest.TempPathFactory) -> Resources:
    return make_resources(Vault(tmp_path_factory.mktemp("vault")))


def running(resources: Resources, submissions: int) -> Environment:
    task = settings_task(resources.vault, budgets=BUDGETS.model_copy(update={"submissions": submissions}))
    environment = make_environment(task, resources)
    environment.setup()
    return environment


def state(environment: Environment) -> tuple[Any, ...]:
    """All that a call may change."""
    outcome = environment.outcome
    return environment.submissions, outcome.submission, outcome.tool_calls, [dict(row) for row in outcome.tables["settings"]]


@pytest.mark.parametrize("call", EVERY_CALL, ids=lambda c: f"{c.tool}{c.malformed}")
@pytest.mark.parametrize("submissions", [1, 2])
def test_nothing_is_executed_once_the_submissions_are_spent(resources: Resources, submissions: int, call: ToolCall) -> None:
    environment = running(resources, submissions)
    for _ in range(submissions):
        assert environment.step(ToolCall(tool="set", arguments={"name": "width", "value": "113"})) == "ok"
        assert environment.step(ToolCall(tool="submit")) == "submitted"
    before = state(environment)
    with pytest.raises(AgentError, match=rf"all {submissions} submissions are used, '{call.tool}' was not executed"):
        environment.step(call)
    assert state(environment) == before
    assert environment.finalize().tables["settings"][-1] == {"name": "width", "value": "113"}


@pytest.mark.parametrize("call", EVERY_CALL, ids=lambda c: f"{c.tool}{c.malformed}")
def test_nothing_is_executed_after_the_end(resources: Resources, call: ToolCall) -> None:
    environment = running(resources, 1)
    environment.step(ToolCall(tool="set", arguments={"name": "width", "value": "113"}))
    outcome = environment.finalize()
    before = state(environment)
    with pytest.raises(AgentError, match=rf"the episode is over, '{call.tool}' was not executed"):
        environment.step(call)
    assert state(environment) == before
    assert (outcome.submission, outcome.tool_calls) == (None, 1)


def test_a_refused_call_does_not_spend_a_submission(resources: Resources) -> None:
    environment = running(resources, 1)
    for call in EVERY_CALL[3:]:
        with pytest.raises(AgentError):
            environment.step(call)
    assert not environment.submitted
    assert environment.step(ToolCall(tool="submit")) == "submitted"
    assert environment.submitted
