"""What a browser may reach, and the proxy that is its only way there.

Chromium resolves no name and connects to nothing by itself; every request of a context, of any protocol, comes to the
episode's proxy, which knows an explicit list of origins and refuses everything else.
"""

from __future__ import annotations

import contextlib
import html
import mimetypes
import posixpath
import select
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, quote, unquote, urlsplit

from environments.errors import ConfigError
from environments.tools.tunnel import Tunnel

FILES_HOST = "task.test"
"""Where a task's files are served: a name that exists nowhere (RFC 6761)."""
_LOCAL = ("localhost", "127.0.0.1")
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_HEAD_BYTES = 64 << 10
_BODY_BYTES = 64 << 20
"""In either direction of one connection."""
_IDLE_S = 60.0
_CONNECTIONS = 64


@dataclass(frozen=True)
class Sites:
    """What the browser of an episode reaches; nothing by default."""

    origins: frozenset[str] = frozenset()
    """Of the host's own network, such as `http://127.0.0.1:8080`, exact."""
    files: Mapping[str, bytes] | Path | None = None
    """Served at http://task.test/: contents by path, or a folder."""
    sandbox: Tunnel | None = None
    """Every port of the sandbox, at http://localhost:PORT/."""

    def __post_init__(self) -> None:
        for origin in self.origins:
            parts = urlsplit(origin)
            if parts.scheme not in ("http", "https") or not parts.hostname or origin != f"{parts.scheme}://{parts.netloc}":
                raise ConfigError(f"{origin!r} is no origin", "write scheme://host:port, without a path")

    def describe(self) -> str:
        """What can be opened, for an agent."""
        places = [f"http://{FILES_HOST}/ (the task's files)"] if self.files is not None else []
        places += ["http://localhost:PORT/ (what listens in the sandbox)"] if self.sandbox is not None else []
        return ", ".join([*places, *sorted(self.origins)]) or "nothing"

    def url_of(self, text: str) -> str | None:
        """What an agent wrote as a full address that can be reached; None when it cannot."""
        text = text.strip()
        if "://" not in text:
            if self.files is not None and not text.startswith(_LOCAL):
                text = f"http://{FILES_HOST}/{text.removeprefix(FILES_HOST).lstrip('/')}"
            else:
                text = f"http://{text}"
        try:
            parts = urlsplit(text)
            allowed = parts.scheme in ("http", "https") and self._allows(parts.scheme, parts.hostname or "", _port(parts))
        except ValueError:
            return None
        return text if allowed else None

    def _allows(self, scheme: str, host: str, port: int) -> bool:
        return (
            self._is_origin(scheme, host, port)
            or (scheme == "http" and host == FILES_HOST and port == 80 and self.files is not None)
            or (scheme == "http" and host in _LOCAL and self.sandbox is not None)
        )

    def _is_origin(self, scheme: str, host: str, port: int) -> bool:
        return any((o.scheme, o.hostname, _port(o)) == (scheme, host, port) for o in map(urlsplit, self.origins))

    def connect(self, host: str, port: int, schemes: tuple[str, ...]) -> socket.socket | None:
        """A connection to an allowed place; None when it is not allowed. Raises OSError when nothing answers there."""
        if any(self._is_origin(scheme, host, port) for scheme in schemes):
            return socket.create_connection((host, port), timeout=5.0)
        if self.sandbox is not None and host in _LOCAL:
            return self.sandbox.connect(port)
        return None

    def file(self, path: str) -> tuple[bytes, str] | None:
        """Content and media type of a served file, or of a folder's index; None when there is none."""
        assert self.files is not None
        path = unquote(path)
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if ".." in parts or "\0" in path:
            return None
        name = "/".join(parts)
        for candidate in (name, posixpath.join(name, "index.html")):
            if (data := self._content(candidate)) is not None:
                return data, mimetypes.guess_type(candidate)[0] or "application/octet-stream"
        names = self._names(name)
        if names is None:
            return None
        links = "".join(f'<li><a href="/{quote(posixpath.join(name, n))}">{html.escape(n)}</a></li>' for n in names)
        return f"<!doctype html><title>/{html.escape(name)}</title><ul>{links}</ul>".encode(), "text/html; charset=utf-8"

    def _content(self, name: str) -> bytes | None:
        if isinstance(self.files, Path):
            path = (self.files / name).resolve()
            return path.read_bytes() if path.is_file() and path.is_relative_to(self.files.resolve()) else None
        assert self.files is not None
        return self.files.get(name)

    def _names(self, folder: str) -> list[str] | None:
        if isinstance(self.files, Path):
            path = (self.files / folder).resolve()
            return sorted(p.name for p in path.iterdir()) if path.is_dir() and path.is_relative_to(self.files.resolve()) else None
        assert self.files is not None
        prefix = f"{folder}/" if folder else ""
        names = {name.removeprefix(prefix).partition("/")[0] for name in self.files if name.startswith(prefix)}
        return sorted(names) if names or not folder else None


