"""The allow-list proxy against real servers and sockets on 127.0.0.1: what passes, what is refused, and what is written down."""

from __future__ import annotations

import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from environments.errors import ConfigError, SandboxError
from environments.sandbox.base import SandboxConfig
from environments.sandbox.network import Access, AllowListProxy, ProxyLimits, Rule, forbidden_address, proxy_environment
from environments.sandbox.process import ProcessBackend


class _Site(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[tuple[str, str, dict[str, str], bytes]]

    def _do(self) -> None:
        body = b""
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        type(self).seen.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        if self.path.startswith("/slow"):
            time.sleep(2)
        data = b"x" * int(self.path.rpartition("=")[2]) if "size=" in self.path else f"{self.command} {self.path}".encode()
        self.send_response(200)
        if self.path.startswith("/chunked"):
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(data), data))
            return
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_HEAD = do_POST = do_PUT = _do

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def site() -> Iterator[tuple[int, list[tuple[str, str, dict[str, str], bytes]]]]:
    """A web server's port, and the requests it has seen."""
    seen: list[tuple[str, str, dict[str, str], bytes]] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Site", (_Site,), {"seen": seen}))
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that hangs up is part of the tests
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_address[1], seen
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that answers every byte with itself until the end, then says `end`."""

    class Echo(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while data := self.request.recv(65536):
                self.request.sendall(data)
            self.request.sendall(b"end")

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that hangs up is part of the tests
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def resolver(names: dict[str, Sequence[str]]) -> Callable[[str, int], Any]:
    async def resolve(host: str, port: int) -> Sequence[str]:
        if host not in names:
            raise OSError("no such name")
        return names[host]

    return resolve


@contextmanager
def proxy_for(*rules: Rule | str, names: dict[str, Sequence[str]] | None = None, **limits: Any) -> Iterator[tuple[AllowListProxy, int]]:
    names = {"127.0.0.1": ["127.0.0.1"], **(names or {})}
    with AllowListProxy(rules, ProxyLimits(**limits), resolver(names)) as proxy, socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        proxy.answer(listener, "box")
        yield proxy, port


def local(port: int, host: str = "127.0.0.1", **more: Any) -> Rule:
    return Rule(host=host, ports=(port,), private=True, **more)


def client(port: int) -> httpx.Client:
    return httpx.Client(proxy=f"http://127.0.0.1:{port}", trust_env=False, timeout=20)


def ask(port: int, text: str, *, then: bytes = b"", half_close: bool = False) -> bytes:
    """What the proxy answers to raw text, to the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as sock:
        sock.sendall(text.encode() + then)
        if half_close:
            sock.shutdown(socket.SHUT_WR)
        answer = b""
        try:
            while data := sock.recv(65536):
                answer += data
        except ConnectionResetError:
            answer += b"<reset>"
        return answer


def settled(proxy: AllowListProxy, count: int) -> tuple[Access, ...]:
    """The log once `count` requests have ended."""
    for _ in range(500):
        if len(proxy.log) >= count and all(access.ended for access in proxy.log):
            break
        time.sleep(0.01)
    assert [bool(access.ended) for access in proxy.log] == [True] * count
    return proxy.log


def test_an_allowed_host_is_reached_and_written_down(site: Any) -> None:
    port, seen = site
    with proxy_for(local(port, "name.test"), names={"name.test": ["127.0.0.1"]}) as (proxy, at), client(at) as web:
        assert web.get(f"http://name.test:{port}/a?b=1").text == "GET /a?b=1"
        assert web.get(f"http://NAME.test.:{port}/chunked").text == "GET /chunked"
        assert web.head(f"http://name.test:{port}/h").status_code == 200
        (first, *_) = log = settled(proxy, 3)
    expected = ("box", "GET", "name.test", port, "/a", True, "127.0.0.1", 200, "finished")
    assert (
        first.sandbox_id,
        first.method,
        first.host,
        first.port,
        first.path,
        first.allowed,
        first.address,
        first.status,
        first.ended,
    ) == expected
    assert [(a.up_bytes, a.down_bytes) for a in log] == [(0, 10), (0, 12), (0, 0)]
    assert [request[2]["host"] for request in seen] == [f"name.test:{port}"] * 3


