"""Frames between the host and the programs inside a sandbox, with open files attached. Used on both sides; light on imports.

A frame is a length-prefixed header and a binary body over a Unix stream socket; descriptors travel with the first byte
(SCM_RIGHTS, see unix(7)). Headers are Python literals: inside they are evaluated, since the host is trusted, and the
host reads what comes back with `ast.literal_eval`, which only builds values.
"""

# ruff: noqa: SIM105 - contextlib is a millisecond of every start

from __future__ import annotations

import _socket
import os
import struct
from collections.abc import Sequence
from typing import Any

FRAME = struct.Struct(">II")
MAX_FDS = 8


class Closed(Exception):
    """The other side is gone."""


def send_frame(sock: _socket.socket, header: dict[str, Any], body: bytes = b"", fds: Sequence[int] = ()) -> None:
    """Send one frame. The caller keeps its own copies of `fds`."""
    text = repr(header).encode()
    view = memoryview(FRAME.pack(len(text), len(body)) + text + (body if len(body) < 65536 else b""))
    if fds:
        sent = sock.sendmsg([view], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack(f"={len(fds)}i", *fds))])
        view = view[sent:]
    if view:
        sock.sendall(view)
    if len(body) >= 65536:
        sock.sendall(body)


def receive_some(sock: _socket.socket, size: int, fds: list[int]) -> bytes:
    """Up to `size` bytes and, appended to `fds`, what came with them; raises Closed at the end."""
    data, ancillary, _, _ = sock.recvmsg(size, _socket.CMSG_SPACE(4 * MAX_FDS), _socket.MSG_CMSG_CLOEXEC)
    for level, kind, content in ancillary:
        if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
            fds += [int(fd) for (fd,) in struct.iter_unpack("=i", content[: len(content) // 4 * 4])]
    if not data:
        raise Closed
    return data


def receive_exact(sock: _socket.socket, size: int) -> bytes | bytearray:
    """Exactly `size` bytes; raises Closed when the other side ends before."""
    first = sock.recv(size) if size else b""
    if len(first) == size:
        return first
    data = bytearray(first)
    while len(data) < size:
        chunk = sock.recv(min(size - len(data), 1 << 20))
        if not chunk:
            raise Closed
        data += chunk
    return data


def receive_frame(sock: _socket.socket) -> tuple[dict[str, Any], bytes | bytearray, list[int]]:
    """Inside: the next request of the host, its body and its descriptors."""
    fds: list[int] = []
    prefix = receive_some(sock, FRAME.size, fds)
    prefix += receive_exact(sock, FRAME.size - len(prefix))
    header_size, body_size = FRAME.unpack(prefix)
    header = eval(receive_exact(sock, header_size).decode(), {"__builtins__": {}})
    return header, receive_exact(sock, body_size), fds


def close_all(fds: Sequence[int]) -> None:
    """Close what is still open of `fds`."""
    for fd in fds:
        try:
            os.close(fd)
        except OSError:
            pass
