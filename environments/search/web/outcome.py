"""What became of a retrieval: a kind from a closed list, logged, and written to a journal that anybody may read."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from environments.errors import InfrastructureError

log = logging.getLogger(__name__)

Success = Literal["retrieved", "cached", "revalidated", "stale"]
"""Fetched now; from the cache; the host says the cached one still holds; the host failed and the cached one stands in."""
Failure = Literal[
    "bad_address",
    "host_denied",
    "private_address",
    "robots",
    "unresolved",
    "unreachable",
    "tls",
    "timeout",
    "protocol",
    "redirects",
    "rate_limited",
    "circuit_open",
    "client_error",
    "server_error",
    "too_large",
    "bad_encoding",
    "unsupported_type",
    "binary",
    "undecodable",
    "too_complex",
    "no_text",
    "malformed",
    "browser",
    "git",
    "offline",
]
HOST_FAILURES: frozenset[Failure] = frozenset({"unresolved", "unreachable", "tls", "timeout", "protocol", "server_error"})
"""What counts against a host: it is dead, slow or broken, and further requests would be too."""
LASTING: frozenset[Failure] = frozenset(
    {"client_error", "redirects", "too_large", "bad_encoding", "unsupported_type", "binary", "undecodable", "too_complex", "no_text"}
)
"""What would be the same the next minute: remembered for a while instead of asked again."""


class Outcome(BaseModel):
    """One retrieval and what came of it. `address` never holds a key: keys travel in headers only."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: float
    """Seconds since 1970."""
    address: str
    kind: Success | Failure
    reason: str = ""
    status: int = 0
    """HTTP status; 0 when there was none."""
    size_bytes: int = 0
    sha256: str = ""
    """Of the content, decompressed."""


class RefusedError(Exception):
    """Internal: why a retrieval did not succeed. `Fetcher` turns it into an `Outcome` and a `NotRetrievedError`."""

    def __init__(self, kind: Failure, reason: str, status: int = 0, retry_after_s: float | None = None) -> None:
        super().__init__(kind, reason, status, retry_after_s)
        self.kind: Failure = kind
        self.reason = reason
        self.status = status
        self.retry_after_s = retry_after_s


class NotRetrievedError(InfrastructureError, KeyError):
    """A document that could not be had; also a KeyError, which is what `SearchSource.open` promises. `outcome` says why."""

    def __init__(self, message: str, fix: str, outcome: Outcome) -> None:
        super().__init__(message, fix)
        self.args = (message, fix, outcome)
        self.outcome = outcome


class Journal:
    """Outcomes of all processes, one JSON object a line, appended whole (one `write` to a file opened for appending)."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(
        self, address: str, kind: Success | Failure, reason: str = "", status: int = 0, size_bytes: int = 0, sha256: str = ""
    ) -> Outcome:
        """Write an outcome down and log it. A journal that cannot be written costs a warning, not the retrieval."""
        outcome = Outcome(
            at=time.time(), address=address[:2000], kind=kind, reason=reason[:500], status=status, size_bytes=size_bytes, sha256=sha256
        )
        log.info("%s: %s%s", outcome.address, kind, f" ({outcome.reason})" if reason else "")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, outcome.model_dump_json().encode() + b"\n")
            finally:
                os.close(descriptor)
        except OSError as error:
            log.warning("%s cannot be written: %s", self.path, error)
        return outcome

    def read(self) -> list[Outcome]:
        """All outcomes so far, oldest first; a torn last line (a killed process) is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_bytes().split(b"\n")
        return [Outcome.model_validate_json(line) for line in lines if line.endswith(b"}")]
