"""Pages that JavaScript makes, in the process's Chromium: behind a proxy that checks every connection as `Guard` does.

Scripts run in Chromium only, in a context of their own that ends with the page. Downloads, service workers, pictures,
films and fonts are off; the page may not lead the window to another origin; requests, bytes and time are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx

from environments.errors import InfrastructureError, MissingDependencyError
from environments.search.web.guard import Guard, canonical
from environments.search.web.outcome import RefusedError
from environments.tools.chromium import CHROMIUM
from environments.tools.sites import SiteProxy, Sites

if TYPE_CHECKING:
    from playwright.async_api import Page, Route

log = logging.getLogger(__name__)

_MAX_REQUESTS = 100
_UNWANTED = frozenset({"image", "media", "font", "websocket", "eventsource", "manifest", "other", "ping"})
_SETTLE_S = 0.5
"""Without a request on its way and a change of the text's length, after which a page counts as made; three times that without any text."""
_START_S = 60.0
_AT_A_TIME = 2
"""Pages open in a process: each takes some hundred megabytes."""
_places = threading.BoundedSemaphore(_AT_A_TIME)


def _forked() -> None:
    global _places
    _places = threading.BoundedSemaphore(_AT_A_TIME)  # the parent's may have been taken by threads that are not here


os.register_at_fork(after_in_child=_forked)


@dataclass(frozen=True)
class _Guarded(Sites):
    """What the browser's proxy may connect to: whatever the guard allows, at the address it has checked."""

    guard: Guard | None = field(default=None, compare=False)

    def connect(self, host: str, port: int, schemes: tuple[str, ...]) -> socket.socket | None:
        assert self.guard is not None
        try:
            url = canonical(f"{'https' if 'https' in schemes and port != 80 else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/")
            self.guard.check(url)
            addresses = self.guard.addresses(url.host, port, self.guard.config.connect_s)
        except RefusedError:
            return None
        error: OSError = OSError(f"{host} has no address")
        for address in addresses:
            try:
                return socket.create_connection((address, port), timeout=self.guard.config.connect_s)
            except OSError as failed:
                error = failed
        raise error


def render(url: httpx.URL, guard: Guard) -> bytes:
    """The page's HTML (UTF-8) after its scripts have run.

    Raises:
        RefusedError: `browser` when it fails or there is none, `timeout`, or `too_large`.
    """
    limit = guard.config.render_s
    places = _places
    if not places.acquire(timeout=2 * limit + _START_S):
        raise RefusedError("browser", f"the browser was busy for {2 * limit + _START_S:g} s")
    try:
        with contextlib.closing(SiteProxy(_Guarded(guard=guard))) as proxy:
            return CHROMIUM.run(_render(url, guard, proxy.address), limit + _START_S)
    except MissingDependencyError as error:
        raise RefusedError("browser", str(error)) from error
    except InfrastructureError as error:
        raise RefusedError("timeout", error.message) from error
    except RefusedError:
        raise
    except Exception as error:  # the boundary where whatever a page does to the browser's driver becomes an outcome
        log.warning("%s broke the browser", url, exc_info=True)
        raise RefusedError("browser", f"the browser failed ({type(error).__name__})") from error
    finally:
        places.release()


async def _render(url: httpx.URL, guard: Guard, proxy: str) -> bytes:
    from playwright.async_api import Error

    config = guard.config
    browser = await CHROMIUM.browser()
    context = None
    try:
        started = time.monotonic()
        async with asyncio.timeout(config.render_s):
            context = await browser.new_context(
                # Chromium goes past a proxy for loopback unless it is told not to.
                proxy={"server": proxy, "bypass": "<-loopback>"},
                accept_downloads=False,
                service_workers="block",
                locale="en-US",
                timezone_id="UTC",
                user_agent=config.user_agent,
            )
            page = await context.new_page()
            left = _MAX_REQUESTS
            origin = (url.scheme, url.netloc)

            async def decide(route: Route) -> None:
                nonlocal left
                request = route.request
                left -= 1
                elsewhere = False
                if request.is_navigation_request():
                    asked = httpx.URL(request.url)
                    elsewhere = (asked.scheme, asked.netloc) != origin
                if elsewhere:
                    await route.fulfill(status=204)  # stays where it is; after an abort Chromium would show a page of its own
                elif left < 0 or request.resource_type in _UNWANTED:
                    await route.abort()
                else:
                    await route.continue_()

            waiting: set[object] = set()
            page.on("request", lambda request: waiting.add(request))
            page.on("requestfinished", lambda request: waiting.discard(request))
            page.on("requestfailed", lambda request: waiting.discard(request))
            await context.route("**/*", decide)
            await page.goto(str(url), wait_until="domcontentloaded", timeout=config.render_s * 1000)
            await _settled(page, waiting, started + 0.75 * config.render_s)
            size = await page.evaluate("document.documentElement.outerHTML.length")
            if not isinstance(size, int | float) or size > config.max_bytes:
                raise RefusedError("too_large", f"the page makes more than {config.max_bytes} characters of HTML")
            html = (await page.content()).encode("utf-8", "replace")
            if len(html) > config.max_bytes:
                raise RefusedError("too_large", f"the page makes {len(html)} bytes of HTML")
            if (now := httpx.URL(page.url)).netloc != url.netloc:
                raise RefusedError("browser", f"the page has led itself to {str(now)[:200]}")
            return html
    except TimeoutError as error:
        raise RefusedError("timeout", f"the page was not made within {config.render_s:g} s") from error
    except Error as error:
        raise RefusedError("browser", error.message.splitlines()[0][:200]) from error
    finally:
        if context is not None:
            with contextlib.suppress(Error, TimeoutError):
                await asyncio.wait_for(context.close(), 5.0)


async def _settled(page: Page, waiting: set[object], end: float) -> None:
    """Wait until nothing is on its way and the text has stopped growing, or until `end`: a page may never be done."""
    before, since = -1, time.monotonic()
    while time.monotonic() < end:
        size = await page.evaluate("(document.body ? document.body.innerText.length : 0)")
        if size != before or waiting:
            before, since = size, time.monotonic()
        elif time.monotonic() - since >= (_SETTLE_S if size else 3 * _SETTLE_S):
            return
        await asyncio.sleep(0.1)
