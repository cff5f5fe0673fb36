"""The server's link to its `runner` in a sandbox: one connection for each command, which the runner opens from inside."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hmac
import itertools
import json
import secrets
import socket
from pathlib import Path
from typing import Any

from environments.errors import SandboxError
from environments.sandbox.base import Sandbox
from environments.sandbox.remote import runner
from environments.sandbox.remote.control import Runner as Blocking
from environments.sandbox.remote.wire import ENVD_PORT

_START_S = 30.0
_LINE = 1 << 20
"""Longest line from inside, bytes: the runner sends output in far smaller pieces."""
_STRANGERS = 64
"""Connections at a time that have not said the token yet."""
Wire = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class NoPythonError(SandboxError):
    """Commands cannot run side by side in this sandbox."""


class _EndedError(SandboxError):
    """The runner ended while a command was on its way."""


class Inside:
    """Commands side by side in one sandbox, which needs to offer services. For one event loop."""

    def __init__(self, sandbox: Sandbox, blocking: Blocking) -> None:
        self._sandbox, self._blocking = sandbox, blocking
        self._token = secrets.token_urlsafe(24)
        self._lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Wire]] = {}
        self._listener: socket.socket | None = None
        self._control: Wire | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._missing = False

    async def connection(self) -> Wire:
        """A connection for one command.

        Raises:
            NoPythonError: there is nothing inside to run the runner with.
            SandboxError: the runner did not start, or does not answer.
        """
        if self._missing:
            raise NoPythonError(f"sandbox {self._sandbox.sandbox_id} has no python3", "use an image that has one")
        try:
            return await self._ask()
        except _EndedError:  # killed by what runs inside, just now: the next one is on its way
            return await self._ask()

    async def _ask(self) -> Wire:
        async with self._lock:
            if self._control is None or self._control[0].at_eof() or self._control[1].is_closing():
                self._control = await self._launch()
                self._watching = asyncio.create_task(self._watch(self._control))
            number = next(self._numbers)
            self._control[1].write(json.dumps({"number": number}).encode() + b"\n")
        return await self._arrival(number)

    async def _arrival(self, number: int) -> Wire:
        arriving = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(arriving, _START_S)
        except TimeoutError:
            raise SandboxError(f"the runner in sandbox {self._sandbox.sandbox_id} does not answer", "create another") from None
        finally:
            self._waiting.pop(number, None)

    async def _watch(self, control: Wire) -> None:
        """The runner never speaks on its first connection: whatever comes there is its end, and nobody need wait for it."""
        with contextlib.suppress(OSError):
            await control[0].read(1)
        control[1].close()
        for arriving in self._waiting.values():
            if not arriving.done():
                arriving.set_exception(_EndedError(f"the runner in sandbox {self._sandbox.sandbox_id} ended", "try again"))

    async def _launch(self) -> Wire:
        if self._listener is None:
            self._listener = await self._blocking(self._sandbox.serve, ENVD_PORT)
            self._listener.setblocking(False)
            self._accepting = asyncio.create_task(self._accept(self._listener))
        arriving = asyncio.create_task(self._arrival(0))
        hello = json.dumps({"port": ENVD_PORT, "token": self._token}) + "\n"
        start = functools.partial(self._sandbox.exec, ["python3", "-c", _source()], stdin=hello, timeout_s=_START_S)
        try:
            done = await self._blocking(start)
            self._missing = done.exit_code == 127
            if self._missing:
                raise NoPythonError(f"sandbox {self._sandbox.sandbox_id} has no python3", "use an image that has one")
            if done.exit_code != 0:
                raise SandboxError(f"no runner in sandbox {self._sandbox.sandbox_id}: {done.stderr[-200:]!r}", "use an image with python3")
            return await arriving
        finally:
            arriving.cancel()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        greetings: set[asyncio.Task[None]] = set()
        while True:
            try:
                link, _ = await loop.sock_accept(listener)
            except OSError:  # out of descriptors: others may give some back
                await asyncio.sleep(0.1)
                continue
            if len(greetings) >= _STRANGERS:  # any program inside can connect; none may use up the server's descriptors
                link.close()
                continue
            task = asyncio.create_task(self._greet(link))
            greetings.add(task)
            task.add_done_callback(greetings.discard)

    async def _greet(self, link: socket.socket) -> None:
        """Whoever connects must know the token: any program inside can reach this port."""
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader, writer = await asyncio.open_connection(sock=link, limit=_LINE)
        try:
            hello: Any = json.loads(await asyncio.wait_for(reader.readline(), _START_S))
            if hmac.compare_digest(str(hello["token"]).encode(), self._token.encode()):
                self._waiting.pop(int(hello["number"])).set_result((reader, writer))
                return
        except (ValueError, KeyError, TypeError, OSError, TimeoutError, asyncio.InvalidStateError):
            pass
        writer.close()

    async def close(self) -> None:
        """Let go of the runner, which then ends."""
        if self._accepting is not None:
            self._accepting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._accepting
        if self._control is not None:
            self._control[1].close()
        if self._listener is not None:
            self._listener.close()


@functools.cache
def _source() -> str:
    return Path(runner.__file__).read_text()
