"""The streaming decoder: however the tokens are cut, the events add up to what is read at once, in whole characters."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from environments.errors import MalformedCallError
from environments.harness.xtml import CLOSE, OPEN, Xtml
from environments.harness.xtml_stream import (
    ArgumentDelta,
    ArgumentStarted,
    CallFinished,
    CallStarted,
    Event,
    ImageRead,
    MessageBroken,
    MessageEnd,
    StreamDecoder,
    TextDelta,
)
from environments.task import Image, Message, ToolCall
from tests.environments.harness.xtml_cases import (
    CODEC,
    PROBES,
    TOKENIZER,
    LossyTokenizer,
    any_message,
    assistants,
    bodies,
    read,
    text,
)
from training.tokenizer import XtmlTokenizer

BYTES = XtmlTokenizer.train(["a"], [], 261)
"""Every byte is a token of its own."""

cuts = st.lists(st.integers(0, 5), max_size=40)
"""Sizes of the pieces that tokens are fed in; what is left comes at once."""


def _fed(decoder: StreamDecoder, ids: Sequence[int], sizes: Sequence[int]) -> list[Event]:
    events, at = [], 0
    for size in sizes:
        events += decoder.feed(ids[at : at + size])
        at += size
    return [*events, *decoder.feed(ids[at:]), *decoder.close()]


def _merged(events: Sequence[Event]) -> list[object]:
    """With neighbouring deltas joined, and errors as text."""
    merged: list[object] = []
    for event in events:
        last = merged[-1] if merged else None
        if isinstance(event, TextDelta) and isinstance(last, TextDelta) and event.channel == last.channel:
            merged[-1] = TextDelta(event.channel, last.text + event.text)
        elif isinstance(event, ArgumentDelta) and isinstance(last, ArgumentDelta):
            merged[-1] = ArgumentDelta(last.text + event.text)
        else:
            merged.append(str(event.error) if isinstance(event, MessageBroken) else event)
    return merged


@settings(max_examples=300, deadline=None)
@given(bodies, cuts, st.booleans())
def test_any_split_of_whatever_is_sampled_reads_as_the_whole(body: list[int], sizes: list[int], thinking: bool) -> None:
    at_once, in_pieces, singly = (CODEC.stream(thinking, PROBES) for _ in range(3))
    whole = _merged(_fed(at_once, body, []))
    assert _merged(_fed(in_pieces, body, sizes)) == whole
    assert _merged(_fed(singly, body, [1] * len(body))) == whole
    assert in_pieces.spans == singly.spans == at_once.spans == CODEC.malformed_spans(body, PROBES, thinking)
    assert in_pieces.done == at_once.done
    message = read(lambda: CODEC.decode_assistant(body, thinking))
    if isinstance(message, MalformedCallError):
        assert str(read(in_pieces.result)) == str(read(singly.result)) == str(message)
        return
    assert in_pieces.result() == singly.result() == message
    assert whole[-1] == MessageEnd(message)


def _joined(events: Sequence[Event], channel: str) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta) and e.channel == channel)


@settings(max_examples=150, deadline=None)
@given(any_message, cuts)
def test_the_events_of_any_message_hold_all_of_it(message: Message, sizes: list[int]) -> None:
    decoder = StreamDecoder(CODEC.structure, "message")
    events = _fed(decoder, CODEC.encode(message), sizes)
    assert decoder.message == message
    assert _joined(events, "thinking") == message.thinking
    assert _joined(events, "content") == message.content
    assert tuple(e.image for e in events if isinstance(e, ImageRead)) == message.images
    assert tuple(e.call for e in events if isinstance(e, CallFinished)) == message.calls
    assert [(e.tool, e.index) for e in events if isinstance(e, CallStarted)] == [(c.tool, c.index) for c in message.calls]
    assert [e.name for e in events if isinstance(e, ArgumentStarted)] == [name for c in message.calls for name in c.arguments]


@settings(max_examples=200, deadline=None)
@given(text, cuts)
@example("漢字🙂é" * 3, [1] * 60)
@example("\ufffd漢\ufffd", [1] * 60)
def test_only_whole_characters_are_emitted(value: str, sizes: list[int]) -> None:
    decoder = CODEC.stream()
    at = 0
    for event in _fed(decoder, CODEC.assistant_body(Message(role="assistant", thinking=value)), sizes):
        if isinstance(event, TextDelta):
            assert event.text
            assert value.startswith(event.text, at)
            at += len(event.text)
    assert at == len(value)


def test_a_split_character_waits_for_its_last_token() -> None:
    ids = BYTES.encode("a龘🚲")
    assert len(ids) == 8
    feed = Xtml(BYTES).stream().feed
    assert [[e.text for e in feed([t]) if isinstance(e, TextDelta)] for t in ids] == [["a"], [], [], ["龘"], [], [], [], ["🚲"]]


def test_half_a_character_is_replaced_when_the_text_ends() -> None:
    codec = Xtml(BYTES)
    cut = codec.stream()
    assert [*cut.feed(BYTES.encode("龘")[:2]), *cut.close()] == [TextDelta("thinking", "\ufffd")]
    assert not cut.done
    decoder = codec.stream()
    assert decoder.feed(BYTES.encode("龘")[:2]) == []
    assert decoder.feed(codec._tag(CLOSE, "think")) == [TextDelta("thinking", "\ufffd")]
    assert decoder.feed([codec.end]) == [MessageEnd(Message(role="assistant", thinking="\ufffd"))]


def test_the_events_of_a_message_in_order() -> None:
    call = ToolCall(tool="submit", arguments={"answer": "42", "n": [1]}, index=3)
    message = Message(role="assistant", thinking="hm", content="so", images=(Image(data="aGk="),), calls=(call,))
    decoder = CODEC.stream()
    assert _merged(_fed(decoder, CODEC.assistant_body(message), [1] * 99)) == [
        TextDelta("thinking", "hm"),
        TextDelta("content", "so"),
        ImageRead(Image(data="aGk=")),
        CallStarted("submit", 3),
        ArgumentStarted("answer", ""),
        ArgumentDelta("42"),
        ArgumentStarted("n", "json"),
        ArgumentDelta("[1]"),
        CallFinished(call),
        MessageEnd(message),
    ]
    assert decoder.done


def test_a_call_starts_before_its_arguments_are_whole_and_a_bad_one_finishes_as_malformed() -> None:
    body = CODEC.assistant_body(Message(role="assistant", calls=(ToolCall(tool="submit", arguments={"n": [1, 2]}),)))
    at = next(i for i, t in enumerate(body) if TOKENIZER.decode([t]) == "[")
    decoder = CODEC.stream()
    assert _merged(decoder.feed(body[: at + 1])) == [CallStarted("submit", 0), ArgumentStarted("n", "json"), ArgumentDelta("[")]
    (finished,) = decoder.feed([*CODEC._tag(CLOSE, "arg"), *CODEC._tag(CLOSE, "call")])
    assert isinstance(finished, CallFinished)
    spelled = '[open]call tool="submit" index="0"[sep][open]arg name="n" type="json"[sep][[close]arg[sep][close]call[sep]'
    assert finished.call == ToolCall(tool="submit", malformed=spelled)
    assert [s.reason for s in decoder.spans] == ["argument 'n' is not JSON: '['"]


def test_a_bad_call_that_is_still_open_is_marked_already() -> None:
    lead = [*CODEC._tag(CLOSE, "think"), *CODEC._tag(OPEN, "tools")]
    cut = [*CODEC._tag(OPEN, 'call tool="submit" index="0"'), *TOKENIZER.encode("loose")]
    decoder = CODEC.stream()
    decoder.feed([*lead, *cut])
    assert [(s.start, s.end) for s in decoder.spans] == [(2, 2 + len(cut))]
    assert not decoder.done


def test_a_broken_message_says_so_once_and_reads_no_further() -> None:
    decoder = CODEC.stream()
    events = decoder.feed([*TOKENIZER.encode("hm"), CODEC.sep, *TOKENIZER.encode("more")])
    assert [type(e) for e in events] == [TextDelta, MessageBroken]
    assert decoder.feed(CODEC.assistant_body(Message(role="assistant"))) == []
    assert decoder.done
    assert [s.start for s in decoder.spans] == [len(TOKENIZER.encode("hm"))]
    with pytest.raises(MalformedCallError, match="separator"):
        decoder.result()


@settings(max_examples=60, deadline=None)
@given(assistants, cuts)
def test_nothing_is_tokenised_on_the_way(message: Message, sizes: list[int]) -> None:
    lossy = LossyTokenizer(TOKENIZER)
    codec = Xtml(lossy)
    body = lossy.twins(CODEC.assistant_body(message))
    decoder = codec.stream(tools=PROBES)
    with lossy.sealed():
        _fed(decoder, body, sizes)
        assert decoder.result() == message


# --- linear time ---


class _Counting:
    """Counts the tokens that are decoded."""

    def __init__(self) -> None:
        self.reserved, self.elements, self.decoded = BYTES.reserved, BYTES.elements, 0

    def encode(self, value: str) -> list[int]:
        return BYTES.encode(value)

    def decode(self, ids: Sequence[int]) -> str:
        self.decoded += len(ids)
        return BYTES.decode(ids)


BYTE_CODEC = Xtml(BYTES)
_HALF = BYTES.encode("龘")


@pytest.mark.parametrize(
    "unit",
    [
        BYTES.encode("a"),
        _HALF,
        BYTES.encode("\ufffd"),
        _HALF[:1],
        [*_HALF[2:], *_HALF[:2]],
        [BYTE_CODEC.open],
        [*BYTE_CODEC._tag(OPEN, "call"), *BYTES.encode("x")],
        [*BYTE_CODEC._tag(CLOSE, "call")],
        BYTE_CODEC._tag(OPEN, 'arg name="answer"'),
    ],
    ids=["text", "split", "replacement", "broken", "shifted", "brackets", "calls", "closes", "arguments"],
)
@pytest.mark.parametrize(
    "lead", [[], [*BYTE_CODEC._tag(CLOSE, "think"), *BYTE_CODEC._tag(OPEN, "tools"), *BYTE_CODEC._tag(OPEN, 'call tool="x" index="0"')]]
)
def test_work_grows_with_the_tokens_and_no_faster(unit: list[int], lead: list[int]) -> None:
    """Token by token, each token is decoded a bounded number of times on average, whatever the tokens are."""
    for count in (500, 4000):
        tokenizer = _Counting()
        decoder = Xtml(tokenizer).stream()
        ids = [*lead, *unit * count]
        _fed(decoder, ids, [1] * len(ids))
        assert tokenizer.decoded <= 12 * len(ids)