def test_one_connection_carries_several_requests_each_decided_on_its_own(site: Any) -> None:
    port, seen = site
    lines = [f"GET http://{host}:{port}/{i} HTTP/1.1\r\nHost: x\r\n\r\n" for i, host in enumerate(("127.0.0.1", "127.0.0.1", "other.test"))]
    with proxy_for(local(port)) as (proxy, at):
        answer = ask(at, "".join(lines)).decode()
        assert [access.allowed for access in settled(proxy, 3)] == [True, True, False]
    assert (answer.count("200 OK"), answer.count("403"), answer.count("GET /")) == (2, 1, 2)
    assert answer.endswith("other.test is not on the allow-list\n")
    assert [request[1] for request in seen] == ["/0", "/1"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("GET http://other.test:{port}/", "other.test is not on the allow-list"),
        ("GET http://name.test.evil.test:{port}/", "name.test.evil.test is not on the allow-list"),
        ("GET http://evilname.test:{port}/", "evilname.test is not on the allow-list"),
        ("GET http://sub.name.test:{port}/", "sub.name.test is not on the allow-list"),
        ("GET http://wild.test:{port}/", "wild.test is not on the allow-list"),
        ("GET http://2130706433:{port}/", "2130706433 is not on the allow-list"),
        ("GET http://name.test:1/", "port 1 of name.test is not allowed"),
        ("GET http://name.test/", "port 80 of name.test is not allowed"),
        ("POST http://name.test:{port}/", "POST to name.test is not allowed"),
        ("CONNECT name.test:{port}", "CONNECT to name.test is not allowed"),
        ("CONNECT sub.wild.test:22", "port 22 of sub.wild.test is not allowed"),
        ("GET http://gone.wild.test:{port}/", "gone.wild.test does not resolve"),
    ],
)
def test_what_no_rule_names_is_refused_with_the_reason(line: str, reason: str, site: Any) -> None:
    port, seen = site
    rules = (local(port, "name.test", tunnel=False), local(port, "*.wild.test"))
    with proxy_for(*rules, names={"name.test": ["127.0.0.1"], "sub.wild.test": ["127.0.0.1"]}) as (proxy, at):
        answer = ask(at, line.format(port=port) + " HTTP/1.1\r\nHost: name.test\r\n\r\n").decode()
        assert answer.startswith("HTTP/1.1 403")
        assert reason in answer
        (access,) = settled(proxy, 1)
        assert (access.allowed, access.status, access.address) == (False, 403, "")
        assert reason in access.reason
        assert ask(at, f"GET http://sub.wild.test:{port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert [request[1] for request in seen] == ["/"]


def test_methods_and_bodies(site: Any) -> None:
    port, seen = site
    with proxy_for(local(port, methods=("POST", "PUT"))) as (proxy, at), client(at) as web:
        assert web.post(f"http://127.0.0.1:{port}/p", content=b"y" * 100_000).text == "POST /p"
        assert web.put(f"http://127.0.0.1:{port}/q", content=iter([b"one", b"two"])).text == "PUT /q"
        assert web.get(f"http://127.0.0.1:{port}/").status_code == 403
        assert [access.up_bytes for access in settled(proxy, 3)] == [100_000, 6, 0]
        expecting = f"POST http://127.0.0.1:{port}/e HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        assert b"100" in ask(at, expecting, then=b"ok", half_close=True).split(b"\r\n")[0]
    assert [request[3] for request in seen] == [b"y" * 100_000, b"onetwo", b"ok"]


def test_fields_of_one_connection_do_not_pass_and_the_host_is_the_one_that_was_checked(site: Any) -> None:
    port, seen = site
    private = "Proxy-Authorization: secret\r\nConnection: close, X-Private\r\nX-Private: 1\r\nUpgrade: h2c\r\n"
    fields = f"Host: internal.test\r\n{private}X-Kept: yes\r\n"
    with proxy_for(local(port)) as (_, at):
        assert ask(at, f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\n{fields}\r\n").startswith(b"HTTP/1.1 200")
    assert seen[0][2] == {"host": f"127.0.0.1:{port}", "connection": "close", "x-kept": "yes"}


def test_a_body_with_two_lengths_cannot_smuggle_a_request(site: Any) -> None:
    port, seen = site
    head = f"POST http://127.0.0.1:{port}/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    inner = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
    with proxy_for(local(port, methods=("POST",))) as (_, at):
        ask(at, head, then=inner, half_close=True)
    assert [(request[1], request[3], "content-length" in request[2]) for request in seen] == [("/", b"", False)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", "400"),
        ("GET https://127.0.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n", "400"),
        ("GET http://user:word@127.0.0.1/ HTTP/1.1\r\nHost: x\r\n\r\n", "400"),
        ("GET http://127.0.0.1:99999/ HTTP/1.1\r\nHost: x\r\n\r\n", "400"),
        ("CONNECT 127.0.0.1 HTTP/1.1\r\nHost: x\r\n\r\n", "400"),
        ("\x16\x03\x01 not http\r\n\r\n", "400"),
        ("GET http://127.0.0.1/ HTTP/1.1\r\nX: " + "y" * 70_000 + "\r\n\r\n", "400"),
    ],
)
def test_what_is_no_proxy_request_is_refused(text: str, said: str) -> None:
    with proxy_for("127.0.0.1") as (proxy, at):
        assert ask(at, text).decode().split()[1] == said
        assert not any(access.allowed for access in proxy.log)


# --- addresses ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("10.1.2.3", "private"),
        ("172.16.0.1", "private"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "not a public"),
        ("100.100.100.200", "metadata"),
        ("169.254.169.254", "metadata"),
        ("168.63.129.16", "metadata"),
        ("169.254.1.1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fd00:ec2::254", "metadata"),
        ("fc00::1", "private"),
        ("0.0.0.0", "unspecified"),
        ("224.0.0.1", "multicast"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:169.254.169.254", "metadata"),
        ("64:ff9b::a9fe:a9fe", "metadata"),
        ("64:ff9b::7f00:1", "loopback"),
        ("2002:7f00:1::", "loopback"),
        ("1.1.1.1", ""),
        ("2606:4700:4700::1111", ""),
        ("64:ff9b::101:101", ""),
    ],
)
def test_addresses(address: str, why: str) -> None:
    said = forbidden_address(address)
    assert why in said
    assert bool(why) == bool(said)


