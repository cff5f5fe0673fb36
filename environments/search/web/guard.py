"""Where a connection may go: host rules, and addresses checked at the very moment of connecting.

A name is resolved once, every address it has is checked, and the connection is made to a checked address; TLS still
verifies the name. So neither a redirect nor a name that changes its address in between (DNS rebinding) leads to a
private place. The check of addresses is the sandbox proxy's.
"""

from __future__ import annotations

import queue
import re
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import httpcore
import httpx

from environments.sandbox.network import forbidden_address
from environments.search.web.config import FetchConfig
from environments.search.web.outcome import RefusedError

Resolve = Callable[[str, int], Sequence[str]]
"""Addresses of a host, as text."""
_PORTS = {"http": 80, "https": 443}
_ATTEMPTS = 4
"""Addresses of one name that are tried."""
_MAX_ADDRESS_CHARS = 2000
_HOST = re.compile(r"[a-z0-9_.-]+|[0-9a-f:.]+")


def system_resolve(host: str, port: int) -> Sequence[str]:
    """The addresses the system knows for a host, in its order."""
    return list(dict.fromkeys(str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)))


def port_of(url: httpx.URL) -> int:
    """The port an address means."""
    return url.port or _PORTS.get(url.scheme, 0)


def canonical(address: str) -> httpx.URL:
    """An address in one spelling: lower-case ASCII host, no default port, no fragment.

    Raises:
        RefusedError: `bad_address`, for what is no http(s) address or carries a name and password.
    """
    if len(address) > _MAX_ADDRESS_CHARS:
        raise RefusedError("bad_address", f"the address has {len(address)} characters")
    try:
        url = httpx.URL(address.strip())
        host = url.raw_host.decode("ascii").lower().rstrip(".")
        if url.scheme not in _PORTS or not host:
            raise RefusedError("bad_address", f"{address!r:.200} is no http(s) address")
        if url.userinfo:
            raise RefusedError("bad_address", f"an address with a name or password in it, at {host:.200}")
        if not _HOST.fullmatch(host) or port_of(url) > 65535:
            raise RefusedError("bad_address", f"{address!r:.200} has no such host or port")
        return url.copy_with(host=host, fragment=None, path=url.path or "/")
    except (httpx.InvalidURL, UnicodeError, ValueError, TypeError) as error:
        raise RefusedError("bad_address", f"{address!r:.200} is no address ({type(error).__name__})") from error


class Guard:
    """Host rules of a `FetchConfig`, name look-up and checked connections."""

    def __init__(self, config: FetchConfig, resolve: Resolve = system_resolve) -> None:
        self.config = config
        self._resolve = resolve

    def check(self, url: httpx.URL) -> None:
        """Refuse a host or port that the configuration does not allow.

        Raises:
            RefusedError: `host_denied`.
        """
        host, port = url.host.lower(), port_of(url)
        if any(_covers(rule, host) for rule in self.config.deny):
            raise RefusedError("host_denied", f"{host} is on the deny-list")
        if not any(_covers(rule, host) for rule in self.config.allow):
            raise RefusedError("host_denied", f"{host} is not on the allow-list")
        if port not in self.config.ports and not self.private(host, port):
            raise RefusedError("host_denied", f"port {port} of {host} is not allowed")

    def private(self, host: str, port: int) -> bool:
        """Whether the configuration names this host as one that may lie at a private address."""
        written = f"[{host}]" if ":" in host else host
        return written in self.config.private or f"{written}:{port}" in self.config.private

    def addresses(self, host: str, port: int, timeout_s: float) -> list[str]:
        """Resolve a host and check all its addresses.

        Raises:
            RefusedError: `unresolved`, or `private_address`.
        """
        answer: queue.SimpleQueue[Sequence[str] | Exception] = queue.SimpleQueue()

        def look_up() -> None:  # getaddrinfo has no time limit of its own
            try:
                answer.put(self._resolve(host, port))
            except (OSError, UnicodeError) as error:
                answer.put(error)

        threading.Thread(target=look_up, name="resolve", daemon=True).start()
        try:
            found = answer.get(timeout=max(timeout_s, 0.001))
        except queue.Empty:
            raise RefusedError("unresolved", f"{host} was not resolved within {timeout_s:.1f} s") from None
        if isinstance(found, Exception) or not found:
            raise RefusedError("unresolved", f"{host} does not resolve")
        if not self.private(host, port):
            for address in found:  # one public and one private address is refused too: nobody honest has both
                if why := forbidden_address(address.partition("%")[0]):
                    raise RefusedError("private_address", f"{host} is at {address}, {why}")
        return list(found)[:_ATTEMPTS]


def _covers(rule: str, host: str) -> bool:
    if rule == "*":
        return True
    return host.endswith(rule[1:]) and len(host) > len(rule) - 1 if rule.startswith("*.") else host == rule


class _Stream(httpcore.NetworkStream):
    """A connection whose every wait ends with the fetch's own deadline, so that a trickle cannot hold it open."""

    def __init__(self, inner: httpcore.NetworkStream, deadline: float) -> None:
        self._inner = inner
        self._deadline = deadline

    def _left(self, timeout: float | None) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout("the fetch's time is up")
        return left if timeout is None else min(timeout, left)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, self._left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, self._left(timeout))

    def close(self) -> None:
        self._inner.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        try:
            return _Stream(self._inner.start_tls(ssl_context, server_hostname, self._left(timeout)), self._deadline)
        except httpcore.ConnectError as error:
            raise RefusedError("tls", f"no TLS with {server_hostname}: {error}") from error

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    def __init__(self, guard: Guard, deadline: float) -> None:
        self._guard = guard
        self._deadline = deadline
        self._system = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        limit = timeout if timeout is not None else self._guard.config.connect_s
        addresses = self._guard.addresses(host, port, min(limit, self._deadline - time.monotonic()))
        for i, address in enumerate(addresses):
            left = min(limit, self._deadline - time.monotonic())
            try:
                return _Stream(self._system.connect_tcp(address, port, max(left, 0.001), local_address, socket_options), self._deadline)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if i == len(addresses) - 1:
                    raise
        raise httpcore.ConnectError(f"{host} has no address")  # addresses() never returns none


class _Body(httpx.SyncByteStream):
    def __init__(self, stream: Any, pool: httpcore.ConnectionPool) -> None:
        self._stream = stream
        self._pool = pool

    def __iter__(self) -> Any:
        yield from self._stream

    def close(self) -> None:
        self._stream.close()
        self._pool.close()


class GuardedTransport(httpx.BaseTransport):
    """httpx's way to the network for one fetch: checked connections, one deadline, nothing from the environment's proxies."""

    def __init__(self, guard: Guard, deadline: float, tls: ssl.SSLContext) -> None:
        self._guard = guard
        self._deadline = deadline
        self._tls = tls

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        pool = httpcore.ConnectionPool(ssl_context=self._tls, max_connections=1, network_backend=_Backend(self._guard, self._deadline))
        url = httpcore.URL(scheme=request.url.raw_scheme, host=request.url.raw_host, port=request.url.port, target=request.url.raw_path)
        try:
            answer = pool.handle_request(
                httpcore.Request(
                    method=request.method, url=url, headers=request.headers.raw, content=request.read(), extensions=request.extensions
                )
            )
        except BaseException:
            pool.close()
            raise
        return httpx.Response(answer.status, headers=answer.headers, stream=_Body(answer.stream, pool), extensions=answer.extensions)
