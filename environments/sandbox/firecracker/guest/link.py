"""The agent's end of the protocol, and what it was told about the place it is in.

A frame is two lengths (">II"), a JSON header and a body. A request is one frame; the answer is any number of
`{"stream": ...}` frames, then one with `ok`, `refused` (the caller's fault) or `failed`.
"""

import json
import os
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

FRAME = struct.Struct(">II")
NOBODY = 65534


@dataclass
class Place:
    """Where the agent is, and its limits."""

    is_guest: bool = os.getpid() == 1
    """In a machine of its own. Otherwise an ordinary process, without any isolation."""
    workspace: str = "/workspace"
    file_bytes: int = 0
    env: dict[str, str] = field(default_factory=dict)
    configured: bool = False


here = Place()


class Refused(Exception):
    """A request that cannot be done; the text goes back to the caller."""


class Connection:
    """Frames to and from the host."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock

    def receive(self) -> tuple[dict[str, Any], bytes]:
        head, body = FRAME.unpack(self._exact(FRAME.size))
        return json.loads(self._exact(head)), self._exact(body)

    def send(self, header: dict[str, Any], body: bytes = b"") -> None:
        head = json.dumps(header).encode()
        self.sock.sendall(FRAME.pack(len(head), len(body)) + head + body)

    def _exact(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            chunk = self.sock.recv(min(size - len(data), 1 << 20))
            if not chunk:
                raise ConnectionError("the host hung up")
            data += chunk
        return bytes(data)
