"""Firecracker's own interface: JSON over HTTP on a Unix socket (its public swagger file names the fields)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from environments.errors import SandboxError

CALL_S = 60.0
"""A snapshot writes as much as the guest has memory; everything else takes milliseconds."""


class VmmError(SandboxError):
    """Firecracker refused a request, or does not answer any more."""


class Api:
    """One VMM's socket. Not thread-safe, as the VMM itself takes one request at a time."""

    def __init__(self, socket: Path) -> None:
        # Without `verify=False` every client would read the machine's certificates, which takes longer than a boot.
        self._client = httpx.Client(
            transport=httpx.HTTPTransport(uds=str(socket), verify=False), base_url="http://firecracker", timeout=CALL_S, trust_env=False
        )

    def get(self, path: str) -> dict[str, Any]:
        """Raises VmmError."""
        answer: dict[str, Any] = self._call("GET", path, None).json()
        return answer

    def put(self, path: str, body: Mapping[str, object]) -> None:
        """Raises VmmError, with Firecracker's reason."""
        self._call("PUT", path, body)

    def patch(self, path: str, body: Mapping[str, object]) -> None:
        """Raises VmmError, with Firecracker's reason."""
        self._call("PATCH", path, body)

    def close(self) -> None:
        """Forget the connection; the VMM lives on."""
        self._client.close()

    def _call(self, method: str, path: str, body: Mapping[str, object] | None) -> httpx.Response:
        try:
            answer = self._client.request(method, path, json=body)
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed
            raise VmmError(f"{method} {path}: Firecracker does not answer ({error})", "create another machine") from error
        if answer.is_error:
            try:
                reason = str(answer.json()["fault_message"])
            except (ValueError, KeyError):
                reason = answer.text
            raise VmmError(f"{method} {path}: Firecracker refuses: {reason}", "correct what it names, or create another machine")
        return answer