def test_a_name_at_a_private_address_is_refused_unless_a_rule_says_so(site: Any) -> None:
    port, seen = site
    names = {"inside.test": ["127.0.0.1"], "mixed.test": ["1.1.1.1", "10.0.0.1"], "meta.test": ["169.254.169.254"]}
    rules = [Rule(host=host, ports=(port,)) for host in (*names, "127.0.0.1")]
    with proxy_for(*rules, names=names) as (proxy, at), client(at) as web:
        for host in (*names, "127.0.0.1"):
            assert web.get(f"http://{host}:{port}/").status_code == 403
        assert [access.reason for access in settled(proxy, 4)] == [
            "inside.test is at 127.0.0.1, a loopback address",
            "mixed.test is at 10.0.0.1, a private address",
            "meta.test is at 169.254.169.254, a cloud metadata address",
            "127.0.0.1 is at 127.0.0.1, a loopback address",
        ]
    assert seen == []


def test_a_name_is_resolved_once_and_the_checked_address_is_used(site: Any) -> None:
    """Rebinding: the name's second answer would lead elsewhere. No other resolver knows the name at all."""
    port, _ = site
    answers = [["127.0.0.1"], ["127.0.0.99"], ["127.0.0.99"]]

    async def resolve(host: str, _: int) -> list[str]:
        return answers.pop(0)

    with AllowListProxy([local(port, "moves.invalid")], resolve=resolve) as proxy, socket.create_server(("127.0.0.1", 0)) as listener:
        proxy.answer(listener)
        with client(listener.getsockname()[1]) as web:
            assert web.get(f"http://moves.invalid:{port}/").status_code == 200
        assert settled(proxy, 1)[0].status == 200
    assert len(answers) == 2
    assert proxy.log[0].address == "127.0.0.1"


def test_the_system_resolver_is_the_default(site: Any) -> None:
    port, _ = site
    with AllowListProxy([local(port, "localhost")]) as proxy, socket.create_server(("127.0.0.1", 0)) as listener:
        proxy.answer(listener)
        with client(listener.getsockname()[1]) as web:
            assert web.get(f"http://localhost:{port}/").status_code == 200
            assert settled(proxy, 1)[0].address in ("127.0.0.1", "::1")


def test_the_second_address_is_tried_when_the_first_does_not_answer(site: Any) -> None:
    port, _ = site
    with proxy_for(local(port, "two.test"), names={"two.test": ["127.0.0.2", "127.0.0.1"]}) as (proxy, at), client(at) as web:
        assert web.get(f"http://two.test:{port}/").status_code == 200
        assert settled(proxy, 1)[0].address == "127.0.0.1"


