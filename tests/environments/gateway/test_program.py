"""A program of its own plays a task: its shell tools reach the task, its model is the policy behind the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.errors import EngineError
from environments.gateway.backends import EngineBackend
from environments.gateway.gateway import Gateway
from environments.gateway.program import Program, run_program
from environments.protocols import GenerateRequest
from environments.resources import Resources
from environments.task import Budgets, Message, TaskSpec
from environments.vault import Vault
from tests.environments.gateway.engines import PreparedEngine, make_codec, say
from tests.environments.gateway.test_openai_client import loss
from tests.environments.small_tasks import make_resources, settings_task

pytestmark = pytest.mark.sandbox
CODEC = make_codec()
AGENT = """
import json, os, subprocess, urllib.request

tool = {"type": "function", "function": {"name": "sh", "parameters": {"type": "object"}}}
messages = [{"role": "user", "content": open("TASK.md").read()}]
while True:
    body = json.dumps({"model": os.environ["MODEL"], "messages": messages, "tools": [tool]}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    said = json.loads(urllib.request.urlopen(request, timeout=30).read())["choices"][0]["message"]
    messages.append(said)
    if not said.get("tool_calls"):
        break
    for call in said["tool_calls"]:
        done = subprocess.run(json.loads(call["function"]["arguments"])["c"], shell=True, capture_output=True, text=True)
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout + done.stderr})
print("over")
"""
PROGRAM = Program(name="tiny-agent", command='python3 -c "$AGENT"', env={"AGENT": AGENT})


@pytest.fixture
def resources(tmp_path: Path) -> Iterator[Resources]:
    with make_resources(Vault(tmp_path / "vault")) as made:
        yield made


def task(vault: Vault, **changes: float) -> TaskSpec:
    return settings_task(vault, budgets=Budgets(**{"steps": 8, "output_tokens": 4000, "wall_s": 60, "submissions": 1, **changes}))  # type: ignore[arg-type]


def commands(*lines: str) -> list[Message]:
    return [say("", "hm", ("sh", {"c": line})) for line in lines]


def test_it_solves_the_task_through_its_shell_and_leaves_exact_tokens(resources: Resources) -> None:
    engine = PreparedEngine(CODEC, [*commands("get width | tr 0 1", "cat TASK.md; tool set width 113 && tool submit"), say("done")])
    with Gateway(EngineBackend(engine, CODEC, 8000)) as gateway:
        trace = run_program(PROGRAM, gateway, task(resources.vault), resources, effort="high")
    assert trace.verdict is not None
    assert (trace.verdict.status, trace.stop, trace.trainable, trace.effort) == ("pass", "submitted", True, "high")
    assert [(r.tool, r.error) for r in trace.tool_records] == [("get", ""), ("set", ""), ("submit", ""), ("tiny-agent", "")]
    assert trace.tool_records[-1].result == "over\n"
    assert [loss(s) for s in trace.segments] == [[t for _, body in engine.sampled for t in body]]
    assert "tool set NAME VALUE" in CODEC.transcript(trace.segments[0].tokens)
    assert "71" in CODEC.transcript(trace.segments[0].tokens)  # what its pipe made of the tool's answer


def test_budgets_hold_for_a_program_too(resources: Resources) -> None:
    engine = PreparedEngine(CODEC, commands(*["true"] * 9))
    with Gateway(EngineBackend(engine, CODEC, 8000)) as gateway:
        trace = run_program(PROGRAM, gateway, task(resources.vault, steps=3), resources)
        assert (trace.stop, len(engine.sampled)) == ("steps", 3)
        assert trace.verdict is not None
        assert trace.verdict.status == "fail"
        sleeper = Program(name="sleeper", command="sleep 60")
        assert run_program(sleeper, gateway, task(resources.vault, wall_s=1.0), resources).stop == "wall"


def test_an_engine_that_dies_is_no_verdict(resources: Resources) -> None:
    def dead(request: GenerateRequest) -> Message:
        raise EngineError("the engine died", "start it again")

    with Gateway(EngineBackend(PreparedEngine(CODEC, [dead] * 3), CODEC, 8000)) as gateway:
        trace = run_program(PROGRAM, gateway, task(resources.vault), resources)
    assert (trace.stop, trace.verdict) == ("infrastructure", None)
