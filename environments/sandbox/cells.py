"""The host's handle on a sandbox's stateful interpreter. What it says is the work of untrusted code: read with limits, never believed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import BinaryIO

from environments.errors import SandboxError
from environments.sandbox.base import PythonResult
from environments.sandbox.bubblewrap import BOOTSTRAP, process_fields
from environments.sandbox.channel import GRACE_S, Channel, ChannelError, Reply, collect, supply
from environments.sandbox.wire import close_all

_PNG = b"\x89PNG\r\n\x1a\n"
_IMAGES_CAP = 16 << 20
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Memory in huge pages (glibc 2.35): a fork copies a page table, and that of 200 MB shrinks from megabytes to kilobytes."""
CARRY_S = 120.0
"""How long pickling or loading variables may take."""


def command(python: str, *, forkable: bool) -> list[str]:
    """How the interpreter is started; its program arrives on descriptor 3. Unbuffered, so that output keeps its order."""
    return [python, "-u", "-c", BOOTSTRAP.format(fd=3), *(["branch"] if forkable else [])]


def _boot_ticks() -> int:
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


def _wide_pipe() -> tuple[int, int]:
    """A pipe of a mebibyte, so that large variables take fewer turns; of the usual size where that is refused."""
    reader, writer = os.pipe()
    with contextlib.suppress(OSError):
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)
    return reader, writer


class Wires:
    """Both ends of an interpreter's control socket and output pipe, before it has started.

    A context manager that closes the far ends; the near ones belong to an `Interpreter`.
    """

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.output, self.writer = os.pipe()

    @property
    def far_fds(self) -> tuple[int, int]:
        """What the interpreter gets: control, output."""
        return self.far.fileno(), self.writer

    def __enter__(self) -> Wires:
        return self

    def __exit__(self, *_: object) -> None:
        self.far.close()
        os.close(self.writer)


