"""An environment as an MCP server: its tools are listed, its calls are steps. Over memory, stdio or streamable HTTP."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any, Self

import anyio
import anyio.to_thread
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from environments.environment import Answer, Environment
from environments.errors import AgentError, InfrastructureError
from environments.gateway.serving import ServingThread
from environments.mcp.wire import MALFORMED, as_failure, as_refusal, as_result, as_tool
from environments.task import ToolCall, ToolSpec

NAME = "ninefold"


def make_server(tools: Sequence[ToolSpec], execute: Callable[[ToolCall], Answer], name: str = NAME) -> Server[Any]:
    """A server whose calls are carried out by `execute`, on threads of the event loop's."""
    listed = types.ListToolsResult(tools=[as_tool(t) for t in tools])

    async def list_tools(_: Any, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return listed

    async def call_tool(_: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        malformed = str((params.meta or {}).get(MALFORMED) or "")
        call = ToolCall(tool=params.name, arguments={} if malformed else params.arguments or {}, malformed=malformed)
        try:
            return as_result(await anyio.to_thread.run_sync(execute, call))
        except AgentError as error:
            return as_refusal(error)
        except InfrastructureError as error:
            raise as_failure(error) from error

    return Server(name, on_list_tools=list_tools, on_call_tool=call_tool)


def environment_server(environment: Environment) -> Server[Any]:
    """A server over an environment that is set up, or will be before the first call. Who made it also finalizes it."""
    return make_server(environment.tools, environment.step, f"{NAME}-{environment.task.family}")


def serve_stdio(server: Server[Any]) -> None:
    """Serve this process's standard input until it ends."""

    async def run() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    anyio.run(run)


class HttpServer:
    """A server on streamable HTTP: on a free loopback port, or on a socket such as `Sandbox.serve` makes.

    The path holds a secret, since every process of a machine can reach its loopback.
    """

    def __init__(self, server: Server[Any], sock: socket.socket | None = None) -> None:
        """Raises InfrastructureError when no port can be served."""
        path = f"/{secrets.token_urlsafe(24)}/mcp"
        self._serving = ServingThread(server.streamable_http_app(streamable_http_path=path, json_response=True), "mcp-server", "on")
        self.url = self._serving.listen(sock).url + path

    def close(self) -> None:
        """Stop serving. May be called again."""
        self._serving.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
