from __future__ import annotations

import gzip
import multiprocessing
import pickle
import ssl
import struct
import time
import tracemalloc
import zlib
from pathlib import Path

import pytest
import trustme

from environments.errors import InfrastructureError
from environments.search.web import FetchConfig, NotRetrievedError
from environments.search.web.extract import extract
from environments.search.web.fetch import Fetcher
from environments.search.web.guard import Guard, canonical, system_resolve
from environments.search.web.hosts import Hosts
from environments.search.web.outcome import RefusedError

from .conftest import SPANNING, Request, Site, article, bomb, serving

PAGE = article("Spanning trees", SPANNING)


def fails(fetcher: Fetcher, address: str) -> str:
    """The kind of the outcome, which is also the last in the journal."""
    with pytest.raises(NotRetrievedError) as caught:
        fetcher.fetch(address)
    assert fetcher.journal.read()[-1] == caught.value.outcome
    return caught.value.outcome.kind


def test_a_page_is_fetched_once_and_then_read_from_the_cache_offline(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    address = site.page("/tree", PAGE)
    first = Fetcher(bounds, tmp_path).fetch(address + "#part")
    offline = Fetcher(bounds.model_copy(update={"offline": True}), tmp_path)
    assert offline.fetch(address) == first
    assert first.body == PAGE.encode()
    assert len(site.asked("/tree")) == 1
    assert [o.kind for o in offline.journal.read()] == ["retrieved", "cached"]
    assert fails(offline, site.address + "/other") == "offline"
    assert len(site.asked("/other")) == 0


@pytest.mark.parametrize("validator", [{"ETag": '"v1"'}, {"Last-Modified": "Mon, 05 Jan 2026 10:00:00 GMT"}])
def test_an_old_page_is_revalidated(validator: dict[str, str], site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    def reply(request: Request) -> None:
        known = (
            request.headers.get("if-none-match") == '"v1"' or request.headers.get("if-modified-since") == "Mon, 05 Jan 2026 10:00:00 GMT"
        )
        request.answer(b"" if known else PAGE, 304 if known else 200, headers=validator)

    address = site.on("/tree", reply)
    fetcher = Fetcher(bounds.model_copy(update={"max_age_s": 0.0}), tmp_path)
    first, second = fetcher.fetch(address), fetcher.fetch(address)
    assert second.body == first.body
    assert second.record.retrieved_at == first.record.retrieved_at < second.record.checked_at
    assert [o.kind for o in fetcher.journal.read()] == ["retrieved", "revalidated"]


def test_a_changed_page_replaces_the_old_one_and_a_broken_host_does_not(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    fetcher = Fetcher(bounds.model_copy(update={"max_age_s": 0.0}), tmp_path)
    address = site.page("/tree", PAGE)
    fetcher.fetch(address)
    site.page("/tree", PAGE + "<!-- new -->")
    assert fetcher.fetch(address).body.endswith(b"new -->")
    site.on("/tree", lambda r: r.answer("down", 500))
    assert fetcher.fetch(address).body.endswith(b"new -->")
    assert [o.kind for o in fetcher.journal.read()] == ["retrieved", "retrieved", "stale"]


@pytest.mark.parametrize("damage", ["content", "pages"])
def test_a_damaged_cache_entry_counts_as_absent(damage: str, site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    address = site.page("/tree", PAGE)
    fetcher = Fetcher(bounds, tmp_path)
    fetcher.fetch(address)
    for path in (tmp_path / damage).rglob("*"):
        if path.is_file() and path.suffix != ".lock":
            path.write_bytes(path.read_bytes()[:-9])
    assert fetcher.fetch(address).body == PAGE.encode()
    assert len(site.asked("/tree")) == 2


def _fetch_in_another(folder: Path, bounds: FetchConfig, address: str) -> None:
    assert Fetcher(bounds, folder).fetch(address).body == PAGE.encode()


def test_processes_that_want_the_same_page_fetch_it_once(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    def slowly(request: Request) -> None:
        time.sleep(0.3)
        request.answer(PAGE)

    address = site.on("/tree", slowly)
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_fetch_in_another, args=(tmp_path, bounds, address)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert [w.exitcode for w in workers] == [0] * 4
    assert len(site.asked("/tree")) == 1


# --- what servers do wrong ---


def test_fifty_megabytes_are_refused_unread_when_announced_and_cut_when_not(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    sent: list[int] = []

    def announced(request: Request) -> None:
        request.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 52428800\r\n\r\n" + b"x" * 1000)
        sent.append(0)

    def endless(request: Request) -> None:
        request.raw(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n")
        for i in range(800):
            sent.append(i)
            request.raw(b"x" * 65536)

    fetcher = Fetcher(bounds, tmp_path)
    assert fails(fetcher, site.on("/announced", announced)) == "too_large"
    assert fails(fetcher, site.on("/endless", endless)) == "too_large"
    deadline = time.monotonic() + 5
    while not site.asked("/endless") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(sent) < 400  # most of the 50 MB never left the server
    assert not list((tmp_path / "content").rglob("*"))


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_compressed_bomb_stops_at_the_limit(encoding: str, site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    data = bomb(100 << 20) if encoding == "gzip" else zlib.compress(b"\0" * (100 << 20), 9)
    assert len(data) < bounds.max_bytes
    address = site.page("/bomb", data, "text/plain", Content_Encoding=encoding)
    tracemalloc.start()
    try:
        assert fails(Fetcher(bounds, tmp_path), address) == "too_large"
        assert tracemalloc.get_traced_memory()[1] < 10 << 20  # never expanded as a whole
    finally:
        tracemalloc.stop()


def test_compressed_pages_are_read(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    raw = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    bodies = {
        "gzip": gzip.compress(PAGE[:50].encode()) + gzip.compress(PAGE[50:].encode()),
        "deflate": zlib.compress(PAGE.encode()),
        "x-gzip": gzip.compress(PAGE.encode()),
        "identity": PAGE.encode(),
    }
    fetcher = Fetcher(bounds, tmp_path)
    for name, body in bodies.items():
        assert fetcher.fetch(site.page(f"/{name}", body, Content_Encoding=name)).body == PAGE.encode()
    assert fetcher.fetch(site.page("/raw", raw.compress(PAGE.encode()) + raw.flush(), Content_Encoding="deflate")).body == PAGE.encode()


@pytest.mark.parametrize(("body", "encoding"), [(b"no gzip at all", "gzip"), (gzip.compress(PAGE.encode())[:-20], "gzip"), (b"x", "br")])
def test_broken_compression_is_an_outcome(body: bytes, encoding: str, site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    assert fails(Fetcher(bounds, tmp_path), site.page("/broken", body, Content_Encoding=encoding)) == "bad_encoding"


def trickle(site: Site, first: bytes, piece: bytes) -> None:
    def reply(request: Request) -> None:
        request.raw(first)
        while not site.closing.wait(0.1):
            request.raw(piece)

    site.on("/slow", reply)


@pytest.mark.parametrize(
    ("first", "piece"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<html><body>", b"<p>and on"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/html\r\n\r\n", b"1\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\n", b"X-More: yes\r\n"),
        (b"", b"H"),
    ],
    ids=["body", "chunks", "headers", "status"],
)
def test_a_trickle_that_never_ends_is_cut_by_the_total_time(
    first: bytes, piece: bytes, site: Site, bounds: FetchConfig, tmp_path: Path
) -> None:
    trickle(site, first, piece)
    fetcher = Fetcher(bounds.model_copy(update={"fetch_s": 0.6, "robots": False}), tmp_path)
    assert fails(fetcher, site.address + "/slow") == "timeout"


def test_a_hang_before_the_headers_is_a_timeout(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    def hang(request: Request) -> None:
        site.closing.wait(5)

    address = site.on("/hang", hang)
    assert fails(Fetcher(bounds.model_copy(update={"idle_s": 0.3}), tmp_path), address) == "timeout"


@pytest.mark.parametrize(
    "said",
    [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\nContent-Type: text/html\r\n\r\nhalf", b"\x16\x03\x01\x00\x00"],
    ids=["nothing", "garbage", "half a body", "TLS"],
)
def test_what_is_no_whole_http_answer_is_an_outcome(said: bytes, site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    address = site.on("/odd", lambda request: request.raw(said))
    assert fails(Fetcher(bounds, tmp_path), address) == "protocol"


def test_a_reset_connection_is_an_outcome(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    def reset(request: Request) -> None:
        request.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\nContent-Type: text/html\r\n\r\nhalf")
        request.socket.setsockopt(1, 13, struct.pack("ii", 1, 0))  # SOL_SOCKET, SO_LINGER: close by reset

    assert fails(Fetcher(bounds, tmp_path), site.on("/reset", reset)) == "protocol"


def test_lasting_failures_are_remembered(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    fetcher = Fetcher(bounds, tmp_path)
    for _ in range(2):
        assert fails(fetcher, site.address + "/absent") == "client_error"
    assert len(site.asked("/absent")) == 1
    forgetful = Fetcher(bounds.model_copy(update={"failure_age_s": 0.0}), tmp_path)
    assert fails(forgetful, site.address + "/absent") == "client_error"
    assert len(site.asked("/absent")) == 2


def test_an_answer_without_content_and_robots_txt_itself(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    fetcher = Fetcher(bounds, tmp_path)
    robots = site.page("/robots.txt", "User-agent: *\nDisallow: /r", "text/plain")
    assert fails(fetcher, site.on("/empty", lambda r: r.answer(b"", 204))) == "no_text"
    assert fetcher.fetch(robots).body.startswith(b"User-agent")  # the one page that is always allowed


@pytest.mark.parametrize("kind", ["image/png", "application/pdf", "video/mp4", "application/zip"])
def test_declared_binary_types_are_refused_before_their_body(kind: str, site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    def reply(request: Request) -> None:
        request.raw(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: 100000\r\n\r\n".encode())
        site.closing.wait(5)

    assert fails(Fetcher(bounds, tmp_path), site.on("/file", reply)) == "unsupported_type"


# --- redirects and addresses ---


def redirect(site: Site, path: str, to: str, status: int = 302) -> str:
    return site.on(path, lambda request: request.answer(b"", status, headers={"Location": to}))


def test_redirects_are_followed_to_a_limit_and_never_in_a_circle(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    site.page("/end", PAGE)
    for i, status in enumerate((301, 302, 303, 307, 308)):
        redirect(site, f"/hop{i}", f"/hop{i + 1}" if i < 4 else "/end", status)
    fetcher = Fetcher(bounds, tmp_path)
    page = fetcher.fetch(site.address + "/hop0")
    assert (page.record.final_address, page.body) == (site.address + "/end", PAGE.encode())
    redirect(site, "/before", "/hop0")
    assert fails(fetcher, site.address + "/before") == "redirects"
    redirect(site, "/a", "/b")
    assert fails(fetcher, redirect(site, "/b", "/a")) == "redirects"
    assert fails(fetcher, redirect(site, "/self", "/self#other")) == "redirects"
    assert len(site.asked("/self")) == 1
    assert fails(fetcher, redirect(site, "/file", "file:///etc/passwd")) == "bad_address"
    assert fails(fetcher, redirect(site, "/nowhere", "http://[")) == "bad_address"


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://localhost.example:{port}/secret",
        "http://2130706433:{port}/secret",
        "http://0x7f.1:{port}/secret",
        "http://[::ffff:127.0.0.1]:{port}/secret",
        "http://0.0.0.0:{port}/secret",
    ],
)
def test_a_redirect_to_a_private_place_is_refused(target: str, site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    site.page("/secret", PAGE)
    address = redirect(site, "/innocent", target.format(port=site.port))
    config = bounds.model_copy(update={"private": (f"127.0.0.1:{site.port}",), "ports": (80, 443, site.port)})

    def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"] if host == "localhost.example" else list(system_resolve(host, port))

    fetcher = Fetcher(config, tmp_path, resolve)
    # A name of only digits and dots reaches the rules as the address it stands for on some systems; nowhere may it be fetched.
    assert fails(fetcher, address) in ("private_address", "unresolved", "bad_address", "host_denied")
    assert len(site.asked("/secret")) == 0


def test_a_name_that_changes_its_address_is_connected_to_where_it_was_checked(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    """DNS rebinding: the second look-up would be private, but there is none."""
    answers = [["127.0.0.1"]]

    def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0)  # a second look-up would fail the test with an IndexError

    site.page("/tree", PAGE)
    config = bounds.model_copy(update={"private": ("rebind.example",), "robots": False})
    assert Fetcher(config, tmp_path, resolve).fetch(f"http://rebind.example:{site.port}/tree").body == PAGE.encode()
    assert site.requests[-1].headers["host"] == f"rebind.example:{site.port}"
    answers[:] = [["93.184.215.14", "127.0.0.1"]]
    mixed = bounds.model_copy(update={"private": (), "robots": False, "ports": (site.port,)})
    assert fails(Fetcher(mixed, tmp_path, resolve), f"http://mixed.example:{site.port}/tree") == "private_address"


def test_host_rules(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    address = site.page("/tree", PAGE)
    for change, kind in (
        ({"allow": ("example.org", "*.example.net")}, "host_denied"),
        ({"deny": ("127.0.0.1",)}, "host_denied"),
        ({"private": ()}, "host_denied"),  # the port is not 80 or 443
        ({"private": (), "ports": (site.port,)}, "private_address"),
        ({"private": ("127.0.0.1:1",)}, "host_denied"),
    ):
        assert fails(Fetcher(bounds.model_copy(update=change), tmp_path), address) == kind
    assert site.requests == []
    for wrong in ("ftp://127.0.0.1/x", "http://user:secret@127.0.0.1/", "//x", "http://", "javascript:alert(1)", "http://a b/", "x" * 3000):
        assert fails(Fetcher(bounds, tmp_path), wrong) == "bad_address"
    assert "secret" not in (tmp_path / "outcomes.jsonl").read_text().replace("user:secret@127.0.0.1/", "")


def test_patterns_cover_subdomains_and_nothing_else(bounds: FetchConfig, tmp_path: Path) -> None:
    guard = Guard(FetchConfig(allow=("example.org", "*.example.net"), deny=("bad.example.net",)))
    for allowed in ("https://example.org/", "http://EXAMPLE.org./x", "https://a.b.example.net/"):
        guard.check(canonical(allowed))
    for denied in (
        "https://www.example.org/",
        "https://example.net/",
        "https://bad.example.net/",
        "https://evilexample.net/",
        "https://example.org:8443/",
    ):
        with pytest.raises(RefusedError, match="host_denied"):
            guard.check(canonical(denied))


def test_tls_is_verified(bounds: FetchConfig, tmp_path: Path, site: Site) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    (tmp_path / "ca.pem").write_bytes(authority.cert_pem.bytes())
    trusting = bounds.model_copy(update={"ca_file": tmp_path / "ca.pem"})
    with serving(context) as secure:
        secure.page("/tree", PAGE)
        by_name = f"https://localhost:{secure.port}/tree"
        assert Fetcher(trusting, tmp_path / "a").fetch(by_name).body == PAGE.encode()
        assert fails(Fetcher(bounds, tmp_path / "b"), by_name) == "tls"  # an authority that nobody knows
        assert fails(Fetcher(trusting, tmp_path / "c"), f"https://127.0.0.1:{secure.port}/tree") == "tls"  # a certificate for another name
    site.page("/tree", PAGE)
    assert fails(Fetcher(bounds, tmp_path / "d"), f"https://127.0.0.1:{site.port}/tree") == "tls"  # no TLS at all


# --- manners ---


def test_robots_txt_is_obeyed(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    site.page("/robots.txt", "User-agent: *\nDisallow: /private\nAllow: /private/but\n\nUser-agent: other\nDisallow: /", "text/plain")
    for path in ("/tree", "/private/x", "/private/but"):
        site.page(path, PAGE)
    fetcher = Fetcher(bounds, tmp_path)
    fetcher.fetch(site.address + "/tree")
    fetcher.fetch(site.address + "/private/but")
    assert fails(fetcher, site.address + "/private/x") == "robots"
    assert fails(fetcher, redirect(site, "/sly", "/private/x")) == "robots"
    assert site.asked("/private/x") == []
    assert len(site.asked("/robots.txt")) == 1
    Fetcher(bounds.model_copy(update={"robots": False}), tmp_path).fetch(site.address + "/private/x")


def test_robots_txt_that_fails_forbids_and_one_that_is_absent_allows(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    site.page("/tree", PAGE)
    site.on("/robots.txt", lambda r: r.answer("", 503))
    assert fails(Fetcher(bounds, tmp_path / "a"), site.address + "/tree") == "robots"
    site.page("/robots.txt", b"\xff\xfe\x00binary" + b"\n" * 900_000 + b"User-agent: *\nDisallow: /", "image/png")
    Fetcher(bounds, tmp_path / "b").fetch(site.address + "/tree")  # what is behind the limit of 500 KiB does not count
    del site.pages["/robots.txt"]
    Fetcher(bounds, tmp_path / "c").fetch(site.address + "/tree")


def test_a_host_gets_its_requests_one_by_one_at_the_interval(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    config = bounds.model_copy(update={"interval_s": 0.5, "max_wait_s": 1.0})
    waited: list[float] = []
    one, other = (Hosts(tmp_path / "hosts", config, clock=lambda: 1000.0, sleep=waited.append) for _ in range(2))  # as in two processes
    assert [hosts.admit("a.example") for hosts in (one, other, one)] == [0.0, 0.5, 1.0]
    assert other.admit("b.example") == 0.0
    assert waited == [0.5, 1.0]
    with pytest.raises(RefusedError, match="rate_limited"):
        other.admit("a.example")
    hasty = Fetcher(bounds.model_copy(update={"interval_s": 50.0, "max_wait_s": 0.0, "robots": False}), tmp_path / "hasty")
    hasty.fetch(site.page("/a", PAGE))
    assert fails(hasty, site.page("/b", PAGE)) == "rate_limited"
    assert site.asked("/b") == []


def _fail_often(folder: Path, bounds: FetchConfig) -> None:
    for _ in range(100):
        Hosts(folder, bounds).failed("a.example", "it is dead")


def test_processes_lose_nothing_of_what_they_know_of_a_host(bounds: FetchConfig, tmp_path: Path) -> None:
    config = bounds.model_copy(update={"failures": 400})
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_fail_often, args=(tmp_path, config)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    with pytest.raises(RefusedError, match="circuit_open"):  # opens with the 400th failure and not before
        Hosts(tmp_path, config).admit("a.example")


def test_a_host_file_that_is_cut_starts_afresh(bounds: FetchConfig, tmp_path: Path) -> None:
    hosts = Hosts(tmp_path, bounds)
    hosts.defer("a.example", 100.0, "it asked for it")
    with pytest.raises(RefusedError, match="circuit_open"):
        hosts.admit("a.example")
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:20])
    assert hosts.admit("a.example") == 0.0


def test_the_crawl_delay_of_robots_txt_counts(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    site.page("/robots.txt", "User-agent: *\nCrawl-delay: 60", "text/plain")
    fetcher = Fetcher(bounds.model_copy(update={"max_wait_s": 0.0}), tmp_path)
    fetcher.fetch(site.page("/a", PAGE))
    assert fails(fetcher, site.page("/b", PAGE)) == "rate_limited"


@pytest.mark.parametrize("said", ["120", "Fri, 31 Dec 2100 23:59:59 GMT", ""])
def test_retry_after_is_respected_by_all(said: str, site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    address = site.on("/busy", lambda r: r.answer("", 429, headers={"Retry-After": said} if said else {}))
    other = site.page("/tree", PAGE)
    assert fails(Fetcher(bounds, tmp_path), address) == "rate_limited"
    again = Fetcher(bounds, tmp_path)
    assert fails(again, address) == "circuit_open"
    assert fails(again, other) == "circuit_open"
    assert len(site.asked("/busy")) == 1
    assert site.asked("/tree") == []


def test_a_host_that_keeps_failing_is_left_alone_and_tried_again_later(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    config = bounds.model_copy(update={"failures": 2, "cooldown_s": 60.0, "robots": False})
    address = site.on("/tree", lambda r: r.answer("", 500))
    with serving() as healthy:
        good = healthy.page("/tree", PAGE)
        fetcher = Fetcher(config, tmp_path)
        assert [fails(fetcher, address) for _ in range(4)] == ["server_error", "server_error", "circuit_open", "circuit_open"]
        assert len(site.asked("/tree")) == 2
        assert fetcher.fetch(good).body == PAGE.encode()  # a dead host costs its own pages only
    fetcher.hosts = Hosts(tmp_path / "hosts", config, clock=lambda: time.time() + 70)
    assert [fails(fetcher, address), fails(fetcher, address)] == ["server_error", "circuit_open"]  # one tried, and in vain
    fetcher.hosts = Hosts(tmp_path / "hosts", config, clock=lambda: time.time() + 130)
    assert fails(fetcher, address) == "circuit_open"  # for twice as long this time
    site.page("/tree", PAGE)
    fetcher.hosts = Hosts(tmp_path / "hosts", config, clock=lambda: time.time() + 300)
    assert fetcher.fetch(address).body == PAGE.encode()
    assert fetcher.fetch(site.page("/other", PAGE)).body == PAGE.encode()  # and all is forgotten


def test_a_dead_port_and_an_unknown_name_are_outcomes(bounds: FetchConfig, tmp_path: Path) -> None:
    with serving() as gone:
        address = gone.address + "/tree"
    fetcher = Fetcher(bounds, tmp_path)
    assert fails(fetcher, address) == "unreachable"
    assert fails(fetcher, "http://no-such-name.invalid/") == "unresolved"

    def never(host: str, port: int) -> list[str]:
        time.sleep(3)
        return []

    hanging = Fetcher(bounds.model_copy(update={"connect_s": 0.2}), tmp_path, never)
    assert fails(hanging, "http://slow.example/") == "unresolved"


def test_the_error_travels_between_processes_and_names_the_fix(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    with pytest.raises(KeyError) as caught:
        Fetcher(bounds.model_copy(update={"private": (), "ports": (site.port,)}), tmp_path).fetch(site.address + "/x")
    again = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(again, InfrastructureError)
    assert again.outcome.kind == "private_address"
    assert "`private`" in str(again)


def test_a_page_that_was_cached_still_gives_its_text(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    page = Fetcher(bounds, tmp_path).fetch(site.page("/tree", PAGE))
    assert SPANNING in extract(page.body, page.record.media_type, page.record.final_address).text
