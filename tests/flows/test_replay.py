"""Replaying an episode: from a run's tables or a file, in the terminal and as a page that a browser shows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from environments import records as r
from environments.errors import CorruptArtifactError, InputError
from environments.harness.config import HarnessConfig, SubagentModule
from environments.harness.loop import run_messages
from environments.harness.xtml import Xtml
from environments.policies import ScriptedPolicy
from environments.policies.scripted import DONE
from environments.task import Image, Message, ToolSpec
from environments.trace import Segment, Trace
from environments.vault import Vault
from flows.replay import find_trace, step_through, write_page
from flows.replay.page import render, shade
from flows.workspace import Workspace
from tests.environments.harness.test_xtml import TOKENIZER
from tests.environments.small_tasks import make_resources, message, settings_task
from tests.tasks.synthetic import synthetic_rows, write_run

HOSTILE = '<script>alert("x")</script><img src=x onerror=alert(1)>'
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="


class WithHelpers(ScriptedPolicy):
    """The script is the main agent's; its sub-agents are done at once."""

    def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        return DONE if messages[0].content.startswith("You are a sub-agent") else super().reply(messages, tools)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    codec = Xtml(TOKENIZER)
    body = codec.assistant_body(message("get", name="width"))
    prompt = codec.encode(Message(role="user", content="go")) + codec.generation_prefix
    tokens = Segment(
        segment_id=7,
        parent_id=0,
        fork="context",
        tokens=(*prompt, *body),
        logprobs=(*[0.0] * len(prompt), *[-0.25 * i for i in range(len(body))]),
        versions=(*[-1] * len(prompt), *[3] * len(body)),
        loss_mask=(*[0] * len(prompt), *[1] * len(body)),
        malformed=(*[0] * len(prompt), 1, *[0] * (len(body) - 1)),
    )
    with make_resources(Vault(tmp_path / "vault")) as resources:
        lines = [message("delegate", prompts=["a", HOSTILE]), message("gett", name=HOSTILE), message("submit")]
        harness = HarnessConfig(name="h", subagents=SubagentModule())
        made = run_messages(WithHelpers(*lines), settings_task(resources.vault), resources, harness)
    first, *rest = made.segments
    seen = Message(role="tool", tool="python", content="a figure", images=(Image(data=DOT),))
    shown = first.model_copy(update={"messages": (*first.messages, seen)})
    return made.model_copy(update={"segments": (shown, *rest, tokens)})


def test_a_trace_from_a_file_is_stepped_through_and_can_be_left(trace: Trace, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_text(trace.model_dump_json())
    found = find_trace(str(file), None)
    assert found.trace == trace
    out = io.StringIO()
    step_through(found, Console(file=out, width=100), lambda: True)
    said = out.getvalue()
    for words in ("submitted", "→ gett", "there is no tool 'gett'", "sub-agent", "1 image: see the page", "verdict", "changed_right"):
        assert words in said
    left = iter([True, True, False])
    out = io.StringIO()
    step_through(found, Console(file=out, width=100), lambda: next(left))
    assert out.getvalue().count("╭") == 3  # the head and two messages
    assert "verdict" not in out.getvalue()


def test_what_is_no_trace_is_a_typed_error(trace: Trace, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    with pytest.raises(InputError, match="cannot be read"):
        find_trace(str(file), None)
    file.write_text(trace.model_dump_json()[:-30])
    with pytest.raises(CorruptArtifactError, match="holds no trace"):
        find_trace(str(file), None)
    with pytest.raises(InputError, match="with --name RUN"):
        find_trace("3f2a", None)


def test_shades_follow_the_log_prob() -> None:
    assert [shade(lp) for lp in (0.0, -0.99, -1.0, -3.5, -40.0)] == [0, 0, 1, 3, 7]


def test_episodes_are_found_in_a_runs_tables(tmp_path: Path) -> None:
    rows = synthetic_rows("one")
    write_run(tmp_path, "one")
    (tmp_path / "runs" / "one" / "config.toml").touch()
    run = Workspace(tmp_path).run("one")
    wanted = rows[r.RolloutRow][0]
    found = find_trace(wanted.trajectory_id, run)
    assert found.trace.trajectory_id == wanted.trajectory_id
    assert found.trace.segments[0].logprobs == (0.0, -0.5, -0.25)
    assert found.spell is None
    assert "ids are shown" in render(found)
    assert find_trace("best", run).trace.verdict.status == "pass"  # type: ignore[union-attr]
    assert find_trace("worst", run).trace.verdict.status == "fail"  # type: ignore[union-attr]
    with pytest.raises(InputError, match="no episode 'zzz'"):
        find_trace("zzz", run)
    with pytest.raises(InputError, match="several episodes"):
        find_trace("", run)


@pytest.mark.chromium
def test_the_page_shows_everything_and_runs_nothing(trace: Trace, tmp_path: Path, browser: Any) -> None:
    file = tmp_path / "trace.json"
    file.write_text(trace.model_dump_json())
    TOKENIZER.save(tmp_path / "tokenizer")
    found = find_trace(str(file), None, tmp_path / "tokenizer")
    target = write_page(found, tmp_path / "page.html")
    said: list[str] = []
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.on("dialog", lambda d: (said.append("dialog"), d.dismiss()))
    page.on("console", lambda m: said.append(m.text))
    page.goto(target.as_uri())
    assert said == []
    text = page.locator("body").inner_text()
    assert HOSTILE in text
    assert page.locator("main script, main img[onerror]").count() == 0
    assert page.locator("img[alt='Picture in this message']").evaluate("e => e.naturalWidth") == 1
    tokens = page.locator(".tokens span")
    body = next(s for s in trace.segments if s.tokens)
    assert tokens.count() == len(body.tokens)
    assert page.locator(".tokens .given").count() == body.loss_mask.count(0)
    assert page.locator(".tokens .bad").count() == 1
    assert page.locator(".tokens .s0").count() == 4
    assert "policy version 3" in (page.locator(".tokens .s1").first.get_attribute("title") or "")
    assert "changed_right" in page.locator(".evidence").first.inner_text()
    page.set_viewport_size({"width": 420, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    page.close()
