"""A token engine that samples what a test prepared, over a real tokenizer; spelled so that text cannot give the tokens back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from environments.errors import EngineError
from environments.harness.xtml import Xtml
from environments.protocols import GenerateRequest, Generation, Load
from environments.task import Message, ToolCall, ToolSpec
from training.tokenizer import XtmlTokenizer, element_tags

TOOLS = (ToolSpec(name="search", description="Search."), ToolSpec(name="submit", description="Hand in."))
_SAMPLES = ["find the width of the wrapped text in chunks", 'search {"query": "width"} open submit answer', "naïve Ω 漢字 🙂"] * 4


class Squeezing(XtmlTokenizer):
    """Decoding loses tokens: runs of spaces read as one space."""

    def decode(self, ids: Sequence[int]) -> str:
        text = super().decode(ids)
        while "  " in text:
            text = text.replace("  ", " ")
        return text


def make_codec(kind: type[XtmlTokenizer] = XtmlTokenizer) -> Xtml:
    return Xtml(kind.train(_SAMPLES, element_tags(TOOLS), 400))


def spelled(codec: Xtml, message: Message) -> list[int]:
    """The message as a policy may sample it: its texts one character at a time, tags as always."""

    class Letters:
        reserved, elements = codec.tokenizer.reserved, codec.tokenizer.elements

        def encode(self, text: str) -> list[int]:
            return [t for c in text for t in codec.tokenizer.encode(c)]

        def decode(self, ids: Sequence[int]) -> str:
            return codec.tokenizer.decode(ids)

    return Xtml(Letters()).assistant_body(message)


Line = Message | list[int] | Exception | Callable[[GenerateRequest], Message]


class PreparedEngine:
    """Samples its lines in order, whoever asks. Keeps every prefix, and what it sampled after it."""

    version = 7

    def __init__(self, codec: Xtml, lines: Iterable[Line]) -> None:
        self.codec = codec
        self.lines = iter(lines)
        self.sampled: list[tuple[list[int], list[int]]] = []
        self.requests: list[GenerateRequest] = []
        self.batches: list[int] = []
        self._lock = threading.Lock()

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        with self._lock:
            self.batches.append(len(requests))
            return [self._one(r) for r in requests]

    def _one(self, request: GenerateRequest) -> Generation:
        line = next(self.lines)
        if callable(line):
            line = line(request)
        if isinstance(line, Exception):
            raise line
        body = spelled(self.codec, line) if isinstance(line, Message) else line
        finish = "stop" if len(body) <= request.max_new_tokens and body[-1] == self.codec.end else "length"
        body = body[: request.max_new_tokens]
        self.sampled.append((list(request.prefix), body))
        self.requests.append(request)
        logprobs = [-(i + 1) / 64 for i in range(len(body))]
        return Generation(request.request_id, body, logprobs, [self.version] * len(body), finish)

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        raise EngineError("it only samples")

    def abort(self, request_ids: Sequence[str] | None = None) -> None:
        raise EngineError("it only samples")

    def update_weights(self, state: Mapping[str, Any], version: int) -> None:
        raise EngineError("it only samples")

    def load(self) -> Load:
        return Load(0, 0, 0.0)


def say(content: str = "", thinking: str = "", *calls: tuple[str, dict[str, Any]]) -> Message:
    made = tuple(ToolCall(tool=tool, arguments=arguments, index=i) for i, (tool, arguments) in enumerate(calls))
    return Message(role="assistant", content=content, thinking=thinking, calls=made)
