"""Search services that answer JSON: one client, told by configuration what each calls its parameters and results."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from environments.errors import ConfigError
from environments.search.web.cache import Record
from environments.search.web.config import FetchConfig, SearchApiConfig
from environments.search.web.fetch import Fetcher
from environments.search.web.guard import canonical, port_of
from environments.search.web.outcome import RefusedError

_MAX_QUERY_CHARS = 400
"""What the well-known services take."""
_MAX_FIELD_CHARS = 2000


@dataclass(frozen=True)
class Result:
    """What a service says about a page. Its title and snippet are as untrusted as the page."""

    address: str
    title: str
    snippet: str


def endpoint_config(config: FetchConfig, api: SearchApiConfig) -> FetchConfig:
    """Bounds for requests to the service itself: its host, which the user named, and no other; never a page's host rules."""
    url = canonical(api.url)
    place = f"[{url.host}]" if ":" in url.host else url.host
    update = {
        "allow": (url.host,),
        "deny": (),
        "private": (f"{place}:{port_of(url)}",),
        "ports": (port_of(url),),
        "fetch_s": api.fetch_s,
        "interval_s": api.interval_s,
    }
    return config.model_copy(update=update)


def find_key(name: str, keys: Mapping[str, SecretStr]) -> SecretStr:
    """The key of that name: what the caller resolved, else the environment variable.

    Raises:
        ConfigError: there is none, or it cannot stand in a header.
    """
    key = keys.get(name) or SecretStr(os.environ.get(name, ""))
    value = key.get_secret_value()
    if not value:
        raise ConfigError(f"there is no key {name}", f"set the environment variable {name}, or create a secret of that name")
    if not value.isascii() or not value.isprintable():
        raise ConfigError(f"the key {name} holds characters that no header can carry", "check how it was copied, line ends above all")
    return key


class SearchApi:
    """One service. Answers are cached as pages are; keys are looked up for each request and never kept with an answer."""

    def __init__(self, api: SearchApiConfig, fetcher: Fetcher, keys: Mapping[str, SecretStr]) -> None:
        self.api = api
        self._fetcher = fetcher
        self._keys = keys

    def search(self, query: str, limit: int) -> list[Result]:
        """Results in the service's order, at most `limit`.

        Raises:
            NotRetrievedError: the service is dead, slow or answers garbage; its outcome says which.
            ConfigError: its key is missing.
        """
        query = " ".join(query.split())[:_MAX_QUERY_CHARS]
        address = self._address(query, limit)
        try:
            with self._fetcher.cache.lock(address, 2 * self.api.fetch_s):
                return self._search(address, query, limit)
        except RefusedError as error:
            raise self._fetcher.refuse(f"{self.api.url} ({self.api.name}: {query!r:.80})", error) from error

    def _address(self, query: str, limit: int) -> str:
        asked = json.dumps([self.api.model_dump(mode="json", exclude={"key", "fetch_s", "interval_s"}), query, limit], sort_keys=True)
        return f"search:{self.api.name}:{hashlib.sha256(asked.encode()).hexdigest()}"

    def _search(self, address: str, query: str, limit: int) -> list[Result]:
        config, cache, journal = self._fetcher.config, self._fetcher.cache, self._fetcher.journal
        held, now = cache.get(address), time.time()
        body = cache.body(held) if held is not None else None
        label = f"{self.api.url} ({self.api.name}: {query!r:.80})"
        if held is not None and body is not None:
            stored = _stored(body)
            age = config.max_age_s if stored else config.failure_age_s  # a service that found nothing may just have a bad hour
            if config.offline or now - held.checked_at < age:
                journal.add(label, "cached", size_bytes=len(body), sha256=held.sha256)
                return stored
        if config.offline:
            raise RefusedError("offline", "this query is not in the cache, and the configuration says offline")
        try:
            results = self._ask(query, limit)
        except RefusedError as error:
            if body is None:
                raise
            journal.add(label, "stale", f"{error.kind}: {error.reason}", error.status, len(body))
            return _stored(body)
        body = json.dumps([[r.address, r.title, r.snippet] for r in results]).encode()
        record = Record(address=address, final_address=self.api.url, retrieved_at=now, checked_at=now, media_type="application/json")
        record = cache.put(record, body)
        journal.add(label, "retrieved", f"{len(results)} results", 200, len(body), record.sha256)
        return results

    def _ask(self, query: str, limit: int) -> list[Result]:
        api = self.api
        url = canonical(api.url)
        parameters: dict[str, str | int | bool] = {**api.parameters, api.query: query}
        if api.limit:
            parameters[api.limit] = limit
        headers, key, content = {"accept": "application/json"}, "", None
        if api.key:
            key = find_key(api.key, self._keys).get_secret_value()
            headers[api.key_header.lower()] = api.key_format.replace("{key}", key)
        if api.method == "GET":
            url = url.copy_merge_params({k: str(v).lower() if isinstance(v, bool) else v for k, v in parameters.items()})
        else:
            content = json.dumps(parameters).encode()
            headers["content-type"] = "application/json"
        self._fetcher.guard.check(url)
        self._fetcher.hosts.admit(urlsplit(api.url).netloc)
        deadline = time.monotonic() + api.fetch_s
        answer = self._fetcher.ask(url, deadline, headers, self._fetcher.config.max_bytes, method=api.method, content=content)
        if answer.status != 200:
            raise RefusedError("redirects", "a search service that redirects: the query and its key go nowhere else", answer.status)
        results = _results(answer.body, api)
        if key:
            results = [Result(*(field.replace(key, "***") for field in (r.address, r.title, r.snippet))) for r in results]
        return results[:limit]


def _results(body: bytes, api: SearchApiConfig) -> list[Result]:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RefusedError("malformed", f"{api.name} answers no whole JSON ({type(error).__name__})", 200) from error
    listed = _at(answer, api.results)
    if listed is None and isinstance(answer, dict):
        return []  # several services leave the list out when nothing was found
    if not isinstance(listed, list):
        raise RefusedError("malformed", f"{api.name}: there is no list at {api.results!r}", 200)
    results = []
    for item in listed:
        address, title, snippet = (_at(item, path) for path in (api.address, api.title, api.snippet))
        if isinstance(address, str) and address.strip():
            said = [value[:_MAX_FIELD_CHARS] if isinstance(value, str) else "" for value in (title, snippet)]
            results.append(Result(address.strip()[:_MAX_FIELD_CHARS], said[0], said[1]))
    if listed and not results:
        raise RefusedError("malformed", f"{api.name}: no result has an address at {api.address!r}", 200)
    return results


def _at(value: Any, path: str) -> Any:
    """What lies at a dotted path; None when there is nothing."""
    for part in path.split(".") if path else ():
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _stored(body: bytes) -> list[Result]:
    return [Result(address, title, snippet) for address, title, snippet in json.loads(body)]
