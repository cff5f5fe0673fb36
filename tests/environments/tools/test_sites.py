"""The proxy reaches what it is told and nothing else, whatever it is sent; the tunnel reaches ports inside a sandbox."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.errors import ConfigError
from environments.sandbox.base import Sandbox
from environments.tools.sites import SiteProxy, Sites
from environments.tools.tunnel import Tunnel


class _Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        body = f"{self.command} {self.path} {self.headers['Host']} {sent}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # a client that has gone
            super().handle()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def host() -> Iterator[str]:
    """An origin of the host's own network."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


KILL_RELAY = """
import glob, os, signal
mine = os.environ.get("LOCAL_SANDBOX", "").encode()
for path in set(glob.glob("/proc/[0-9]*")) - {f"/proc/{os.getpid()}"}:
    try:
        if mine in open(path + "/environ", "rb").read() and b"Carries connections from the host" in open(path + "/cmdline", "rb").read():
            os.kill(int(path[6:]), signal.SIGKILL)
            print("killed")
    except (OSError, ValueError):
        pass
"""


def ask(proxy: SiteProxy, url: str, method: str = "GET", body: str | None = None) -> tuple[int, str]:
    place, port = proxy.address.removeprefix("http://").split(":")
    connection = http.client.HTTPConnection(place, int(port), timeout=10)
    try:
        connection.request(method, url, body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def raw(proxy: SiteProxy, data: bytes) -> bytes:
    place, port = proxy.address.removeprefix("http://").split(":")
    with socket.create_connection((place, int(port)), timeout=10) as connection:
        answer = b""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):  # it may not be read to its end
            connection.sendall(data)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            while chunk := connection.recv(1 << 16):
                answer += chunk
        return answer


def test_an_allowed_origin_is_reached_and_its_neighbours_are_not(host: str) -> None:
    with SiteProxy(Sites(origins=frozenset({host}))) as proxy:
        assert ask(proxy, f"{host}/a?b=c") == (200, f"GET /a?b=c {host.removeprefix('http://')} ")
        assert ask(proxy, f"{host}/form", "POST", "x" * 200_000)[1].endswith("x" * 200_000)
    port = host.rpartition(":")[2]
    with SiteProxy(Sites(origins=frozenset({"http://127.0.0.1:1"}))) as proxy:
        for url in (f"{host}/", f"http://localhost:{port}/", "http://example.com/", f"http://127.1:{port}/", f"http://2130706433:{port}/"):
            status, said = ask(proxy, url)
            assert (status, "cannot be reached from here" in said) == (403, True)
        assert ask(proxy, "http://127.0.0.1:1/")[0] == 502
        assert b" 403 " in raw(proxy, f"CONNECT 127.0.0.1:{port} HTTP/1.1\r\n\r\n".encode())


def test_connect_carries_bytes_both_ways(host: str) -> None:
    with SiteProxy(Sites(origins=frozenset({host}))) as proxy:
        place = host.removeprefix("http://")
        request = f"GET /deep HTTP/1.0\r\nHost: {place}\r\n\r\n"
        answer = raw(proxy, f"CONNECT {place} HTTP/1.1\r\n\r\n{request}".encode())
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n\r\n")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET",
        b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\n\r\n",
        b"CONNECT x HTTP/1.1\r\n\r\n",
        b"\0" * 200_000,
    ],
)
def test_garbage_does_no_harm(data: bytes, host: str) -> None:
    with SiteProxy(Sites(origins=frozenset({host}))) as proxy:
        answer = raw(proxy, data)
        assert answer == b"" or b" 403 " in answer
        assert ask(proxy, f"{host}/")[0] == 200


def test_a_closed_proxy_answers_nobody(host: str) -> None:
    proxy = SiteProxy(Sites(origins=frozenset({host})))
    assert ask(proxy, f"{host}/")[0] == 200
    proxy.close()
    proxy.close()
    with pytest.raises(OSError):
        ask(proxy, f"{host}/")


