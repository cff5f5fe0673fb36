"""One HTTP request and its bounded answer: no redirects, no cookies, decompressed here so that a bomb stops at the limit."""

from __future__ import annotations

import email.utils
import functools
import ssl
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpcore
import httpx

from environments.errors import ConfigError
from environments.search.web.guard import Guard, GuardedTransport
from environments.search.web.outcome import RefusedError

_STEP = 64 << 10


@dataclass(frozen=True)
class Answer:
    """Status, headers (lower-case names) and decompressed body; the body is empty when `wanted` said so."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    cut: bool = False
    """The body was longer and `cut` was asked for."""


@functools.lru_cache(maxsize=4)
def _tls(ca_file: Path | None) -> ssl.SSLContext:
    if ca_file is None:
        return httpx.create_ssl_context(trust_env=False)
    try:
        return ssl.create_default_context(cafile=str(ca_file))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{ca_file} does not read as certificates ({error})", "name a PEM file in `ca_file`") from error


def exchange(
    url: httpx.URL,
    guard: Guard,
    deadline: float,
    *,
    max_bytes: int,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    content: bytes | None = None,
    wanted: Callable[[int, Mapping[str, str]], bool] = lambda status, headers: status == 200,
    cut: bool = False,
) -> Answer:
    """Send one request.

    Args:
        deadline: of everything, on `time.monotonic`'s clock.
        max_bytes: of the body, as sent and decompressed alike.
        wanted: whether the body is read, given status and headers.
        cut: return the beginning of a body that is too long, instead of refusing it.

    Raises:
        RefusedError: what went wrong, by kind.
    """
    config = guard.config
    sent = {"user-agent": config.user_agent, "accept-encoding": "gzip, deflate", "accept": "*/*", **(headers or {})}
    timeout = httpx.Timeout(config.idle_s, connect=config.connect_s)
    try:
        with (
            httpx.Client(transport=GuardedTransport(guard, deadline, _tls(config.ca_file)), trust_env=False, timeout=timeout) as client,
            client.stream(method, url, headers=sent, content=content, follow_redirects=False) as response,
        ):
            found = {name.lower(): value for name, value in response.headers.items()}
            if not wanted(response.status_code, found):
                return Answer(response.status_code, found, b"")
            length = found.get("content-length", "")
            if length.isdigit() and int(length) > max_bytes and not cut:
                raise RefusedError("too_large", f"{length} bytes announced, at most {max_bytes} are read", response.status_code)
            body, whole = _read(response.iter_raw(_STEP), found.get("content-encoding", ""), max_bytes, deadline)
            if not whole and not cut:
                raise RefusedError("too_large", f"more than {max_bytes} bytes", response.status_code)
            return Answer(response.status_code, found, body, not whole)
    except (httpcore.TimeoutException, TimeoutError) as error:
        raise RefusedError("timeout", f"{url.host} took too long ({type(error).__name__})") from error
    except httpcore.ConnectError as error:
        raise RefusedError("unreachable", f"{url.host} cannot be connected to ({error})") from error
    except (httpcore.NetworkError, httpcore.ProtocolError, httpx.HTTPError, ValueError) as error:
        raise RefusedError("protocol", f"{url.host} broke off or speaks no HTTP ({type(error).__name__})") from error


def _read(chunks: Iterable[bytes], encoding: str, max_bytes: int, deadline: float) -> tuple[bytes, bool]:
    """(body, whether it is whole). Never holds more than `max_bytes` and one step of decompressed data."""
    names = [name.strip().lower() for name in encoding.split(",") if name.strip() and name.strip().lower() != "identity"]
    if len(names) > 1 or (names and names[0] not in ("gzip", "x-gzip", "deflate")):
        raise RefusedError("bad_encoding", f"content encoding {encoding!r:.80}")
    expand = _Inflater(names[0]) if names else None
    body, received = bytearray(), 0
    for chunk in chunks:
        if time.monotonic() > deadline:
            raise RefusedError("timeout", "the time for one document is up")
        received += len(chunk)
        if received > max_bytes and expand is not None:
            return bytes(body), False
        body += expand(chunk, max_bytes + 1 - len(body)) if expand else chunk
        if len(body) > max_bytes:
            return bytes(body[:max_bytes]), False
    if expand is not None and not expand.finished:
        raise RefusedError("bad_encoding", f"the {names[0]} data ends in the middle")
    return bytes(body), True


class _Inflater:
    """gzip (also several members) or deflate, zlib-wrapped or raw, never beyond the room it is given."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._started = False
        self._wbits = zlib.MAX_WBITS if name == "deflate" else zlib.MAX_WBITS | 16
        self._inflate = zlib.decompressobj(self._wbits)
        self.finished = True

    def __call__(self, data: bytes, room: int) -> bytes:
        out = bytearray()
        while data and len(out) < room:
            if self._inflate.eof:
                self._inflate = zlib.decompressobj(self._wbits)
            try:
                out += self._inflate.decompress(data, room - len(out))
            except zlib.error as error:
                if self._started or self._name != "deflate":
                    raise RefusedError("bad_encoding", f"broken {self._name} data ({error})") from error
                self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)  # many servers send raw deflate
                self._started = True
                continue
            self._started = True
            self.finished = self._inflate.eof
            data = self._inflate.unused_data if self._inflate.eof else self._inflate.unconsumed_tail
        return bytes(out)


def retry_after_s(value: str, now: float) -> float | None:
    """Seconds that a Retry-After header asks to wait (RFC 9110, section 10.2.3: seconds or a date); None when it says nothing."""
    if value.strip().isdigit():
        return float(value.strip()[:9])
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - now)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
