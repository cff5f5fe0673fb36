"""Fetching one address: cache, host rules, robots.txt, the host's turn, redirects by hand, limits; then the cache again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import httpx

from environments.search.web.cache import Cache, Record
from environments.search.web.config import FetchConfig
from environments.search.web.exchange import Answer, exchange, retry_after_s
from environments.search.web.guard import Guard, Resolve, canonical, system_resolve
from environments.search.web.hosts import Hosts
from environments.search.web.outcome import HOST_FAILURES, LASTING, Journal, NotRetrievedError, RefusedError
from environments.search.web.robots import MAX_AGE_S, MAX_BYTES, Robots

log = logging.getLogger(__name__)

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ACCEPT = "text/html,application/xhtml+xml;q=0.9,text/*;q=0.8,application/json;q=0.5,*/*;q=0.1"
_TEXTUAL = ("text/", "application/xhtml", "application/xml", "application/json", "application/ld+json", "application/markdown")
_UNSAID = ("", "application/octet-stream", "binary/octet-stream", "application/x-download")
"""Types that say nothing: the content itself decides."""
_LOCK_MARGIN_S = 10.0
_DEFAULT_RETRY_S = 60.0
"""For a 429 without Retry-After."""


@dataclass(frozen=True)
class Page:
    """A document as fetched: bytes, and where and when they are from."""

    record: Record
    body: bytes


class Fetcher:
    """Fetches through the cache in `folder`, which all processes of a run share. Every outcome goes to the journal there."""

    def __init__(self, config: FetchConfig, folder: Path, resolve: Resolve = system_resolve) -> None:
        self.config = config
        self.cache = Cache(folder)
        self.journal = Journal(folder / "outcomes.jsonl")
        self.guard = Guard(config, resolve)
        self.hosts = Hosts(folder / "hosts", config)
        self._robots = Robots(config.user_agent, self._robots_text)

    def fetch(self, address: str) -> Page:
        """The document at an address: from the cache while it is fresh, else asked for again.

        When the host fails and the cache holds an older copy, that one is returned.

        Raises:
            NotRetrievedError: there is none to be had; its `outcome` says why.
            DiskFullError: no space left in the cache folder.
        """
        try:
            url = canonical(address)
        except RefusedError as error:
            raise self.refuse(address, error) from error
        try:
            with self.cache.lock(str(url), self._patience()):
                return self._fetch(url)
        except RefusedError as error:
            raise self.refuse(str(url), error) from error

    def refuse(self, address: str, error: RefusedError) -> NotRetrievedError:
        """Write a failure down and make the error of it."""
        outcome = self.journal.add(address, error.kind, error.reason, error.status)
        return NotRetrievedError(
            f"{outcome.address:.300} could not be retrieved: {error.kind}, {error.reason}", _FIXES.get(error.kind, ""), outcome
        )

    def _patience(self) -> float:
        """For another process that works on the same address: it has a wait and a fetch for every hop and its robots.txt."""
        return 2 * (self.config.fetch_s + self.config.max_wait_s * (self.config.max_redirects + 1)) + self.config.render_s + _LOCK_MARGIN_S

    def _fetch(self, url: httpx.URL) -> Page:
        held = self.cache.get(str(url))
        now = time.time()
        if held is not None and held.failure is not None:
            if self.config.offline or now - held.checked_at < self.config.failure_age_s:
                raise RefusedError(held.failure, f"{held.reason} (remembered)", held.status)
            held = None
        body = self.cache.body(held) if held is not None else None
        if held is not None and body is not None and (self.config.offline or now - held.checked_at < self.config.max_age_s):
            self.journal.add(str(url), "cached", status=held.status, size_bytes=held.size_bytes, sha256=held.sha256)
            return Page(held, body)
        if self.config.offline:
            raise RefusedError("offline", "not in the cache, and the configuration says offline")
        try:
            final, answer = self.follow(url, held, self.config.max_bytes, _is_text, robots=self.config.robots)
        except RefusedError as error:
            if held is not None and body is not None and error.kind in HOST_FAILURES | {"circuit_open", "rate_limited"}:
                self.journal.add(str(url), "stale", f"{error.kind}: {error.reason}", error.status, held.size_bytes, held.sha256)
                return Page(held, body)
            if error.kind in LASTING:
                self._remember(url, error)
            raise
        if answer.status == 304 and held is not None and body is not None:
            held = self.cache.put(held.model_copy(update={"checked_at": now}))
            self.journal.add(str(url), "revalidated", status=304, size_bytes=held.size_bytes, sha256=held.sha256)
            return Page(held, body)
        record = self._keep(url, final, answer)
        self.journal.add(str(url), "retrieved", status=answer.status, size_bytes=record.size_bytes, sha256=record.sha256)
        return Page(record, answer.body)

    def _keep(self, url: httpx.URL, final: httpx.URL, answer: Answer) -> Record:
        now = time.time()
        h = answer.headers
        record = Record(
            address=str(url),
            final_address=str(final),
            retrieved_at=now,
            checked_at=now,
            status=answer.status,
            media_type=h.get("content-type", "")[:200],
            link=h.get("link", "")[:2000],
            etag=h.get("etag", "")[:200],
            last_modified=h.get("last-modified", "")[:100],
        )
        return self.cache.put(record, answer.body)

    def _remember(self, url: httpx.URL, error: RefusedError) -> None:
        now = time.time()
        self.cache.put(
            Record(
                address=str(url),
                final_address=str(url),
                retrieved_at=now,
                checked_at=now,
                failure=error.kind,
                reason=error.reason[:500],
                status=error.status,
            )
        )

    # --- hops -----------------------------------------------------------------------------------------------------------------

    def follow(
        self,
        url: httpx.URL,
        held: Record | None,
        max_bytes: int,
        check: Callable[[Answer], None],
        *,
        robots: bool,
        cut: bool = False,
    ) -> tuple[httpx.URL, Answer]:
        """The answer of an address behind its redirects, each hop checked as the first; status 200, or 304 for `held`.

        Raises:
            RefusedError: what went wrong, by kind.
        """
        seen: set[str] = set()
        deadline = time.monotonic() + self.config.fetch_s
        for _ in range(self.config.max_redirects + 1):
            if str(url) in seen:
                raise RefusedError("redirects", f"a circle through {str(url)[:200]}")
            seen.add(str(url))
            self.guard.check(url)
            started = time.monotonic()
            interval = self._robots.check(url) if robots else 0.0
            self.hosts.admit(_host(url), interval)
            deadline += time.monotonic() - started
            conditions: dict[str, str] = {"accept": _ACCEPT}
            if held is not None and held.final_address == str(url):
                conditions |= {"if-none-match": held.etag} if held.etag else {}
                conditions |= {"if-modified-since": held.last_modified} if held.last_modified and not held.etag else {}
            answer = self.ask(url, deadline, conditions, max_bytes, check, cut)
            if answer.status not in _REDIRECTS:
                return url, answer
            try:
                url = canonical(str(url.join(answer.headers.get("location", ""))))
            except (httpx.InvalidURL, ValueError) as error:
                raise RefusedError("redirects", "redirected to no address", answer.status) from error
        raise RefusedError("redirects", f"more than {self.config.max_redirects}")

    def ask(
        self,
        url: httpx.URL,
        deadline: float,
        headers: Mapping[str, str],
        max_bytes: int,
        check: Callable[[Answer], None] = lambda answer: None,
        cut: bool = False,
        method: str = "GET",
        content: bytes | None = None,
    ) -> Answer:
        """One exchange, its result told to the host's circuit. Returns status 200, 304 or a redirect.

        Raises:
            RefusedError: everything else.
        """

        def wanted(status: int, found: Mapping[str, str]) -> bool:
            if status == 200:
                check(Answer(status, found, b""))
            return status == 200

        try:
            answer = exchange(
                url, self.guard, deadline, max_bytes=max_bytes, method=method, headers=headers, content=content, wanted=wanted, cut=cut
            )
            self._judge(url, answer)
        except RefusedError as error:
            if error.kind in HOST_FAILURES:
                self.hosts.failed(_host(url), f"{error.kind}, {error.reason}")
            elif error.kind not in ("rate_limited", "private_address"):
                self.hosts.succeeded(_host(url))
            raise
        self.hosts.succeeded(_host(url))
        return answer

    def _judge(self, url: httpx.URL, answer: Answer) -> None:
        status = answer.status
        if status in (200, 304) or status in _REDIRECTS:
            return
        asked = retry_after_s(answer.headers.get("retry-after", ""), time.time())
        if status == 429 or (status == 503 and asked is not None):
            seconds = asked if asked is not None else _DEFAULT_RETRY_S
            self.hosts.defer(_host(url), seconds, f"it answered {status} and asked for {seconds:.0f} s")
            raise RefusedError("rate_limited", f"{url.host} asks for {seconds:.0f} s of rest", status, seconds)
        if status >= 500:
            raise RefusedError("server_error", f"{url.host} answers {status}", status)
        kind: Literal["client_error", "no_text"] = "client_error" if status >= 400 else "no_text"
        raise RefusedError(kind, f"{url.host} answers {status}", status)

    def _robots_text(self, address: httpx.URL) -> bytes:
        with self.cache.lock(str(address), self._patience()):
            held, now = self.cache.get(str(address)), time.time()
            if held is not None and (self.config.offline or now - held.checked_at < MAX_AGE_S):
                if held.failure is not None:
                    raise RefusedError(held.failure, held.reason, held.status)
                return self.cache.body(held) or b""
            try:
                final, answer = self.follow(address, None, MAX_BYTES, lambda _: None, robots=False, cut=True)
            except RefusedError as error:
                if error.kind in LASTING:
                    self._remember(address, error)
                raise
            self._keep(address, final, answer)
            return answer.body


def _host(url: httpx.URL) -> str:
    """What has turns and a circuit: host and port, as `host:port` where the port is not the scheme's own."""
    return url.netloc.decode("ascii")


def _is_text(answer: Answer) -> None:
    """Refuse by its declared type what cannot be text, before its body is read."""
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not (kind.startswith(_TEXTUAL) or kind.endswith(("+xml", "+json")) or kind in _UNSAID):
        raise RefusedError("unsupported_type", f"{kind[:80]} is not text", answer.status)


_FIXES: dict[str, str] = {
    "bad_address": "use an http:// or https:// address without a name and password",
    "host_denied": "name the host in `allow` (and its port in `ports`) if it may be read",
    "private_address": "name the host in `private` if it is one of yours",
    "robots": "respect it; use another source",
    "circuit_open": "wait, or see outcomes.jsonl for what the host did",
    "rate_limited": "wait, or raise `max_wait_s`",
    "too_large": "raise `max_bytes` if documents of this size are wanted",
    "offline": "fetch it once with offline = false",
    "tls": "name the certificate authority in `ca_file` if it is your own",
}
