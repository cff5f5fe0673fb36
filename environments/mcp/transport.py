"""`McpTransport`: an episode's calls through an MCP session, for harnesses with `tools.transport = "mcp"`."""

from __future__ import annotations

import json
from typing import Literal, Self

from environments.environment import Answer, Environment
from environments.errors import BadArgumentsError
from environments.mcp.client import McpSession, Target
from environments.mcp.server import HttpServer, environment_server
from environments.mcp.wire import MALFORMED
from environments.task import ToolCall


class McpTransport:
    """Carries out calls as `Environment.step` does: pass it to `Episode` as `execute`. Close it when the episode is over."""

    def __init__(self, target: Target, timeout_s: float = 600.0, server: HttpServer | None = None) -> None:
        """
        Args:
            target: a server of ours: in this process, a command, or a URL.
            timeout_s: for one call.
            server: closed together with this.

        Raises:
            ConfigError: the command cannot be started.
            InfrastructureError: the server is dead.
        """
        self._server = server
        self.session = McpSession(target, "ninefold", timeout_s)

    @classmethod
    def over(cls, environment: Environment, wire: Literal["memory", "http"] = "memory", timeout_s: float = 600.0) -> McpTransport:
        """To a server over `environment` in this process, whose state stays the episode's own."""
        server = environment_server(environment)
        if wire == "memory":
            return cls(server, timeout_s)
        http = HttpServer(server)
        try:
            return cls(http.url, timeout_s, http)
        except BaseException:
            http.close()
            raise

    def __call__(self, call: ToolCall) -> Answer:
        """Execute one call.

        Raises:
            AgentError: as `Environment.step`, in the same words.
            InfrastructureError: a machine part failed, the server or the session included.
        """
        for name, value in call.arguments.items():
            if not _fits(name) or not _fits(value):  # JSON on a wire cannot hold it, so no server gets to refuse it
                raise BadArgumentsError(f"{call.tool}.{name} holds a lone surrogate: {value!r:.60}", "pass valid Unicode")
        return self.session.call(call.tool, call.arguments, {MALFORMED: call.malformed} if call.malformed else None)

    def close(self) -> None:
        """End the session, and the server that `over` began. May be called again."""
        self.session.close()
        if self._server is not None:
            self._server.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _fits(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True
