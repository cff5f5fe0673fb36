"""What a supervisor and its clients say to each other over a Unix socket.

A frame is two lengths (big-endian, 32 and 64 bits), a JSON object and the binary bodies it counts in `blobs`. A descriptor
travels with the first byte of its frame (SCM_RIGHTS). Both ends belong to one user, who alone may open the socket.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from environments import errors
from environments.errors import CaptureError, NinefoldError, SandboxError
from environments.sandbox.base import Capabilities, ExecResult, PythonResult, SandboxConfig, Snapshot

_HEAD = struct.Struct(">IQ")
_HEADER_BYTES = 64 << 20
_BODY_BYTES = 16 << 30
_CHUNK = 1 << 20


class AdmissionError(SandboxError):
    """No room for another sandbox within the time that was given; the message names the limit."""


class LeaseError(SandboxError):
    """The lease is gone: released, expired, or its last client's connection ended."""


Message = dict[str, Any]


def send(sock: socket.socket, header: Message, blobs: Sequence[bytes] = (), fds: Sequence[int] = ()) -> None:
    """Send one frame whole."""
    text = json.dumps({**header, "blobs": [len(blob) for blob in blobs]}).encode()
    data = _HEAD.pack(len(text), sum(map(len, blobs))) + text
    if fds:
        sent = socket.send_fds(sock, [data], fds)
        data = data[sent:]
    if sum(map(len, blobs)) <= _CHUNK:  # one packet for what is small
        sock.sendall(b"".join([data, *blobs]))
    else:
        sock.sendall(data)
        for blob in blobs:
            sock.sendall(blob)


def receive(sock: socket.socket) -> tuple[Message, list[bytes], list[int]]:
    """The next frame: header, bodies, descriptors.

    Raises:
        EOFError: the other end is gone.
        ValueError: it does not speak this protocol.
    """
    head, fds, _, _ = socket.recv_fds(sock, _HEAD.size, 1, socket.MSG_CMSG_CLOEXEC)
    head += _exactly(sock, _HEAD.size - len(head)) if head else _exactly(sock, _HEAD.size)
    header_size, body_size = _HEAD.unpack(head)
    if header_size > _HEADER_BYTES or body_size > _BODY_BYTES:
        raise ValueError(f"a frame of {header_size} + {body_size} bytes")
    header = json.loads(_exactly(sock, header_size))
    sizes = header.pop("blobs", None) if isinstance(header, dict) else None
    if not isinstance(sizes, list) or not all(isinstance(size, int) and size >= 0 for size in sizes) or sum(sizes) != body_size:
        raise ValueError("a frame whose bodies do not add up")
    return header, [bytes(_exactly(sock, size)) for size in sizes], fds


def _exactly(sock: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, got = memoryview(data), 0
    while got < size:
        count = sock.recv_into(view[got:], min(size - got, _CHUNK))
        if not count:
            raise EOFError("the other end is gone")
        got += count
    return data


# --- values -------------------------------------------------------------------------------------------------------------------


def _error_types() -> Iterator[type[NinefoldError]]:
    yield from (AdmissionError, LeaseError)
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, NinefoldError):
            yield value


_ERRORS = {kind.__name__: kind for kind in _error_types()}


def pack_error(error: NinefoldError) -> Message:
    """A typed error as JSON; of a class that the other end may not know, its nearest base that it does."""
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS)
    return {"type": name, "message": error.message, "fix": error.fix, "recoverable": getattr(error, "recoverable", True)}


def unpack_error(value: Message) -> NinefoldError:
    """The error that `pack_error` packed."""
    kind = _ERRORS[value["type"]]
    if issubclass(kind, CaptureError):
        return kind(value["message"], value["fix"], value["recoverable"])
    return kind(value["message"], value["fix"])


def pack_exec(result: ExecResult) -> tuple[Message, list[bytes]]:
    """Output travels as bodies: it may be megabytes."""
    rest = {"exit_code": result.exit_code, "wall_s": result.wall_s, "timed_out": result.timed_out, "truncated": result.truncated}
    return rest, [result.stdout.encode("utf-8", "surrogatepass"), result.stderr.encode("utf-8", "surrogatepass")]


def unpack_exec(value: Message, blobs: Sequence[bytes]) -> ExecResult:
    """The result that `pack_exec` packed."""
    stdout, stderr = (blob.decode("utf-8", "surrogatepass") for blob in blobs)
    return ExecResult(stdout=stdout, stderr=stderr, **value)


def pack_python(result: PythonResult) -> tuple[Message, list[bytes]]:
    """Images travel as bodies."""
    value = asdict(result)
    del value["images"]
    return value, list(result.images)


def unpack_python(value: Message, blobs: Sequence[bytes]) -> PythonResult:
    """The result that `pack_python` packed."""
    return PythonResult(images=tuple(blobs), **value)


def pack_capabilities(value: Capabilities) -> Message:
    """Capabilities as JSON."""
    return asdict(value)


def unpack_capabilities(value: Message) -> Capabilities:
    """The capabilities that were packed."""
    return Capabilities(**{**value, "notes": tuple(value["notes"])})


def pack_snapshot(value: Snapshot) -> Message:
    """A snapshot's description as JSON; its files stay where they are."""
    return {
        "snapshot_id": value.snapshot_id,
        "backend": value.backend,
        "kind": value.kind,
        "path": str(value.path),
        "size_bytes": value.size_bytes,
        "config": value.config.model_dump(mode="json"),
        "parent_id": value.parent_id,
        "details": dict(value.details),
    }


def unpack_snapshot(value: Mapping[str, Any]) -> Snapshot:
    """The description that `pack_snapshot` packed."""
    return Snapshot(**{**value, "path": Path(value["path"]), "config": SandboxConfig.model_validate(value["config"])})
