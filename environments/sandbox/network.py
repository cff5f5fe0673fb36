"""Network for a sandbox by an explicit allow-list, and nothing else: an HTTP proxy on the sandbox's only route.

    with AllowListProxy([Rule(host="example.org"), Rule(host="*.example.net", ports=(443,))]) as proxy:
        proxy.answer(sandbox.serve(3128), sandbox.sandbox_id)
        sandbox.exec(["curl", "https://example.org/"], env=proxy_environment(3128))

The proxy resolves names itself and connects to the very address it checked, so a name that changes its address in between
(DNS rebinding) gains nothing. Private, loopback, link-local and cloud metadata addresses are refused unless a rule says
`private=True`. A tunnel (CONNECT) is opaque: methods and paths inside cannot be seen, and TLS may name another host than the
one that was allowed, as long as the allowed host's server answers for it; a rule with `tunnel=False` avoids both.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import re
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Self
from urllib.parse import urlsplit

import h11
from pydantic import BaseModel, ConfigDict, Field, field_validator

from environments.errors import ConfigError, SandboxError

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Addresses of a host, as text."""

_CHUNK = 1 << 16
_LINGER_S = 1.0
_METADATA = frozenset({"168.63.129.16", "169.254.169.254", "100.100.100.200", "192.0.0.192", "fd00:ec2::254"})
"""Where clouds answer with credentials. Azure's first one is a public address; the others are named for the reason's sake."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_HOST = re.compile(r"(\*\.)?[a-z0-9]([a-z0-9_.-]*[a-z0-9])?|[0-9a-f:.]*:[0-9a-f:.]*")
# RFC 9110, section 7.6.1: fields that concern one connection only.
_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-connection", b"proxy-authorization", b"te", b"trailer", b"upgrade", b"expect", b"host"}
)


class Rule(BaseModel):
    """One host, or all below a suffix, that may be reached."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(description="`example.org`, an address, or `*.example.org`, which does not include example.org itself")
    ports: tuple[int, ...] = Field(default=(80, 443), min_length=1)
    methods: tuple[str, ...] = Field(default=("GET", "HEAD"), description="Of plain HTTP; inside a tunnel none can be seen")
    tunnel: bool = Field(default=True, description="Allow CONNECT, that is HTTPS")
    private: bool = Field(default=False, description="Allow private, loopback, link-local and metadata addresses")

    @field_validator("host")
    @classmethod
    def _normal(cls, value: str) -> str:
        host = value.lower().rstrip(".")
        if not _HOST.fullmatch(host):
            raise ValueError(f"{value!r} is no host: use example.org, *.example.org or an address")
        return host

    def covers(self, host: str) -> bool:
        """Whether `host`, in lower case and without a final dot, is meant."""
        return host.endswith(self.host[1:]) and len(host) >= len(self.host) if self.host.startswith("*.") else host == self.host


class ProxyLimits(BaseModel):
    """Bounds of what passes. The sandbox counts are for each `answer` call."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    up_bytes: int = Field(default=16 << 20, ge=0, description="Body or tunnel bytes of a request towards the host")
    down_bytes: int = Field(default=256 << 20, ge=0, description="Body or tunnel bytes of an answer")
    total_bytes: int = Field(default=2 << 30, ge=0, description="Both directions, of a sandbox")
    requests: int = Field(default=10_000, ge=1, description="Of a sandbox, refused ones included; bounds the log too")
    connections: int = Field(default=64, ge=1, description="Of a sandbox at a time")
    connect_s: float = Field(default=10.0, gt=0)
    idle_s: float = Field(default=60.0, gt=0, description="Without a byte in either direction")
    request_s: float = Field(default=600.0, gt=0, description="A request or tunnel from beginning to end")


class Access(BaseModel):
    """One decision, and what came of it once the request has ended."""

    model_config = ConfigDict(frozen=True)

    at: float
    """Seconds since 1970."""
    sandbox_id: str
    method: str
    host: str
    port: int
    path: str = ""
    """Of plain HTTP, without the query; the first 200 characters."""
    allowed: bool
    reason: str
    """The rule that allowed it, or why it was refused."""
    address: str = ""
    """Where it was connected to."""
    status: int = 0
    """What the sandbox was answered; 0 before there is an answer."""
    up_bytes: int = 0
    down_bytes: int = 0
    ended: Literal["", "finished", "failed", "byte limit", "time limit"] = ""
    """Empty while it runs."""


class _LimitError(Exception):
    """The limit that was reached."""


def proxy_environment(port: int) -> dict[str, str]:
    """Variables that make curl, pip, requests, git and most others use a proxy at the sandbox's own `port`."""
    url = f"http://127.0.0.1:{port}"
    return {name: url for base in ("http_proxy", "https_proxy") for name in (base, base.upper())}


