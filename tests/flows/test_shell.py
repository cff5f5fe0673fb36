"""A person in the agent's place: calls from lines of input, judged like an agent's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.errors import ConfigError, InputError
from environments.families import make_environment
from environments.harness.config import ENDPOINT
from environments.resources import Resources
from environments.task import ToolCall, ToolParameter, ToolSpec
from environments.trace import Trace
from environments.vault import Vault
from flows.shell import find_task, harness_named, play, read_call
from flows.workspace import Workspace
from tests.environments.small_tasks import coding_task, make_resources, settings_task
from tests.tasks.synthetic import write_run

TOOLS = {
    "set": ToolSpec(name="set", description="", parameters=(ToolParameter(name="name"), ToolParameter(name="value"))),
    "wait": ToolSpec(name="wait", description="", parameters=(ToolParameter(name="seconds", type="integer"),)),
}


@pytest.fixture
def resources(tmp_path: Path) -> Iterator[Resources]:
    with make_resources(Vault(tmp_path / "vault")) as made:
        yield made


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("set width 113", {"name": "width", "value": "113"}),
        ("set value=113 width", {"name": "width", "value": "113"}),
        ("set 'a b' \"c=d\"", {"name": "a b", "value": "c=d"}),
        ('{"tool": "set", "arguments": {"name": "x"}}', {"name": "x"}),
        ("wait 5", {"seconds": 5}),
        ("wait seconds=soon", {"seconds": "soon"}),
        ("other", {}),
    ],
)
def test_lines_are_calls(line: str, call: dict[str, Any]) -> None:
    tool = "set" if "set" in line else line.split()[0]
    assert read_call(line, TOOLS) == ToolCall(tool=tool, arguments=call)


@pytest.mark.parametrize(
    ("line", "why"), [("set a b c", "takes no further value 'c'"), ("set 'a", "quotation"), ('{"tool"', "no call in JSON")]
)
def test_lines_that_cannot_be_read_say_how(line: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_call(line, TOOLS)


def shell(resources: Resources, task: Any, *lines: str, tools: tuple[str, ...] = ()) -> tuple[Trace, str]:
    said: list[str] = []
    trace = play(resources, task, ENDPOINT, tools, lines, said.append)
    return trace, "\n".join(said)


def test_a_person_can_solve_a_task(resources: Resources) -> None:
    trace, said = shell(resources, settings_task(resources.vault), ":tools", "get width", "", "oops", "set width 113", ":help", "submit")
    assert trace.verdict is not None
    assert trace.verdict.status == "pass"
    assert (trace.policy, trace.stop, trace.malformed_calls) == ("person", "submitted", 1)
    for words in ("[user] Set `width` to 113.", "get(name: string)", "70", "there is no tool 'oops'", "verdict: pass, score 1"):
        assert words in said
    assert "get(name: string)" not in said.split("[user]")[0]
    assert Trace.model_validate_json(trace.model_dump_json()) == trace


def test_leaving_is_judged_as_it_is(resources: Resources) -> None:
    trace, said = shell(resources, settings_task(resources.vault), "set width 113", ":quit", "submit")
    assert trace.stop == "aborted"
    assert "verdict: fail" in said
    trace, _ = shell(resources, settings_task(resources.vault))
    assert trace.stop == "aborted"


@pytest.mark.sandbox
def test_the_tasks_sandbox_is_open_too(resources: Resources) -> None:
    lines = ["create path=sub/a.py text=<<END", "print(6 * 7)", "# it's done", "END", "bash 'python3 sub/a.py'"]
    lines += ["python 'x = 6'", "python 'x * 8'"]
    _, said = shell(resources, coding_task(resources.vault), *lines, tools=("bash", "python", "create"))
    assert "42" in said
    assert "48" in said


def test_unknown_tasks_tools_and_harnesses_are_named(resources: Resources, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no harness 'x'"):
        harness_named("x")
    with pytest.raises(ConfigError, match="no tool 'hammer'"):
        make_environment(settings_task(resources.vault), resources, ("hammer",))
    write_run(tmp_path, "one")
    run = Workspace(tmp_path).run("one")
    for wanted, why in (("zzz", "no task 'zzz'"), ("", "several tasks")):
        with pytest.raises(InputError, match=why):
            find_task(run, wanted)
