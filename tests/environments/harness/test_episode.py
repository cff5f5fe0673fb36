"""The episode's rules: agent errors are answered and counted, budgets end it, broken machines never score."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from environments import verifiers
from environments.environment import Environment
from environments.errors import EngineError, MalformedCallError, SandboxError
from environments.families import make_environment
from environments.harness.config import EFFORT_LINES, ENDPOINT, LAPTOP, HarnessConfig, ToolModule
from environments.harness.episode import Episode
from environments.harness.loop import run_messages
from environments.policies import ScriptedPolicy
from environments.resources import Resources
from environments.task import Budgets, Message, TaskSpec, ToolCall, ToolParameter, ToolSpec
from environments.vault import Vault
from environments.verdict import Verdict
from tests.environments.small_tasks import make_resources, message, settings_task


class Recording(ScriptedPolicy):
    """Keeps what it was shown."""

    def __init__(self, *lines: Message) -> None:
        super().__init__(*lines)
        self.seen: list[list[Message]] = []

    def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        self.seen.append(list(messages))
        return super().reply(messages, tools)


@pytest.fixture
def resources(tmp_path: Path) -> Iterator[Resources]:
    with make_resources(Vault(tmp_path / "vault")) as made:
        yield made


def budgets(**changes: Any) -> Budgets:
    return Budgets(**{"steps": 8, "output_tokens": 300, "wall_s": 60, "submissions": 1, **changes})


def start(task: TaskSpec, resources: Resources, harness: HarnessConfig = LAPTOP) -> Episode:
    episode = Episode(make_environment(task, resources), harness)
    episode.start()
    return episode


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (ToolCall(tool="shell", arguments={"cmd": "ls"}), "UnknownToolError", "use one of: get, set, submit"),
        (ToolCall(tool="get", arguments={}), "BadArgumentsError", "get lacks name"),
        (ToolCall(tool="get", arguments={"name": "width", "force": "1"}), "BadArgumentsError", "it takes: name"),
        (ToolCall(tool="get", arguments={"name": 5}), "BadArgumentsError", "not of type string"),
        (ToolCall(tool="get", arguments={"name": None}), "BadArgumentsError", "not of type string"),
        (ToolCall(tool="get", arguments={"name": "\ud800"}), "BadArgumentsError", "lone surrogate"),
        (ToolCall(tool="submit", arguments={"x": "y"}), "BadArgumentsError", "it takes: nothing"),
        (ToolCall(tool="get", malformed='{"name'), "MalformedCallError", "cannot be read"),
    ],
)
def test_agent_errors_are_answered_counted_and_the_episode_goes_on(call: ToolCall, error: str, told: str, resources: Resources) -> None:
    episode = start(settings_task(resources.vault), resources)
    answers = episode.act(Message(role="assistant", calls=(call,)))
    assert [a.role for a in answers] == ["tool"]
    assert told in answers[0].content
    assert (episode.stop, episode.malformed, episode.steps) == (None, 1, 1)
    assert (episode.records[0].error, episode.records[0].arguments) == (error, call.arguments)
    assert episode.environment.outcome.tool_calls == 0  # a refused call touched nothing
    assert episode.environment.submissions == 0
    assert episode.act(message("get", name="width"))[0].content == "70"
    assert episode.records[1].error == ""


def test_an_unparsable_message_is_answered_and_costs_a_step(resources: Resources) -> None:
    episode = start(settings_task(resources.vault, budgets=budgets(steps=2)), resources)
    answers = episode.refuse(MalformedCallError("the message is cut short", "end it"))
    assert answers == [Message(role="tool", content="error: the message is cut short. Fix: end it")]
    assert episode.messages[-2:] == [Message(role="assistant"), *answers]
    assert episode.refuse(MalformedCallError("again", "end it")) == []
    assert (episode.stop, episode.malformed, episode.steps) == ("steps", 2, 2)


def test_typed_parameters_take_their_type_only(resources: Resources) -> None:
    class Typed(Environment):
        TOOLS: ClassVar[dict[str, ToolSpec]] = {
            "t": ToolSpec(
                name="t",
                description="",
                parameters=tuple(ToolParameter(name=n[0], type=n) for n in ("integer", "number", "boolean", "string")),  # type: ignore[arg-type]
            )
        }

        def call(self, tool: str, arguments: dict[str, Any]) -> str:
            return "ok"

    task = settings_task(resources.vault).model_copy(update={"tools": ("t",)})
    good = {"i": 1, "n": 1.5, "b": True, "s": "x"}
    assert Typed(task).step(ToolCall(tool="t", arguments=good)) == "ok"
    assert Typed(task).step(ToolCall(tool="t", arguments={**good, "n": 2})) == "ok"
    for name, bad in (("i", True), ("i", 1.0), ("i", "1"), ("n", True), ("n", "1"), ("b", 1), ("s", 1)):
        with pytest.raises(Exception, match=rf"t\.{name} is not of type"):
            Typed(task).step(ToolCall(tool="t", arguments={**good, name: bad}))


def test_the_step_budget_ends_the_episode_without_an_answer(resources: Resources) -> None:
    episode = start(settings_task(resources.vault, budgets=budgets(steps=2)), resources)
    assert episode.act(message("get", name="width"))
    assert episode.act(message("get", name="width")) == []
    assert episode.stop == "steps"


def test_the_submission_budget_is_counted_and_later_calls_of_the_message_are_not_run(resources: Resources) -> None:
    episode = start(settings_task(resources.vault, budgets=budgets(submissions=2)), resources)
    assert episode.act(message("submit"))[0].content == "submitted"
    assert episode.stop is None
    both = Message(
        role="assistant", calls=(ToolCall(tool="submit"), ToolCall(tool="set", arguments={"name": "width", "value": "1"}, index=1))
    )
    assert episode.act(both) == []
    assert episode.stop == "submitted"
    assert [r.tool for r in episode.records] == ["submit", "submit"]
    assert {r["name"]: r["value"] for r in episode.finalize().tables["settings"]}["width"] == "70"


def test_the_wall_budget_ends_the_episode(resources: Resources) -> None:
    episode = start(settings_task(resources.vault, budgets=budgets(wall_s=0.0)), resources)
    assert episode.act(message("get", name="width")) == []
    assert episode.stop == "wall"


def test_a_turn_without_a_call_finishes_and_an_unfinished_episode_is_aborted(resources: Resources) -> None:
    task = settings_task(resources.vault)
    episode = start(task, resources)
    assert episode.act(Message(role="assistant", content="hello")) == []
    assert episode.stop == "finished"
    episode = start(task, resources)
    episode.finalize()
    assert episode.stop == "aborted"


def test_an_environment_is_single_use(resources: Resources) -> None:
    environment = make_environment(settings_task(resources.vault), resources)
    environment.setup()
    with pytest.raises(RuntimeError, match="single use"):
        environment.setup()


def test_parallel_calls_are_answered_in_order_with_their_index(resources: Resources) -> None:
    episode = start(settings_task(resources.vault), resources)
    two = Message(
        role="assistant", calls=tuple(ToolCall(tool="get", arguments={"name": n}, index=i) for i, n in enumerate(("depth", "no")))
    )
    assert [(a.tool, a.index, a.content) for a in episode.act(two)] == [("get", 0, "3"), ("get", 1, "no such setting")]


# --- machines that break ---


def _break(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def broken(*_: Any) -> str:
        raise SandboxError("the sandbox died", "run again")

    monkeypatch.setattr(f"environments.families.assistant.SettingsEnvironment.{where}", broken)


@pytest.mark.parametrize("where", ["setup", "call"])
def test_a_broken_machine_stops_the_episode_without_a_verdict(where: str, resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    task = settings_task(resources.vault)
    _break(monkeypatch, where)
    policy = Recording(*resources.vault.get_reference(task.reference_sha256))
    trace = run_messages(policy, task, resources)
    assert (trace.stop, trace.verdict, trace.malformed_calls) == ("infrastructure", None, 0)
    assert len(policy.seen) == (0 if where == "setup" else 1)


def test_a_sandbox_that_fails_while_judging_leaves_no_verdict(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    task = settings_task(resources.vault)

    def broken(*_: Any) -> Verdict:
        raise SandboxError("the sandbox died", "run again")

    monkeypatch.setattr("environments.harness.loop.judge", broken)
    trace = run_messages(ScriptedPolicy(message("submit")), task, resources)
    assert (trace.stop, trace.verdict) == ("infrastructure", None)


def test_a_crashing_verifier_is_no_verdict_and_no_reward(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crashes:
        kind, version = "crashes", 1

        def verify(self, task: TaskSpec, outcome: Any, payload: Any) -> Verdict:
            raise ZeroDivisionError("oops")

    monkeypatch.setitem(verifiers._registry, "crashes", lambda _: Crashes())
    trace = run_messages(ScriptedPolicy(message("submit")), settings_task(resources.vault, kind="crashes"), resources)
    assert trace.stop == "submitted"
    assert trace.verdict is not None
    assert (trace.verdict.status, trace.verdict.reward, trace.verdict.score) == ("no-verdict", None, None)
    assert trace.verdict.evidence["error"] == "ZeroDivisionError"


def test_a_dead_policy_is_raised_not_scored(resources: Resources) -> None:
    class Dead(ScriptedPolicy):
        def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
            raise EngineError("the endpoint is dead", "start it")

    with pytest.raises(EngineError, match="dead"):
        run_messages(Dead(), settings_task(resources.vault), resources)


# --- the harness ---


def test_a_trace_holds_what_happened(resources: Resources) -> None:
    task = settings_task(resources.vault)
    policy = Recording(*resources.vault.get_reference(task.reference_sha256))
    trace = run_messages(policy, task, resources, effort="low")
    assert (trace.stop, trace.effort, trace.harness_sha256, trace.task_id) == ("submitted", "low", ENDPOINT.sha256, task.task_id)
    assert [m.content for m in trace.segments[0].messages[:4]] == [
        ENDPOINT.system_prompt,
        "get set submit",
        EFFORT_LINES["low"],
        task.prompt[0].content,
    ]
    assert [r.tool for r in trace.tool_records] == ["get", "set", "submit"]
    assert policy.seen[1][-1] == Message(role="tool", tool="get", content="70")
    assert set(trace.timings) == {"generate", "environment", "verify", "total"}
    assert type(trace).model_validate_json(trace.model_dump_json()) == trace


def test_harness_hash_follows_its_content_and_observations_are_cut_with_a_mark() -> None:
    short = HarnessConfig(name="laptop", tools=ToolModule(max_observation_chars=16))
    assert short.sha256 != LAPTOP.sha256 == HarnessConfig.model_validate_json(LAPTOP.model_dump_json()).sha256
    assert short.observe("1234567890123456") == "1234567890123456"
    assert short.observe("12345678901234567") == "1234567890123456 [cut]"
