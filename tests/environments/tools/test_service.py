"""Code inside the sandbox calls the task's tools: as functions, as commands, checked and recorded like direct calls."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.environment import Answer, Environment
from environments.errors import AgentError, SandboxError
from environments.families import make_environment
from environments.protocols import Observation
from environments.resources import Resources
from environments.sandbox.base import Backend
from environments.task import ToolCall, ToolParameter, ToolSpec
from environments.tools import service
from environments.tools.toolbox import Toolbox
from environments.vault import Vault
from tests.environments.small_tasks import BUDGETS, search_task, settings_task
from tests.environments.tools.pictures import PNG

pytestmark = pytest.mark.sandbox

Make = Callable[..., Environment]


@pytest.fixture
def make(backend: Backend, tmp_path: Path) -> Iterator[Make]:
    """An environment over the settings store with bash and python; calls from inside land in its `heard`."""
    made: list[Environment] = []

    def start(*names: str, submissions: int = 1, carrier: str | None = None) -> Environment:
        budgets = BUDGETS.model_copy(update={"submissions": submissions})
        task = settings_task(Vault(tmp_path / "vault"), budgets=budgets)
        task = task.model_copy(update={"tools": (*task.tools, *names)})
        environment = make_environment(task, Resources(Vault(tmp_path / "vault"), sandboxes=backend), (), carrier)
        environment.heard = []  # type: ignore[attr-defined]
        environment.on_call = lambda call, answer, error: environment.heard.append((call.tool, call.arguments, answer, error))  # type: ignore[attr-defined]
        made.append(environment)
        environment.setup()
        return environment

    yield start
    for environment in made:
        environment.close()


def bash(environment: Environment, command: str) -> Observation:
    answer = environment.step(ToolCall(tool="bash", arguments={"command": command, "timeout_s": 20}))
    assert isinstance(answer, Observation)
    return answer


def python(environment: Environment, code: str) -> Observation:
    answer = environment.step(ToolCall(tool="python", arguments={"code": code, "timeout_s": 20}))
    assert isinstance(answer, Observation)
    return answer


def heard(environment: Environment) -> list[tuple[str, dict[str, Any], Answer, str]]:
    return environment.heard  # type: ignore[attr-defined, no-any-return]


# --- functions ---


def test_tools_are_functions_of_the_interpreter(make: Make) -> None:
    environment = make("python")
    seen = python(environment, "a = get('width'); b = get(name='depth')\nprint(a, b, tools.set('width', value='71'))\nget('width')")
    assert seen.text == "70 3 ok\n'71'"
    assert [(tool, arguments) for tool, arguments, _, _ in heard(environment)] == [
        ("get", {"name": "width"}),
        ("get", {"name": "depth"}),
        ("set", {"name": "width", "value": "71"}),
        ("get", {"name": "width"}),
    ]
    assert environment.outcome.tool_calls == 5
    assert {row["name"]: row["value"] for row in environment.finalize().tables["settings"]}["width"] == "71"


def test_refusals_are_exceptions_and_recorded_with_their_error(make: Make) -> None:
    environment = make("python")
    code = """
calls = [lambda: get(), lambda: get(1), lambda: get('a', 'b'), lambda: get(name={1}), lambda: get('x', name='y')]
calls.append(lambda: tools.set('x', no=1))
for call in calls:
    try:
        print("answered", call())
    except tools.ToolError as error:
        print(error)
