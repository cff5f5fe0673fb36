"""Connections from the host to what listens inside a sandbox.

A sandbox has no route, and `Sandbox.serve` lets only code inside call the host; so a relay inside keeps a connection waiting
over which the host asks for the port it wants.
"""

from __future__ import annotations

import contextlib
import queue
import shlex
import socket
import threading
import time
from functools import cache
from pathlib import Path
from typing import Self

from environments.errors import SandboxError
from environments.sandbox.base import Sandbox

TUNNEL_PORT = 7998
_START_S = 5.0
_WAITING = 8
"""Connections kept for later; code inside may open any number."""


@cache
def _relay_source() -> str:
    return Path(__file__).with_name("inside_relay.py").read_text()


class Tunnel:
    """Connects to ports inside `sandbox`. Thread-safe; a context manager that closes itself."""

    def __init__(self, sandbox: Sandbox) -> None:
        """Raises SandboxError when the sandbox has no Python to relay with."""
        self._sandbox = sandbox
        self._listener = sandbox.serve(TUNNEL_PORT)
        self._waiting: queue.Queue[socket.socket] = queue.Queue(_WAITING)
        self._closed = False
        threading.Thread(target=_accept, args=(self._listener, self._waiting), name="sandbox-tunnel", daemon=True).start()
        try:
            if not self.ensure():
                raise SandboxError("the relay for the browser did not start in the sandbox", "use an image with Python")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ensure(self) -> bool:
        """Start the relay when it does not run: the agent may kill it. Must not be called while the sandbox runs a command.

        Returns:
            Whether it runs; an agent that leaves no room for it reaches nothing, which is its own doing.

        Raises:
            SandboxError: the sandbox died.
        """
        if self._sandbox.state == "paused":
            self._sandbox.list(".")  # any operation resumes one that its time-to-live has paused
        if self._alive():
            return True
        python = "$(command -v python3 || command -v python)"
        command = f"{python} -I -S -c {shlex.quote(_relay_source())} {TUNNEL_PORT}"
        self._sandbox.exec(["sh", "-c", f"setsid {command} </dev/null >/dev/null 2>&1 &"])
        deadline = time.monotonic() + _START_S
        while not (alive := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.01)
        return alive

    def connect(self, port: int, timeout_s: float = 5.0) -> socket.socket:
        """A connection to a port inside.

        Raises:
            OSError: nothing listens there, or the relay is gone.
        """
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                connection = self._waiting.get(timeout=left)
            except queue.Empty:
                break
            try:
                connection.settimeout(timeout_s)
                connection.sendall(b"%d\n" % port)
                answer = connection.recv(1)
            except OSError:
                answer = b""
            if answer == b"+":
                return connection
            connection.close()
            if answer == b"-":
                raise ConnectionRefusedError(f"nothing listens on port {port} in the sandbox")
        raise TimeoutError("the sandbox does not answer")

    def close(self) -> None:
        """Stop accepting and drop what waits. May be called again."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(queue.Empty):
            while True:
                self._waiting.get_nowait().close()

    def _alive(self) -> bool:
        """Whether a connection waits; dead ones are dropped."""
        for _ in range(_WAITING):
            try:
                connection = self._waiting.get_nowait()
            except queue.Empty:
                return False
            try:
                gone = connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if not gone:
                with contextlib.suppress(queue.Full):
                    self._waiting.put_nowait(connection)
                    return True
            connection.close()
        return False


def _accept(listener: socket.socket, waiting: queue.Queue[socket.socket]) -> None:
    with listener:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:  # closed
                return
            try:
                waiting.put_nowait(connection)
            except queue.Full:
                connection.close()
