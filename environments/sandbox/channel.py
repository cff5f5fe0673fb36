"""The host's end of a sandbox's control socket, and the streams that go through it."""

from __future__ import annotations

import ast
import contextlib
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from environments.errors import BadArgumentsError, SandboxError
from environments.sandbox.base import WORKSPACE, Stream
from environments.sandbox.wire import FRAME, MAX_FDS, close_all, send_frame

GRACE_S = 20.0
"""How long a sandbox may stay silent beyond a request's own limit before it counts as dead."""
HEADER_CAP = 1 << 20
_CREDENTIALS = struct.Struct("=iII")
_BLOCK = 1 << 20


class ChannelError(SandboxError):
    """The other side is gone, silent, or does not keep to the protocol."""


@dataclass
class Reply:
    """One answer from inside."""

    header: dict[str, Any]
    body: bytes = b""
    fds: list[int] = field(default_factory=list)


class Channel:
    """Requests and answers over one socket; not thread-safe, but `close` may come from another thread at any time."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self.name = name
        self.peer_pid = 0
        """Who wrote last, as the kernel says, in the host's numbers; 0 unless `learn_peer` was asked for."""
        self._sock = sock
        self._owner = os.getpid()
        self._buffer = bytearray()
        self._fds: list[int] = []

    def learn_peer(self) -> None:
        """Let the kernel attach the writer's process id to what arrives from now on."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)

    def fileno(self) -> int:
        """For poll; raises ChannelError once it is closed."""
        number = self._sock.fileno()
        if number < 0:
            raise ChannelError(f"{self.name} is closed", "create another")
        return number

    def send(self, request: dict[str, Any], body: bytes = b"", fds: Sequence[int] = (), timeout_s: float = GRACE_S) -> None:
        """Send a request; raises ChannelError when it cannot be delivered."""
        try:
            self._sock.settimeout(timeout_s)
            send_frame(self._sock, request, body, fds)
        except OSError as error:
            raise ChannelError(f"{self.name} died ({error})", "create another") from error

    def send_program(self, code: bytes) -> None:
        """Deliver the program that a bootstrap waits for."""
        try:
            self._sock.settimeout(GRACE_S)
            self._sock.sendall(len(code).to_bytes(4, "big") + code)
        except OSError as error:
            raise ChannelError(f"{self.name} died ({error})", "create another") from error

    def _fill(self, size: int) -> None:
        space = socket.CMSG_SPACE(4 * MAX_FDS) + socket.CMSG_SPACE(_CREDENTIALS.size)
        while len(self._buffer) < size:
            try:
                data, ancillary, _, _ = self._sock.recvmsg(
                    max(1 << 16, min(size - len(self._buffer), _BLOCK)), space, socket.MSG_CMSG_CLOEXEC
                )
            except TimeoutError as error:
                raise ChannelError(f"{self.name} fell silent", "create another") from error
            except OSError as error:
                raise ChannelError(f"{self.name} died ({error})", "create another") from error
            for level, kind, content in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    self._fds += [int(fd) for (fd,) in struct.iter_unpack("=i", content[: len(content) // 4 * 4])]
                elif level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                    self.peer_pid = _CREDENTIALS.unpack(content)[0]
            if not data:
                raise ChannelError(f"{self.name} died", "create another")
            self._buffer += data

    def receive(self, timeout_s: float, cap: int) -> Reply:
        """The next frame, with a body of at most `cap` bytes.

        Raises:
            ChannelError: the other side is gone, silent for `timeout_s`, or wrote something else.
        """
        self._sock.settimeout(max(0.001, timeout_s))
        self._fill(FRAME.size)
        header_size, body_size = FRAME.unpack_from(self._buffer)
        if header_size > HEADER_CAP or body_size > cap:
            raise ChannelError(f"{self.name} answered {max(header_size, body_size)} bytes, more than agreed", "create another")
        end = FRAME.size + header_size
        self._fill(end + body_size)
        text, body = bytes(self._buffer[FRAME.size : end]), bytes(self._buffer[end : end + body_size])
        del self._buffer[: end + body_size]
        fds, self._fds = self._fds, []
        try:
            header = ast.literal_eval(text.decode())
            if type(header) is not dict:
                raise ValueError("not a mapping")
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            close_all(fds)
            raise ChannelError(f"{self.name} answered garbage", "create another") from error
        return Reply(header, body, fds)

    def waiting(self) -> bool:
        """Whether (part of) an answer is already here."""
        return bool(self._buffer)

    def ask(
        self,
        request: dict[str, Any],
        body: bytes = b"",
        fds: Sequence[int] = (),
        *,
        timeout_s: float = 10.0,
        cap: int = _BLOCK,
        on_piece: Callable[[Stream, bytes], None] | None = None,
    ) -> Reply:
        """Send a request and wait for its answer.

        Raises:
            ChannelError: as `receive`.
            BadArgumentsError: it was refused.
            SandboxError: it failed inside.
        """
        self.send(request, body, fds)
        deadline = time.monotonic() + timeout_s + GRACE_S
        while True:
            reply = self.receive(deadline - time.monotonic(), cap)
            if "piece" not in reply.header:
                return self.checked(reply)
            if on_piece is not None and reply.header["piece"] in ("stdout", "stderr"):
                on_piece(reply.header["piece"], reply.body)

    def checked(self, reply: Reply) -> Reply:
        """The reply, unless it says that the request was refused or failed."""
        if "refused" in reply.header:
            raise BadArgumentsError(str(reply.header["refused"]), f"use a path in {WORKSPACE}")
        if "failed" in reply.header:
            raise SandboxError(f"{self.name} could not do it: {reply.header['failed']}", "create another, or give it a larger workspace")
        return reply

    def close(self) -> None:
        """Close it; another thread that waits for an answer wakes up. In a forked copy of its owner only the copy is closed."""
        if os.getpid() == self._owner:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        close_all(self._fds)
        self._fds = []


def collect(channel: Channel, pipe: int, sink: BinaryIO, cap: int, timeout_s: float) -> Reply:
    """Copy what arrives in `pipe` to `sink` until the answer to a request is there.

    Raises:
        ChannelError: no answer in time.
        SandboxError: more than `cap` bytes came.
    """
    os.set_blocking(pipe, False)
    poller = select.poll()
    poller.register(pipe, select.POLLIN)
    poller.register(channel.fileno(), select.POLLIN)
    deadline, size, reply = time.monotonic() + timeout_s, 0, None
    while True:
        left = deadline - time.monotonic()
        ready = {fd for fd, _ in poller.poll(0 if reply else max(0, left * 1000))}
        if reply is None and not ready and left <= 0:
            raise ChannelError(f"{channel.name} fell silent", "create another")
        chunk = b""
        if pipe in ready:
            try:
                chunk = os.read(pipe, _BLOCK)
            except BlockingIOError:
                chunk = b""
            size += len(chunk)
            if size > cap:
                raise SandboxError(f"{channel.name} wrote more than {cap} bytes", "keep less in variables, or raise memory_mb")
            sink.write(chunk)
            if not chunk:
                poller.unregister(pipe)
        if reply is not None and not chunk:
            return channel.checked(reply)
        if reply is None and (channel.waiting() or ready - {pipe}):
            reply = channel.receive(max(0.1, left), _BLOCK)


def supply(channel: Channel, pipe: int, source: BinaryIO, timeout_s: float) -> Reply:
    """Copy `source` into `pipe`, close that, and wait for the answer to a request."""
    os.set_blocking(pipe, False)
    poller = select.poll()
    poller.register(channel.fileno(), select.POLLIN)
    poller.register(pipe, select.POLLOUT)
    deadline, view, is_open = time.monotonic() + timeout_s, memoryview(b""), True
    try:
        while True:
            left = deadline - time.monotonic()
            ready = {fd for fd, _ in poller.poll(max(0, left * 1000))}
            if not ready:
                raise ChannelError(f"{channel.name} fell silent", "create another")
            if ready - {pipe}:
                return channel.checked(channel.receive(max(0.1, left), _BLOCK))
            view = view or memoryview(source.read(_BLOCK))
            try:
                view = view[os.write(pipe, view) :] if view else view
                ended = not view and not (view := memoryview(source.read(_BLOCK)))
            except BlockingIOError:
                ended = False
            except OSError:
                ended = True
            if ended:
                poller.unregister(pipe)
                os.close(pipe)
                is_open = False
    finally:
        if is_open:
            os.close(pipe)
