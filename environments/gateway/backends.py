"""What answers behind the gateway: a token engine with a codec, or any message policy. Both off the caller's thread."""

from __future__ import annotations

import math
import queue
from array import array
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal, Protocol

from environments.errors import EngineError, MalformedCallError, NinefoldError
from environments.harness.loop import CHARS_PER_TOKEN, characters
from environments.harness.tokens import ChatCodec
from environments.harness.xtml_stream import TextDelta
from environments.protocols import Engine, GenerateRequest, Generation, MessagePolicy
from environments.task import Message, ToolSpec

Finish = Literal["stop", "length", "stop_sequence"]


@dataclass(frozen=True)
class Turn:
    """One answer that is asked for."""

    request_id: str
    messages: Sequence[Message]
    """The whole context, option messages included."""
    prefix: array[int]
    """The same as tokens, up to where sampling begins; empty for policies without."""
    tools: tuple[ToolSpec, ...]
    key: tuple[int, int]
    max_new_tokens: int
    stop: tuple[str, ...] = ()
    temperature: float = 1.0
    logprobs: bool = False


@dataclass(frozen=True)
class Draft:
    """An answer before it is recorded."""

    message: Message
    finish: Finish
    stop_sequence: str = ""
    body: array[int] = field(default_factory=lambda: array("i"))
    logprobs: array[float] = field(default_factory=lambda: array("d"))
    versions: array[int] = field(default_factory=lambda: array("i"))
    malformed: tuple[tuple[int, int], ...] = ()
    error: str = ""
    """Why the message cannot be read; its tokens are then shown as text."""
    output_tokens: int = 0
    thinking_tokens: int = 0
    pieces: tuple[tuple[str, float], ...] | None = None
    """The content in pieces of whole characters, each with the log-probability of its tokens in sum; None where unknown."""


class Backend(Protocol):
    """What a session asks. `window` is in tokens, prompt and answer together."""

    name: str
    trainable: bool
    window: int

    def encode(self, message: Message) -> array[int]:
        """The tokens of a message that was not sampled here."""
        ...

    def reopened(self, body: array[int]) -> tuple[array[int], int]:
        """The tokens of a sampled message in its context, and where in them the body begins."""
        ...

    def opening(self) -> array[int]:
        """What stands before a sampled body."""
        ...

    def size(self, messages: Sequence[Message], tokens: int) -> int:
        """Tokens of a context; exact where there are tokens, else a rough count."""
        ...

    def ask(self, turn: Turn) -> Future[Draft]:
        """Begin an answer. The future raises NinefoldError."""
        ...

    def close(self) -> None: ...


class PolicyBackend:
    """A message policy, asked from threads of its own. Its traces have no tokens; counts are rough."""

    trainable = False

    def __init__(self, policy: MessagePolicy, window: int = 128_000, threads: int = 32) -> None:
        self.policy, self.name, self.window = policy, policy.name, window
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="gateway-policy")

    def encode(self, message: Message) -> array[int]:
        return array("i")

    def reopened(self, body: array[int]) -> tuple[array[int], int]:
        return array("i"), 0

    def opening(self) -> array[int]:
        return array("i")

    def size(self, messages: Sequence[Message], tokens: int) -> int:
        return sum(map(characters, messages)) // CHARS_PER_TOKEN

    def ask(self, turn: Turn) -> Future[Draft]:
        return self._threads.submit(self._answer, turn)

    def _answer(self, turn: Turn) -> Draft:
        try:
            message = self.policy.reply(turn.messages, turn.tools)
        except NinefoldError:
            raise
        except Exception as error:  # the boundary: whatever a policy dies of, its sessions hear of it
            raise EngineError(f"policy {self.name} failed: {type(error).__name__}: {error!s:.120}", "see its own log") from error
        calls = tuple(c.model_copy(update={"index": i}) for i, c in enumerate(message.calls))
        content, stop = cut_at(message.content, turn.stop)
        message = message.model_copy(update={"content": content, "calls": () if stop else calls})
        return Draft(
            message,
            "stop_sequence" if stop else "stop",
            stop,
            output_tokens=characters(message) // CHARS_PER_TOKEN,
            thinking_tokens=len(message.thinking) // CHARS_PER_TOKEN,
        )

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