@pytest.mark.parametrize("host", ["", "*", "*.", "http://example.org", "a b", "*.*.org", "example.org/x"])
def test_a_wrong_rule_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match="is no host"):
        AllowListProxy([host])


# --- tunnels ------------------------------------------------------------------------------------------------------------------


def test_a_tunnel_carries_bytes_both_ways_with_the_end_of_each(echo: int) -> None:
    data = os.urandom(300_000)
    with proxy_for(local(echo)) as (proxy, at):
        answer = ask(at, f"CONNECT 127.0.0.1:{echo} HTTP/1.1\r\nHost: x\r\n\r\n", then=data, half_close=True)
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        assert body == data + b"end"
        (access,) = settled(proxy, 1)
    assert (access.method, access.status, access.up_bytes, access.down_bytes) == ("CONNECT", 200, 300_000, 300_003)


def test_a_host_that_does_not_answer_is_an_error_of_the_gateway() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]
    with proxy_for(local(closed)) as (proxy, at):
        assert ask(at, f"CONNECT 127.0.0.1:{closed} HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 502")
        assert (proxy.log[0].allowed, proxy.log[0].ended, proxy.log[0].status) == (True, "failed", 502)


# --- limits -------------------------------------------------------------------------------------------------------------------


def test_an_answer_beyond_the_limit_is_cut_and_does_not_look_whole(site: Any) -> None:
    port, _ = site
    with proxy_for(local(port), down_bytes=100_000) as (proxy, at), client(at) as web:
        assert len(web.get(f"http://127.0.0.1:{port}/?size=100000").content) == 100_000
        with pytest.raises(httpx.RemoteProtocolError):
            web.get(f"http://127.0.0.1:{port}/?size=100001")
        with pytest.raises(httpx.RemoteProtocolError):
            web.get(f"http://127.0.0.1:{port}/chunked?size=1000000")
        log = settled(proxy, 3)
    assert [access.ended for access in log] == ["finished", "byte limit", "byte limit"]
    assert all(access.down_bytes <= 100_000 for access in log)


def test_a_request_beyond_the_limit_is_refused(site: Any) -> None:
    port, _ = site
    with proxy_for(local(port, methods=("POST",)), up_bytes=1000) as (proxy, at), client(at) as web:
        assert web.post(f"http://127.0.0.1:{port}/", content=b"x" * 1000).status_code == 200
        assert web.post(f"http://127.0.0.1:{port}/", content=b"x" * 1001).status_code == 413
        assert [(access.ended, access.up_bytes) for access in settled(proxy, 2)][1][0] == "byte limit"


def test_a_tunnel_and_a_sandbox_have_limits_too(echo: int) -> None:
    with proxy_for(local(echo), total_bytes=50_000) as (proxy, at):
        request = f"CONNECT 127.0.0.1:{echo} HTTP/1.1\r\nHost: x\r\n\r\n"
        assert ask(at, request, then=b"x" * 10_000, half_close=True).endswith(b"end")
        assert not ask(at, request, then=b"x" * 40_000, half_close=True).endswith(b"end")
        log = settled(proxy, 2)
    assert [access.ended for access in log] == ["finished", "byte limit"]
    assert sum(access.up_bytes + access.down_bytes for access in log) <= 50_000


def test_a_slow_host_and_a_silent_tunnel_end(site: Any, echo: int) -> None:
    port, _ = site
    with proxy_for(local(port), local(echo), idle_s=0.2) as (proxy, at):
        assert ask(at, f"GET http://127.0.0.1:{port}/slow HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 504")
        assert ask(at, f"CONNECT 127.0.0.1:{echo} HTTP/1.1\r\nHost: x\r\n\r\n", then=b"a").startswith(b"HTTP/1.1 200")
        assert [access.ended for access in settled(proxy, 2)] == ["time limit", "time limit"]
    with proxy_for(local(echo), request_s=0.2) as (proxy, at):
        assert ask(at, f"CONNECT 127.0.0.1:{echo} HTTP/1.1\r\nHost: x\r\n\r\n", then=b"a").startswith(b"HTTP/1.1 200")
        assert [access.ended for access in settled(proxy, 1)] == ["time limit"]


