"""Managing a context: what goes and what stays, by each strategy, in episodes of messages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.errors import BadArgumentsError, ConfigError
from environments.families import make_environment
from environments.harness.config import ContextModule, HarnessConfig, MemoryModule, Skill, ToolModule
from environments.harness.context import SUMMARY_REQUEST, Keep, drop_results, forget_reasoning, restart
from environments.harness.episode import Episode
from environments.harness.history import kept
from environments.harness.loop import run_messages
from environments.harness.memory import FileMemory
from environments.policies import ScriptedPolicy
from environments.resources import Resources
from environments.task import Budgets, Message, TaskSpec, ToolCall
from environments.vault import Vault
from tests.environments.small_tasks import make_resources, message, settings_task


@pytest.fixture
def resources(tmp_path: Path) -> Iterator[Resources]:
    with make_resources(Vault(tmp_path / "vault")) as made:
        yield made


def thought(text: str, *calls: ToolCall) -> Message:
    return Message(role="assistant", thinking=text, content="" if calls else "said", calls=calls)


GET = ToolCall(tool="get", arguments={"name": "width"})
TALK = [
    Message(role="system", content="tools"),
    Message(role="user", content="go"),
    thought("a", GET),
    Message(role="tool", tool="get", content="70"),
    thought("b"),
    Message(role="user", content="and now"),
    thought("c", GET),
    Message(role="tool", tool="get", content="71"),
]


@pytest.mark.parametrize(("reasoning", "left"), [("always", "abc"), ("tool_use", "ac"), ("until_user", "c")])
def test_reasoning_stays_as_long_as_the_policy_says(reasoning: Any, left: str) -> None:
    plan = forget_reasoning(TALK, ContextModule(reasoning=reasoning))
    after = TALK if plan is None else kept(plan, TALK)
    assert "".join(m.thinking for m in after) == left
    assert [m.content for m in after] == [m.content for m in TALK]


@pytest.mark.parametrize(("strategy", "gone"), [("drop_oldest", 3), ("drop_all", 5)])
def test_results_are_dropped_oldest_first_and_their_calls_stay_answered(strategy: Any, gone: int) -> None:
    talk = [TALK[0], *(m for i in range(5) for m in (thought("", GET), Message(role="tool", tool="get", content=f"result {i}")))]
    plan = drop_results(talk, ContextModule(strategy=strategy), [2, 4, 6, 8, 10])
    assert plan is not None
    after = kept(plan, talk)
    assert [m.role for m in after] == [m.role for m in talk]
    assert [m.content for m in after if m.role == "tool"] == ["[removed to save space]"] * gone + [f"result {i}" for i in range(gone, 5)]
    assert drop_results(talk, ContextModule(strategy=strategy), []) is None


def test_a_restart_keeps_the_opening_and_the_summary() -> None:
    plan = restart(2, "found 70")
    assert plan[:2] == [Keep(0), Keep(1)]
    assert [m.content for m in kept(plan, TALK)] == ["tools", "go", "Your own summary of the work so far:\nfound 70"]


# --- in an episode ---

BUDGETS = Budgets(steps=40, output_tokens=100_000, wall_s=60, submissions=1)


def play(resources: Resources, lines: list[Message], window: int, **module: Any) -> tuple[Any, list[list[Message]]]:
    seen: list[list[Message]] = []

    class Watching(ScriptedPolicy):
        def reply(self, messages: Any, tools: Any) -> Message:
            seen.append(list(messages))
            return super().reply(messages, tools)

    harness = HarnessConfig(name="h", context=ContextModule(**module))
    return run_messages(Watching(*lines), settings_task(resources.vault, budgets=BUDGETS), resources, harness, window=window), seen


def long_calls(count: int) -> list[Message]:
    return [Message(role="assistant", content="x" * 200, calls=(GET,)) for _ in range(count)]


def test_summarise_asks_once_restarts_and_goes_on(resources: Resources) -> None:
    lines = [*long_calls(5), Message(role="assistant", content="width is 70"), message("set", name="width", value="113"), message("submit")]
    trace, seen = play(resources, lines, window=580, strategy="summarise")
    assert trace.verdict.status == "pass"
    asked = [i for i, s in enumerate(seen) if s[-1].content == SUMMARY_REQUEST]
    assert asked == [5]
    assert [m.content for m in seen[6]][-1].endswith("width is 70")
    assert len(seen[6]) == 3  # tools, task, summary
    assert not any(r.result == "width is 70" for r in trace.tool_records)


@pytest.mark.parametrize("strategy", ["drop_oldest", "drop_all"])
def test_dropping_keeps_the_context_small(resources: Resources, strategy: Any) -> None:
    wrong = message("get", title="width")  # refused with a text that takes more room than what replaces it
    trace, seen = play(resources, [message("get", name="width"), *[wrong] * 14, message("submit")], window=430, strategy=strategy)
    assert trace.stop == "submitted"
    assert all(any(m.content == "70" for m in s) for s in seen[1:])  # shorter than its replacement would be
    removed = [sum(m.content == "[removed to save space]" for m in s) for s in seen]
    assert removed[0] == 0
    assert removed[-1] > 0
    assert all(b >= a for a, b in itertools.pairwise(removed))


def test_keep_all_keeps_all(resources: Resources) -> None:
    _, seen = play(resources, [*long_calls(10), message("submit")], window=100)
    assert len(seen[-1]) == len(seen[0]) + 20


def test_the_user_may_speak_again(resources: Resources) -> None:
    harness = HarnessConfig(name="h", context=ContextModule(reasoning="until_user"))
    episode = Episode(make_environment(settings_task(resources.vault), resources), harness)
    episode.start()
    episode.act(thought("long", GET))
    episode.manage(episode.main, 0, 1000)
    assert any(m.thinking for m in episode.messages)
    episode.hear(Message(role="user", content="hurry"))
    episode.manage(episode.main, 0, 1000)
    assert not any(m.thinking for m in episode.messages)


# --- skills and memory ---


def test_skills_are_listed_and_read_on_request(resources: Resources) -> None:
    harness = HarnessConfig(name="h", skills=(Skill(name="sums", description="How to add.", text="Add slowly."),))
    episode = Episode(make_environment(settings_task(resources.vault), resources), harness)
    opening = episode.start()
    assert any("sums: How to add." in m.content for m in opening)
    (answer,) = episode.act(message("skill", name="sums"))
    assert answer.content == "Add slowly."
    (answer,) = episode.act(message("skill", name="other"))
    assert "there is no skill 'other'" in answer.content
    (answer,) = episode.act(message("skill", title="sums"))
    assert "takes name (string)" in answer.content
    assert [r.error for r in episode.records] == ["", BadArgumentsError.__name__, BadArgumentsError.__name__]


def test_notes_persist_between_the_episodes_of_a_task(resources: Resources, tmp_path: Path) -> None:
    resources.memory = FileMemory(tmp_path / "notes")
    harness = HarnessConfig(name="h", memory=MemoryModule(max_notes=2, max_chars=10))
    task = settings_task(resources.vault)
    for note in ("one", "two", "three", "x" * 11):
        run_messages(ScriptedPolicy(message("remember", note=note)), task, resources, harness)
    seen = run_messages(ScriptedPolicy(), task, resources, harness).segments[0].messages
    assert [m.content for m in seen if m.content.startswith("Notes")] == ["Notes from earlier attempts:\n- two\n- three"]
    other = TaskSpec.model_validate({**task.model_dump(), "level": 2})
    seen = run_messages(ScriptedPolicy(), other, resources, harness).segments[0].messages
    assert not any(m.content.startswith("Notes") for m in seen)


def test_a_note_cut_short_by_a_kill_costs_only_itself(tmp_path: Path) -> None:
    memory = FileMemory(tmp_path)
    memory.add("t", "one")
    memory.add("t", "two")
    file = tmp_path / "t.jsonl"
    file.write_text(file.read_text()[:-2])
    memory.add("t", "three")
    assert memory.notes("t") == ["one", "three"]


# --- configurations that cannot be ---


def test_a_harness_that_cannot_work_is_refused(resources: Resources) -> None:
    environment = make_environment(settings_task(resources.vault), resources)
    with pytest.raises(ConfigError, match="through bash, which this environment does not offer"):
        Episode(environment, HarnessConfig(name="h", tools=ToolModule(interface="bash")))
    with pytest.raises(ConfigError, match="no place for them"):
        Episode(environment, HarnessConfig(name="h", memory=MemoryModule()))
    with pytest.raises(ConfigError, match="two skills of one name"):
        HarnessConfig(name="h", skills=(Skill(name="a", description="", text=""),) * 2)
    with pytest.raises(ConfigError, match="two tools under one name"):
        HarnessConfig(name="h", tools=ToolModule(names={"get": "Read", "open": "Read"}))
