"""robots.txt by RFC 9309, parsed by Protego: 4xx allows everything, 5xx nothing, a dead host fails as what it is."""

from __future__ import annotations

import threading
from collections.abc import Callable

import httpx
from protego import Protego

from environments.search.web.outcome import RefusedError

MAX_BYTES = 500 << 10
"""Section 2.5 of the RFC: at least this much must be read; the rest is cut off."""
MAX_AGE_S = 86400.0
"""Section 2.4: not to be used for longer than a day."""


class Robots:
    """Rules of origins. `get` returns the bytes of an address, b"" where it has none, through the cache.

    It raises RefusedError for a host that does not answer properly.
    """

    def __init__(self, user_agent: str, get: Callable[[httpx.URL], bytes]) -> None:
        self._agent = user_agent
        self._get = get
        self._parsed: dict[bytes, Protego] = {}
        self._lock = threading.Lock()

    def check(self, url: httpx.URL) -> float:
        """Seconds between requests that the origin asks for, 0 when it does not say.

        Raises:
            RefusedError: `robots`, or why robots.txt itself could not be had.
        """
        if url.path == "/robots.txt":
            return 0.0  # always allowed, by section 2.2.2
        address = url.copy_with(path="/robots.txt", query=None)
        try:
            text = self._get(address)
        except RefusedError as error:
            if error.kind == "server_error":
                raise RefusedError("robots", f"{address} answers {error.status}, which forbids everything", error.status) from error
            if error.kind not in ("client_error", "redirects", "bad_encoding"):
                raise
            text = b""
        rules = self._rules(text)
        if not rules.can_fetch(str(url), self._agent):
            raise RefusedError("robots", f"{address} forbids {url.path[:200]}")
        rate = rules.request_rate(self._agent)
        per_request = rate.seconds / rate.requests if rate is not None and rate.requests else 0.0
        return max(rules.crawl_delay(self._agent) or 0.0, per_request)

    def _rules(self, text: bytes) -> Protego:
        with self._lock:
            if text not in self._parsed:
                if len(self._parsed) >= 256:
                    self._parsed.clear()
                self._parsed[text] = Protego.parse(text.decode("utf-8-sig", "replace"))
            return self._parsed[text]
