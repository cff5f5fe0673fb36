"""What may be retrieved and within which bounds: frozen models, ready to be a section of a run's configuration."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

_HOST = re.compile(r"\*|(\*\.)?[a-z0-9_]([a-z0-9_.-]*[a-z0-9])?|[0-9a-f:.]*:[0-9a-f:.]*")
_PLACE = re.compile(r"(?:[a-z0-9_]([a-z0-9_.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(:[0-9]{1,5})?")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _web_address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError(f"{value!r} is no address: write http(s)://host/path, without a name or key in it")
    return value


class FetchConfig(_Section):
    """Bounds of page fetches. Hosts are written `example.org`, `*.example.org` (not example.org itself) or `*` for all."""

    allow: tuple[str, ...] = Field(default=("*",), description="Hosts that pages may come from")
    deny: tuple[str, ...] = Field(default=(), description="Hosts that they may not come from, whatever `allow` says")
    private: tuple[str, ...] = Field(
        default=(),
        description="`host` or `host:port` that may lie at a private, loopback or link-local address, at any port when none is named; "
        "no patterns",
    )
    ports: tuple[int, ...] = Field(default=(80, 443), min_length=1, description="Ports of all other hosts")
    user_agent: str = Field(default="ninefold/0.1", min_length=1, max_length=200, description="Sent, and looked up in robots.txt")
    robots: bool = Field(default=True, description="Obey robots.txt (RFC 9309)")
    max_bytes: int = Field(default=4 << 20, ge=1, description="Of one document, compressed and decompressed alike")
    max_redirects: int = Field(default=5, ge=0)
    connect_s: float = Field(default=5.0, gt=0, description="Name look-up, connection and TLS handshake, each")
    idle_s: float = Field(default=10.0, gt=0, description="Without a byte from the host")
    fetch_s: float = Field(
        default=30.0, gt=0, description="One document from beginning to end, redirects included, waiting for its turn not"
    )
    interval_s: float = Field(
        default=1.0, ge=0, description="Between two requests to a host, over all processes; robots.txt may ask for more"
    )
    max_wait_s: float = Field(default=10.0, ge=0, description="For a host's turn; who would wait longer is refused")
    failures: int = Field(default=3, ge=1, description="In a row, after which a host is left alone")
    cooldown_s: float = Field(default=60.0, gt=0, description="For how long; doubled each time it fails again, to an hour at most")
    max_age_s: float = Field(default=7 * 86400.0, ge=0, description="After which a cached document is asked for again (by ETag or date)")
    failure_age_s: float = Field(default=3600.0, ge=0, description="For how long a lasting failure (404, too large) is remembered")
    offline: bool = Field(default=False, description="Use what the cache holds and never the network")
    browser: bool = Field(default=True, description="Open pages that are made by JavaScript in Chromium")
    render_s: float = Field(default=20.0, gt=0, description="For that")
    ca_file: Path | None = Field(default=None, description="Certificates (PEM) to trust instead of the public ones")

    @field_validator("allow", "deny")
    @classmethod
    def _patterns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        hosts = tuple(v.lower().rstrip(".") for v in value)
        for host in hosts:
            if not _HOST.fullmatch(host):
                raise ValueError(f"{host!r} is no host: use example.org, *.example.org or *")
        return hosts

    @field_validator("private")
    @classmethod
    def _places(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        places = tuple(v.lower().rstrip(".") for v in value)
        for place in places:
            if not _PLACE.fullmatch(place):
                raise ValueError(f"{place!r} is no host or host:port (an IPv6 address goes in brackets, patterns are not allowed here)")
        return places

    @field_validator("user_agent")
    @classmethod
    def _printable(cls, value: str) -> str:
        if not value.isascii() or not value.isprintable():
            raise ValueError("the user agent goes into a header: printable ASCII only")
        return value


class SearxngConfig(_Section):
    """A SearXNG instance (its `search.formats` must hold `json`), or anything that answers as it does."""

    name: str = "searxng"
    url: str = Field(description="Base address, such as https://searx.example.org")
    parameters: dict[str, str] = Field(default={}, description="More query parameters, such as categories or language")
    fetch_s: float = Field(default=15.0, gt=0)
    interval_s: float = Field(default=1.0, ge=0, description="Between two queries")

    _address = field_validator("url")(_web_address)

    def api(self) -> SearchApiConfig:
        """The same as a search API without a key (docs.searxng.org/dev/search_api.html)."""
        return SearchApiConfig(
            name=self.name,
            url=self.url.rstrip("/") + "/search",
            parameters={"format": "json"} | self.parameters,
            results="results",
            snippet="content",
            fetch_s=self.fetch_s,
            interval_s=self.interval_s,
        )


class SearchApiConfig(_Section):
    """A search API that answers JSON. Paths within it are dotted: `web.results`, `items.0.link`."""

    name: str
    url: str
    method: Literal["GET", "POST"] = Field(default="GET", description="POST sends the parameters as a JSON object")
    query: str = Field(default="q", description="Parameter that takes the query")
    limit: str = Field(default="", description="Parameter that takes the number of results wanted; empty when there is none")
    parameters: dict[str, str | int | bool] = Field(default={}, description="Sent with every query")
    key: str = Field(default="", description="Name of the key: an environment variable, or what the caller resolved; empty for none")
    key_header: str = Field(default="Authorization", pattern=r"^[A-Za-z0-9-]+$", description="Header that carries the key")
    key_format: str = Field(default="{key}", description="Of its value, such as `Bearer {key}`")
    results: str = Field(default="results", description="Path to the list of results")
    address: str = Field(default="url", description="Path to the address within a result")
    title: str = "title"
    snippet: str = "snippet"
    fetch_s: float = Field(default=15.0, gt=0)
    interval_s: float = Field(default=1.0, ge=0, description="Between two queries")

    _address = field_validator("url")(_web_address)

    @field_validator("name")
    @classmethod
    def _plain(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError(f"{value!r} is no name: lower-case letters, digits, - and _")
        return value

    @model_validator(mode="after")
    def _whole(self) -> SearchApiConfig:
        if "{key}" not in self.key_format:
            raise ValueError("`key_format` lacks {key}")
        if self.key and not self.url.startswith("https://") and urlsplit(self.url).hostname not in ("localhost", "127.0.0.1", "::1"):
            raise ValueError(f"{self.url} would send the key in the clear: use https")
        return self


class GitConfig(_Section):
    """A git repository as material: README, documentation and docstrings of one commit."""

    url: str = Field(description="https address, or a local path (also file://)")
    commit: str = Field(default="", description="Full object name; empty takes the head when first retrieved and stays with it")
    name: str = Field(default="", description="Source name of its documents; the last part of the address unless given")
    max_bytes: int = Field(default=256 << 20, ge=1, description="Of what is downloaded")
    max_file_bytes: int = Field(default=1 << 20, ge=1, description="Larger files are left out")
    max_documents: int = Field(default=20_000, ge=1)
    fetch_s: float = Field(default=300.0, gt=0)

    @field_validator("commit")
    @classmethod
    def _full(cls, value: str) -> str:
        if value and not _COMMIT.fullmatch(value):
            raise ValueError(f"{value!r} is no commit: 40 (or 64) lower-case hex digits, a branch or tag may move")
        return value

    @field_validator("url")
    @classmethod
    def _reachable(cls, value: str) -> str:
        scheme, separator, _ = value.partition("://")
        if separator and scheme != "file":
            return _web_address(value)
        if value.startswith("-") or (not separator and re.match(r"[\w.@-]+:", value)):
            raise ValueError(f"{value!r} is no https address and no path; ssh and git:// are not supported")
        return value


class RetrievalConfig(_Section):
    """Where material comes from beside the local corpus. Sources are asked in this order: searxng, apis, git."""

    searxng: tuple[SearxngConfig, ...] = ()
    apis: tuple[SearchApiConfig, ...] = ()
    git: tuple[GitConfig, ...] = ()
    fetch: FetchConfig = FetchConfig()
    parallel: Annotated[int, Field(ge=1, le=64, description="Pages fetched side by side, for one query")] = 8
    search_s: float = Field(default=60.0, gt=0, description="For one query, opening its results included; later ones are left out")

    @model_validator(mode="after")
    def _names(self) -> RetrievalConfig:
        names = [s.name for s in self.searxng] + [a.name for a in self.apis]
        if twice := sorted({n for n in names if names.count(n) > 1}):
            raise ValueError(f"search services of the same name: {', '.join(twice)}")
        return self

    @property
    def empty(self) -> bool:
        """True when nothing is to be retrieved."""
        return not (self.searxng or self.apis or self.git)
