"""The exact tokens of a conversation: token in, token out.

What the policy sampled is appended as it was sampled and never tokenised again. When the context is managed, a plan forks
the history: kept messages go over token by token, only new text is encoded. A token that was sampled carries loss in the one
segment in which it was sampled, so that a trainer sees each once.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from environments.harness.context import Keep, Plan
from environments.protocols import Generation
from environments.task import Message
from environments.trace import Fork, Segment


class Codec(Protocol):
    """What a history needs of a chat template."""

    end: int

    @property
    def generation_prefix(self) -> Sequence[int]: ...
    def encode(self, message: Message) -> Sequence[int]: ...
    def thinking_length(self, body: Sequence[int]) -> int: ...


@dataclass(frozen=True)
class _Entry:
    """Where one message's tokens are in the running segment. `body`: where what was sampled begins, -1 for others' messages."""

    start: int
    end: int
    body: int = -1


class TokenHistory:
    """One conversation's segments: those that were left behind by forks, and the running one, which only grows.

    `tokens` is the running context itself; engines may hold on to it while they generate, nothing else is done meanwhile.
    """

    def __init__(self, codec: Codec, fork: Fork = "root") -> None:
        self.codec = codec
        self.sampled = 0
        """Tokens sampled in all."""
        self.thinking = 0
        """Of these, tokens of reasoning."""
        self.entries: list[_Entry] = []
        self._closed: list[tuple[Fork, array[int], array[float], array[int], array[int], array[int]]] = []
        self._begin(fork)
        self._closed_tokens = 0
        self._open_at = -1

    def _begin(self, fork: Fork) -> None:
        self._fork: Fork = fork
        self.tokens: array[int] = array("i")
        self.logprobs: array[float] = array("d")
        self.versions: array[int] = array("i")
        self.mask: array[int] = array("b")
        self.malformed: array[int] = array("b")

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def position(self) -> int:
        """Tokens of all segments so far: names the next token within the conversation, whatever was forked before."""
        return self._closed_tokens + len(self.tokens)

    def follow(self, edits: Sequence[Message | Plan]) -> None:
        """Do what happened to the conversation: messages are appended, plans forked by."""
        for edit in edits:
            if isinstance(edit, Message):
                self.observe(edit)
            else:
                self.fork(edit)

    def _add(self, tokens: Sequence[int]) -> None:
        count = len(tokens)
        self.tokens.extend(tokens)
        self.logprobs.frombytes(bytes(8 * count))
        self.versions.extend([-1] * count)
        self.mask.frombytes(bytes(count))
        self.malformed.frombytes(bytes(count))

    def observe(self, message: Message) -> None:
        """Append a message that the policy did not write."""
        start = len(self.tokens)
        self._add(self.codec.encode(message))
        self.entries.append(_Entry(start, len(self.tokens)))

    def open_turn(self) -> None:
        """Append the generation prefix; `tokens` is then what the engine goes on from."""
        if self._open_at < 0:
            self._open_at = len(self.tokens)
            self._add(self.codec.generation_prefix)

    def sample(self, generation: Generation) -> None:
        """Append what was sampled after `open_turn`."""
        if self._open_at < 0:
            raise RuntimeError("a sample without an open turn")
        body = len(self.tokens)
        count = len(generation.tokens)
        self.tokens.extend(generation.tokens)
        self.logprobs.extend(generation.logprobs)
        self.versions.extend(generation.versions)
        self.mask.extend([1] * count)
        self.malformed.frombytes(bytes(count))
        self.sampled += count
        self.thinking += self.codec.thinking_length(generation.tokens)
        self.entries.append(_Entry(self._open_at, len(self.tokens), body))
        self._open_at = -1

    def mark_malformed(self, start: int, end: int) -> None:
        """Mark tokens [start, end) of the last sampled body as part of a refused call."""
        entry = self.entries[-1]
        for i in range(entry.body + start, min(entry.body + end, entry.end)):
            self.malformed[i] = 1

    def fork(self, plan: Plan) -> None:
        """Leave the running segment behind and go on from the messages of `plan`.

        Only between turns. Kept messages keep their exact tokens, without loss; those whose reasoning goes lose just these
        tokens; new messages are encoded.
        """
        if self._open_at >= 0:
            raise RuntimeError("a fork inside a turn")
        old, entries = self.tokens, self.entries
        self._close()
        self.entries = []
        for item in plan:
            start = len(self.tokens)
            if isinstance(item, Message):
                self._add(self.codec.encode(item))
                self.entries.append(_Entry(start, len(self.tokens)))
                continue
            entry = entries[item.index]
            if entry.body < 0:
                self._add(old[entry.start : entry.end])
                self.entries.append(_Entry(start, len(self.tokens)))
                continue
            self._add(old[entry.start : entry.body])
            body = len(self.tokens)
            sampled = old[entry.body : entry.end]
            self._add(sampled if item.thinking else sampled[self.codec.thinking_length(sampled) :])
            self.entries.append(_Entry(start, len(self.tokens), body))

    def trim(self, window: int) -> None:
        """Cut what was observed after the last sampled token, and anything beyond `window`: nothing longer may reach a trainer."""
        end = min(window, max((e.end for e in self.entries if e.body >= 0), default=window))
        for column in (self.tokens, self.logprobs, self.versions, self.mask, self.malformed):
            del column[end:]
        self.entries = [e for e in self.entries if e.end <= end]

    def _close(self) -> None:
        self._closed.append((self._fork, self.tokens, self.logprobs, self.versions, self.mask, self.malformed))
        self._closed_tokens += len(self.tokens)
        self._begin("context")

    def segments(self, first_id: int = 0, parent_id: int | None = None, messages: Sequence[Message] = ()) -> list[Segment]:
        """All segments in order, numbered from `first_id`; each one's parent is the one before, the first one's is `parent_id`.

        `messages` go to the last one.
        """
        running = (self._fork, self.tokens, self.logprobs, self.versions, self.mask, self.malformed)
        out: list[Segment] = []
        for fork, tokens, logprobs, versions, mask, malformed in [*self._closed, running]:
            out.append(
                Segment(
                    segment_id=first_id + len(out),
                    parent_id=out[-1].segment_id if out else parent_id,
                    fork=fork,
                    tokens=tuple(tokens),
                    logprobs=tuple(logprobs),
                    versions=tuple(versions),
                    loss_mask=tuple(mask),
                    malformed=tuple(malformed) if any(malformed) else None,
                )
            )
        out[-1] = out[-1].model_copy(update={"messages": tuple(messages)})
        return out


def kept(plan: Plan, messages: Sequence[Message]) -> list[Message]:
    """The messages that a plan leaves."""
    out = []
    for item in plan:
        if isinstance(item, Keep):
            message = messages[item.index]
            out.append(message if item.thinking else message.model_copy(update={"thinking": ""}))
        else:
            out.append(item)
    return out
