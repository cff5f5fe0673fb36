"""A real HTTP server on the loopback that answers exactly the bytes it is told, however wrong they are."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import trafilatura  # noqa: F401 - takes a second, which no test's time limit should meet

from environments.search.web import FetchConfig

Reply = Callable[["Request"], None]


@dataclass
class Request:
    """One request as it came."""

    method: str
    path: str
    query: dict[str, list[str]]
    headers: dict[str, str]
    body: bytes
    at: float
    socket: socket.socket

    def answer(
        self, body: bytes | str = b"", status: int = 200, kind: str = "text/html; charset=utf-8", headers: Mapping[str, str] | None = None
    ) -> None:
        """Send an answer in good order."""
        data = body.encode() if isinstance(body, str) else body
        fields = {"Content-Type": kind, "Content-Length": str(len(data)), "Connection": "close"} | dict(headers or {})
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self.raw(f"HTTP/1.1 {status} X\r\n{head}\r\n".encode() + data)

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)


@dataclass
class Site:
    """The server: what it answers by path, and what it was asked. Without an entry, robots.txt and pages are 404."""

    port: int
    pages: dict[str, Reply] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def page(self, path: str, body: bytes | str, kind: str = "text/html; charset=utf-8", **headers: str) -> str:
        """Serve a body; returns its address."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.pages[path] = lambda request: request.answer(body, kind=kind, headers=named)
        return self.address + path

    def on(self, path: str, reply: Reply) -> str:
        """Serve whatever `reply` sends; returns its address."""
        self.pages[path] = reply
        return self.address + path

    def json(self, path: str, value: Any) -> str:
        return self.page(path, json.dumps(value), "application/json")

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]


@contextlib.contextmanager
def serving(tls: ssl.SSLContext | None = None) -> Iterator[Site]:
    """A site on a free port of 127.0.0.1."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError, ValueError):
                connection = tls.wrap_socket(self.request, server_side=True) if tls else self.request
                data = b""
                while b"\r\n\r\n" not in data:
                    if not (chunk := connection.recv(65536)):
                        return
                    data += chunk
                    if data.startswith(b"\x16\x03"):  # TLS, of which this one knows nothing
                        connection.sendall(b"HTTP/1.1 400 X\r\n\r\n")
                        return
                head, _, body = data.partition(b"\r\n\r\n")
                first, *lines = head.decode("latin-1").split("\r\n")
                method, target, _ = first.split(" ")
                headers = {n.strip().lower(): v.strip() for n, _, v in (line.partition(":") for line in lines)}
                while len(body) < int(headers.get("content-length", 0)):
                    body += connection.recv(65536)
                parts = urlsplit(target)
                request = Request(method, parts.path, parse_qs(parts.query), headers, body, time.monotonic(), connection)
                site.requests.append(request)
                site.pages.get(parts.path, lambda r: r.answer("nothing here", 404))(request)
                connection.close()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True
        request_queue_size = 64

    with Server(("127.0.0.1", 0), Handler) as server:
        site = Site(server.server_address[1])
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield site
        site.closing.set()
        server.shutdown()


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def bounds() -> FetchConfig:
    """Bounds that let tests reach the loopback, quickly and without a browser."""
    return FetchConfig(
        private=("127.0.0.1", "localhost"),
        interval_s=0.0,
        connect_s=5.0,
        idle_s=5.0,
        fetch_s=15.0,
        max_bytes=200_000,
        browser=False,
    )


def article(title: str, *paragraphs: str, head: str = "", foot: str = "") -> str:
    """An HTML page with a main text and the usual things around it."""
    said = "".join(f"<p>{p}</p>" for p in paragraphs)
    around = '<nav><ul><li><a href="/a">Home</a></li><li><a href="/b">Imprint</a></li></ul></nav>'
    return (
        f"<!doctype html><html><head><title>{title}</title>{head}</head><body>{around}"
        f"<main><article><h1>{title}</h1>{said}</article></main><footer>Cookies and more{foot}</footer></body></html>"
    )


SPANNING = (
    "A spanning tree of a connected graph is a subgraph that is a tree and holds every vertex of the graph. "
    "Kruskal's algorithm finds one of least weight by adding the lightest edge that closes no cycle."
)


def bomb(size: int) -> bytes:
    """gzip data that expands to `size` zero bytes."""
    return gzip.compress(b"\0" * size, 9)