@pytest.mark.parametrize("kind", ["mapping", "folder"])
def test_files_are_served_and_nothing_beside_them(kind: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("no")
    root = tmp_path / "site"
    (root / "sub").mkdir(parents=True)
    files = {"index.html": b"<h1>top</h1>", "sub/a b.txt": "ä".encode(), "x.css": b"p{}"}
    for name, data in files.items():
        (root / name).write_bytes(data)
    (root / "link").symlink_to(tmp_path / "secret")
    with SiteProxy(Sites(files=files if kind == "mapping" else root)) as proxy:
        assert ask(proxy, "http://task.test/") == (200, "<h1>top</h1>")
        assert ask(proxy, "http://task.test/sub/a%20b.txt?v=1") == (200, "ä")
        assert ask(proxy, "http://task.test/sub/")[1].count("/sub/a%20b.txt") == 1
        for path in ("nothing", "../secret", "..%2fsecret", "sub/../../secret", "link", "%00"):
            assert ask(proxy, f"http://task.test/{path}")[0] == 404
        assert ask(proxy, "http://task.test/", "POST", "x")[0] == 404
        assert ask(proxy, "http://task.test:81/")[0] == 403


def test_addresses_as_agents_write_them(host: str) -> None:
    files, both = Sites(files={}), Sites(origins=frozenset({"http://127.0.0.1:8080", "https://a.test"}))
    assert files.url_of("a/b.html") == "http://task.test/a/b.html"
    assert files.url_of("/x") == "http://task.test/x"
    assert files.url_of("task.test/x") == "http://task.test/x"
    assert files.url_of("http://task.test:80/x") == "http://task.test:80/x"
    assert both.url_of("127.0.0.1:8080/x") == "http://127.0.0.1:8080/x"
    assert both.url_of("https://a.test:443/") == "https://a.test:443/"
    refused = (
        "file:///etc/passwd",
        "javascript:alert(1)",
        "data:text/html,x",
        "chrome://version",
        "http://task.test.evil/",
        "http://[",
        "ftp://task.test/",
    )
    for text in (*refused, "http://127.0.0.1:8081/", "http://a.test/", "https://127.0.0.1:8080/"):
        assert both.url_of(text) is None
    for text in (*refused, "http://localhost/", "localhost:1"):
        assert files.url_of(text) in (None, f"http://task.test/{text}")
    assert Sites().describe() == "nothing"
    for origin in ("127.0.0.1:8080", "http://a/b", "ftp://a", "http://"):
        with pytest.raises(ConfigError, match="no origin"):
            Sites(origins=frozenset({origin}))


@pytest.mark.sandbox
def test_ports_in_a_sandbox_are_reached_through_the_tunnel(sandbox: Sandbox) -> None:
    sandbox.write("served/page.txt", b"from inside")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    sandbox.exec(["sh", "-c", f"cd served; setsid python3 -m http.server {port} --bind 127.0.0.1 >/dev/null 2>&1 </dev/null &"])
    with Tunnel(sandbox) as tunnel, SiteProxy(Sites(sandbox=tunnel)) as proxy:
        for _ in range(100):
            status, said = ask(proxy, f"http://localhost:{port}/page.txt")
            if status == 200:
                break
            assert (status, "does not answer" in said) == (502, True)
            time.sleep(0.05)
        assert said == "from inside"
        assert [ask(proxy, f"http://127.0.0.1:{port}/page.txt")[0] for _ in range(20)] == [200] * 20
        assert ask(proxy, "http://localhost:1/")[0] == 502
        assert ask(proxy, "https://localhost/")[0] == 403
        assert sandbox.exec(["python3", "-c", KILL_RELAY]).stdout == "killed\n"
        tunnel.ensure()
        assert ask(proxy, f"http://localhost:{port}/page.txt")[1] == "from inside"
    with pytest.raises(OSError):
        tunnel.connect(port, timeout_s=0.2)