def test_connections_and_requests_are_counted(echo: int) -> None:
    with proxy_for(local(echo), connections=2, requests=3) as (proxy, at):
        request = f"CONNECT 127.0.0.1:{echo} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        held = [socket.create_connection(("127.0.0.1", at)) for _ in range(2)]
        for sock in held:
            sock.sendall(request)
            assert sock.recv(100).startswith(b"HTTP/1.1 200")
        assert ask(at, request.decode()).startswith(b"HTTP/1.1 503")
        for sock in held:
            sock.close()
        settled(proxy, 2)
        assert ask(at, "GET http://no.test/ HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 403")
        assert ask(at, "GET http://no.test/ HTTP/1.1\r\nHost: x\r\n\r\n").startswith(b"HTTP/1.1 429")
        assert len(proxy.log) == 3


# --- its life -----------------------------------------------------------------------------------------------------------------


def test_closing_cuts_what_runs_and_leaves_nothing(echo: int) -> None:
    with AllowListProxy([local(echo)]) as proxy:  # what the first use of a loop opens is not counted
        listener = socket.create_server(("127.0.0.1", 0))
        proxy.answer(listener).close()
        listener.close()
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    proxy = AllowListProxy([local(echo)])
    listener = socket.create_server(("127.0.0.1", 0))
    route = proxy.answer(listener)
    address = listener.getsockname()
    listener.close()
    with socket.create_connection(address) as sock:
        sock.sendall(f"CONNECT 127.0.0.1:{echo} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        route.close()
        route.close()
        assert sock.recv(100) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
    assert proxy.log[0].ended == "failed"
    proxy.close()
    proxy.close()
    for _ in range(200):  # the echo server's thread of this connection
        if (len(os.listdir("/proc/self/fd")), threading.active_count()) == before:
            break
        time.sleep(0.01)
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before
    with pytest.raises(SandboxError, match="closed"):
        proxy.answer(listener)


def test_one_proxy_serves_many_sandboxes(site: Any) -> None:
    port, _ = site
    with AllowListProxy([local(port)], ProxyLimits(requests=1)) as proxy:
        for name in ("one", "two", "three"):
            with socket.create_server(("127.0.0.1", 0)) as listener:
                route = proxy.answer(listener, name)
                with client(listener.getsockname()[1]) as web:
                    assert web.get(f"http://127.0.0.1:{port}/").status_code == 200
                    assert web.get(f"http://127.0.0.1:{port}/").status_code == 429
                route.close()
        assert [access.sandbox_id for access in proxy.log] == ["one", "two", "three"]


def test_the_variables_lead_to_the_proxy() -> None:
    assert proxy_environment(3128)["https_proxy"] == proxy_environment(3128)["HTTP_PROXY"] == "http://127.0.0.1:3128"


# --- from a sandbox -----------------------------------------------------------------------------------------------------------

_INSIDE = """
import socket, urllib.error, urllib.request
def get(url, opener=urllib.request.build_opener()):
    try:
        return opener.open(url, timeout=10).read().decode().strip()
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode().strip()}"
    except OSError as error:
        return f"{type(error).__name__}"
print(get("http://name.test:PORT/a"))
print(get("http://other.test:PORT/a"))
print(get("https://name.test:1/"))
print(get("http://127.0.0.1:PORT/", urllib.request.build_opener(urllib.request.ProxyHandler({}))))
try:
    socket.create_connection(("1.1.1.1", 53), timeout=5)
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.sandbox
def test_a_sandbox_reaches_what_is_allowed_and_nothing_else(site: Any) -> None:
    port, _ = site
    with AllowListProxy([local(port, "name.test")], resolve=resolver({"name.test": ["127.0.0.1"]})) as proxy:
        with ProcessBackend().create(SandboxConfig(env=proxy_environment(3128))) as box:
            with box.serve(3128) as listener:
                route = proxy.answer(listener, box.sandbox_id)
            done = box.exec(["python3", "-c", _INSIDE.replace("PORT", str(port))], timeout_s=60)
            assert done.stdout.splitlines() == [
                "GET /a",
                "403 other.test is not on the allow-list",
                "URLError",
                "URLError",
                "Network is unreachable",
            ], done.stderr
            assert box.exec(["python3", "-c", "import urllib.request as u; u.urlopen('http://name.test:1/')"]).exit_code == 1
            route.close()
        assert [(a.sandbox_id, a.method, a.allowed) for a in settled(proxy, 4)] == [
            (box.sandbox_id, "GET", True),
            (box.sandbox_id, "GET", False),
            (box.sandbox_id, "CONNECT", False),
            (box.sandbox_id, "GET", False),
        ]
