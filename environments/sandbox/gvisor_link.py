"""TCP connections of a sandbox carried over one socket to the host; the same program runs at both ends.

Inside, as a process of its own, it accepts connections; outside, as a thread, it makes one to the host's listener for each.
Runs inside with built-in modules only (importing `socket` would double the start of a sandbox).

A frame: kind, channel, size, payload. Only the inner end opens channels. At most `WINDOW` bytes of a channel are under way
in each direction, so that one slow reader neither blocks the others nor fills memory.
"""

from __future__ import annotations

import _socket
import os
import select
import struct
from collections.abc import Callable

from environments.sandbox.wire import Closed, receive_frame

HEAD = struct.Struct(">BII")
OPEN, DATA, END, CLOSE, TAKEN = range(1, 6)  # payloads: port; bytes; none; none; how many bytes the reader has taken
WINDOW = 1 << 18
CHUNK = 1 << 16


class Channel:
    """One connection: a local socket and what is under way."""

    def __init__(self, sock: _socket.socket) -> None:
        self.sock = sock
        self.pending = bytearray()  # from the other end, for the local socket
        self.credit = WINDOW  # may still be sent to the other end
        self.sent_end = self.got_end = self.shut = False


class Link:
    """One end. `connect` makes the local side of a channel that the other end opens; None refuses it."""

    def __init__(
        self, link: _socket.socket, connect: Callable[[int], _socket.socket | None], control: _socket.socket | None = None
    ) -> None:
        self.link, self.connect, self.control = link, connect, control
        self.inbox, self.outbox = bytearray(), bytearray()
        self.channels: dict[int, Channel] = {}
        self.listeners: dict[int, tuple[_socket.socket, int]] = {}
        self.last = 0
        link.setblocking(False)

    def run(self) -> None:
        """Until the other end goes away."""
        try:
            while self.step():
                pass
        except (OSError, struct.error):
            pass  # the link broke: the sandbox is gone or replaced
        finally:
            for channel in self.channels.values():
                channel.sock.close()
            for listener, _ in self.listeners.values():
                listener.close()
            self.link.close()

    def step(self) -> bool:
        poller = select.poll()
        poller.register(self.link.fileno(), select.POLLIN | (select.POLLOUT if self.outbox else 0))
        if self.control is not None:
            poller.register(self.control.fileno(), select.POLLIN)
        for fd in self.listeners:
            poller.register(fd, select.POLLIN)
        owners = {}
        for number, channel in self.channels.items():
            reads = not channel.sent_end and channel.credit > 0 and len(self.outbox) < 4 * WINDOW
            wants = (select.POLLIN if reads else 0) | (select.POLLOUT if channel.pending else 0)
            if wants:
                poller.register(channel.sock.fileno(), wants)
                owners[channel.sock.fileno()] = number
        for fd, happened in poller.poll():
            if fd == self.link.fileno():
                if happened & select.POLLOUT:
                    del self.outbox[: self.link.send(self.outbox[: 4 * CHUNK])]
                if happened & ~select.POLLOUT and not self._receive():
                    return False
            elif self.control is not None and fd == self.control.fileno():
                if not self._adopt():
                    return False
            elif fd in self.listeners:
                self._accept(*self.listeners[fd])
            elif owners.get(fd) in self.channels:
                self._move(owners[fd], self.channels[owners[fd]], happened)
        return True

    def _send(self, kind: int, number: int, payload: bytes = b"") -> None:
        self.outbox += HEAD.pack(kind, number, len(payload)) + payload

    def _adopt(self) -> bool:
        """A listening socket from the process that asked for one, with its port."""
        assert self.control is not None
        try:
            request, _, (fd,) = receive_frame(self.control)
        except Closed:
            return False
        self.listeners[fd] = (_socket.socket(fileno=fd), request["port"])
        return True

    def _accept(self, listener: _socket.socket, port: int) -> None:
        try:
            fd, _ = listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return  # it hung up again
        self.last += 1
        sock = _socket.socket(fileno=fd)
        sock.setblocking(False)
        self.channels[self.last] = Channel(sock)
        self._send(OPEN, self.last, struct.pack(">H", port))

    def _move(self, number: int, channel: Channel, happened: int) -> None:
        try:
            if channel.pending and happened & (select.POLLOUT | select.POLLERR | select.POLLHUP):
                taken = channel.sock.send(channel.pending)
                del channel.pending[:taken]
                self._send(TAKEN, number, struct.pack(">I", taken))
            if not channel.sent_end and channel.credit > 0 and happened & (select.POLLIN | select.POLLHUP | select.POLLERR):
                data = channel.sock.recv(min(CHUNK, channel.credit))
                channel.credit -= len(data)
                channel.sent_end = not data
                self._send(DATA if data else END, number, data)
        except BlockingIOError:
            return
        except OSError:
            self._drop(number, tell=True)
            return
        self._settle(number, channel)

    def _settle(self, number: int, channel: Channel) -> None:
        if channel.got_end and not channel.pending and not channel.shut:
            channel.shut = True
            try:
                channel.sock.shutdown(_socket.SHUT_WR)
            except OSError:
                self._drop(number, tell=True)
                return
        if channel.shut and channel.sent_end:
            self._drop(number)

    def _drop(self, number: int, *, tell: bool = False) -> None:
        channel = self.channels.pop(number, None)
        if channel is not None:
            channel.sock.close()
            if tell:
                self._send(CLOSE, number)

    def _receive(self) -> bool:
        try:
            data = self.link.recv(4 * CHUNK)
        except BlockingIOError:
            return True
        if not data:
            return False
        self.inbox += data
        while len(self.inbox) >= HEAD.size:
            kind, number, size = HEAD.unpack_from(self.inbox)
            if size > WINDOW:
                return False  # not one of ours
            if len(self.inbox) < HEAD.size + size:
                break
            payload = bytes(self.inbox[HEAD.size : HEAD.size + size])
            del self.inbox[: HEAD.size + size]
            self._handle(kind, number, payload)
        return True

    def _handle(self, kind: int, number: int, payload: bytes) -> None:
        channel = self.channels.get(number)
        if kind == OPEN and channel is None and len(self.channels) < 1024:
            sock = self.connect(struct.unpack(">H", payload)[0])
            if sock is None:
                self._send(CLOSE, number)
            else:
                sock.setblocking(False)
                self.channels[number] = Channel(sock)
        elif channel is None:
            return  # late words about a connection that is gone
        elif kind == DATA and len(channel.pending) + len(payload) <= WINDOW and not channel.got_end:
            channel.pending += payload
        elif kind == END:
            channel.got_end = True
            self._settle(number, channel)
        elif kind == TAKEN:
            channel.credit = min(WINDOW, channel.credit + struct.unpack(">I", payload)[0])
        else:
            self._drop(number, tell=kind != CLOSE)


def refuse(port: int) -> None:
    """Nobody outside opens connections into a sandbox."""


def forward(link_fd: int, control: _socket.socket) -> None:
    """The inner end, as a process of its own."""
    try:
        Link(_socket.socket(fileno=link_fd), refuse, control).run()
    finally:
        os._exit(0)
