"""An outside MCP server's tools, mounted beside a task's own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from environments.errors import AgentError, BadArgumentsError, ConfigError, InfrastructureError
from environments.families import make_environment
from environments.mcp.server import HttpServer, make_server
from environments.mcp.toolset import JoinedEquipment, McpToolset
from environments.protocols import Observation
from environments.resources import Resources
from environments.task import ToolCall, ToolSpec
from environments.vault import Vault
from tests.environments.mcp import outside_server
from tests.environments.small_tasks import make_resources, settings_task

COMMAND = [sys.executable, str(Path(outside_server.__file__))]


@pytest.fixture
def resources(tmp_path: Path) -> Iterator[Resources]:
    with make_resources(Vault(tmp_path / "vault")) as made:
        yield made


def test_a_command_is_mounted_beside_the_tasks_tools(resources: Resources) -> None:
    environment = make_environment(settings_task(resources.vault), resources)
    environment.equip(McpToolset("calculator", COMMAND, only=["add", "picture", "sound", "fail", "refuse"]))
    with environment:
        environment.setup()
        assert [t.name for t in environment.tools] == ["get", "set", "submit", "add", "picture", "sound", "fail", "refuse"]
        assert environment.step(ToolCall(tool="get", arguments={"name": "width"})) == "70"
        assert environment.step(ToolCall(tool="add", arguments={"a": 2, "b": 3})) == Observation(text="5")
        seen = environment.step(ToolCall(tool="picture"))
        assert isinstance(seen, Observation)
        assert (seen.text, [i.data for i in seen.images]) == ("see", [outside_server.PNG])
        sound = environment.step(ToolCall(tool="sound"))
        assert isinstance(sound, Observation)
        assert sound.text.startswith("[audio/wav of 8 bytes")
        assert environment.step(ToolCall(tool="fail")) == Observation(text="no such thing", failed=True)
        with pytest.raises(BadArgumentsError, match="not like this"):
            environment.step(ToolCall(tool="refuse"))
        with pytest.raises(AgentError, match="not of type integer"):
            environment.step(ToolCall(tool="add", arguments={"a": "2", "b": 3}))


def test_a_crash_and_a_silent_server_are_infrastructure(resources: Resources) -> None:
    environment = make_environment(settings_task(resources.vault), resources)
    environment.equip(McpToolset("fragile", COMMAND))
    with environment:
        environment.setup()
        for tool in ("crash", "add"):
            with pytest.raises(InfrastructureError):
                environment.step(ToolCall(tool=tool, arguments={"a": 1, "b": 1} if tool == "add" else {}))
    slow = McpToolset("slow", outside_server.make_server(), timeout_s=0.2)
    with slow, pytest.raises(InfrastructureError, match="slow failed at hang: it did not answer in time"):
        slow.call("hang", {}, False)


def test_what_cannot_be_mounted_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="calc cannot be started"):
        McpToolset("calc", ["/nowhere/at/all"])
    with pytest.raises(InfrastructureError, match="calc"):
        McpToolset("calc", [sys.executable, "-c", "pass"])
    with pytest.raises(InfrastructureError, match="calc"):
        McpToolset("calc", "http://127.0.0.1:9/mcp")
    with pytest.raises(InfrastructureError, match="not up within"):
        McpToolset("calc", [sys.executable, "-S", "-c", "import sys; sys.stdin.read()"], start_s=0.3)
    assert not any(sys.executable in p.exe() for p in psutil.Process().children(recursive=True))
    with pytest.raises(ConfigError, match="no URL"):
        McpToolset("calc", "python server.py")
    with pytest.raises(ConfigError, match="empty command"):
        McpToolset("calc", [])
    with pytest.raises(ConfigError, match=r"odd\.x has no single type"):
        McpToolset("calc", outside_server.make_server(odd=True))
    with pytest.raises(ConfigError, match="'add', a name that is taken"):
        McpToolset("calc", outside_server.make_server(), taken=["add"])
    with pytest.raises(ConfigError, match="has no tool 'multiply'"):
        McpToolset("calc", outside_server.make_server(), only=["multiply"])


def test_names_that_the_task_has_are_refused_at_setup_and_two_apps_join(resources: Resources) -> None:
    tool = ToolSpec(name="get", description="Get.")
    environment = make_environment(settings_task(resources.vault), resources)
    environment.equip(McpToolset("app", make_server([tool], lambda call: "x")))
    with pytest.raises(ConfigError, match="'get', as the task does"):
        environment.setup()
    with HttpServer(make_server([tool], lambda call: "other app")) as other:
        calculator, app = McpToolset("calc", outside_server.make_server(), only=["add"]), McpToolset("app", other.url)
        joined = JoinedEquipment(calculator, app)
        assert list(joined.specs) == ["add", "get"]
        assert joined.call("get", {}, False) == "other app"
        assert joined.call("add", {"a": 1, "b": 2}, False) == Observation(text="3")
        with pytest.raises(ConfigError, match="two pieces"):
            JoinedEquipment(app, app)
        joined.close()