"""
    lines = python(environment, code).text.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("error: ") for line in lines)
    assert [error for _, _, _, error in heard(environment)] == [
        "BadArgumentsError",
        "BadArgumentsError",
        "BadArgumentsError",
        "MalformedCallError",
        "BadArgumentsError",
        "BadArgumentsError",
    ]
    assert "get has no argument 'argument 2'. Fix: it takes: name" in lines[2]
    assert "get has no argument 'name, given twice'" in lines[4]
    assert environment.outcome.tool_calls == 1


def test_names_of_builtins_stay_pythons_unless_the_interpreter_carries_all_calls(make: Make) -> None:
    assert python(make("python"), "set([1, 1]), 'set' in globals()").text == "({1}, False)"
    carrying = make(carrier="python")
    assert [t.name for t in carrying.tools] == ["get", "set", "submit", "python"]
    assert python(carrying, "set('width', '9'), get('width'), set([1, 1]), set(), tools.set(name='width', value='8')").text == (
        "('ok', '9', {1}, set(), 'ok')"
    )


def test_functions_come_back_after_the_interpreter_was_lost(make: Make) -> None:
    environment = make("python")
    assert python(environment, "get('width')").text == "'70'"
    environment.step(ToolCall(tool="python", arguments={"code": "while True: pass", "timeout_s": 0.5}))
    assert python(environment, "get('width')").text == "'70'"
    python(environment, "import os; os._exit(3)")
    assert python(environment, "get('width')").text == "'70'"
    python(environment, "get = None")
    assert "TypeError" in python(environment, "get('width')").text  # what the agent overwrote stays so
    assert python(environment, "tools.get('width')").text == "'70'"


# --- commands ---


def test_tools_are_commands(make: Make) -> None:
    environment = make("bash")
    assert (
        bash(environment, "get width | tr 7 8; get --name depth; get --name=length; tool set width '7 1'; get width").text
        == "80\n3\n10\nok\n7 1"
    )
    assert bash(environment, 'x=$(get width); echo "[$x]"; tool').text.splitlines()[:2] == [
        "[7 1]",
        "get NAME    # Read a setting; one whose last write was lost reads as stale.",
    ]
    assert bash(environment, "cd /; get width; get --help").text.startswith("7 1\nget NAME    #")
    assert [tool for tool, _, _, _ in heard(environment)] == ["get", "get", "get", "set", "get", "get", "get"]


def test_refused_commands_exit_with_2_and_say_why_on_standard_error(make: Make) -> None:
    environment = make("bash")
    seen = bash(
        environment,
        "for c in 'get' 'get a b' 'get --no x' 'tool nothing' 'tool bash ls'; do $c 2>err >out; echo $? $(cat out) / $(cat err); done",
    )
    lines = seen.text.splitlines()
    assert [line[:4] for line in lines] == ["2 / "] * 5
    assert "get lacks name" in lines[0]
    assert "has no argument 'no'" in lines[2]
    assert "there is no tool 'nothing'" in lines[3]
    assert "has no argument 'argument 1'" in lines[4]
    assert [error for _, _, _, error in heard(environment)] == [
        "BadArgumentsError",
        "BadArgumentsError",
        "BadArgumentsError",
        "UnknownToolError",
        "BadArgumentsError",
    ]


def test_a_builtins_name_is_a_command_where_it_is_no_option(make: Make) -> None:
    environment = make("bash")
    assert (
        bash(environment, "set width 5; get width; set -e; set --name width --value 6; get width; false; echo never").text
        == "ok\n5\nok\n6\n[exit code 1]"
    )
    assert bash(environment, "echo $PATH").text.count("ninefold-tools") == 1  # it does not grow from call to call


def test_an_agent_that_breaks_its_sandbox_breaks_no_machine(make: Make) -> None:
    environment = make("bash", "python")
    bash(environment, "rm -rf /tmp/.ninefold-tools; dd if=/dev/zero of=/tmp/x bs=1M count=100; kill -9 -1")
    assert python(environment, "get('width')").text == "'70'"  # the interpreter needs no file
    assert "command not found" in bash(environment, "get width").text
    assert bash(environment, "rm /tmp/x; echo still here").text == "still here"


def test_submitting_from_inside_ends_the_episode(make: Make) -> None:
    environment = make("bash")
    seen = bash(environment, "submit; get width; echo code $?")
    assert "submitted" in seen.text
    assert "all 1 submissions are used" in seen.text
    assert seen.text.endswith("code 2")
    assert environment.submitted
    assert [(tool, error) for tool, _, _, error in heard(environment)] == [("submit", ""), ("get", "AgentError")]
    with pytest.raises(AgentError, match="submissions are used"):
        bash(environment, "true")


def test_what_a_sub_agent_may_not_do_its_code_may_not_either(make: Make) -> None:
    environment = make("bash", "python")
    environment.refused_inside = frozenset({"submit"})
    assert "cannot be called from here" in bash(environment, "submit").text
    assert not environment.submitted
    environment.refused_inside = frozenset()
    assert bash(environment, "submit").text == "submitted"


def test_calls_of_many_processes_are_executed_one_by_one(make: Make) -> None:
    environment = make("bash")
    seen = bash(environment, "for i in $(seq 12); do get width & done; wait")
    assert seen.text == "\n".join(["70"] * 12)
    assert len(heard(environment)) == 12


def test_tools_of_the_sandbox_itself_cannot_be_called_from_inside(make: Make) -> None:
    environment = make("bash", "python", "view")
    code = f"""
import json, socket
for tool, arguments in (('bash', {{'command': 'true'}}), ('view', {{'path': '.'}})):
    with socket.create_connection(('127.0.0.1', {service.PORT})) as s:
        s.sendall(json.dumps({{'tool': tool, 'arguments': arguments}}).encode() + b'\\n')
        print(json.loads(s.makefile().readline())['error'])
