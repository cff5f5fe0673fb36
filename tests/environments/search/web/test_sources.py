from __future__ import annotations

import logging
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from environments.errors import ConfigError
from environments.protocols import Document, Hit, SearchSource
from environments.search.web import (
    FetchConfig,
    MergedSource,
    NotRetrievedError,
    Outcome,
    RetrievalConfig,
    RetrievedDocument,
    SearchApiConfig,
    SearxngConfig,
    WebSource,
    open_sources,
)
from environments.search.web.outcome import Journal
from environments.search.web.source import fuse

from .conftest import SPANNING, Request, Site, article, serving

TOPICS = ("spanning trees", "matroids", "greedy algorithms", "cut properties")


def outcomes(folder: Path) -> list[Outcome]:
    return Journal(folder / "outcomes.jsonl").read()


def kinds(folder: Path) -> set[str]:
    return {o.kind for o in outcomes(folder)}


@pytest.fixture
def web(site: Site) -> Site:
    """A SearXNG-like service at /search and four pages that it finds."""
    found = []
    for i, topic in enumerate(TOPICS):
        text = f"{topic.capitalize()} matter here, number {i}. {SPANNING} All of {topic} is explained on this page."
        foot = '<a rel="license" href="https://creativecommons.org/licenses/by/4.0/">CC BY</a>' if i == 0 else ""
        address = site.page(f"/page{i}", article(topic.title(), text, foot=foot))
        found.append({"url": address, "title": topic, "content": f"about {topic}", "engine": "test", "score": 4.0 - i})
    site.json("/search", {"query": "q", "number_of_results": 4, "results": found, "unresponsive_engines": []})
    return site


def searxng(site: Site, bounds: FetchConfig, **more: Any) -> RetrievalConfig:
    return RetrievalConfig(searxng=(SearxngConfig(url=site.address, interval_s=0.0),), fetch=bounds, **more)


def test_a_searxng_is_searched_and_its_pages_opened(web: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    source: SearchSource = open_sources(searxng(web, bounds), tmp_path)
    hits = source.search("spanning  trees", 3)
    assert [h.title for h in hits] == ["Spanning Trees", "Matroids", "Greedy Algorithms"]
    assert "spanning" in hits[0].snippet.lower()
    assert web.asked("/search")[0].query == {"q": ["spanning trees"], "format": ["json"]}
    document = source.open(hits[0].document_id)
    assert isinstance(document, RetrievedDocument)
    assert (document.source, document.licence, document.address) == ("127.0.0.1", "CC-BY-4.0", f"{web.address}/page0")
    assert document.untrusted
    assert document.retrieved_at.startswith("20")
    assert len(document.sha256) == 64
    assert source.open(hits[1].document_id).licence == "unknown"


def test_a_search_is_repeated_offline_and_by_another_process(web: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    source = open_sources(searxng(web, bounds), tmp_path)
    hits = source.search("spanning trees", 4)
    before = len(web.requests)
    offline = open_sources(searxng(web, bounds.model_copy(update={"offline": True})), tmp_path)
    assert offline.search("spanning trees", 4) == hits
    assert [offline.open(h.document_id) for h in hits] == [source.open(h.document_id) for h in hits]
    copy = pickle.loads(pickle.dumps(source))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_titles, (copy, [h.document_id for h in hits])) == [h.title for h in hits]
    assert len(web.requests) == before
    assert offline.search("never asked", 4) == []
    assert outcomes(tmp_path)[-1].kind == "offline"


def _titles(source: SearchSource, ids: list[str]) -> list[str]:
    return [source.open(i).title for i in ids]


def test_pages_that_fail_cost_themselves_and_the_next_take_their_place(web: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    web.on("/page0", lambda r: r.answer("", 500))
    web.page("/page1", bytes(range(256)) * 20)
    hits = open_sources(searxng(web, bounds), tmp_path).search("spanning trees", 2)
    assert [h.title for h in hits] == ["Greedy Algorithms", "Cut Properties"]
    assert {"server_error", "binary", "retrieved"} <= kinds(tmp_path)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda r: r.answer('{"results": [{"url": "http', kind="application/json"), "malformed"),
        (lambda r: r.answer("<html>Too many requests</html>"), "malformed"),
        (lambda r: r.answer("[" * 100_000, kind="application/json"), "malformed"),
        (lambda r: r.answer('{"results": "none"}', kind="application/json"), "malformed"),
        (lambda r: r.answer('{"results": [{"link": "x"}, 7, null]}', kind="application/json"), "malformed"),
        (lambda r: r.answer("[]", kind="application/json"), "malformed"),
        (lambda r: r.answer(b"\xff\xfe\x00", kind="application/json"), "malformed"),
        (lambda r: r.answer("", 500), "server_error"),
        (lambda r: r.answer("", 403), "client_error"),
        (lambda r: r.answer("", 429, headers={"Retry-After": "30"}), "rate_limited"),
        (lambda r: r.answer("", 302, headers={"Location": "http://127.0.0.1:1/"}), "redirects"),
        (lambda r: r.raw(b""), "protocol"),
        (lambda r: r.answer(b" " * 300_000, kind="application/json"), "too_large"),
    ],
)
def test_a_service_that_answers_garbage_costs_its_own_results(
    answer: Any, kind: str, site: Site, web: Site, bounds: FetchConfig, tmp_path: Path
) -> None:
    with serving() as broken:
        broken.on("/search", answer)
        config = RetrievalConfig(
            searxng=(SearxngConfig(name="broken", url=broken.address), SearxngConfig(name="good", url=web.address)), fetch=bounds
        )
        source = open_sources(config, tmp_path)
        assert [h.title for h in source.search("spanning trees", 2)] == ["Spanning Trees", "Matroids"]
    assert kind in kinds(tmp_path)