def forbidden_address(address: str) -> str:
    """Why an address may not be reached without `private=True`; empty when it may. Looks inside IPv6 forms of IPv4."""
    ip = ipaddress.ip_address(address)
    inner: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [ip]
    if isinstance(ip, ipaddress.IPv6Address):
        if ip.ipv4_mapped is not None:
            inner = [ip.ipv4_mapped]
        elif ip in _NAT64:
            inner = [ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)]
        else:
            inner = [*filter(None, (ip.sixtofour, *(ip.teredo or ()))), ip]
    for one in inner:
        if str(one) in _METADATA:
            return "a cloud metadata address"
        for kind in ("loopback", "link_local", "multicast", "unspecified", "private", "reserved"):
            if getattr(one, f"is_{kind}"):
                return f"a {kind.replace('_', '-')} address"
        if not one.is_global:
            return "not a public address"
    return ""


async def _system_resolve(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@dataclass
class _Side:
    """An HTTP/1.1 connection: h11's parser on a pair of streams."""

    http: h11.Connection
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def next_event(self) -> object:
        while (event := self.http.next_event()) is h11.NEED_DATA:
            self.http.receive_data(await self.reader.read(_CHUNK))
        return event

    async def send(self, event: h11.Event) -> None:
        if data := self.http.send(event):
            self.writer.write(data)
            await self.writer.drain()


@dataclass(eq=False)
class Route:
    """One sandbox's way out. `close` it with the sandbox: the socket would keep the sandbox's network alive."""

    sandbox_id: str
    _proxy: AllowListProxy
    _server: asyncio.Server | None = None
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _requests: int = 0
    _bytes: int = 0

    def close(self) -> None:
        """Accept nothing more and cut what runs. May be called again."""
        self._proxy._call(self._close())

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self in self._proxy._routes:
            self._proxy._routes.remove(self)


class _Exchange:
    """One request's counters, deadline and place in the log."""

    def __init__(self, proxy: AllowListProxy, route: Route, access: Access) -> None:
        self.proxy, self.route, self.access = proxy, route, access
        self.up = self.down = self.status = 0
        self.moved_at = time.monotonic()
        self.index = len(proxy._log)
        proxy._log.append(access)

    def connected(self, address: str) -> None:
        self.access = self.proxy._log[self.index] = self.access.model_copy(update={"address": address})

    def count(self, size: int, *, down: bool) -> None:
        """Note bytes that are about to pass. Raises _LimitError instead of letting them go beyond a limit."""
        limits = self.proxy.limits
        moved = (self.down if down else self.up) + size
        if moved > (limits.down_bytes if down else limits.up_bytes) or self.route._bytes + size > limits.total_bytes:
            raise _LimitError("byte limit")
        if down:
            self.down = moved
        else:
            self.up = moved
        self.route._bytes += size
        self.moved_at = time.monotonic()

    def end(self, ended: Literal["finished", "failed", "byte limit", "time limit"]) -> None:
        update = {"status": self.status, "up_bytes": self.up, "down_bytes": self.down, "ended": ended}
        self.proxy._log[self.index] = self.access.model_copy(update=update)


class AllowListProxy:
    """An HTTP proxy (CONNECT and absolute URIs) that lets through what a rule names. One may serve many sandboxes."""

    def __init__(self, rules: Iterable[Rule | str], limits: ProxyLimits | None = None, resolve: Resolve | None = None) -> None:
        """A plain string is a rule with the defaults. `resolve` replaces the system's resolver.

        Raises:
            ConfigError: a string that is no host.
        """
        try:
            self.rules = tuple(Rule(host=rule) if isinstance(rule, str) else rule for rule in rules)
        except ValueError as error:
            raise ConfigError(f"the allow-list is wrong: {error}", "name hosts as example.org or *.example.org") from error
        self.limits = limits or ProxyLimits()
        self._resolve = resolve or _system_resolve
        self._log: list[Access] = []
        self._routes: list[Route] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="allow-list-proxy", daemon=True)
        self._thread.start()

    @property
    def log(self) -> tuple[Access, ...]:
        """Every decision so far, in order; one that has ended also says how and with how many bytes."""
        return tuple(self._log)

    def answer(self, listener: socket.socket, sandbox_id: str = "") -> Route:
        """Answer on a listening socket, such as `sandbox.serve(port)` gives. The proxy keeps a copy of its own.

        Raises:
            SandboxError: the proxy is closed.
        """
        if self._loop.is_closed():
            raise SandboxError("the proxy is closed", "make another")
        route, own = Route(sandbox_id, self), listener.dup()

        async def start() -> None:
            route._server = await asyncio.start_server(lambda r, w: self._connected(route, r, w), sock=own, limit=_CHUNK)
            self._routes.append(route)

        self._call(start())
        return route

    def close(self) -> None:
        """End all routes and the thread. May be called again."""
        if self._loop.is_closed():
            return
        for route in list(self._routes):
            route.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, work: Coroutine[None, None, None]) -> None:
        if self._loop.is_closed():
            work.close()
        else:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # --- deciding -------------------------------------------------------------------------------------------------------------

    async def _decide(self, method: str, host: str, port: int) -> tuple[bool, str, list[str]]:
        """(allowed, reason, addresses that were checked)."""
        rules = [rule for rule in self.rules if rule.covers(host)]
        if not rules:
            return False, f"{host} is not on the allow-list", []
        if not (rules := [rule for rule in rules if port in rule.ports]):
            return False, f"port {port} of {host} is not allowed", []
        if not (rules := [rule for rule in rules if (rule.tunnel if method == "CONNECT" else method in rule.methods)]):
            return False, f"{method} to {host} is not allowed", []
        try:
            async with asyncio.timeout(self.limits.connect_s):
                addresses = list(await self._resolve(host, port))
        except (OSError, TimeoutError, UnicodeError) as error:
            return False, f"{host} does not resolve ({type(error).__name__})", []
        rule = next((rule for rule in rules if rule.private), rules[0])
        if not addresses:
            return False, f"{host} does not resolve", []
        for address in addresses:  # a name with one public and one private address is refused: nobody honest has one
            if not rule.private and (why := forbidden_address(address)):
                return False, f"{host} is at {address}, {why}", []
        return True, rule.host, addresses

    # --- serving --------------------------------------------------------------------------------------------------------------

    async def _connected(self, route: Route, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        route._tasks.add(task)
        client = _Side(h11.Connection(h11.SERVER, max_incomplete_event_size=_CHUNK), reader, writer)
        try:
            if len(route._tasks) > self.limits.connections:
                await self._refuse(client, 503, "too many connections at a time")
                return
            while True:
                async with asyncio.timeout(self.limits.idle_s):
                    request = await client.next_event()
                if not isinstance(request, h11.Request) or not await self._request(route, client, request):
                    return
                client.http.start_next_cycle()
        except h11.RemoteProtocolError as error:
            with contextlib.suppress(h11.LocalProtocolError, OSError):
                await self._refuse(client, 400, f"not an HTTP request: {error}")
        except (OSError, TimeoutError, h11.LocalProtocolError, asyncio.CancelledError):
            pass  # the sandbox hung up or said nothing, or the route is closed
        finally:
            route._tasks.discard(task)
            await _finish(writer)

    async def _refuse(self, client: _Side, status: int, reason: str) -> None:
        body = f"{reason}\n".encode()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), ("Connection", "close")]
        await client.send(h11.Response(status_code=status, headers=headers))
        await client.send(h11.Data(data=body))
        await client.send(h11.EndOfMessage())
        with contextlib.suppress(OSError, TimeoutError):  # closing with unread input would reset the connection and lose the answer
            client.writer.write_eof()
            async with asyncio.timeout(_LINGER_S):
                while await client.reader.read(_CHUNK):
                    pass

    async def _request(self, route: Route, client: _Side, request: h11.Request) -> bool:
        """Decide and carry out one request; True when the connection can take another."""
        method, target = request.method.decode(), request.target.decode("ascii", "replace")
        route._requests += 1
        if route._requests > self.limits.requests:
            await self._refuse(client, 429, f"more than {self.limits.requests} requests")
            return False
        access = Access(
            at=time.time(),
            sandbox_id=route.sandbox_id,
            method=method,
            host=target[:200],
            port=0,
            allowed=False,
            reason="",
            ended="finished",
        )
        try:
            host, port, path, query = _target(method, target)
        except ValueError as error:
            self._log.append(access.model_copy(update={"reason": str(error), "status": 400}))
            await self._refuse(client, 400, str(error))
            return False
        allowed, reason, addresses = await self._decide(method, host, port)
        access = access.model_copy(update={"host": host, "port": port, "path": path[:200], "reason": reason})
        if not allowed:
            self._log.append(access.model_copy(update={"status": 403}))
            await self._refuse(client, 403, reason)
            return False
        access = access.model_copy(update={"allowed": True, "ended": ""})
        exchange = _Exchange(self, route, access)
        try:
            async with asyncio.timeout(self.limits.request_s), self._upstream(exchange, addresses, port) as (reader, writer):
                if method == "CONNECT":
                    await self._tunnel(exchange, client, reader, writer)
                    more = False
                else:
                    upstream = _Side(h11.Connection(h11.CLIENT, max_incomplete_event_size=_CHUNK), reader, writer)
                    target = (path or "/") + (f"?{query}" if query else "")
                    name = f"[{host}]" if ":" in host else host
                    more = await self._forward(exchange, client, request, upstream, target, name if port == 80 else f"{name}:{port}")
            exchange.end("finished")
            return more
        except BaseException as error:
            ended: Literal["failed", "byte limit", "time limit"] = "failed"
            if isinstance(error, _LimitError):
                ended = "byte limit"
            elif isinstance(error, TimeoutError):
                ended = "time limit"
            if not exchange.status and isinstance(error, (OSError, _LimitError, h11.ProtocolError)):
                exchange.status = {"byte limit": 413, "time limit": 504}.get(ended, 502)
                exchange.end(ended)
                said = f"the {ended} was reached" if ended != "failed" else f"{host} could not be reached ({error or type(error).__name__})"
                await self._refuse(client, exchange.status, said)
                return False
            exchange.end(ended)
            client.writer.transport.abort()  # half an answer must not look like a whole one
            if not isinstance(error, (OSError, _LimitError, h11.ProtocolError)):
                raise
            return False

    @contextlib.asynccontextmanager
    async def _upstream(
        self, exchange: _Exchange, addresses: Sequence[str], port: int
    ) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """A connection to the first of the checked addresses that answers."""
        for i, address in enumerate(addresses[:4]):
            try:
                async with asyncio.timeout(self.limits.connect_s):
                    reader, writer = await asyncio.open_connection(address, port, limit=_CHUNK)
                break
            except (OSError, TimeoutError):
                if i == len(addresses[:4]) - 1:
                    raise
        exchange.connected(address)
        try:
            yield reader, writer
        except BaseException:
            writer.transport.abort()
            raise
        await _finish(writer)

    async def _tunnel(self, exchange: _Exchange, client: _Side, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        exchange.status = 200
        client.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await client.next_event()  # the request's end; what follows belongs to the tunnel
        early, _ = client.http.trailing_data
        if early:
            exchange.count(len(early), down=False)
            writer.write(early)

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, down: bool) -> None:
            while True:
                try:
                    async with asyncio.timeout(self.limits.idle_s):
                        data = await source.read(_CHUNK)
                except TimeoutError:
                    if time.monotonic() - exchange.moved_at < self.limits.idle_s:
                        continue
                    raise
                if not data:
                    sink.write_eof()
                    return
                exchange.count(len(data), down=down)
                sink.write(data)
                await sink.drain()

        await _together(pump(client.reader, writer, down=False), pump(reader, client.writer, down=True))

    async def _forward(
        self, exchange: _Exchange, client: _Side, request: h11.Request, upstream: _Side, target: str, authority: str
    ) -> bool:
        headers = _end_to_end(request.headers)
        await upstream.send(
            h11.Request(method=request.method, target=target, headers=[(b"Host", authority.encode()), (b"Connection", b"close"), *headers])
        )
        if client.http.they_are_waiting_for_100_continue:
            await client.send(h11.InformationalResponse(status_code=100, headers=[]))

        async def up() -> None:
            while isinstance(event := await client.next_event(), h11.Data):
                exchange.count(len(event.data), down=False)
                try:
                    await upstream.send(h11.Data(data=bytes(event.data)))
                except OSError:  # a server may answer, and stop reading, before it has read everything
                    return
            await upstream.send(h11.EndOfMessage())

        async def down() -> None:
            while True:
                async with asyncio.timeout(self.limits.idle_s):
                    event = await upstream.next_event()
                if isinstance(event, h11.Response):
                    exchange.status = event.status_code
                    await client.send(h11.Response(status_code=event.status_code, headers=_end_to_end(event.headers), reason=event.reason))
                elif isinstance(event, h11.Data):
                    exchange.count(len(event.data), down=True)
                    await client.send(h11.Data(data=bytes(event.data)))
                elif isinstance(event, h11.EndOfMessage):
                    await client.send(h11.EndOfMessage())
                    return
                elif not isinstance(event, h11.InformationalResponse):
                    raise ConnectionResetError("the server hung up")

        sending = asyncio.ensure_future(up())
        try:
            await _together(down(), sending, enough=1)
        finally:
            sending.cancel()
        return client.http.our_state is h11.DONE and client.http.their_state is h11.DONE


