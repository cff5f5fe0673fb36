"""The host's end of the guest agent's protocol, over Firecracker's vsock socket or a plain Unix socket."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from environments.errors import BadArgumentsError, SandboxError

_FRAME = struct.Struct(">II")
_HEADER_BYTES = 32 << 20
"""A cell's images travel in the header; the agent stops at less."""
GRACE_S = 30.0
"""How long a guest may stay silent beyond a request's own limit before it counts as dead."""


class AgentLost(SandboxError):
    """The agent does not answer any more."""


class Channel:
    """Requests to one agent. Connects at the first request, and again after `drop` or a reset."""

    def __init__(self, path: Path, port: int | None, body_bytes: int) -> None:
        """`port`: the agent's vsock port behind Firecracker's socket; None when it listens on `path` itself."""
        self.path = path
        self._port = port
        self._body_bytes = body_bytes
        self._socket: socket.socket | None = None
        self._deadline = 0.0

    def ask(
        self, request: dict[str, Any], body: bytes = b"", timeout_s: float = 10.0, on_frame: Callable[[str, bytes], None] | None = None
    ) -> dict[str, Any]:
        """Send one request; its answer.

        Args:
            on_frame: gets the name of a stream and a piece of it, as they arrive.

        Raises:
            BadArgumentsError: the agent refused.
            AgentLost: it fell silent or is gone.
            SandboxError: it could not do it.
        """
        self._deadline = time.monotonic() + timeout_s + GRACE_S
        header = json.dumps(request).encode()
        try:
            if self._socket is None:
                self._socket = self._connect()
            self._socket.settimeout(timeout_s + GRACE_S)
            self._socket.sendall(_FRAME.pack(len(header), len(body)) + header + body)
            while True:
                answer, data = self._receive()
                if "stream" not in answer:
                    break
                if on_frame is not None:
                    on_frame(str(answer["stream"]), data)
        except (OSError, ValueError) as error:
            self.drop()
            raise AgentLost(f"the guest's agent does not answer ({error or type(error).__name__})", "create another sandbox") from error
        except BaseException:
            self.drop()  # in the middle of an answer: the rest must not be taken for the next one
            raise
        if "refused" in answer:
            raise BadArgumentsError(str(answer["refused"]), "use a path in the workspace")
        if "failed" in answer:
            raise SandboxError(f"the guest could not do it: {answer['failed']}", "create another sandbox, or give it more room")
        result: dict[str, Any] = answer["ok"]
        return result

    def wait(self, timeout_s: float, alive: Callable[[], bool]) -> None:
        """Until the agent answers a connection.

        Raises:
            AgentLost: not within the limit, or the machine ended.
        """
        self.drop()
        deadline = time.monotonic() + timeout_s
        while True:
            self._deadline = deadline
            try:
                self._socket = self._connect()
                return
            except OSError as error:
                if time.monotonic() > deadline or not alive():
                    raise AgentLost(f"the guest's agent did not come up within {timeout_s} s ({error})", "check the kernel") from error
            time.sleep(0.005)

    def drop(self) -> None:
        """Forget the connection, as a snapshot or a restore resets it."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.settimeout(max(0.001, min(GRACE_S, self._deadline - time.monotonic())))
            sock.connect(str(self.path))
            if self._port is not None:  # Firecracker, docs/vsock.md: "CONNECT <port>", then "OK <its port>"
                sock.sendall(b"CONNECT %d\n" % self._port)
                line = b""
                while not line.endswith(b"\n"):
                    byte = sock.recv(1)
                    if not byte:
                        raise ConnectionError("nobody listens in the guest")
                    line += byte
                if not line.startswith(b"OK "):
                    raise ConnectionError(f"Firecracker says {line!r}")
        except BaseException:
            sock.close()
            raise
        return sock

    def _receive(self) -> tuple[dict[str, Any], bytes]:
        head, body = _FRAME.unpack(self._exact(_FRAME.size))
        if head > _HEADER_BYTES or body > self._body_bytes:
            raise ValueError(f"a frame of {head} + {body} bytes")
        answer = json.loads(self._exact(head))
        if not isinstance(answer, dict):
            raise ValueError("not a header")
        return answer, self._exact(body)

    def _exact(self, size: int) -> bytes:
        assert self._socket is not None
        data = bytearray()
        while len(data) < size:
            self._socket.settimeout(max(0.001, self._deadline - time.monotonic()))
            chunk = self._socket.recv(min(size - len(data), 1 << 20))
            if not chunk:
                raise ConnectionError("it hung up")
            data += chunk
        return bytes(data)