def test_a_service_that_hangs_costs_its_own_query(web: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    with serving() as slow:

        def hang(request: Request) -> None:
            slow.closing.wait(20)

        slow.on("/search", hang)
        services = (SearxngConfig(name="slow", url=slow.address, fetch_s=0.5), SearxngConfig(name="good", url=web.address))
        config = RetrievalConfig(searxng=services, fetch=bounds)
        assert len(open_sources(config, tmp_path).search("spanning trees", 4)) == 4
    assert "timeout" in kinds(tmp_path)


def test_a_query_ends_with_its_time_and_leaves_out_what_is_late(web: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    def hang(request: Request) -> None:
        web.closing.wait(20)

    web.on("/page1", hang)
    fetch = bounds.model_copy(update={"idle_s": 20.0, "fetch_s": 20.0})
    hits = open_sources(searxng(web, fetch, search_s=3.0), tmp_path).search("spanning trees", 4)
    assert [h.title for h in hits] == ["Spanning Trees", "Greedy Algorithms", "Cut Properties"]


def test_results_at_private_or_odd_addresses_are_not_fetched(web: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    """The service may stand on a private address because the user named it; what it names may not."""
    with serving() as inner:
        inner.page("/secret", article("Secret", SPANNING))
        web.json(
            "/search",
            {
                "results": [
                    {"url": u} for u in (f"{inner.address}/secret", "file:///etc/passwd", "javascript:alert(1)", "http://169.254.169.254/")
                ]
            },
        )
        fetch = bounds.model_copy(update={"private": (), "ports": (80, inner.port)})
        assert open_sources(searxng(web, fetch), tmp_path).search("spanning trees", 4) == []
        assert inner.requests == []
    assert {"private_address", "bad_address"} <= kinds(tmp_path)


def test_a_service_that_found_nothing_is_asked_again_before_long(web: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    source = open_sources(searxng(web, bounds.model_copy(update={"failure_age_s": 0.0})), tmp_path)
    web.pages["/good"] = web.pages["/search"]
    web.json("/search", {"results": [], "unresponsive_engines": [["test", "timeout"]]})
    assert source.search("spanning trees", 4) == []
    web.pages["/search"] = web.pages["/good"]
    assert len(source.search("spanning trees", 4)) == 4


def test_the_same_page_under_several_addresses_is_one_hit(web: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    page = article("Spanning Trees", SPANNING)
    first, copy = web.page("/first", page), web.page("/copy", page)
    web.on("/moved", lambda r: r.answer(b"", 301, headers={"Location": "/first"}))
    web.json("/search", {"results": [{"url": u} for u in (first, first + "#top", web.address + "/moved", copy)]})
    hits = open_sources(searxng(web, bounds), tmp_path).search("spanning trees", 4)
    assert len(hits) == 1
    assert len(web.asked("/first")) <= 2


def test_open_takes_ids_of_its_own_only(web: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    source = open_sources(searxng(web, bounds), tmp_path)
    (tmp_path / "documents").mkdir(parents=True, exist_ok=True)
    for wrong in ("web-0123456789abcdef", "../../etc/passwd", "web-../../../x", "", "http://127.0.0.1/"):
        with pytest.raises(KeyError):
            source.open(wrong)


# --- keyed services ---


def keyed(site: Site, bounds: FetchConfig, **more: Any) -> RetrievalConfig:
    api = SearchApiConfig(name="keyed", url=f"{site.address}/api", key="TEST_SEARCH_KEY", interval_s=0.0, **more)
    return RetrievalConfig(apis=(api,), fetch=bounds)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TEST_SEARCH_KEY", "s3cr3t-k3y-0123456789")
    return "s3cr3t-k3y-0123456789"


def test_one_adapter_speaks_to_three_kinds_of_services(web: Site, bounds: FetchConfig, key: str, tmp_path: Path) -> None:
    page = f"{web.address}/page0"
    web.json("/api", {"web": {"results": [{"url": page, "title": "t", "description": "d"}]}})
    like_brave = keyed(web, bounds, key_header="X-Subscription-Token", limit="count", results="web.results", snippet="description")
    assert [h.title for h in open_sources(like_brave, tmp_path / "a").search("trees", 5)] == ["Spanning Trees"]
    asked = web.asked("/api")[-1]
    assert (asked.method, asked.query, asked.headers["x-subscription-token"]) == ("GET", {"q": ["trees"], "count": ["10"]}, key)

    web.json("/api", {"organic": [{"link": page, "title": "t", "snippet": "s"}]})
    like_serper = keyed(web, bounds, method="POST", key_header="X-API-KEY", limit="num", results="organic", address="link")
    assert len(open_sources(like_serper, tmp_path / "b").search("trees", 5)) == 1
    asked = web.asked("/api")[-1]
    assert (asked.method, asked.body, asked.headers["x-api-key"]) == ("POST", b'{"q": "trees", "num": 10}', key)

    web.json("/api", {"results": [{"url": page, "title": "t", "content": "s"}]})
    more = {
        "query": "query",
        "limit": "max_results",
        "key_format": "Bearer {key}",
        "snippet": "content",
        "parameters": {"topic": "general"},
    }
    assert len(open_sources(keyed(web, bounds, method="POST", **more), tmp_path / "c").search("trees", 5)) == 1
    asked = web.asked("/api")[-1]
    assert asked.headers["authorization"] == f"Bearer {key}"
    assert asked.body == b'{"topic": "general", "query": "trees", "max_results": 10}'


def test_a_key_is_nowhere_but_in_the_request(
    web: Site, bounds: FetchConfig, key: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    source = open_sources(keyed(web, bounds), tmp_path)
    web.json("/api", {"results": [{"url": f"{web.address}/page0", "title": f"you sent {key}", "snippet": key}]})
    assert len(source.search("one", 3)) == 1
    errors = []
    for i, reply in enumerate(
        [
            lambda r: r.answer(f'{{"error": "bad key {key}"', kind="application/json"),
            lambda r: r.answer(f"bad key {key}", 401),
            lambda r: r.answer("", 302, headers={"Location": "/elsewhere"}),
        ]
    ):
        web.on("/api", reply)
        assert isinstance(source, WebSource)
        with pytest.raises(NotRetrievedError) as caught:
            source._apis[0].search(f"query {i}", 3)
        errors.append(repr(caught.value) + str(caught.value))
    assert any(request.headers.get("authorization") == key for request in web.asked("/api"))
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"page0" in kept
    said = caplog.text + "".join(errors) + repr(source.config) + repr(source) + source.content_hash
    assert key not in said
    assert key.encode() not in kept


def test_a_key_comes_from_the_caller_or_the_environment_and_else_is_missed_at_once(
    web: Site, bounds: FetchConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TEST_SEARCH_KEY", raising=False)
    with pytest.raises(ConfigError, match="TEST_SEARCH_KEY"):
        open_sources(keyed(web, bounds), tmp_path)
    web.json("/api", {"results": [{"url": f"{web.address}/page0"}]})
    source = open_sources(keyed(web, bounds), tmp_path, keys={"TEST_SEARCH_KEY": SecretStr("from-a-secret")})
    assert len(pickle.loads(pickle.dumps(source)).search("trees", 1)) == 1
    assert web.asked("/api")[0].headers["authorization"] == "from-a-secret"
    monkeypatch.setenv("TEST_SEARCH_KEY", "two\nlines")
    with pytest.raises(ConfigError, match="no header can carry") as caught:
        open_sources(keyed(web, bounds), tmp_path)
    assert "lines" not in caught.value.message


# --- several sources ---


class Fixed:
    """A source with given documents, in a given order whatever is asked."""

    def __init__(self, *ids: str) -> None:
        self.ids = ids
        self.content_hash = ",".join(ids)

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        return [Hit(i, f"title {i}", "", 1.0) for i in self.ids[:limit]]

    def open(self, document_id: str) -> Document:
        if document_id not in self.ids:
            raise KeyError(document_id)
        return Document(document_id, f"title {document_id}", "text", self.content_hash, "MIT")


def test_merged_hits_come_in_a_stable_order_and_open_where_they_are() -> None:
    merged = MergedSource([Fixed("a", "b", "c"), Fixed("x", "b"), Fixed()])
    hits = merged.search("anything", 4)
    assert [h.document_id for h in hits] == ["b", "a", "x", "c"]  # both know b; a and x are first in theirs
    assert [h.score for h in hits] == sorted((h.score for h in hits), reverse=True)
    assert all(merged.search("anything", 4) == hits for _ in range(20))
    assert merged.open("x").source == "x,b"
    with pytest.raises(KeyError):
        merged.open("nowhere")
    assert MergedSource([Fixed("a")]).content_hash != MergedSource([Fixed("b")]).content_hash


def test_fusing_nothing_and_repeats() -> None:
    assert fuse([]) == []
    assert fuse([["a", "a", "b"], []]) == ["a", "b"]


def test_configurations_that_make_no_sense_are_refused() -> None:
    for wrong in (
        {"searxng": [{"url": "searx.example.org"}]},
        {"searxng": [{"url": "https://user:pw@searx.example.org"}]},
        {"searxng": [{"url": "https://a.example"}, {"url": "https://b.example"}]},
        {"apis": [{"name": "x", "url": "http://api.example.org", "key": "K"}]},
        {"apis": [{"name": "x", "url": "https://api.example.org", "key": "K", "key_format": "Bearer"}]},
        {"apis": [{"name": "x", "url": "https://api.example.org", "key_header": "a: b"}]},
        {"git": [{"url": "git@example.org:a/b.git"}]},
        {"git": [{"url": "ext::sh -c touch% /tmp/x"}]},
        {"git": [{"url": "--upload-pack=touch /tmp/x"}]},
        {"git": [{"url": "https://example.org/a", "commit": "main"}]},
        {"fetch": {"allow": ["exa mple.org"]}},
        {"fetch": {"private": ["*.internal"]}},
        {"fetch": {"user_agent": "a\nb"}},
        {"fetch": {"max_byte": 1}},
    ):
        with pytest.raises(ValidationError):
            RetrievalConfig.model_validate(wrong)
    with pytest.raises(ConfigError, match="no source"):
        open_sources(RetrievalConfig(), Path("unused"))
