"""Environments over MCP answer as they do directly, on every transport; a broken server is a broken machine."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest
from mcp import Client, types
from mcp.client.stdio import StdioServerParameters

from environments.environment import Answer, Environment
from environments.errors import AgentError, BadArgumentsError, ConfigError, InfrastructureError, SandboxError
from environments.families import make_environment
from environments.harness.config import HarnessConfig, ToolModule
from environments.harness.episode import Episode
from environments.mcp.__main__ import read_task
from environments.mcp.server import HttpServer, environment_server, make_server
from environments.mcp.transport import McpTransport
from environments.protocols import Observation
from environments.resources import Resources
from environments.task import Image, Message, TaskSpec, ToolCall, ToolSpec
from environments.vault import Vault
from environments.verifiers import judge
from tests.environments.small_tasks import DOUBLE, coding_task, make_resources, message, search_task, settings_task

ROOT = Path(__file__).parents[3]
TASKS: dict[str, Callable[[Vault], TaskSpec]] = {"search": search_task, "assistant": settings_task, "coding": coding_task}
CALLS: dict[str, list[ToolCall]] = {
    "search": [
        ToolCall(tool="search", arguments={"query": "textwrap.wrap"}),
        ToolCall(tool="open", arguments={"result": "1", "find": "width"}),
        ToolCall(tool="submit", arguments={"answer": "113"}),
    ],
    "assistant": [
        ToolCall(tool="get", arguments={"name": "width"}),
        ToolCall(tool="get", arguments={"name": "naïve Ω 漢字 🙂\n"}),
        ToolCall(tool="set", arguments={"name": "width", "value": "113"}),
        ToolCall(tool="submit"),
    ],
    "coding": [
        ToolCall(tool="run_tests", arguments={"source": "def solve(n): return n"}),
        ToolCall(tool="run_tests", arguments={"source": DOUBLE}),
        ToolCall(tool="submit"),
    ],
}
REFUSED = [
    ToolCall(tool="shell", arguments={"cmd": "ls"}),
    ToolCall(tool="submit", arguments={"unknown": 1}),
    ToolCall(tool="submit", malformed='{"answer'),
    ToolCall(tool="submit", arguments={"unknown": "\ud800"}),
]


@pytest.fixture
def resources(tmp_path: Path) -> Iterator[Resources]:
    with make_resources(Vault(tmp_path / "vault")) as made:
        yield made


def set_up(task: TaskSpec, resources: Resources) -> Environment:
    environment = make_environment(task, resources)
    environment.setup()
    return environment


def tried(execute: Any, call: ToolCall) -> Answer | tuple[str, str]:
    try:
        answer: Answer = execute(call)
        return answer
    except AgentError as error:
        return type(error).__name__, str(error)


def served_task(task: TaskSpec, vault: Vault) -> StdioServerParameters:
    """The package's own command."""
    path = vault.root.with_name("task.json")
    path.write_text(task.model_dump_json())
    arguments = ["-m", "environments.mcp", "--task", str(path), "--vault", str(vault.root)]
    return StdioServerParameters(command=sys.executable, args=arguments, cwd=ROOT)


def connected(wire: str, family: str, environment: Environment, resources: Resources) -> McpTransport:
    if wire == "stdio" and family == "assistant":
        return McpTransport(served_task(environment.task, resources.vault))
    if wire == "stdio":
        script = str(Path(__file__).with_name("stdio_server.py"))
        command = [script, family, str(resources.vault.root)]
        return McpTransport(StdioServerParameters(command=sys.executable, args=command, env={"PYTHONPATH": str(ROOT)}))
    kind: Literal["memory", "http"] = "http" if wire == "http" else "memory"
    return McpTransport.over(environment, kind)


