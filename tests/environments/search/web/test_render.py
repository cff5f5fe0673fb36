"""Pages that JavaScript makes, in a real Chromium."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.search.web import FetchConfig, NotRetrievedError
from environments.search.web.fetch import Fetcher
from environments.search.web.library import Library
from environments.tools.chromium import CHROMIUM

from .conftest import SPANNING, Request, Site, article, serving

pytestmark = pytest.mark.chromium


@pytest.fixture(autouse=True, scope="module")
def chromium(chromium_executable: str) -> Iterator[None]:
    yield
    CHROMIUM.close()


@pytest.fixture
def browsing(bounds: FetchConfig) -> FetchConfig:
    return bounds.model_copy(update={"browser": True, "render_s": 40.0, "robots": False})


def app(script: str) -> str:
    return f"<!doctype html><html><head><title>App</title></head><body><div id=root></div><script>{script}</script></body></html>"


def writes(text: str) -> str:
    return f"document.getElementById('root').innerHTML = '<article><h1>Trees</h1><p>' + {json.dumps(text)} + '</p></article>';"


def library(config: FetchConfig, folder: Path) -> Library:
    return Library(Fetcher(config, folder), folder)


def test_a_page_made_by_javascript_is_read_and_cached_and_a_plain_one_needs_no_browser(
    site: Site, browsing: FetchConfig, tmp_path: Path
) -> None:
    def slowly(request: Request) -> None:
        time.sleep(1.5)  # the page says that it loads, and is not done
        request.answer(json.dumps({"text": f"{SPANNING} {SPANNING}"}), kind="application/json")

    site.on("/data.json", slowly)
    fetched = app(
        "document.getElementById('root').innerText = 'Loading'; fetch('/data.json').then(r => r.json()).then(d => { "
        + writes("").replace('""', "d.text")
        + " })"
    )
    document = library(browsing, tmp_path).read(site.page("/app", fetched))
    assert SPANNING in document.text
    assert document.via == "browser"
    before = len(site.requests)
    assert library(browsing.model_copy(update={"offline": True}), tmp_path).read(site.address + "/app") == document
    assert len(site.requests) == before
    plain = library(browsing, tmp_path).read(site.page("/plain", article("Trees", SPANNING, SPANNING, head="<script>1</script>")))
    assert plain.via == "http"
    assert len(site.asked("/plain")) == 1


def test_scripts_reach_no_private_place_and_lead_nowhere_else(site: Site, browsing: FetchConfig, tmp_path: Path) -> None:
    with serving() as inner:
        inner.page("/secret", "the secret of another port", "text/plain", Access_Control_Allow_Origin="*")
        inner.page("/elsewhere", article("Elsewhere", SPANNING))
        tries = (
            f"const seen = []; for (const u of ['http://127.0.0.1:{inner.port}/secret', 'http://169.254.169.254/', "
            f"'http://localhost:{inner.port}/secret', 'file:///etc/passwd']) "
            "{ fetch(u).then(r => r.text()).then(t => seen.push(t)).catch(e => seen.push('refused')); }"
            f"new WebSocket('ws://127.0.0.1:{inner.port}/secret');"
            f"setTimeout(() => {{ {writes('SEEN ' + SPANNING)} "
            "document.querySelector('p').append(seen.join('|')); "
            f"location.href = 'http://127.0.0.1:{inner.port}/elsewhere'; }}, 300);"
        )
        config = browsing.model_copy(update={"private": (f"127.0.0.1:{site.port}",)})
        document = library(config, tmp_path).read(site.page("/app", app(tries)))
        assert "SEEN" in document.text
        assert "the secret" not in document.text
        assert inner.requests == []


@pytest.mark.parametrize(
    ("script", "kind"),
    [
        ("while (true) {}", "timeout"),
        ("throw new Error('broken')", "no_text"),
        ("document.body.innerHTML = '<p>' + 'x'.repeat(1e6)", "too_large"),
        ("location.href = 'about:blank'", "browser"),
        ("alert('stop'); confirm('really')", "no_text"),
    ],
)
def test_scripts_that_go_wrong_are_outcomes(script: str, kind: str, site: Site, browsing: FetchConfig, tmp_path: Path) -> None:
    config = browsing.model_copy(update={"render_s": 4.0 if kind == "timeout" else 40.0})
    with pytest.raises(NotRetrievedError) as caught:
        library(config, tmp_path).read(site.page("/app", app(script)))
    assert caught.value.outcome.kind == kind


def test_without_a_browser_the_page_is_said_to_need_one(site: Site, bounds: FetchConfig, tmp_path: Path) -> None:
    with pytest.raises(NotRetrievedError, match="without JavaScript"):
        library(bounds, tmp_path).read(site.page("/app", app(writes(SPANNING))))


def test_requests_and_downloads_of_a_page_are_bounded(site: Site, browsing: FetchConfig, tmp_path: Path) -> None:
    def data(request: Request) -> None:
        request.answer(b"1", kind="text/plain")

    site.on("/data", data)
    many = f"{writes(SPANNING)} for (let i = 0; i < 150; i++) fetch('/data?' + i).catch(() => 0); new Image().src = '/picture.png';"
    document = library(browsing, tmp_path).read(site.page("/app", app(many)))
    assert SPANNING in document.text
    assert len(site.asked("/data")) <= 100
    assert site.asked("/picture.png") == []
