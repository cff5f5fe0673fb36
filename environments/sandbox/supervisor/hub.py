"""Connections of a supervisor: one thread waits on all of them, a pool answers, and the end of each is noticed even in between.

An idle connection costs a descriptor. While a request is answered its connection is watched for the other end's hang-up only
(EPOLLRDHUP), which is how the kernel reports that a client closed or died.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from environments.errors import ConfigError, NinefoldError
from environments.sandbox.supervisor import wire
from environments.sandbox.supervisor.wire import Message

_LOG = logging.getLogger(__name__)
_TICK_S = 0.1
_FRAME_S = 60.0
"""A client that takes longer than this to send or take a frame counts as dead."""
_PATH_BYTES = 107
"""sockaddr_un holds 108 with the final zero."""
_IDLE = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
_BUSY = select.EPOLLRDHUP | select.EPOLLONESHOT
_HUNG_UP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR

C = TypeVar("C")
Reply = tuple[Message, list[bytes], list[int]]
"""Header, bodies, and descriptors, which are closed once they are sent."""


@dataclass(eq=False)
class Connection(Generic[C]):
    """One client's connection and what its owner keeps about it."""

    sock: socket.socket
    claims: C
    users: int = 1
    """Threads that need the socket, and 1 while the other end is there. The last one closes it."""
    dead: bool = False


class Owner(Protocol[C]):
    """Whose connections they are."""

    def claims(self) -> C:
        """What a new connection holds: nothing yet."""

    def handle(self, connection: Connection[C], header: Message, blobs: list[bytes]) -> NinefoldError | Reply | None:
        """Answer a request, or return None and call `Hub.answer` once, later. Runs in a thread of the pool."""

    def hung_up(self, connection: Connection[C]) -> tuple[bool, Callable[[], None] | None]:
        """The other end has gone. Returns whether an answer was still owed and will not be sent, and what is left to do,
        which runs in the pool before the connection is closed."""

    def tick(self, now: float) -> None:
        """Called ten times a second, at `time.monotonic()`. Must not block."""


class Hub(Generic[C]):
    """Listens on `address`, for its own user (and root) alone."""

    def __init__(self, address: Path, owner: Owner[C], threads: int) -> None:
        """
        Raises:
            ConfigError: the path is too long for a socket.
        """
        check_address(address)
        self._address = address
        self._owner = owner
        self._lock = threading.Lock()
        self._connections: dict[int, Connection[C]] = {}
        self._stopping = False
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        part = address.with_suffix(".new")
        part.unlink(missing_ok=True)
        self._listener.bind(str(part))
        part.chmod(0o600)  # before anyone can find it: to connect needs the right to write
        self._listener.listen(1024)
        self._listener.setblocking(False)
        os.rename(part, address)
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        self._pool = ThreadPoolExecutor(threads, "supervisor")
        self._thread = threading.Thread(target=self._loop, name="supervisor-loop", daemon=True)

    def start(self) -> None:
        """Begin to answer; who connects before waits in the kernel."""
        self._thread.start()

    def __len__(self) -> int:
        return len(self._connections)

    def submit(self, work: Callable[[], None]) -> None:
        """Run `work` in the pool; what it raises is logged."""

        def run() -> None:
            try:
                work()
            except Exception:  # noqa: BLE001 - one lease's trouble must not go unseen, nor end the others
                _LOG.exception("the supervisor failed at %s", work)

        self._pool.submit(run)

    def quiesce(self) -> None:
        """Take no further requests and call no further ticks; answers that are owed can still be sent."""
        self._stopping = True
        os.write(self._wake_write, b"x")
        self._thread.join()

    def close(self) -> None:
        """After `quiesce`: wait for the pool, then hang up on everybody."""
        self._pool.shutdown(wait=True)
        for connection in self._connections.values():
            connection.sock.close()
        self._connections.clear()
        self._epoll.close()
        self._listener.close()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._address.unlink(missing_ok=True)

    def answer(self, connection: Connection[C], answer: NinefoldError | Reply) -> None:
        """Send an answer, then be ready for the connection's next request."""
        fds = [] if isinstance(answer, NinefoldError) else answer[2]
        try:
            if isinstance(answer, NinefoldError):
                wire.send(connection.sock, {"raised": wire.pack_error(answer)})
            else:
                wire.send(connection.sock, *answer)
        except OSError:
            self._gone(connection)
        finally:
            for fd in fds:
                os.close(fd)
        with self._lock:
            if not connection.dead and not self._stopping:
                self._epoll.modify(connection.sock.fileno(), _IDLE)
        self._let_go(connection)

    def _loop(self) -> None:
        while not self._stopping:
            accept = False
            for fd, events in self._epoll.poll(_TICK_S):
                if fd == self._listener.fileno():
                    accept = True
                elif (connection := self._connections.get(fd)) is None:
                    continue
                elif events & _HUNG_UP:
                    self._gone(connection)
                else:
                    with self._lock:
                        connection.users += 1
                    self._epoll.modify(fd, _BUSY)
                    self._pool.submit(self._handle, connection)
            if accept:  # last: a descriptor's number that is taken anew must not meet an event of its predecessor
                self._accept()
            self._owner.tick(time.monotonic())

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:  # out of descriptors, or it has hung up already
            _LOG.warning("a connection was not accepted: %s", error)
            time.sleep(_TICK_S)
            return
        _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid not in (0, os.geteuid()):
            sock.close()
            return
        sock.settimeout(_FRAME_S)
        with self._lock:
            self._connections[sock.fileno()] = Connection(sock, self._owner.claims())
        self._epoll.register(sock.fileno(), _IDLE)

    def _handle(self, connection: Connection[C]) -> None:
        try:
            header, blobs, _ = wire.receive(connection.sock)
        except (EOFError, OSError, ValueError):
            self._gone(connection)
            self._let_go(connection)
            return
        answer = self._owner.handle(connection, header, blobs)
        if answer is not None:
            self.answer(connection, answer)

    def _gone(self, connection: Connection[C]) -> None:
        with self._lock:
            if connection.dead:
                return
            connection.dead = True
        unanswered, work = self._owner.hung_up(connection)
        if work is not None and not self._stopping:
            with self._lock:
                connection.users += 1
            self.submit(lambda: self._finish(connection, work))
        if unanswered:
            self._let_go(connection)
        self._let_go(connection)

    def _finish(self, connection: Connection[C], work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._let_go(connection)

    def _let_go(self, connection: Connection[C]) -> None:
        """One user less. The last one of a dead connection closes it, and that is what a client that closes waits for."""
        with self._lock:
            connection.users -= 1
            if connection.users == 0 and self._connections.pop(connection.sock.fileno(), None) is not None:
                with contextlib.suppress(OSError):
                    self._epoll.unregister(connection.sock.fileno())
                connection.sock.close()


def check_address(address: Path) -> None:
    """Raises ConfigError when a path cannot name a Unix socket."""
    if len(os.fsencode(address)) > _PATH_BYTES - len(".new"):
        raise ConfigError(f"{address} is too long for a Unix socket", "choose a root with a shorter path")