@pytest.mark.parametrize("wire", ["memory", "http", "stdio"])
@pytest.mark.parametrize("family", ["search", "assistant", pytest.param("coding", marks=pytest.mark.sandbox)])
def test_answers_and_refusals_are_the_same_over_every_transport(family: str, wire: str, resources: Resources) -> None:
    direct = set_up(TASKS[family](resources.vault), resources)
    environment = set_up(TASKS[family](resources.vault), resources)
    with connected(wire, family, environment, resources) as transport:
        for call in [*REFUSED[:3], *CALLS[family], *REFUSED[:1]]:
            assert tried(transport, call) == tried(direct.step, call)
        with pytest.raises(BadArgumentsError, match="lone surrogate"):
            transport(REFUSED[3])
        listed = transport.session.tools()
    assert [(t.name, t.description) for t in listed] == [(t.name, t.description) for t in direct.tools]
    assert all(t.input_schema["additionalProperties"] is False for t in listed)
    if wire != "stdio":
        assert environment.finalize() == direct.finalize()


def test_an_episode_over_mcp_is_judged_as_any_other(resources: Resources) -> None:
    task = settings_task(resources.vault)
    environment = make_environment(task, resources)
    harness = HarnessConfig(name="over-mcp", tools=ToolModule(transport="mcp", names={"get": "mcp__app__get"}))
    with McpTransport.over(environment) as transport:
        episode = Episode(environment, harness, transport=transport)
        episode.start()
        assert episode.act(message("mcp__app__get", name="width"))[0].content == "70"
        assert episode.act(message("get", nonsense="x"))[0].content.startswith("error: get has no argument")
        episode.act(message("set", name="width", value="113"))
        episode.act(message("submit"))
        outcome = episode.finalize()
    assert (episode.stop, episode.malformed) == ("submitted", 1)
    assert judge(task, outcome, resources).score == 1.0


def test_images_and_failures_come_through() -> None:
    seen = Observation(text="look", images=(Image(data="iVBORw0KGgo="),), failed=True)
    tool = ToolSpec(name="look", description="Look.")
    with McpTransport(make_server([tool], lambda call: seen)) as transport:
        assert transport(ToolCall(tool="look")) == seen


def test_a_failed_machine_part_is_a_jsonrpc_error_of_its_class() -> None:
    def broken(call: ToolCall) -> str:
        raise SandboxError("the box is gone", "another one")

    tool = ToolSpec(name="look", description="Look.")
    with (
        HttpServer(make_server([tool], broken)) as server,
        McpTransport(server.url) as transport,
        pytest.raises(SandboxError, match=r"the box is gone\. Fix: another one"),
    ):
        transport(ToolCall(tool="look"))

    async def raw() -> types.ErrorData:
        async with Client(make_server([tool], broken), mode="legacy") as client:
            try:
                await client.call_tool("look")
            except Exception as error:  # noqa: BLE001 - the SDK's own
                return error.error  # type: ignore[attr-defined, no-any-return]
        raise AssertionError("no error")

    assert anyio.run(raw).code == types.INTERNAL_ERROR


def test_a_refusal_is_an_error_result_that_any_client_can_read(resources: Resources) -> None:
    environment = set_up(settings_task(resources.vault), resources)

    async def raw() -> types.CallToolResult:
        async with Client(environment_server(environment)) as client:
            return await client.call_tool("shell", {})

    result = anyio.run(raw)
    assert result.is_error
    assert isinstance(result.content[0], types.TextContent)
    assert result.content[0].text.startswith("error: there is no tool 'shell'")


def test_a_server_that_stops_is_infrastructure(resources: Resources) -> None:
    environment = set_up(settings_task(resources.vault), resources)
    with McpTransport.over(environment, "http", timeout_s=5) as transport:
        assert transport(CALLS["assistant"][0]) == "70"
        assert transport._server is not None
        transport._server.close()
        for _ in range(2):
            with pytest.raises(InfrastructureError):
                transport(CALLS["assistant"][0])
    with pytest.raises(InfrastructureError, match="closed"):
        transport(CALLS["assistant"][0])
    episode = Episode(make_environment(environment.task, resources), HarnessConfig(name="h"), transport=transport)
    episode.start()
    assert episode.act(Message(role="assistant", calls=(CALLS["assistant"][0],))) == []
    assert episode.stop == "infrastructure"


def test_the_command_refuses_what_is_no_task(tmp_path: Path) -> None:
    (tmp_path / "task.json").write_text("{}")
    for name in ("task.json", "absent.json"):
        with pytest.raises(ConfigError, match=f"{name} holds no task"):
            read_task(tmp_path / name)