class EngineBackend:
    """A token engine. Requests that wait while it generates are asked together as one batch.

    Args:
        workers: `generate` calls at a time; more than one only for engines that batch by themselves (a server).
    """

    trainable = True

    def __init__(self, engine: Engine, codec: ChatCodec, window: int, name: str = "engine", workers: int = 1) -> None:
        self.engine, self.codec, self.window, self.name = engine, codec, window, name
        self._waiting: queue.SimpleQueue[tuple[Turn, Future[Draft]]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="gateway-engine")

    def encode(self, message: Message) -> array[int]:
        return array("i", self.codec.encode(message))

    def reopened(self, body: array[int]) -> tuple[array[int], int]:
        """A body that was cut short is ended, so that what follows is a message of its own; the end was not sampled."""
        tokens = self.opening()
        at = len(tokens)
        tokens.extend(body)
        if not body or body[-1] != self.codec.end:
            tokens.append(self.codec.end)
        return tokens, at

    def opening(self) -> array[int]:
        return array("i", self.codec.generation_prefix)

    def size(self, messages: Sequence[Message], tokens: int) -> int:
        return tokens

    def ask(self, turn: Turn) -> Future[Draft]:
        future: Future[Draft] = Future()
        self._waiting.put((turn, future))
        self._threads.submit(self._drain)
        return future

    def _drain(self) -> None:
        batch: list[tuple[Turn, Future[Draft]]] = []
        while not self._waiting.empty():
            batch.append(self._waiting.get())
        batch = [(turn, future) for turn, future in batch if future.set_running_or_notify_cancel()]
        if not batch:
            return
        try:
            drafts = self._generate([turn for turn, _ in batch])
        except NinefoldError as error:
            for _, future in batch:
                future.set_exception(error)
            return
        for (_, future), draft in zip(batch, drafts, strict=True):
            future.set_result(draft)

    def _generate(self, turns: Sequence[Turn]) -> list[Draft]:
        requests = [
            GenerateRequest(t.request_id, t.prefix, t.max_new_tokens, frozenset({self.codec.end}), t.key, t.temperature) for t in turns
        ]
        try:
            done = self.engine.generate(requests)
            return [self._draft(turn, generation) for turn, generation in zip(turns, done, strict=True)]
        except NinefoldError:
            raise
        except Exception as error:  # the boundary: whatever an engine dies of, its sessions hear of it
            raise EngineError(f"engine {self.name} failed: {type(error).__name__}: {error!s:.120}", "see its own log") from error

    def _draft(self, turn: Turn, generation: Generation) -> Draft:
        if generation.finish == "abort":
            raise EngineError(f"request {turn.request_id} was aborted", "ask again")
        body = list(generation.tokens)
        stop = ""
        if turn.stop:
            count, stop = self._stopped(body, turn.stop)
            body = body[:count]
        ended = generation.finish == "stop" and not stop
        error, malformed = "", []
        if ended:
            try:
                message = self.codec.decode_assistant(body)
                malformed = self._malformed(body, message, turn.tools)
            except MalformedCallError as broken:
                error = str(broken)
                message = Message(role="assistant", content=self.codec.transcript(body))
                malformed = [(s.start, s.end) for s in self.codec.malformed_spans(body)] or [(0, len(body))]
        else:
            message = self._partial(body, turn.stop)
        return Draft(
            message,
            "stop_sequence" if stop else "stop" if ended else "length",
            stop,
            array("i", body),
            array("d", generation.logprobs[: len(body)]),
            array("i", generation.versions[: len(body)]),
            tuple(malformed),
            error,
            len(generation.tokens),
            self.codec.thinking_length(body),
            tuple(self._pieces(body, generation.logprobs)) if turn.logprobs else None,
        )

    def _malformed(self, body: list[int], message: Message, tools: Sequence[ToolSpec]) -> list[tuple[int, int]]:
        """Calls that cannot be read or are of no tool; arguments are for the program that executes them to judge."""
        if not message.calls:
            return []
        unreadable = {(s.start, s.end) for s in self.codec.malformed_spans(body)}
        checked = self.codec.malformed_spans(body, tools)
        unknown = {(s.start, s.end) for s in checked if s.reason.startswith("there is no tool")}
        return sorted(unreadable | unknown)

    def _partial(self, body: Sequence[int], stop: Sequence[str]) -> Message:
        """What can be shown of a message that was cut: no calls, since none may be executed before its message has ended."""
        said = {"thinking": "", "content": ""}
        for event in self.codec.stream().feed(body):
            if isinstance(event, TextDelta):
                said[event.channel] += event.text
        content, _ = cut_at(said["content"], stop)
        return Message(role="assistant", content=content, thinking=said["thinking"])

    def _stopped(self, body: Sequence[int], stop: Sequence[str]) -> tuple[int, str]:
        """How many tokens it takes until the content holds a stop sequence, and which; all of them when it never does."""
        decoder, content = self.codec.stream(), ""
        for i, token in enumerate(body):
            for event in decoder.feed([token]):
                if isinstance(event, TextDelta) and event.channel == "content":
                    content += event.text
                    if found := cut_at(content, stop)[1]:
                        return i + 1, found
        return len(body), ""

    def _pieces(self, body: Sequence[int], logprobs: Sequence[float]) -> list[tuple[str, float]]:
        decoder, held = self.codec.stream(), 0
        pieces: list[tuple[str, float]] = []
        for i, token in enumerate(body):
            text = "".join(e.text for e in decoder.feed([token]) if isinstance(e, TextDelta) and e.channel == "content")
            if text:
                pieces.append((text, math.fsum(logprobs[held if pieces else i : i + 1])))
                held = i + 1
        return pieces

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        while not self._waiting.empty():
            self._waiting.get()[1].cancel()


def cut_at(text: str, stop: Sequence[str]) -> tuple[str, str]:
    """The text before the first stop sequence, and that sequence; the whole text and nothing when there is none."""
    at, found = min(((text.find(s), s) for s in stop if s in text), default=(len(text), ""))
    return text[:at], found