"""
    assert python(environment, code).text == "AgentError\nAgentError"


def test_specs_say_how_the_other_tools_are_called(make: Make) -> None:
    with_both = {tool.name: tool.description for tool in make("bash", "python").tools}
    assert "The other tools are commands here" in with_both["bash"]
    assert "The other tools are functions here" in with_both["python"]


# --- what arrives on the port ---


@pytest.mark.parametrize(
    "line",
    [b"\n", b"[]\n", b"{\n", b"null\n", b'{"tool": 1}\n', b'{"tool": "get", "arguments": 3}\n', b"\xff\xfe\n", b"[" * 100_000 + b"\n"],
)
def test_garbage_is_answered(make: Make, line: bytes) -> None:
    environment = make("python")
    answer = python(
        environment,
        f"import socket\nwith socket.create_connection(('127.0.0.1', {service.PORT})) as s:\n"
        f"    s.sendall({line!r}); print(s.makefile().readline())",
    )
    assert json.loads(answer.text)["error"] == "MalformedCallError"
    assert heard(environment) == []


def test_a_request_without_an_end_is_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_REQUEST_BYTES", 1000)
    environment = make("python")
    answer = python(
        environment,
        f"import socket\nwith socket.create_connection(('127.0.0.1', {service.PORT})) as s:\n"
        "    s.sendall(b'x' * 5000); print(s.makefile().read())",
    )
    assert json.loads(answer.text)["error"] == "BadArgumentsError"


def test_a_loop_cannot_fill_the_record(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_CALLS", 3)
    environment = make("python")
    seen = python(environment, "for i in range(5):\n    try: print(get('width'))\n    except tools.ToolError as e: print(e)")
    assert seen.text.splitlines() == ["70"] * 3 + ["error: all 3 calls from inside the sandbox are used"] * 2
    assert len(heard(environment)) == 3


class Pictures(Environment):
    """Answers with a picture, cannot do something, or breaks."""

    TOOLS = {  # noqa: RUF012 - as in every family
        "draw": ToolSpec(name="draw", description="Draw.", parameters=(ToolParameter(name="how", type="object"),)),
        "count": ToolSpec(
            name="count",
            description="Count.",
            parameters=(
                ToolParameter(name="to", type="integer"),
                ToolParameter(name="fast", type="boolean", required=False),
                ToolParameter(name="by", type="number", required=False),
            ),
        ),
        "break": ToolSpec(name="break", description="Break."),
    }

    def call(self, tool: str, arguments: dict[str, Any]) -> Answer:
        from environments.tools.observation import as_images

        if tool == "break":
            raise SandboxError("the machine broke", "run again")
        if tool == "count":
            return json.dumps(arguments)
        if arguments["how"] == {}:
            return Observation("nothing to draw", failed=True)
        return Observation("drawn", as_images([PNG])[0])


@pytest.fixture
def pictures(backend: Backend, tmp_path: Path) -> Iterator[Environment]:
    task = settings_task(Vault(tmp_path / "vault")).model_copy(update={"tools": ("draw", "count", "break")})
    environment = Pictures(task)
    environment.equip(Toolbox(task, ("bash", "python"), backend))
    with environment:
        environment.setup()
        yield environment


def test_pictures_reach_the_code_and_the_agent(pictures: Environment) -> None:
    seen = python(pictures, "a = draw({'a': [1]}); print(a, len(a.images)); a")
    assert seen.text.startswith("drawn 1")
    assert len(seen.images) == 1
    path = bash(pictures, """draw '{"a": 1}' | tee out | tail -1""").text.removeprefix("[image: ").removesuffix("]")
    assert bash(pictures, f"head -c 4 {path} | tail -c 3; echo; head -1 out").text == "PNG\ndrawn"


def test_what_cannot_be_done_is_no_success_inside(pictures: Environment) -> None:
    assert bash(pictures, "draw '{}' 2>&1 >/dev/null; draw '{}' 2>/dev/null").text == "nothing to draw\n[exit code 1]"
    assert "ToolError: nothing to draw" in python(pictures, "draw({})").text


def test_words_become_the_declared_types(pictures: Environment) -> None:
    assert bash(pictures, "count 3; count --to 4 --fast; count --fast false 5 1.5; count --by=2 -- 6").text.splitlines() == [
        '{"to": 3}',
        '{"to": 4, "fast": true}',
        '{"fast": false, "to": 5, "by": 1.5}',
        '{"by": 2, "to": 6}',
    ]
    assert "not of type integer: 'x'" in bash(pictures, "count x").text


def test_a_machine_that_breaks_during_a_call_from_inside_ends_the_episode(pictures: Environment, backend: Backend) -> None:
    with pytest.raises(SandboxError, match="the machine broke"):
        bash(pictures, "tool break; true")
    with pytest.raises(Exception, match="was not executed"):
        bash(pictures, "true")


def test_a_closed_service_answers_nobody(make: Make) -> None:
    environment = make("bash")
    toolbox = environment._equipment
    assert isinstance(toolbox, Toolbox)
    assert toolbox._service is not None
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert toolbox._service.answer(b'{"tool": "get", "arguments": {"name": "width"}}')["text"] == "70"
        environment.close()
        assert toolbox._service.answer(b'{"tool": "get", "arguments": {"name": "width"}}')["error"] == "AgentError"


def test_the_search_familys_tools_are_commands_too(backend: Backend, tmp_path: Path) -> None:
    from tests.environments.small_tasks import make_resources

    vault = Vault(tmp_path / "vault")
    resources = make_resources(vault)
    resources.sandboxes = backend
    with make_environment(search_task(vault), resources, carrier="bash") as environment:
        environment.setup()
        first = bash(environment, "search width | head -n 1").text
        assert first.startswith("1 ")
        assert bash(environment, "open 1 nowhere; submit 42").text == "not found\nsubmitted"
        assert environment.outcome.submission == "42"
