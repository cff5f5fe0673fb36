"""An episode on tokens: requests for an engine go out, generations come in; what was sampled is what is kept.

Drives the same `Episode` as message policies do, with one exact token history a conversation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from environments.errors import AgentError
from environments.harness.episode import Conversation, Episode
from environments.harness.history import Codec, TokenHistory
from environments.harness.xtml_stream import Span, StreamDecoder, TextDelta
from environments.protocols import GenerateRequest, Generation
from environments.task import Message, ToolSpec
from environments.trace import Segment, SubagentRecord


class ChatCodec(Codec, Protocol):
    """A chat template that also reads what a policy sampled."""

    def decode_assistant(self, body: Sequence[int]) -> Message:
        """Raises MalformedCallError."""
        ...

    def transcript(self, ids: Sequence[int]) -> str:
        """Tokens for people to read, reserved ones spelled out."""
        ...

    def malformed_spans(self, body: Sequence[int], tools: Sequence[ToolSpec] | None = None) -> Sequence[Span]:
        """Which tokens of a sampled body are malformed as native calls."""
        ...

    def stream(self) -> StreamDecoder: ...


_CHILD_SEED = 0x9E3779B97F4A7C15


class TokenEpisode:
    """One trajectory. `start` it, then answer what `requests` asks for with `feed`, until `done`."""

    def __init__(self, trajectory_id: str, seed: int, episode: Episode, codec: ChatCodec, window: int) -> None:
        self.trajectory_id, self.seed, self.episode, self.codec, self.window = trajectory_id, seed, episode, codec, window
        self.histories: list[TokenHistory] = []
        self._asked: dict[str, Conversation] = {}

    @property
    def done(self) -> bool:
        return self.episode.stop is not None

    @property
    def output_tokens(self) -> int:
        """Sampled in all conversations."""
        return sum(h.sampled for h in self.histories)

    @property
    def thinking_tokens(self) -> int:
        return sum(h.thinking for h in self.histories)

    def start(self) -> None:
        """Bring the environment up."""
        self.episode.start()

    def requests(self) -> list[GenerateRequest]:
        """One request for each conversation that needs a turn and was not asked for yet."""
        out: list[GenerateRequest] = []
        while True:
            ready = [c for c in self.episode.waiting() if self._name(c) not in self._asked]
            if not ready:
                return [] if self.done else out
            for who in ready:
                if (request := self._request(who)) is not None:
                    self._asked[request.request_id] = who
                    out.append(request)

    def _name(self, who: Conversation) -> str:
        return f"{self.trajectory_id}#{who.conversation_id}" if who.conversation_id else self.trajectory_id

    def _history(self, who: Conversation) -> TokenHistory:
        while len(self.histories) <= who.conversation_id:
            self.histories.append(TokenHistory(self.codec, "subagent" if self.histories else "root"))
        return self.histories[who.conversation_id]

    def _request(self, who: Conversation) -> GenerateRequest | None:
        """None when the conversation ends here: its context or its tokens are spent."""
        history = self._history(who)
        history.follow(who.take())
        prefix = len(self.codec.generation_prefix)
        self.episode.manage(who, len(history) + prefix, self.window)
        history.follow(who.take())
        left = min(who.output_budget - history.sampled, self.window - len(history) - prefix)
        if left < 1:
            history.trim(self.window)
            self.episode.end("output_tokens" if history.sampled >= who.output_budget else "context", who)
            return None
        history.open_turn()
        seed = (self.seed + _CHILD_SEED * who.conversation_id) % 2**63
        return GenerateRequest(self._name(who), history.tokens, left, frozenset({self.codec.end}), (seed, history.position))

    def feed(self, generation: Generation) -> None:
        """Append what was sampled and act on it."""
        who = self._asked.pop(generation.request_id)
        history = self._history(who)
        history.sample(generation)
        who.output_tokens = history.sampled
        if generation.finish != "stop":
            self.episode.end("output_tokens" if history.sampled >= who.output_budget else "context", who)
            return
        body = generation.tokens
        try:
            message = self.codec.decode_assistant(body)
        except AgentError as error:
            self._mark(history, self.codec.malformed_spans(body, who.tools) or [(0, len(body))])
            self.episode.refuse(error, who, self.codec.transcript(body))
            return
        self.episode.act(message, who)
        if who.refused:
            self._mark(history, written_spans(self.codec, body, who.refused))
        elif who.refused_natively:
            self._mark(history, self.codec.malformed_spans(body, who.tools))

    def _mark(self, history: TokenHistory, spans: Sequence[Sequence[Any]]) -> None:
        for start, end, *_ in spans:
            history.mark_malformed(start, end)

    def trace_parts(self) -> tuple[tuple[Segment, ...], tuple[SubagentRecord, ...]]:
        """All segments, the main agent's first, and what became of the sub-agents."""
        segments: list[Segment] = []
        subagents: list[SubagentRecord] = []
        for history, who in zip(self.histories, self.episode.conversations, strict=False):
            parent = 0 if who.conversation_id else None
            if who.conversation_id:
                subagents.append(subagent_record(who, len(segments)))
            segments += history.segments(len(segments), parent, who.messages)
        return tuple(segments), tuple(subagents)


def written_spans(codec: ChatCodec, body: Sequence[int], ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The tokens of a sampled body that hold characters `ranges` of its response; a token split over an edge counts whole."""
    spans: list[tuple[int, int]] = []
    decoder, position, held = codec.stream(), 0, 0
    for i, token in enumerate(body):
        text = "".join(e.text for e in decoder.feed([token]) if isinstance(e, TextDelta) and e.channel == "content")
        if text:
            if any(start < position + len(text) and position < end for start, end in ranges):
                spans.append((held, i + 1))
            position += len(text)
            held = i + 1
        elif position == 0:
            held = i + 1
    return spans


def subagent_record(who: Conversation, segment_id: int) -> SubagentRecord:
    """What PARL looks at."""
    stop = who.stop or "aborted"
    return SubagentRecord(
        segment_id=segment_id,
        step=who.parent_step,
        prompt=who.prompt,
        result=who.result,
        stop=stop,
        finished=stop == "finished",
        steps=who.steps,
        output_tokens=who.output_tokens,
    )