async def _finish(writer: asyncio.StreamWriter) -> None:
    """Close once what was written has gone out, or cut it when the other end does not take it."""
    writer.close()
    try:
        async with asyncio.timeout(_LINGER_S):
            await writer.wait_closed()
    except (OSError, TimeoutError, asyncio.CancelledError):
        writer.transport.abort()


async def _together(*work: Awaitable[None], enough: int = 0) -> None:
    """Run side by side until all, or the first `enough` of them, have ended; an error of one ends the others and is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    needed = set(tasks[: enough or len(tasks)])
    try:
        waiting = set(tasks)
        while needed & waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _target(method: str, target: str) -> tuple[str, int, str, str]:
    """(host, port, path, query) of what a proxy is asked for. Raises ValueError with the reason."""
    if method == "CONNECT":
        parts = urlsplit(f"//{target}")
        if parts.path or parts.query or parts.port is None:
            raise ValueError("CONNECT wants HOST:PORT")
    else:
        parts = urlsplit(target)
        if parts.scheme != "http":
            raise ValueError("this is a proxy: it wants an absolute http:// address, or CONNECT for https")
    if not parts.hostname or parts.username is not None or not target.isascii() or parts.port == 0:
        raise ValueError("the address has no plain host, or a name and password in it")
    return parts.hostname.lower().rstrip("."), parts.port or 80, parts.path, parts.query


def _end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Fields that a proxy passes on: without those of one connection, and with one statement of the body's length."""
    pairs = [(bytes(name), bytes(value)) for name, value in headers]
    named = {word.strip().lower() for name, value in pairs if name == b"connection" for word in value.split(b",")}
    drop = _HOP | named - {b"content-length", b"transfer-encoding"}
    if any(name == b"transfer-encoding" for name, _ in pairs):
        drop |= {b"content-length"}
    return [(name, value) for name, value in pairs if name not in drop]
