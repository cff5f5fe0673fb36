"""One Chromium a process, in a thread of its own with its own event loop, through which every call goes.

Playwright's synchronous interface cannot share a thread with an event loop; here callers may have one or not.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import shutil
import threading
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from environments.errors import InfrastructureError, MissingDependencyError

if TYPE_CHECKING:
    from playwright.async_api import Browser, CDPSession, Playwright

T = TypeVar("T")

FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Without these a page's STUN requests reach any UDP port of the host, past the proxy.
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy",
    # Names are for the contexts' proxies; the browser itself resolves none.
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
_START_S = 60.0


def executable() -> str | None:
    """The distribution's Chromium; None leaves Playwright its own."""
    return next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)


class Chromium:
    """Starts at first use; started again after it died."""

    def __init__(self) -> None:
        self._pid = -1
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._session: tuple[Browser, CDPSession] | None = None
        self._starting: asyncio.Lock | None = None

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine in the browser's thread.

        Raises:
            InfrastructureError: it did not end in time, though it has time limits of its own.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        try:
            return future.result(timeout_s)
        except TimeoutError as error:
            future.cancel()
            raise InfrastructureError(f"the browser did not answer within {timeout_s:g} s", "run the episode again") from error

    async def browser(self) -> Browser:
        """The browser, for code that runs in its thread.

        Raises:
            MissingDependencyError: there is none that starts.
        """
        assert self._starting is not None
        async with self._starting:
            if self._browser is not None and self._browser.is_connected():
                return self._browser
            from playwright.async_api import Error, async_playwright

            try:
                if self._playwright is None:
                    self._playwright = await async_playwright().start()
                # Chromium's own sandbox refuses to work for root.
                self._browser = await self._playwright.chromium.launch(
                    executable_path=executable(), args=list(FLAGS), chromium_sandbox=os.geteuid() != 0, timeout=_START_S * 1000
                )
            except Error as error:
                raise MissingDependencyError(
                    f"no Chromium starts: {error.message.splitlines()[0]}", "apt-get install chromium, or `playwright install chromium`"
                ) from error
            return self._browser

    async def session(self) -> CDPSession:
        """The browser's own DevTools session, for code that runs in its thread."""
        browser = await self.browser()
        if self._session is None or self._session[0] is not browser:
            self._session = browser, await browser.new_browser_cdp_session()
        return self._session[1]

    def close(self) -> None:
        """End the browser and its thread. May be called again; the next use starts another."""
        with self._lock:
            if self._pid != os.getpid() or self._loop is None or self._thread is None:
                return
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        with contextlib.suppress(TimeoutError):  # its processes end with ours
            asyncio.run_coroutine_threadsafe(self._stop(), loop).result(10.0)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5.0)
        self._browser = self._playwright = None

    async def _stop(self) -> None:
        if self._browser is not None:
            await self._browser.close()
        if self._playwright is not None:
            await self._playwright.stop()
        self._browser = self._playwright = None

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._pid != os.getpid():  # first use in this process, perhaps after a fork that copied a lock in any state
            self._lock, self._pid = threading.Lock(), os.getpid()
            self._loop = self._thread = self._playwright = self._browser = None
            atexit.register(self.close)
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._starting = asyncio.Lock()
                self._thread = threading.Thread(target=self._loop.run_forever, name="chromium", daemon=True)
                self._thread.start()
            return self._loop


CHROMIUM = Chromium()
"""The process's."""
