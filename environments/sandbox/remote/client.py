"""HTTP to an E2B-compatible server: keys, retries and typed errors. What the requests mean is `sandbox.py`'s matter."""

from __future__ import annotations

import json
import logging
import os
import random
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from pydantic import BaseModel, ValidationError

from environments.errors import ConfigError, SandboxError
from environments.sandbox.remote.wire import (
    ENVD_PORT,
    KEEPALIVE_HEADER,
    KEY_HEADER,
    MAX_MESSAGE,
    PORT_HEADER,
    SANDBOX_HEADER,
    STREAM_JSON,
    TIMEOUT_HEADER,
    TOKEN_HEADER,
    StreamReader,
    WireError,
    envelope,
)

log = logging.getLogger(__name__)

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that another attempt may cure, where repeating the request does no harm."""
_PING_S = 10
"""A silent stream carries a sign of life this often; three missing mean a dead server."""
_KEPT_S = 3.0
"""An idle connection is given up before common servers (5 s) close it under a request."""
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Target:
    """A sandbox's data plane."""

    sandbox_id: str
    url: str
    token: str | None = None

    def headers(self, port: int = ENVD_PORT) -> dict[str, str]:
        """By which a server or its proxy finds the sandbox, and lets us in."""
        found = {SANDBOX_HEADER: self.sandbox_id, PORT_HEADER: str(port)}
        return found | ({TOKEN_HEADER: self.token} if self.token else {})


@dataclass(frozen=True)
class Answer:
    """A response that was read whole."""

    status: int
    body: bytes

    @property
    def away(self) -> bool:
        """The sandbox is paused or gone, in the words of E2B's proxy (502), AgentENV's (404, 410) and ours (502)."""
        if self.status not in (404, 410, 502) or isinstance(_object(self.body).get("code"), str):
            return False  # a code in letters is the daemon inside, speaking of a file
        return self.status == 410 or ("not found" in self.message and "sandbox" in self.message.lower())

    @property
    def message(self) -> str:
        """The server's own words, of an error."""
        try:
            said = json.loads(self.body)
        except ValueError:
            return self.body[:200].decode(errors="replace")
        return str(said["message"])[:300] if isinstance(said, dict) and "message" in said else self.body[:200].decode(errors="replace")


