"""A browser for agents: pages as numbered text, clicks and typing by number, screenshots as pictures.

It runs on the host, in a context of its own an episode, and reaches what `Sites` names through its proxy and nothing else.
Downloads, service workers and permissions are off; dialogs are dismissed and mentioned; every action has a time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Self

from environments.errors import BadArgumentsError, InfrastructureError
from environments.protocols import Observation
from environments.task import ToolParameter, ToolSpec
from environments.tools.chromium import CHROMIUM
from environments.tools.observation import as_images, cut_middle
from environments.tools.page_text import page_text
from environments.tools.sites import SiteProxy, Sites

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Dialog, Locator, Page, Request

_TARGET = ToolParameter(
    name="target", description="Number of an element in the page's text, its exact text, or x,y in pixels of the screenshot."
)
BROWSER_TOOLS: dict[str, ToolSpec] = {
    tool.name: tool
    for tool in (
        ToolSpec(
            name="browser_open",
            description="Open an address in the browser. Returns what is in view as text; elements that can be pointed at are numbered.",
            parameters=(ToolParameter(name="url", description="Address or path."),),
        ),
        ToolSpec(name="browser_click", description="Click on an element. Returns the page then in view.", parameters=(_TARGET,)),
        ToolSpec(
            name="browser_type",
            description="Fill a field, replacing what is in it, or choose an option by its text. Returns the page then in view.",
            parameters=(
                _TARGET,
                ToolParameter(name="text", description="What to type or choose."),
                ToolParameter(name="enter", type="boolean", description="Press Enter afterwards.", required=False),
            ),
        ),
        ToolSpec(
            name="browser_scroll",
            description="Scroll by most of a screen. Returns the page then in view.",
            parameters=(ToolParameter(name="direction", description="down or up; down unless given.", required=False),),
        ),
        ToolSpec(name="browser_back", description="Go back to the page before, or close a window that a page opened."),
        ToolSpec(name="browser_screenshot", description="Show the page in view as a picture."),
    )
}

WIDTH, HEIGHT = 1024, 768
"""Viewport, CSS pixels."""
ACTION_S = 15.0
"""Of one action, loading included."""
_ELEMENT_MS = 5_000
_SETTLE_S = 0.1
"""What a click may take to start a navigation, a request or a redraw."""
_QUIET_S = 3.0
"""How long a page may go on loading things before its text is read all the same."""
_NOTICE_S = 0.5
"""What Playwright may take to notice that a browser has gone."""
_PAGES = 8
_NOTES = 10
"""What one answer tells of dialogs and windows."""


class BrowserSession:
    """One episode's browser: its pages and what its last answer's numbers stand for. Used by one thread at a time."""

    def __init__(self, sites: Sites, action_s: float = ACTION_S) -> None:
        self._sites = sites
        self.action_s = action_s
        """Seconds that one action may take, loading included."""
        self._proxy: SiteProxy | None = None
        self._context: BrowserContext | None = None
        self._pages: list[Page] = []
        self._refs: dict[int, str] = {}
        self._notes: list[str] = []
        self._context_id = ""
        self._loading: set[Request] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, tool: str, arguments: dict[str, Any]) -> Observation:
        """Execute a valid call of one of `BROWSER_TOOLS`.

        Raises:
            BadArgumentsError: an argument that cannot be.
            InfrastructureError: the browser died.
        """
        actions: dict[str, Callable[[], Awaitable[Observation]]] = {
            "browser_open": lambda: self._open(arguments["url"]),
            "browser_click": lambda: self._click(arguments["target"]),
            "browser_type": lambda: self._type(arguments["target"], arguments["text"], arguments.get("enter", False)),
            "browser_scroll": lambda: self._scroll(arguments.get("direction", "down")),
            "browser_back": self._back,
            "browser_screenshot": self._screenshot,
        }
        return CHROMIUM.run(self._limited(actions[tool]), self.action_s + 90.0)

    def close(self) -> None:
        """Forget the pages. May be called again."""
        if self._context is not None and (browser := self._context.browser) is not None and browser.is_connected():
            with contextlib.suppress(InfrastructureError):
                CHROMIUM.run(self._drop(), 20.0)
        self._context = None
        if self._proxy is not None:
            self._proxy.close()
            self._proxy = None

    # --- in the browser's thread --------------------------------------------------------------------------------------------

    async def _limited(self, action: Callable[[], Awaitable[Observation]]) -> Observation:
        from playwright.async_api import Error

        browser = await CHROMIUM.browser()
        if self._context is None:
            self._proxy = self._proxy or SiteProxy(self._sites)
            self._context = await browser.new_context(
                proxy={"server": self._proxy.address},
                viewport={"width": WIDTH, "height": HEIGHT},
                accept_downloads=False,
                service_workers="block",
                locale="en-US",
                timezone_id="UTC",
            )
            self._context.set_default_timeout(self.action_s * 1000)
            self._context.on("page", self._opened)
            self._context.on("dialog", self._dismiss)
            self._context.on("request", self._requested)
            self._context.on("requestfinished", self._answered)
            self._context.on("requestfailed", self._answered)
        own = self._context.browser
        if own is None or not own.is_connected():
            raise self._died()
        try:
            return await asyncio.wait_for(action(), self.action_s)
        except TimeoutError:
            # A page that keeps its process busy answers nothing more, not even to be closed in good order.
            await self._drop()
            return Observation(f"the page did not answer within {self.action_s:g} s and was closed", failed=True)
        except Error as error:
            if "has been closed" in error.message:
                await asyncio.sleep(_NOTICE_S)
            if not own.is_connected():
                raise self._died() from error
            if self._pages and self._pages[-1].is_closed():
                self._pages.pop()
            return Observation(f"it did not work: {_first_line(error.message)}", failed=True)

    @staticmethod
    def _died() -> InfrastructureError:
        return InfrastructureError("the browser died", "run the episode again")

    async def _drop(self) -> None:
        context, self._context = self._context, None
        self._pages, self._refs, self._notes, self._loading = [], {}, [], set()
        if context is not None:
            from playwright.async_api import Error

            with contextlib.suppress(TimeoutError, Error):
                await asyncio.wait_for(context.close(), 5.0)

    def _opened(self, page: Page) -> None:
        if len(self._pages) >= _PAGES:
            self._tell("[a window was closed: too many]")
            page.on("close", self._closed)
            self._later(page.close())
            return
        self._pages.append(page)
        page.on("crash", lambda _: self._crashed(page))
        page.on("close", self._closed)

    def _requested(self, request: Request) -> None:
        self._loading.add(request)

    def _answered(self, request: Request) -> None:
        self._loading.discard(request)

    def _crashed(self, page: Page) -> None:
        self._tell("[the page crashed and was closed]")
        self._later(page.close())

    def _closed(self, page: Page) -> None:
        if page in self._pages:
            self._pages.remove(page)
        self._loading.clear()  # of its requests nothing more is heard, and they cannot all be told from others

    async def _dismiss(self, dialog: Dialog) -> None:
        from playwright.async_api import Error

        self._tell(f"[a dialog was dismissed: {dialog.type} {dialog.message[:200]!r}]")
        with contextlib.suppress(Error):  # its page has gone
            await dialog.dismiss()

    def _later(self, work: Awaitable[Any]) -> None:
        task = asyncio.ensure_future(work)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # a page that has gone is what was wanted

    def _page(self) -> Page:
        if not self._pages:
            raise BadArgumentsError("no page is open", "call browser_open first")
        return self._pages[-1]

    async def _open(self, text: str) -> Observation:
        url = self._sites.url_of(text)
        if url is None:
            return Observation(f"{text[:200]} cannot be reached from here. What can be: {self._sites.describe()}", failed=True)
        if not self._pages:
            assert self._context is not None
            page = await self._context.new_page()
            session = await self._context.new_cdp_session(page)
            self._context_id = (await session.send("Target.getTargetInfo"))["targetInfo"]["browserContextId"]
        response = await self._page().goto(url, wait_until="load")
        status = response.status if response is not None else 200
        return await self._seen(f"[status {status}]" if status >= 400 else "", failed=status >= 400)

    async def _click(self, target: str) -> Observation:
        page = self._page()
        if point := re.fullmatch(r"\s*(\d{1,5})\s*,\s*(\d{1,5})\s*", target):
            await page.mouse.click(float(point[1]), float(point[2]))
        else:
            await self._find(page, target).click(timeout=_ELEMENT_MS)
        return await self._settled()

    async def _type(self, target: str, text: str, enter: bool) -> Observation:
        page = self._page()
        if point := re.fullmatch(r"\s*(\d{1,5})\s*,\s*(\d{1,5})\s*", target):
            await page.mouse.click(float(point[1]), float(point[2]))
            await page.keyboard.press("Control+A")
            await page.keyboard.insert_text(text)
            if enter:
                await page.keyboard.press("Enter")
            return await self._settled()
        element = self._find(page, target)
        options: list[str] | None = await element.evaluate("e => e.options ? [...e.options].map(o => o.label) : null", timeout=_ELEMENT_MS)
        if options is not None:
            if text not in options:
                return Observation(f"there is no option {text!r:.100}; there are: {', '.join(map(repr, options))[:1000]}", failed=True)
            await element.select_option(label=text, timeout=_ELEMENT_MS)
        else:
            await element.fill(text, timeout=_ELEMENT_MS)
        if enter:
            await element.press("Enter", timeout=_ELEMENT_MS)
        return await self._settled()

    async def _scroll(self, direction: str) -> Observation:
        if direction not in ("down", "up"):
            raise BadArgumentsError(f"direction is {direction!r:.40}", "pass down or up")
        page = self._page()
        await page.mouse.move(WIDTH / 2, HEIGHT / 2)
        await page.mouse.wheel(0, HEIGHT * (0.8 if direction == "down" else -0.8))
        return await self._settled()

    async def _back(self) -> Observation:
        page = self._page()
        before = page.url
        if await page.go_back() is None and page.url in ("about:blank", before):
            if len(self._pages) > 1:
                await page.close()
                return await self._settled()
            if page.url != before:
                await page.go_forward()
            return await self._seen("[there is no page before]", failed=True)
        return await self._settled()

    async def _screenshot(self) -> Observation:
        page = self._page()
        images, note = as_images([await page.screenshot(animations="disabled", caret="hide")])
        return Observation("\n".join(part for part in (await self._heading(page), note, *self._told()) if part), images)

    def _find(self, page: Page, target: str) -> Locator:
        target = target.strip()
        if number := re.fullmatch(r"\[?(\d{1,6})\]?", target):
            ref = self._refs.get(int(number[1]))
            if ref is None:
                raise BadArgumentsError(f"there is no element {number[1]} in the page's last text", "use a number that is there")
            return page.locator(f"aria-ref={ref}")
        if not target:
            raise BadArgumentsError("target is empty", "pass an element's number or its text")
        return page.get_by_text(target, exact=True).or_(page.get_by_role("button", name=target, exact=True)).first

    async def _settled(self) -> Observation:
        from playwright.async_api import Error

        deadline = asyncio.get_running_loop().time() + _QUIET_S
        await asyncio.sleep(_SETTLE_S)
        while (self._loading or await self._windows_to_come()) and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(_SETTLE_S)
        self._loading.clear()  # what has not ended by now may never
        with contextlib.suppress(Error):
            await self._page().wait_for_load_state("load", timeout=_ELEMENT_MS)
        return await self._seen()

    async def _windows_to_come(self) -> bool:
        """Whether the browser has a window of ours that Playwright has not announced yet; on a busy machine that takes a while."""
        session = await CHROMIUM.session()
        targets = (await session.send("Target.getTargets"))["targetInfos"]
        ours = [target for target in targets if target["type"] == "page" and target.get("browserContextId") == self._context_id]
        return len(ours) > len(self._pages)

    async def _seen(self, note: str = "", failed: bool = False) -> Observation:
        page = self._page()
        # Playwright waits for a body without an end where there is none: an SVG file, a document that a script has emptied.
        has_body = await page.evaluate("Boolean(document.body)")
        seen = page_text(await page.aria_snapshot(mode="ai", boxes=True) if has_body else "", HEIGHT)
        self._refs = seen.refs
        scroll = [f"[{seen.above} lines above]" if seen.above else "", f"[{seen.below} lines below: browser_scroll]" if seen.below else ""]
        parts = (await self._heading(page), note, *self._told(), scroll[0], cut_middle(seen.text) or "[no text in view]", scroll[1])
        return Observation("\n".join(part for part in parts if part), failed=failed)

    async def _heading(self, page: Page) -> str:
        windows = f" (window {len(self._pages)})" if len(self._pages) > 1 else ""
        return f"{(await page.title())[:200]} - {page.url[:500]}{windows}".removeprefix(" - ")

    def _tell(self, note: str) -> None:
        if len(self._notes) < _NOTES and note not in self._notes:
            self._notes.append(note)

    def _told(self) -> list[str]:
        notes, self._notes = self._notes, []
        return notes


def _first_line(message: str) -> str:
    """Playwright's messages go on with a log of what it tried."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    first = re.sub(r"^(Page|Locator|Frame|Mouse|Keyboard)\.\w+: ", "", lines[0]) if lines else "no reason given"
    if limit := re.match(r"Timeout (\d+)ms exceeded", first):
        return f"nothing there could be used within {int(limit[1]) / 1000:g} s"
    return first[:300]
