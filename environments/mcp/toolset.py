"""Tools of an outside MCP server, as equipment of an environment: a user's own app can be mounted."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from mcp.client.stdio import StdioServerParameters

from environments.environment import Answer, Environment
from environments.errors import ConfigError
from environments.gateway.schema import tool_spec
from environments.mcp.client import McpSession, Target
from environments.task import ToolSpec

if TYPE_CHECKING:
    from environments.environment import Equipment


class McpToolset:
    """The tools of one server. Pass it to `Environment.equip`; `close` ends the session and a server that it started."""

    def __init__(
        self,
        name: str,
        server: Target | Sequence[str],
        only: Collection[str] | None = None,
        taken: Collection[str] = (),
        env: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
        start_s: float = 30.0,
    ) -> None:
        """
        Args:
            name: of the server, for messages.
            server: a URL, a command with its arguments, or a server in this process.
            only: offer these tools and no others.
            taken: names that other tools have.
            env: further variables of a command, which inherits no more than PATH, HOME and the like.

        Raises:
            ConfigError: the command cannot be started; a name is taken or offered twice; `only` names a tool that there is
                not; a schema cannot be expressed.
            InfrastructureError: the server is dead or silent.
        """
        self.name = name
        self._session = McpSession(_target(name, server, env), name, timeout_s, start_s)
        try:
            self.specs: Mapping[str, ToolSpec] = self._read(only, taken)
        except BaseException:
            self._session.close()
            raise

    def _read(self, only: Collection[str] | None, taken: Collection[str]) -> dict[str, ToolSpec]:
        specs: dict[str, ToolSpec] = {}
        listed = self._session.tools()
        if absent := [n for n in only or () if n not in {t.name for t in listed}]:
            known = ", ".join(t.name for t in listed) or "none"
            raise ConfigError(f"MCP server {self.name} has no tool {absent[0]!r:.60}", f"it has: {known}")
        for tool in listed:
            if only is not None and tool.name not in only:
                continue
            if tool.name in taken or tool.name in specs:
                raise ConfigError(f"MCP server {self.name} offers {tool.name!r:.60}, a name that is taken", "leave it out with `only`")
            specs[tool.name] = tool_spec(tool.name, tool.description or "", tool.input_schema)
        return specs

    def open(self, environment: Environment) -> None:
        """Refuse names that the environment's own tools have. Raises ConfigError."""
        if clash := [n for n in self.specs if n in environment.TOOLS]:
            raise ConfigError(f"MCP server {self.name} offers {clash[0]!r:.60}, as the task does", "leave it out with `only`")

    def call(self, tool: str, arguments: dict[str, Any], nested: bool) -> Answer:
        """Execute a call. What the server marks as an error is a failed `Observation`. Raises AgentError, InfrastructureError."""
        return self._session.call(tool, arguments)

    def collect(self) -> dict[str, bytes]:
        """No files: an outside app keeps its own."""
        return {}

    def close(self) -> None:
        """May be called again."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class JoinedEquipment:
    """Several pieces of equipment as one, for example a toolbox and a mounted app."""

    def __init__(self, *parts: Equipment) -> None:
        """Raises ConfigError when two offer a tool of one name."""
        self._parts = parts
        self._of: dict[str, Equipment] = {}
        specs: dict[str, ToolSpec] = {}
        for part in parts:
            if clash := [n for n in part.specs if n in specs]:
                raise ConfigError(f"two pieces of equipment offer {clash[0]!r:.60}", "rename or leave out one of them")
            specs.update(part.specs)
            self._of.update(dict.fromkeys(part.specs, part))
        self.specs: Mapping[str, ToolSpec] = specs

    def open(self, environment: Environment) -> None:
        for part in self._parts:
            part.open(environment)

    def call(self, tool: str, arguments: dict[str, Any], nested: bool) -> Answer:
        return self._of[tool].call(tool, arguments, nested)

    def collect(self) -> dict[str, bytes]:
        return {path: data for part in self._parts for path, data in part.collect().items()}

    def close(self) -> None:
        for part in reversed(self._parts):
            part.close()


def _target(name: str, server: Target | Sequence[str], env: Mapping[str, str] | None) -> Target:
    if isinstance(server, str) and not server.startswith(("http://", "https://")):
        raise ConfigError(f"MCP server {name}: {server!r:.80} is no URL", f"pass a command as a list: {shlex.split(server)!r:.120}")
    if isinstance(server, Sequence) and not isinstance(server, str):
        if not server:
            raise ConfigError(f"MCP server {name} has an empty command", "pass a program and its arguments")
        return StdioServerParameters(command=server[0], args=list(server[1:]), env=dict(env or {}))
    return server
