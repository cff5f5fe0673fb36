"""What both ends of the E2B wire share: header names, REST bodies, Connect's streaming envelope and its error codes.

Source: the E2B API as the official Python client speaks it, and the Connect protocol (connectrpc.com/docs/protocol), JSON encoding.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

KEY_HEADER = "X-API-Key"
"""Of the control plane: the account's key."""
TOKEN_HEADER = "X-Access-Token"
"""Of the data plane: the sandbox's own token, from the answer that created it."""
SANDBOX_HEADER = "E2b-Sandbox-Id"
PORT_HEADER = "E2b-Sandbox-Port"
TIMEOUT_HEADER = "Connect-Timeout-Ms"
KEEPALIVE_HEADER = "Keepalive-Ping-Interval"
"""Seconds after which a silent stream carries a keep-alive event."""
ENVD_PORT = 49983
INTERPRETER_PORT = 49999
"""Where E2B's code interpreter answers inside a sandbox."""
CAPABILITIES_PATH = "/ninefold/capabilities"
"""Our own server's answer to what its sandboxes do; E2B has no such question."""

STREAM_JSON = "application/connect+json"
_ENVELOPE = struct.Struct(">BI")
_END_STREAM = 0x02
MAX_MESSAGE = 64 << 20
"""A longer message is a broken or hostile peer."""

STATUS_OF_CODE = {
    "canceled": 499,
    "unknown": 500,
    "invalid_argument": 400,
    "deadline_exceeded": 504,
    "not_found": 404,
    "already_exists": 409,
    "permission_denied": 403,
    "resource_exhausted": 429,
    "failed_precondition": 400,
    "unimplemented": 501,
    "internal": 500,
    "unavailable": 503,
    "unauthenticated": 401,
}
"""HTTP status of each Connect error code that is used here."""


class _Body(BaseModel):
    """A REST body. Fields that we do not know are kept out of the way: servers differ in what they add."""

    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class AutoResume(_Body):
    enabled: bool = False


class NewSandbox(_Body):
    """POST /sandboxes."""

    template: str = Field(alias="templateID", min_length=1, max_length=200)
    timeout_s: int = Field(default=300, ge=0, alias="timeout")
    auto_pause: bool = Field(default=False, alias="autoPause", description="Pause at the timeout instead of ending")
    auto_resume: AutoResume = Field(default=AutoResume(), alias="autoResume")
    secure: bool = True
    internet: bool | None = Field(default=None, alias="allow_internet_access")
    metadata: dict[str, str] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict, alias="envVars")
    config: dict[str, Any] | None = Field(default=None, alias="ninefold", description="Our own server only: a SandboxConfig")


class SandboxInfo(_Body):
    """A sandbox that was just created, forked or connected to."""

    sandbox_id: str = Field(alias="sandboxID", min_length=1, max_length=200, pattern=r"^[A-Za-z0-9_.-]+$")
    template: str = Field(default="", alias="templateID")
    client_id: str = Field(default="", alias="clientID")
    envd_version: str = Field(default="", alias="envdVersion")
    token: str | None = Field(default=None, alias="envdAccessToken")
    domain: str | None = None
    seed: int | None = Field(default=None, description="Our own server only: the seed that the code inside was given")


class ApiError(_Body):
    code: int = 500
    message: str = ""


class ForkResult(_Body):
    """One forked child: exactly one of the two."""

    sandbox: SandboxInfo | None = None
    error: ApiError | None = None


class Timeout(_Body):
    timeout_s: int = Field(default=300, ge=0, alias="timeout")


class Refresh(_Body):
    duration_s: int = Field(default=60, ge=0, alias="duration")


class ForkRequest(_Body):
    timeout_s: int | None = Field(default=None, ge=0, alias="timeout")
    count: int = Field(default=1, ge=1, le=100)


class SnapshotRequest(_Body):
    name: str | None = None


class SnapshotInfo(_Body):
    snapshot_id: str = Field(alias="snapshotID", min_length=1)
    names: list[str] = Field(default_factory=list)


class WireError(Exception):
    """An error in Connect's terms: `code` as in STATUS_OF_CODE."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def envelope(message: Any) -> bytes:
    """One message of a stream."""
    data = json.dumps(message).encode()
    return _ENVELOPE.pack(0, len(data)) + data


def end_of_stream(error: WireError | None = None) -> bytes:
    """The last message of a stream, with its error if it failed."""
    body = {} if error is None else {"error": {"code": error.code, "message": error.message}}
    data = json.dumps(body).encode()
    return _ENVELOPE.pack(_END_STREAM, len(data)) + data


class StreamReader:
    """Takes a Connect stream apart as its bytes arrive."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.ended = False
        """The last message has arrived: nothing was cut off."""

    def feed(self, chunk: bytes) -> Iterator[dict[str, Any]]:
        """Messages that are complete.

        Raises:
            WireError: the stream ended with an error, or is no Connect stream.
        """
        self._data += chunk
        while len(self._data) >= _ENVELOPE.size:
            flags, size = _ENVELOPE.unpack_from(self._data)
            if size > MAX_MESSAGE or flags & ~_END_STREAM:
                raise WireError("internal", f"no Connect stream of plain JSON (flags {flags}, {size} bytes)")
            if len(self._data) < _ENVELOPE.size + size:
                return
            body = bytes(self._data[_ENVELOPE.size : _ENVELOPE.size + size])
            del self._data[: _ENVELOPE.size + size]
            try:
                message = json.loads(body)
            except ValueError:
                raise WireError("internal", f"a message that is not JSON: {body[:80]!r}") from None
            if not isinstance(message, dict):
                raise WireError("internal", "a message that is not an object")
            if flags & _END_STREAM:
                self.ended = True
                error = message.get("error")
                if isinstance(error, dict):
                    raise WireError(str(error.get("code", "unknown")), str(error.get("message", "")))
                return
            yield message