class Interpreter:
    """A running interpreter. Not thread-safe; `close` may come from another thread."""

    def __init__(self, wires: Wires, owner: str, cap: int) -> None:
        self.channel = Channel(wires.near, f"the interpreter of sandbox {owner}")
        self.channel.learn_peer()
        self._output, self._cap = wires.output, cap
        self._closing = threading.Lock()
        self._owner = os.getpid()
        os.set_blocking(self._output, False)
        self.inner_pid = 0
        """Its process id as the program that started it numbers it."""
        self.since = _boot_ticks()
        """When the last cell began, in clock ticks since boot: orphans that are younger are its work."""
        self._pidfd = -1
        self._pid = 0

    def start(self, inner_pid: int, program: bytes | None, is_ours: Callable[[int], bool]) -> None:
        """Wait until it is ready; a forked copy has its program already.

        Args:
            is_ours: whether a process of the host is part of the sandbox; what it says of itself is not enough to kill it.

        Raises:
            ChannelError: it ended or stayed silent.
        """
        self.inner_pid = inner_pid
        if program is not None:
            self.channel.send_program(program)
        reply = self.channel.receive(GRACE_S, 0)
        if "failed" in reply.header:
            raise SandboxError(f"{self.channel.name} did not start: {str(reply.header['failed'])[:300]}", "create another")
        pid = self.channel.peer_pid
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(pid)
        if self._pidfd < 0 or not is_ours(pid):
            raise ChannelError(f"{self.channel.name} ended at once", "create another")
        self._pid = pid

    def _take(self, kept: bytearray) -> tuple[bool, bool]:
        """Read the output once: whether there may be more, and whether something was dropped."""
        try:
            chunk = os.read(self._output, 1 << 16)
        except BlockingIOError:
            return False, False
        room = self._cap - len(kept)
        kept += chunk[: max(0, room)]
        return bool(chunk), len(chunk) > room

    def cell(self, code: str, timeout_s: float) -> PythonResult | None:
        """Run a cell; None when its time is up (the caller must kill the interpreter).

        Raises:
            ChannelError: it ended, or does not keep to the protocol.
        """
        started, kept, dropped, reply = time.monotonic(), bytearray(), False, None
        self.since = _boot_ticks()
        self.channel.send({"op": "cell", "code": code}, timeout_s=timeout_s)
        poller = select.poll()
        for fd in (self._output, self.channel.fileno()):
            poller.register(fd, select.POLLIN)
        while reply is None:
            left = timeout_s - (time.monotonic() - started)
            ready = {fd for fd, _ in poller.poll(max(0, left * 1000))}
            if not ready and left <= 0:
                return None
            if self._output in ready:
                more, over = self._take(kept)
                dropped = dropped or over
                if not more:
                    poller.unregister(self._output)
            if ready - {self._output}:
                reply = self.channel.receive(max(0.05, left), _IMAGES_CAP)
        for _ in range(self._cap // (1 << 16) + 64):  # what it had written; a thread of its own may go on for ever
            more, over = self._take(kept)
            dropped = dropped or over
            if not more:
                break
        return self._result(reply, bytes(kept), dropped, time.monotonic() - started)

    def _result(self, reply: Reply, output: bytes, dropped: bool, wall_s: float) -> PythonResult:
        error, sizes = reply.header.get("error"), reply.header.get("sizes")
        if type(error) is not str or type(sizes) is not list or not all(type(size) is int and size >= 0 for size in sizes):
            raise ChannelError(f"{self.channel.name} answered garbage", "create another")
        images, at = [], 0
        for size in sizes:
            images.append(reply.body[at : at + size])
            at += size
        text = output.decode(errors="replace") + (f"\n[output beyond {self._cap >> 10} KiB was dropped]\n" if dropped else "")
        return PythonResult(text, error, tuple(image for image in images if image.startswith(_PNG)), wall_s=wall_s)

    def dump(self, sink: BinaryIO, cap: int) -> tuple[str, ...]:
        """Write the variables, pickled, to `sink`; the names of those that cannot be. Never unpickle them outside."""
        reader, writer = _wide_pipe()
        try:
            self.channel.send({"op": "dump"}, fds=[writer])
            os.close(writer)
            writer = -1
            left_out = collect(self.channel, reader, sink, cap, CARRY_S).header.get("left_out")
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)
        return tuple(str(name) for name in left_out) if isinstance(left_out, list) else ()

    def load(self, source: BinaryIO) -> None:
        """Give it the variables that `dump` wrote. Raises SandboxError when they cannot be unpickled inside."""
        reader, writer = _wide_pipe()
        try:
            self.channel.send({"op": "load"}, fds=[reader])
        except BaseException:
            os.close(writer)
            raise
        finally:
            os.close(reader)
        supply(self.channel, writer, source, CARRY_S)

    def fork(self, request: dict[str, object], fds: Sequence[int], timeout_s: float = GRACE_S) -> int:
        """Let it fork itself into the branch that `fds` describe; the copy's inner process id."""
        self.channel.send({"op": "fork", **request}, fds=fds)
        pid = self.channel.checked(self.channel.receive(timeout_s, 0)).header.get("pid")
        if type(pid) is not int:
            raise ChannelError(f"{self.channel.name} answered garbage", "create another")
        return pid

    def stop(self) -> None:
        """Stop it, so that it cannot start anything while what it started is killed."""
        self._signal(signal.SIGSTOP)

    def _signal(self, which: signal.Signals) -> None:
        if self._pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, which)

    def alive(self) -> bool:
        """Whether it still runs."""
        fields = process_fields(self._pid) if self._pid else None
        return fields is not None and fields[0] not in "ZX"

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Kill it and close its wires. May be called again."""
        if os.getpid() == self._owner:
            self._signal(signal.SIGKILL)
        self.channel.close()
        with self._closing:
            pidfd, self._pidfd = self._pidfd, -1
            output, self._output = self._output, -1
        close_all([fd for fd in (pidfd, output) if fd >= 0])
