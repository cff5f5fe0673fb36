"""An MCP client session for code that is not asynchronous: a thread of its own with its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, Self, TypeVar

import httpx2
from mcp import types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError

from environments.environment import Answer
from environments.errors import ConfigError, InfrastructureError
from environments.mcp.wire import read_failure, read_result

Target = Server[Any] | StdioServerParameters | str
"""What to talk to: a server in this process, a command, or a URL."""
_T = TypeVar("_T")
_CLOSE_S = 10.0
_GRACE_S = 5.0
"""Beyond a request's own time-out, for the session to tell of it."""
_PAGES = 100
"""Of a tool list: more is a server that goes round in circles."""


class McpSession:
    """One session. Thread-safe; close it, or use it as a context manager."""

    def __init__(self, target: Target, name: str = "mcp", timeout_s: float = 600.0, start_s: float = 30.0) -> None:
        """
        Args:
            timeout_s: for one call.
            start_s: until the server has to be up.

        Raises:
            ConfigError: the command cannot be started.
            InfrastructureError: the server is dead, or no MCP server.
        """
        self.name, self.timeout_s = name, timeout_s
        self.failure: InfrastructureError | None = None
        """Why nothing can be called any more."""
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._up: Future[Client] = Future()
        self._stop = asyncio.Event()
        self._task = self._loop.create_task(self._live())
        self._thread = threading.Thread(target=self._run, name=f"mcp-{name}", daemon=True)
        self._thread.start()
        try:
            self._client = self._up.result(start_s)
        except (FileNotFoundError, PermissionError) as error:
            self.close()
            raise ConfigError(f"MCP server {name} cannot be started: {error}", "check the command") from error
        except TimeoutError as error:
            self.close()
            raise InfrastructureError(f"MCP server {name} was not up within {start_s:g} s", "start it, or raise start_s") from error
        except (OSError, MCPError, ValueError, RuntimeError, ExceptionGroup) as error:
            self.close()
            raise InfrastructureError(
                f"MCP server {name} cannot be reached: {_leaf(error)!s:.200}", "start it, check its address"
            ) from error

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                self._loop.run_until_complete(self._task)
        finally:
            self._loop.close()

    async def _live(self) -> None:
        """Hold the session open until `close`: its context must end in the task in which it began."""
        try:
            async with self._connect() as client:
                self._up.set_result(client)
                await self._stop.wait()
        except BaseException as error:
            if not self._up.done():
                self._up.set_exception(error if isinstance(error, Exception) else InfrastructureError("the session was ended"))
            if not isinstance(error, Exception):
                raise
            self.failure = self.failure or InfrastructureError(f"MCP server {self.name} died: {_leaf(error)!s:.200}", "start it again")

    def _connect(self) -> Client:
        if isinstance(self._target, Server):
            return Client(self._target, mode="legacy")  # the one mode in which JSON-RPC goes between the two
        if isinstance(self._target, StdioServerParameters):
            return Client(stdio_client(self._target, errlog=sys.__stderr__ or sys.stderr))
        return Client(_http(self._target, self.timeout_s))

    def _ask(self, request: Coroutine[Any, Any, _T], what: str, timeout_s: float) -> _T:
        if self.failure is not None:
            request.close()
            raise self.failure
        try:
            future = asyncio.run_coroutine_threadsafe(request, self._loop)
        except RuntimeError:
            request.close()
            raise InfrastructureError(f"MCP session {self.name} is closed", "open another") from None
        try:
            return future.result(timeout_s + _GRACE_S)
        except MCPError as error:
            failure = read_failure(error, what, self.name)
            if isinstance(failure, InfrastructureError) and error.code in (types.CONNECTION_CLOSED, types.REQUEST_TIMEOUT):
                self.failure = failure
            raise failure from error
        except TimeoutError as error:
            future.cancel()
            self.failure = InfrastructureError(f"MCP server {self.name} failed at {what}: it fell silent", "start it again")
            raise self.failure from error
        except (OSError, ValueError, RuntimeError, ExceptionGroup, asyncio.CancelledError) as error:
            self.failure = InfrastructureError(f"MCP server {self.name} failed at {what}: {_leaf(error)!s:.200}", "start it again")
            raise self.failure from error

    def tools(self) -> list[types.Tool]:
        """Every tool that the server lists. Raises InfrastructureError."""
        found: list[types.Tool] = []
        cursor: str | None = None
        for _ in range(_PAGES):
            page = self._ask(self._client.list_tools(cursor=cursor), "tools/list", self.timeout_s)
            found += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return found
        raise InfrastructureError(f"MCP server {self.name} lists over {_PAGES} pages of tools", "check the server")

    def call(self, tool: str, arguments: Mapping[str, Any], meta: Mapping[str, Any] | None = None) -> Answer:
        """One call.

        Raises:
            AgentError: the server does not take it.
            InfrastructureError: the server is dead, silent, or answers garbage.
        """
        request = self._client.call_tool(tool, dict(arguments), self.timeout_s, meta=dict(meta) if meta else None)  # type: ignore[arg-type]
        return read_result(self._ask(request, tool, self.timeout_s), self.name)

    def close(self) -> None:
        """End the session and a server that it started. May be called again."""
        if not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set if self._up.done() else self._task.cancel)
        self._thread.join(_CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.asynccontextmanager
async def _http(url: str, timeout_s: float) -> AsyncIterator[tuple[Any, Any]]:
    """Streamable HTTP. A proxy that the environment names cannot reach this machine's own loopback."""
    away = httpx2.URL(url).host not in ("127.0.0.1", "localhost", "::1")
    limits = httpx2.Timeout(30.0, read=timeout_s + _GRACE_S)
    async with httpx2.AsyncClient(timeout=limits, trust_env=away) as http, streamable_http_client(url, http_client=http) as streams:
        yield streams


def _leaf(error: BaseException) -> BaseException:
    """The first real error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
