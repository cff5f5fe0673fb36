"""Search sources of the web, and several sources as one."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from environments.protocols import Document, Hit, SearchSource
from environments.search.index import snippet, terms
from environments.search.web.apis import Result, SearchApi, endpoint_config
from environments.search.web.config import RetrievalConfig
from environments.search.web.fetch import Fetcher
from environments.search.web.guard import Resolve, canonical, system_resolve
from environments.search.web.library import Library, RetrievedDocument
from environments.search.web.outcome import NotRetrievedError, RefusedError

log = logging.getLogger(__name__)

_SPARE = 2
"""Results asked for, for each that is wanted: some pages cannot be had."""
_RANK = 60
"""Constant of reciprocal rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009)."""


class WebSource:
    """A `SearchSource` over search services. A hit is a page that was fetched and gave text, so it can be opened by any process.

    A service or page that fails costs itself; the outcome is in `outcomes.jsonl` of the folder. Picklable; keys travel as secrets.
    """

    def __init__(
        self, config: RetrievalConfig, folder: Path, keys: Mapping[str, SecretStr] | None = None, resolve: Resolve = system_resolve
    ) -> None:
        self.config = config
        self.folder = Path(folder)
        self._keys = dict(keys or {})
        self._resolve = resolve
        self.content_hash = hashlib.sha256(config.model_dump_json(include={"searxng", "apis"}).encode()).hexdigest()
        """Of the services that are asked: what they answer is no constant. Each document carries the hash of its content."""
        self.fetcher = Fetcher(config.fetch, self.folder, resolve)
        self.library = Library(self.fetcher, self.folder)
        declared = [*(s.api() for s in config.searxng), *config.apis]
        self._apis = [SearchApi(api, Fetcher(endpoint_config(config.fetch, api), self.folder, resolve), self._keys) for api in declared]

    def __reduce__(self) -> tuple[Any, ...]:
        return (WebSource, (self.config, self.folder, self._keys, self._resolve))

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        """Ask all services, open what they name, and return what could be opened, in a stable order.

        Raises:
            ConfigError: a service's key is missing.
            DiskFullError: no space left in the cache folder.
        """
        if not query.strip() or limit <= 0 or not self._apis:
            return []
        deadline = time.monotonic() + self.config.search_s
        addresses = self._addresses(query, limit, deadline)
        words = terms(query)
        hits: list[Hit] = []
        seen: set[str] = set()
        start = 0
        while start < len(addresses) and len(hits) < limit and time.monotonic() < deadline:
            batch = addresses[start : start + limit - len(hits)]
            start += len(batch)
            for document in self._read_all(batch, deadline):
                text = hashlib.sha256(document.text.encode("utf-8", "replace")).hexdigest()
                if document.document_id in seen or text in seen:
                    continue
                seen |= {document.document_id, text}
                hits.append(Hit(document.document_id, document.title, snippet(document.text, words), 1.0 / (_RANK + len(hits) + 1)))
        return hits

    def open(self, document_id: str) -> Document:
        """A page that a search has named, as it was then. Raises KeyError when there is none of that id."""
        return self.library.open(document_id)

    def _addresses(self, query: str, limit: int, deadline: float) -> list[str]:
        def ask(api: SearchApi) -> list[Result]:
            try:
                return api.search(query, _SPARE * limit)
            except NotRetrievedError as error:
                log.warning("%s", error)
                return []

        lists = self._side_by_side([lambda api=api: ask(api) for api in self._apis], deadline)
        ranked = []
        for results in lists:
            order: dict[str, None] = {}
            for result in results or []:
                try:
                    order[str(canonical(result.address))] = None
                except RefusedError as error:
                    self.fetcher.refuse(result.address, error)
            ranked.append(list(order))
        return fuse(ranked)

    def _read_all(self, addresses: Sequence[str], deadline: float) -> list[RetrievedDocument]:
        def read(address: str) -> RetrievedDocument | None:
            try:
                return self.library.read(address)
            except NotRetrievedError as error:
                log.info("%s", error)
                return None

        found = self._side_by_side([lambda address=address: read(address) for address in addresses], deadline)
        return [document for document in found if document is not None]

    def _side_by_side(self, work: Sequence[Any], deadline: float) -> list[Any]:
        """Results in the order of the work; None for what is not done in time (it goes on, and the cache keeps what it finds)."""
        executor = ThreadPoolExecutor(min(self.config.parallel, max(1, len(work))), thread_name_prefix="retrieval")
        try:
            futures: list[Future[Any]] = [executor.submit(one) for one in work]
            done, late = wait_for(futures, timeout=max(0.0, deadline - time.monotonic()))
            if late:
                log.warning("%d of %d requests of a query were not done in time", len(late), len(work))
            return [future.result() if future in done else None for future in futures]
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def fuse(lists: Sequence[Sequence[str]]) -> list[str]:
    """Several rankings as one by reciprocal rank; ties by the order of the lists, then of their items."""
    scores: dict[str, float] = {}
    for ranking in lists:
        for rank, item in enumerate(dict.fromkeys(ranking), 1):
            scores[item] = scores.get(item, 0.0) + 1.0 / (_RANK + rank)
    order = {item: i for i, item in enumerate(scores)}
    return sorted(scores, key=lambda item: (-scores[item], order[item]))


class MergedSource:
    """Several sources as one `SearchSource`: asked side by side, their hits fused by rank, opened by whoever has the document."""

    def __init__(self, sources: Sequence[SearchSource]) -> None:
        self.sources = tuple(sources)
        self.content_hash = hashlib.sha256("\n".join(s.content_hash for s in self.sources).encode()).hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        return (MergedSource, (self.sources,))

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        """The best of all sources, at most `limit`."""
        if limit <= 0 or not self.sources:
            return []
        with ThreadPoolExecutor(len(self.sources), thread_name_prefix="source") as executor:
            lists = list(executor.map(lambda source: source.search(query, limit), self.sources))
        found = {hit.document_id: hit for hits in reversed(lists) for hit in hits}
        fused = fuse([[hit.document_id for hit in hits] for hits in lists])
        return [Hit(i, found[i].title, found[i].snippet, 1.0 / (_RANK + rank)) for rank, i in enumerate(fused[:limit], 1)]

    def open(self, document_id: str) -> Document:
        """The document from the first source that has it. Raises KeyError when none does."""
        for source in self.sources:
            try:
                return source.open(document_id)
            except KeyError:
                continue
        raise KeyError(document_id)
