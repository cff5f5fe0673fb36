"""A streamed chat completion: server-sent events in, the whole completion out (HTML standard, section 9.2; OpenAI's API reference)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from pydantic import Field

from environments.policies.chat_wire import Lenient, WireCall, WireChoice, WireCompletion, WireFunction, WireMessage, WireUsage, whole_text

OnDelta = Callable[[str, str], None]
"""Told of each piece as it arrives: `thinking` or `content`, and the text."""


class _DeltaCall(Lenient):
    index: int = 0
    function: WireFunction = WireFunction()


class _Delta(Lenient):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_DeltaCall] | None = None


class _Choice(Lenient):
    index: int = 0
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Chunk(Lenient):
    choices: list[_Choice] = Field(default_factory=list)
    usage: WireUsage | None = None
    error: Any = None


class CompletionStream:
    """Feed it the body's bytes; `completion` is what they say once `finished`."""

    def __init__(self, on_delta: OnDelta | None = None) -> None:
        self._rest = b""
        self._data: list[str] = []
        self._on_delta = on_delta
        self._texts: dict[str, list[str]] = {"content": [], "thinking": []}
        self._calls: dict[int, tuple[list[str], list[str]]] = {}
        self._usage: WireUsage | None = None
        self._finish: str | None = None
        self._done = False

    @property
    def finished(self) -> bool:
        """True once the stream said how it ended; one that was cut off never does."""
        return self._done or self._finish is not None

    def feed(self, data: bytes) -> None:
        """Take bytes as they arrive.

        Raises:
            ValueError: an event holds no chunk of a completion, or the server reports an error in it.
        """
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            text = line.rstrip(b"\r").decode("utf-8", "replace")
            if text.startswith("data:"):
                self._data.append(text[5:].removeprefix(" "))
            elif not text and self._data:
                event, self._data = "\n".join(self._data), []
                self._take(event)

    def _take(self, event: str) -> None:
        if event.strip() == "[DONE]":
            self._done = True
            return
        chunk = _Chunk.model_validate_json(whole_text(json.loads(event)))
        if chunk.error:
            raise ValueError(f"the stream reports {chunk.error!r:.120}")
        self._usage = chunk.usage or self._usage
        for choice in chunk.choices:
            if choice.index:
                continue
            delta = choice.delta
            for channel, text in (("thinking", delta.reasoning_content or delta.reasoning), ("content", delta.content)):
                if text:
                    self._texts[channel].append(text)
                    if self._on_delta is not None:
                        self._on_delta(channel, text)
            for call in delta.tool_calls or ():
                name, arguments = self._calls.setdefault(call.index, ([], []))
                name.append(call.function.name)
                arguments.append(call.function.arguments if isinstance(call.function.arguments, str) else "")
            self._finish = choice.finish_reason or self._finish

    def completion(self) -> WireCompletion:
        """The whole completion."""
        calls = [
            WireCall(function=WireFunction(name="".join(name), arguments="".join(arguments)))
            for _, (name, arguments) in sorted(self._calls.items())
        ]
        message = WireMessage(
            content="".join(self._texts["content"]) or None,
            reasoning_content="".join(self._texts["thinking"]) or None,
            tool_calls=calls or None,
        )
        return WireCompletion(choices=[WireChoice(message=message, finish_reason=self._finish)], usage=self._usage)
