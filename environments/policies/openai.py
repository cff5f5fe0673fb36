"""Any OpenAI-compatible chat endpoint as a message policy: hosted models, or a local server such as sglang or vLLM."""

from __future__ import annotations

import json
import logging
import os
import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from environments.errors import ConfigError, EngineError
from environments.policies.chat_stream import CompletionStream, OnDelta
from environments.policies.chat_wire import WireCompletion, WireUsage, read_completion, read_message, write_messages, write_tools
from environments.task import Message, ToolSpec

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 2**20
"""A longer response is no chat message."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_REFUSED = {
    401: "set {env} to a valid key",
    403: "use a key that may use this model (in {env})",
    404: "check the base URL and the model's name",
}
"""Statuses that no retry can change, and the fix for each."""


@dataclass
class Usage:
    """What a policy has spent so far, as the endpoint counted it. Safe to read from any thread."""

    requests: int = 0
    """Answered requests."""
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    """Part of the completion tokens, where the endpoint says so."""
    unreported: int = 0
    """Answered requests without a count."""


class _Transient(Exception):
    """A failure that another attempt may cure; `wait_s` is what the server asked for."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


@dataclass
class OpenAIChatPolicy:
    """Implements `environments.protocols.MessagePolicy`. Threads may share one; a pickled copy connects anew.

    The key is read from the environment at each request, is never kept, and is cut out of whatever a server echoes.
    """

    base_url: str
    """Up to and including the version, for example `https://api.openai.com/v1`."""
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the variable that holds the key; without a key no Authorization header is sent."""
    timeout_s: float = 180.0
    """For one whole attempt, the body included."""
    retries: int = 4
    """Further attempts after 408, 429, 5xx, time-outs and broken connections."""
    backoff_s: float = 0.5
    """Wait before the first retry, doubled each time, with up to as much again at random."""
    max_backoff_s: float = 30.0
    temperature: float | None = None
    max_tokens: int | None = None
    """Of one answer; None leaves it to the endpoint."""
    send_thinking: bool = True
    """Send the model's earlier thinking back, as `reasoning_content`."""
    stream: bool = False
    """Take the answer piece by piece; `timeout_s` still bounds the whole."""
    on_delta: OnDelta | None = None
    """Told of each piece of a streamed answer. A pickled copy tells nobody."""
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request."""
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        try:
            self._url = httpx.URL(self.base_url.rstrip("/") + "/chat/completions")
        except httpx.InvalidURL as error:
            raise ConfigError(f"the endpoint {self.base_url!r:.80} is not a URL", "use something like http://127.0.0.1:8000/v1") from error
        if self._url.scheme not in ("http", "https") or not self._url.host:
            raise ConfigError(
                f"the endpoint {self._url.host or self.base_url!r:.80} is not an http(s) URL", "use something like http://127.0.0.1:8000/v1"
            )
        if self._url.userinfo:
            raise ConfigError("the endpoint's URL holds a password", f"put the key into {self.api_key_env} instead")
        if not self.model:
            raise ConfigError("the endpoint's model has no name", "name a model that the endpoint serves")
        self._connect()

    def _connect(self) -> None:
        self._lock = threading.Lock()
        # A proxy that the environment names cannot reach this machine's own loopback.
        # Certificates are read for https only: that takes a third of a second.
        self._client = httpx.Client(timeout=self.timeout_s, trust_env=self._url.host not in _LOOPBACK, verify=self._url.scheme == "https")

    def __getstate__(self) -> dict[str, Any]:
        return {k: None if k == "on_delta" else v for k, v in self.__dict__.items() if k not in ("_lock", "_client")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._connect()

    @property
    def name(self) -> str:
        """The model's name, as traces record it."""
        return self.model

    @property
    def where(self) -> str:
        """The endpoint's host, for messages."""
        return f"{self._url.host}:{self._url.port}" if self._url.port else self._url.host

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()

    def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The next assistant message. A call whose arguments are no JSON object is returned as malformed, for the environment to refuse.

        Raises:
            ConfigError: the endpoint refuses the key, or has no such model.
            EngineError: it is dead after all retries, refuses the request, or answers garbage.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": write_messages(messages, send_thinking=self.send_thinking),
            "stream": self.stream,
        }
        if self.stream:
            body["stream_options"] = {"include_usage": True}
        if tools:
            body["tools"] = write_tools(tools)
        if self.temperature is not None:
            body["temperature"] = self.temperature
        if self.max_tokens is not None:
            body["max_tokens"] = self.max_tokens
        payload = json.dumps({**body, **self.extra_body}).encode()
        completion = self._post(payload)
        self._count(completion.usage)
        return read_message(completion)

    def _read(self, body: bytes) -> WireCompletion:
        try:
            return read_completion(body)
        except ValueError as error:
            raise self._garbage(body, error) from None

    def _garbage(self, body: bytes, error: ValueError) -> EngineError:
        said = self._redact(body[:80].decode(errors="replace"))
        return EngineError(
            f"{self.where} answered no chat completion: {said!r} ({type(error).__name__})",
            "check that the base URL is that of an OpenAI-compatible server",
        )

    def _post(self, payload: bytes) -> WireCompletion:
        attempt = 0
        while True:
            try:
                return self._attempt(payload)
            except _Transient as failure:
                if attempt >= self.retries:
                    raise EngineError(
                        f"{self.where} failed {attempt + 1} times, last: {failure}", "start the endpoint again or raise the retries"
                    ) from None
                wait_s = min(self.max_backoff_s, max(failure.wait_s, self.backoff_s * 2**attempt * (1 + random.random())))
                log.warning("%s: %s; trying again in %.1f s", self.where, failure, wait_s)
                attempt += 1
                with self._lock:
                    self.usage.retries += 1
                time.sleep(wait_s)

    def _attempt(self, payload: bytes) -> WireCompletion:
        """One request; raises _Transient for what another attempt may cure. Errors are raised `from None`: they hold the key."""
        deadline = time.monotonic() + self.timeout_s
        body = bytearray()
        streamed: CompletionStream | None = None
        try:
            with self._client.stream("POST", self._url, content=payload, headers=self._headers()) as response:
                if response.status_code == 200 and response.headers.get("content-type", "").startswith("text/event-stream"):
                    streamed = CompletionStream(self.on_delta)
                for chunk in response.iter_bytes():
                    body += chunk
                    if streamed is not None:
                        try:
                            streamed.feed(chunk)
                        except ValueError as error:
                            raise self._garbage(bytes(body), error) from None
                    if time.monotonic() > deadline:  # a server that drips keeps every single read within its time-out
                        raise _Transient(f"no whole answer within {self.timeout_s:g} s")
                    if len(body) > MAX_BODY_BYTES:
                        raise EngineError(
                            f"{self.where} answered over {MAX_BODY_BYTES >> 20} MiB", "check that the base URL is that of a chat endpoint"
                        )
        except httpx.TimeoutException:
            raise _Transient(f"no answer within {self.timeout_s:g} s") from None
        except httpx.DecodingError:
            raise EngineError(f"{self.where} answered a body that does not decode", "check the endpoint or the proxy before it") from None
        except httpx.TransportError as error:
            raise _Transient(self._redact(f"{type(error).__name__}: {error!s:.120}")) from None
        if streamed is not None:
            if not streamed.finished:
                raise _Transient("the stream ended before the answer did")
            return streamed.completion()
        if response.status_code == 200:
            return self._read(bytes(body))
        said = f"status {response.status_code}: {self._redact(body.decode(errors='replace'))!r:.300}"
        if response.status_code in (408, 425, 429) or response.status_code >= 500:
            raise _Transient(said, _retry_after_s(response.headers.get("retry-after", "")))
        if response.status_code in _REFUSED:
            raise ConfigError(f"{self.where} refuses {self.model}: {said}", _REFUSED[response.status_code].format(env=self.api_key_env))
        raise EngineError(f"{self.where} does not take the request: {said}", "shorten the conversation, or check the model's options")

    def _headers(self) -> dict[str, str]:
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            return {"Content-Type": "application/json"}
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(
                f"the key in {self.api_key_env} holds characters that no header may hold", "set it again, without line breaks"
            )
        return {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}

    def _redact(self, text: str) -> str:
        key = os.environ.get(self.api_key_env, "").strip()
        return text.replace(key, "[key]") if key else text

    def _count(self, usage: WireUsage | None) -> None:
        with self._lock:
            self.usage.requests += 1
            if usage is None:
                self.usage.unreported += 1
                return
            self.usage.prompt_tokens += usage.prompt_tokens
            self.usage.completion_tokens += usage.completion_tokens
            details = usage.completion_tokens_details
            self.usage.reasoning_tokens += (details.reasoning_tokens or 0) if details else 0


def _retry_after_s(header: str) -> float:
    """Seconds that a Retry-After header asks for; a date or nothing gives 0."""
    try:
        return max(0.0, float(header))
    except ValueError:
        return 0.0