@dataclass
class E2BClient:
    """Threads may share one; a pickled copy connects anew.

    The key is read from the environment at each request, is never kept, and is cut out of whatever a server echoes. Without
    one no key is sent.
    """

    url: str
    """Of the control plane, for example https://api.e2b.app or http://127.0.0.1:8000."""
    sandbox_url: str | None = None
    """Of the data plane of every sandbox, which the server then tells apart by headers; None: as the server says."""
    api_key_env: str = "E2B_API_KEY"
    timeout_s: float = 60.0
    """For each attempt."""
    retries: int = 3
    """Further attempts of requests that may be repeated, and of those that never reached the server."""
    backoff_s: float = 0.2
    """Wait before the first retry, doubled each time, with up to as much again at random."""

    def __post_init__(self) -> None:
        for name in ("url", "sandbox_url"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, _checked(value, self.api_key_env))
        self._connect()

    def _connect(self) -> None:
        # A proxy that the environment names cannot reach this machine's own loopback. Certificates are read for https only.
        host = httpx.URL(self.url).host
        self._client = httpx.Client(
            timeout=self.timeout_s,
            trust_env=host not in LOOPBACK,
            verify=any(url.startswith("https:") for url in (self.url, self.sandbox_url or self.url)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=_KEPT_S),
        )

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "_client"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connect()

    @property
    def where(self) -> str:
        """The server's host, for messages."""
        url = httpx.URL(self.url)
        return f"{url.host}:{url.port}" if url.port else url.host

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def target(self, sandbox_id: str, token: str | None, domain: str | None) -> Target:
        """Where a sandbox answers: the configured address, else its own host below the server's domain, else the server itself."""
        if self.sandbox_url is not None:
            url = self.sandbox_url
        elif domain:
            url = f"{httpx.URL(self.url).scheme}://{ENVD_PORT}-{sandbox_id}.{domain}"
        else:
            url = self.url
        return Target(sandbox_id, url, token)

    def control(self, method: str, path: str, body: BaseModel | None = None, *, repeatable: bool) -> Answer:
        """One request of the control plane. Statuses below 500 and 501 are answers; others are errors after the retries.

        Raises:
            ConfigError: the key is refused.
            SandboxError: the server is dead after all retries, or fails.
        """
        content = None if body is None else body.model_dump_json(by_alias=True, exclude_none=True).encode()
        return self._ask(method, self.url + path, content, {"Content-Type": "application/json"}, repeatable=repeatable)

    def data(
        self,
        target: Target,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        port: int = ENVD_PORT,
        timeout_s: float | None = None,
        repeatable: bool = True,
        max_bytes: int = MAX_MESSAGE,
    ) -> Answer:
        """One request of a sandbox's data plane. As `control`; a body over `max_bytes` is cut there, one byte longer."""
        all_headers = {**target.headers(port), **(headers or {})}
        return self._ask(
            method, target.url + path, content, all_headers, params=params, repeatable=repeatable, timeout_s=timeout_s, max_bytes=max_bytes
        )

    def rpc(self, target: Target, method: str, message: Mapping[str, Any], *, repeatable: bool = True) -> dict[str, Any]:
        """One unary call, for example `filesystem.Filesystem/Stat`.

        Raises:
            WireError: the sandbox answers with an error.
        """
        content = json.dumps(message).encode()
        headers = {"Content-Type": "application/json"}
        answer = self.data(target, "POST", f"/{method}", content=content, headers=headers, repeatable=repeatable)
        if answer.status != 200:
            raise self._wire_error(answer, target)
        return _object(answer.body)

    def _wire_error(self, answer: Answer, target: Target) -> WireError:
        said = _object(answer.body).get("code")
        code = "unavailable" if answer.away else said if isinstance(said, str) else _code(answer.status)
        return WireError(code, self.redact(answer.message, target))

    def stream(
        self, target: Target, method: str, message: Mapping[str, Any], timeout_s: float | None, headers: Mapping[str, str] | None = None
    ) -> Generator[dict[str, Any], None, None]:
        """Messages of a server-streaming call as they arrive; close the iterator to hang up.

        Args:
            timeout_s: at which the server ends the call.

        Raises:
            WireError: the sandbox ends the stream with an error.
            SandboxError: the server is dead, or the stream broke off.
        """
        sent = {**target.headers(), "Content-Type": STREAM_JSON, "Connect-Protocol-Version": "1", KEEPALIVE_HEADER: str(_PING_S)}
        if timeout_s is not None:
            sent[TIMEOUT_HEADER] = str(max(1, round(timeout_s * 1000)))
        attempt = 0
        while True:
            try:
                yield from self._stream(target, method, envelope(message), {**sent, **(headers or {})})
            except httpx.ConnectError as error:  # nothing has been sent
                if attempt >= self.retries:
                    raise self._dead(error, attempt) from None
                self._wait(attempt, str(error))
                attempt += 1
            except httpx.TransportError as error:
                raise self._dead(error, attempt) from None
            else:
                return

    def _stream(self, target: Target, method: str, content: bytes, headers: Mapping[str, str]) -> Generator[dict[str, Any], None, None]:
        reader = StreamReader()
        timeout = httpx.Timeout(self.timeout_s, read=3 * _PING_S)
        with self._client.stream("POST", f"{target.url}/{method}", content=content, headers=headers, timeout=timeout) as response:
            if response.status_code != 200:
                answer = Answer(response.status_code, response.read()[:MAX_MESSAGE])
                self._refuse(answer, of_sandbox=True)
                raise self._wire_error(answer, target)
            for chunk in response.iter_raw():
                yield from reader.feed(chunk)
        if not reader.ended:
            raise SandboxError(f"{self.where} broke off what sandbox {target.sandbox_id} was saying", "create another, or try again")

    def _ask(
        self,
        method: str,
        url: str,
        content: bytes | None,
        headers: Mapping[str, str],
        *,
        repeatable: bool,
        params: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        max_bytes: int = MAX_MESSAGE,
    ) -> Answer:
        attempt = 0
        timeout = self.timeout_s if timeout_s is None else httpx.Timeout(self.timeout_s, read=timeout_s)
        while True:
            # The key goes to the control plane alone: a sandbox's host may be another party's.
            sent = dict(headers) if TOKEN_HEADER in headers or SANDBOX_HEADER in headers else {**headers, **self._key_header()}
            wait_s = 0.0
            try:
                with self._client.stream(method, url, content=content, headers=sent, params=params, timeout=timeout) as response:
                    body = bytearray()
                    for chunk in response.iter_bytes():
                        body += chunk
                        if len(body) > max_bytes:
                            del body[max_bytes + 1 :]
                            break
                    status = response.status_code
                    wait_s = _retry_after_s(response.headers.get("retry-after", ""))
            except httpx.ConnectError as error:
                if attempt >= self.retries:
                    raise self._dead(error, attempt) from None
                reason = str(error)
            except httpx.TransportError as error:
                if attempt >= self.retries or not repeatable:
                    raise self._dead(error, attempt) from None
                reason = type(error).__name__
            else:
                answer = Answer(status, bytes(body))
                self._refuse(answer, of_sandbox=SANDBOX_HEADER in headers)
                # A 429 was turned away before anything happened.
                if status not in _TRANSIENT or answer.away or attempt >= self.retries or not (repeatable or status == 429):
                    if status >= 500 and status != 501 and not answer.away:
                        raise SandboxError(
                            f"{self.where} failed ({attempt + 1} attempts): status {status}: {self.redact(answer.message)!r}",
                            "look into the server's log",
                        )
                    return answer
                reason = f"status {status}"
            self._wait(attempt, reason, wait_s)
            attempt += 1

    def _wait(self, attempt: int, reason: str, wait_s: float = 0.0) -> None:
        delay_s = min(30.0, max(wait_s, self.backoff_s * 2**attempt * (1 + random.random())))
        log.warning("%s: %s; trying again in %.1f s", self.where, self.redact(reason), delay_s)
        time.sleep(delay_s)

    def _refuse(self, answer: Answer, *, of_sandbox: bool) -> None:
        if answer.status not in (401, 403):
            return
        said = f"status {answer.status}: {self.redact(answer.message)!r}"
        if of_sandbox:
            raise SandboxError(f"{self.where} refuses the access token of a sandbox: {said}", "connect to the sandbox again")
        raise ConfigError(f"{self.where} refuses the key in {self.api_key_env}: {said}", f"set {self.api_key_env} to a key of that server")

    def _dead(self, error: httpx.TransportError, attempt: int) -> SandboxError:
        said = self.redact(f"{type(error).__name__}: {error!s:.120}")
        return SandboxError(f"{self.where} does not answer ({attempt + 1} attempts): {said}", "start the server, or check its URL")

    def _key_header(self) -> dict[str, str]:
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            return {}
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"the key in {self.api_key_env} holds characters that no header may hold", "set it again, without line breaks"
            )
        return {KEY_HEADER: key}

    def redact(self, text: str, target: Target | None = None) -> str:
        """Text from a server without our key, and without the sandbox's token."""
        for secret in (os.environ.get(self.api_key_env, "").strip(), target.token if target else None):
            if secret:
                text = text.replace(secret, "[key]")
        return text

    def parse(self, model: type[Model], body: bytes | str) -> Model:
        """A REST answer.

        Raises:
            SandboxError: it is not what the E2B API promises.
        """
        try:
            return model.model_validate_json(body)
        except ValidationError as error:
            first = error.errors()[0]
            raise SandboxError(
                f"{self.where} answered no {model.__name__}: {'.'.join(map(str, first['loc']))}: {first['msg']}",
                "check that the URL is that of an E2B-compatible server",
            ) from None


def _checked(value: str, api_key_env: str) -> str:
    try:
        url = httpx.URL(value.rstrip("/"))
    except httpx.InvalidURL as error:
        raise ConfigError(f"the server {value!r:.80} is not a URL", "use something like http://127.0.0.1:8000") from error
    if url.userinfo:
        raise ConfigError("the server's URL holds a password", f"put the key into {api_key_env} instead")
    if url.scheme not in ("http", "https") or not url.host:
        raise ConfigError(f"the server {value!r:.80} is not an http(s) URL", "use something like http://127.0.0.1:8000")
    return str(url).rstrip("/")


def _object(body: bytes) -> dict[str, Any]:
    try:
        said = json.loads(body)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _code(status: int) -> str:
    """Connect's code for a plain HTTP error, for example a proxy's."""
    return {400: "invalid_argument", 404: "not_found", 409: "already_exists", 429: "resource_exhausted", 501: "unimplemented"}.get(
        status, "unavailable" if status in (502, 503) else "deadline_exceeded" if status == 504 else "unknown"
    )


def _retry_after_s(header: str) -> float:
    """Seconds that a Retry-After header asks for; a date or nothing gives 0."""
    try:
        return max(0.0, float(header))
    except ValueError:
        return 0.0