class SiteProxy:
    """An HTTP proxy on a port of 127.0.0.1 that reaches `sites` and nothing else; closes itself as a context manager."""

    def __init__(self, sites: Sites) -> None:
        self._sites = sites
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=_CONNECTIONS)
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(_CONNECTIONS)
        threading.Thread(target=self._accept, name="site-proxy", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it with every connection. May be called again."""
        with self._lock:
            open_now = list(self._open)
        for thing in (self._listener, *open_now):
            with contextlib.suppress(OSError):
                thing.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with self._listener:
            while True:
                self._places.acquire()
                try:
                    client, _ = self._listener.accept()
                except OSError:
                    return
                threading.Thread(target=self._converse, args=(client,), name="site-request", daemon=True).start()

    def _converse(self, client: socket.socket) -> None:
        with self._lock:
            self._open.add(client)
        try:
            with client:
                client.settimeout(_IDLE_S)
                self._answer(client)
        except (OSError, ValueError):  # the page has gone, or writes what is no request
            pass
        finally:
            with self._lock:
                self._open.discard(client)
            self._places.release()

    def _answer(self, client: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            chunk = client.recv(1 << 16)
            if not chunk or len(head) > _HEAD_BYTES:
                return
            head += chunk
        head, _, body = head.partition(b"\r\n\r\n")
        first, *headers = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        if method == "CONNECT":  # TLS, or a WebSocket
            host, _, port = target.rpartition(":")
            upstream = self._connect(client, host.lower(), int(port), ("http", "https"))
            if upstream is not None:
                with upstream:
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    upstream.sendall(body)
                    _pump(client, upstream)
            return
        parts = urlsplit(target)
        host, port_number = (parts.hostname or "").lower(), _port(parts)
        if parts.scheme != "http":  # everything else is a tunnel's business
            _say(client, 403, f"{parts.scheme} cannot be asked for in the clear")
            return
        if host == FILES_HOST and port_number == 80 and self._sites.files is not None:
            found = self._sites.file(parts.path) if method in ("GET", "HEAD") else None
            if found is None:
                _say(client, 404, f"there is no {parts.path}")
            else:
                _say(client, 200, found[0], found[1], method == "HEAD")
            return
        upstream = self._connect(client, host, port_number, ("http",))
        if upstream is None:
            return
        # One request a connection: the next may be for another place.
        kept = [h for h in headers if h.partition(":")[0].lower() not in ("proxy-connection", "connection", "keep-alive")]
        path = parts.path or "/"
        lines = [f"{method} {path}{'?' + parts.query if parts.query else ''} HTTP/1.1", *kept, "Connection: close"]
        length = next((int(h.partition(":")[2]) for h in kept if h.lower().startswith("content-length:")), 0)
        with upstream:
            upstream.settimeout(_IDLE_S)
            upstream.sendall("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
            left = min(length, _BODY_BYTES) - len(body)
            while left > 0 and (chunk := client.recv(min(left, 1 << 16))):
                upstream.sendall(chunk)
                left -= len(chunk)
            room = _BODY_BYTES
            while room > 0 and (chunk := upstream.recv(1 << 16)):
                client.sendall(chunk)
                room -= len(chunk)

    def _connect(self, client: socket.socket, host: str, port: int, schemes: tuple[str, ...]) -> socket.socket | None:
        try:
            upstream = self._sites.connect(host, port, schemes)
        except OSError as error:
            _say(client, 502, f"{host}:{port} does not answer ({error})")
            return None
        if upstream is None:
            _say(client, 403, f"{host}:{port} cannot be reached from here. What can be: {self._sites.describe()}")
        return upstream


def _port(parts: SplitResult) -> int:
    return parts.port or _PORTS.get(parts.scheme, 0)


def _say(client: socket.socket, status: int, body: str | bytes, kind: str = "text/plain; charset=utf-8", head_only: bool = False) -> None:
    data = body.encode() if isinstance(body, str) else body
    fields = f"Content-Type: {kind}\r\nContent-Length: {len(data)}\r\nCache-Control: no-store\r\nConnection: close"
    head = f"HTTP/1.1 {status} -\r\n{fields}\r\n\r\n"
    client.sendall(head.encode() + (b"" if head_only else data))


def _pump(one: socket.socket, other: socket.socket) -> None:
    """Carry bytes both ways until one side ends, both are silent or the bound is reached."""
    room = _BODY_BYTES
    poller = select.poll()
    ends = {one.fileno(): (one, other), other.fileno(): (other, one)}
    for fd in ends:
        poller.register(fd, select.POLLIN)
    while room > 0 and (ready := poller.poll(_IDLE_S * 1000)):
        for fd, _ in ready:
            source, sink = ends[fd]
            chunk = source.recv(1 << 16)
            if not chunk:
                return
            sink.sendall(chunk)
            room -= len(chunk)
