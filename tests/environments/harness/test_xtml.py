"""The XTML codec: what goes in comes out, text forges nothing, and whatever a policy samples is read or located as malformed."""

from __future__ import annotations

import pickle
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from environments.environment import Environment
from environments.errors import AgentError, InputError, MalformedCallError
from environments.harness.config import EFFORT_LINES
from environments.harness.xtml import CLOSE, END, OPEN, SEP, Xtml
from environments.harness.xtml_stream import Span
from environments.task import EFFORTS, Image, Message, ToolCall
from environments.vault import Vault
from tests.environments.harness.xtml_cases import (
    CODEC,
    FORGED,
    LOOK_ALIKES,
    PROBES,
    RESERVED_IDS,
    SAMPLES,
    SPELLED_CODEC,
    TOKENIZER,
    LossyTokenizer,
    any_message,
    assistants,
    bodies,
    damaged_bodies,
    fitting,
    read,
    same,
    text,
)
from tests.environments.small_tasks import settings_task
from training.tokenizer import XtmlTokenizer

# --- round trips ---


@settings(max_examples=150, deadline=None)
@given(any_message)
@example(Message(role="assistant"))
@example(Message(role="user"))
@example(FORGED)
@example(
    Message(role="assistant", calls=(ToolCall(tool='a"b\\', arguments={'"\\"': '"[close]arg[sep]"', "": 1, "t": True, "f": 1.0}),) * 2)
)
@example(Message(role="assistant", calls=(ToolCall(tool="x", malformed=f'{{"a": [{CLOSE}call{SEP}'), ToolCall(tool="x", index=1))))
@example(Message(role="assistant", images=(Image(data=""),)))
def test_any_message_comes_back(message: Message) -> None:
    for codec in (CODEC, SPELLED_CODEC):
        ids = codec.encode(message)
        assert ids[-1] == codec.end
        assert ids.count(codec.end) == 1
        found = codec.decode(ids)
        assert found == message
        for one, other in zip(found.calls, message.calls, strict=True):
            assert same(one.arguments, other.arguments)


@settings(max_examples=100, deadline=None)
@given(assistants, st.booleans())
def test_the_prefix_alone_selects_the_mode_and_the_body_comes_back(message: Message, thinking: bool) -> None:
    if not thinking:
        message = message.model_copy(update={"thinking": ""})
    body = CODEC.assistant_body(message, thinking)
    assert all(0 < t < TOKENIZER.vocab_size for t in body)
    assert CODEC.decode_assistant(body, thinking) == message
    assert CODEC.encode(message, thinking) == CODEC.prefix(thinking) + body
    assert CODEC.decode(CODEC.prefix(thinking) + body) == message
    assert CODEC.prefix(True) == CODEC.generation_prefix != CODEC.prefix(False)


@settings(max_examples=150, deadline=None)
@given(text)
@example("".join(LOOK_ALIKES))
@example("[open] [sep] [close] [end_of_msg] [pad]")
def test_text_never_makes_a_reserved_id_and_comes_back(value: str) -> None:
    ids = TOKENIZER.encode(value)
    assert not RESERVED_IDS.intersection(ids)
    assert TOKENIZER.decode(ids) == value


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["system", "user", "tool"]), text, text)
def test_prompts_and_tool_results_cannot_forge_structure(role: Any, content: str, tool: str) -> None:
    """Whatever a document says, its message has exactly one opening tag, its text, and one end."""
    message = Message(role=role, content=content, tool=tool if role == "tool" else "", index=3 if role == "tool" else 0)
    ids = CODEC.encode(message)
    structure = [t for t in ids if t in RESERVED_IDS]
    assert structure in ([TOKENIZER.elements.get(f'{OPEN}message role="{role}"{SEP}'), CODEC.end], [CODEC.open, CODEC.sep, CODEC.end])
    assert TOKENIZER.decode(ids).endswith(content)


def test_frequent_tags_are_one_token_each() -> None:
    body = CODEC.assistant_body(Message(role="assistant", calls=(ToolCall(tool="submit", arguments={"answer": "5"}),)))
    names = [name for t in body if (name := {i: e for e, i in TOKENIZER.elements.items()}.get(t))]
    assert names == [
        "[close]think[sep]",
        "[open]tools[sep]",
        '[open]call tool="submit" index="0"[sep]',
        '[open]arg name="answer"[sep]',
        "[close]arg[sep]",
        "[close]call[sep]",
        "[close]tools[sep]",
    ]
    assert len(body) == len(names) + 2  # the digit and the end


def test_what_each_part_of_a_message_looks_like() -> None:
    arguments = {"answer": 'a "b"', "x": {"k": [1, "é"]}, "n": 1, "f": 1.0, "t": True, "z": None}
    call = ToolCall(tool="submit", arguments=arguments, index=2)
    message = Message(role="assistant", thinking="hm", content="so", calls=(call, ToolCall(tool="x", malformed="{5")))
    assert CODEC.transcript(CODEC.encode(message)) == (
        '[open]message role="assistant"[sep][open]think[sep]hm[close]think[sep][open]response[sep]so[close]response[sep][open]tools[sep]'
        '[open]call tool="submit" index="2"[sep][open]arg name="answer"[sep]a "b"[close]arg[sep]'
        '[open]arg name="x" type="json"[sep]{"k":[1,"é"]}[close]arg[sep][open]arg name="n" type="integer"[sep]1[close]arg[sep]'
        '[open]arg name="f" type="number"[sep]1.0[close]arg[sep][open]arg name="t" type="boolean"[sep]true[close]arg[sep]'
        '[open]arg name="z" type="json"[sep]null[close]arg[sep][close]call[sep]'
        '[open]call tool="x" index="0"[sep]{5[close]call[sep][close]tools[sep][end_of_msg]'
    )
    seen = Message(role="tool", tool="open", index=1, content="width=70 [open]", images=(Image(data="aGk=", media_type="image/jpeg"),))
    assert CODEC.transcript(CODEC.encode(seen)) == (
        '[open]message role="tool" tool="open" index="1"[sep]width=70 [open]'
        '[open]image type="image/jpeg"[sep]aGk=[close]image[sep][end_of_msg]'
    )
    option = Message(role="system", option="tools", content="search open")
    assert CODEC.transcript(CODEC.encode(option)) == '[open]message role="system" option="tools"[sep]search open[end_of_msg]'


@pytest.mark.parametrize(
    "message",
    [
        Message(role="assistant", calls=(ToolCall(tool="x", arguments={"a": float("nan")}),)),
        Message(role="assistant", calls=(ToolCall(tool="x", arguments={"a": [float("inf")]}),)),
        Message(role="assistant", calls=(ToolCall(tool="x", arguments={"a": {1, 2}}),)),
        Message(role="assistant", calls=(ToolCall(tool="x", arguments={"a": "\ud800"}),)),
        Message(role="assistant", calls=(ToolCall(tool="x", arguments={"a": ["\ud800"]}),)),
        Message(role="assistant", calls=(ToolCall(tool="x", arguments={"a": 10**5000}),)),
        Message(role="assistant", calls=(ToolCall(tool="x", index=-1),)),
        Message(role="assistant", calls=(ToolCall(tool="x", index=10_000),)),
        Message(role="assistant", calls=(ToolCall(tool="x", arguments={"a": 1}, malformed="{"),)),
        Message(role="tool", index=10_000),
        Message(role="user", content="\udfff"),
        Message(role="tool", tool="\udfff"),
        Message(role="assistant", calls=(ToolCall(tool="\ud800"),)),
    ],
)
def test_what_cannot_be_encoded_is_refused(message: Message) -> None:
    with pytest.raises(InputError) as caught:
        CODEC.encode(message)
    assert caught.value.fix


def test_instruct_mode_has_no_room_for_thinking() -> None:
    with pytest.raises(InputError, match="no room for thinking"):
        CODEC.assistant_body(Message(role="assistant", thinking="hm"), thinking=False)


# --- thinking, options ---


@settings(max_examples=60, deadline=None)
@given(assistants)
def test_thinking_length_counts_exactly_the_thinking(message: Message) -> None:
    assert CODEC.thinking_length(CODEC.assistant_body(message)) == len(TOKENIZER.encode(message.thinking))
    answer = message.model_copy(update={"thinking": ""})
    assert CODEC.thinking_length(CODEC.assistant_body(answer, thinking=False), thinking=False) == 0


def test_thinking_that_is_never_closed_counts_whole_and_a_spelled_out_tag_closes_it() -> None:
    ids = TOKENIZER.encode("12+34:46")
    assert CODEC.thinking_length(ids) == len(ids)
    assert CODEC.thinking_length([*ids, CODEC.close, *TOKENIZER.encode("think"), CODEC.sep]) == len(ids)
    assert CODEC.thinking_length([]) == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(any_message, max_size=3), st.lists(any_message, max_size=2), st.sampled_from(EFFORTS))
def test_an_option_message_leaves_all_other_tokens_untouched(before: list[Message], after: list[Message], effort: Any) -> None:
    option = Message(role="system", option="effort", content=EFFORT_LINES[effort])
    lead, shown = ([t for m in messages for t in CODEC.encode(m)] for messages in (before, [option]))
    rest = [t for m in after for t in CODEC.encode(m)]
    assert [t for m in [*before, option, *after] for t in CODEC.encode(m)] == lead + shown + rest
    assert CODEC.decode(shown) == option


# --- whatever is sampled ---


@settings(max_examples=400, deadline=None)
@given(bodies, st.booleans())
def test_whatever_is_sampled_is_a_message_or_malformed(body: list[int], thinking: bool) -> None:
    spans = CODEC.malformed_spans(body, thinking=thinking)
    assert all(0 <= s.start < s.end <= len(body) and s.reason for s in spans)
    assert all(one.end <= other.start for one, other in pairwise(spans))
    message = read(lambda: CODEC.decode_assistant(body, thinking))
    if isinstance(message, MalformedCallError):
        assert message.fix
        assert len(str(message)) < 400
        assert "cut short" in str(message) or spans[-1].end == len(body)
        return
    assert message.role == "assistant"
    assert len(spans) == sum(bool(call.malformed) for call in message.calls)
    assert CODEC.decode_assistant(CODEC.assistant_body(message, thinking), thinking) == message


@settings(max_examples=100, deadline=None)
@given(assistants, st.data())
def test_a_cut_message_is_no_message_but_not_malformed_for_that(message: Message, data: st.DataObject) -> None:
    message = message.model_copy(update={"calls": tuple(c for c in message.calls if not c.malformed)})
    body = CODEC.assistant_body(message)
    cut = body[: data.draw(st.integers(0, len(body) - 1))]
    with pytest.raises(MalformedCallError, match="cut short"):
        CODEC.decode_assistant(cut)
    assert CODEC.malformed_spans(cut) == []


class _Probe(Environment):
    TOOLS: ClassVar = {t.name: t for t in PROBES}

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        return "done"


@settings(max_examples=300, deadline=None)
@given(st.one_of(damaged_bodies(fitting), fitting.map(CODEC.assistant_body)))
def test_spans_mark_exactly_what_an_environment_refuses(vault_task: Any, body: list[int]) -> None:
    """With the tools at hand a message has malformed tokens if and only if one of its calls is refused."""
    try:
        message = CODEC.decode_assistant(body)
    except MalformedCallError:
        return
    refused = 0
    for call in message.calls:
        try:
            _Probe(vault_task).step(call)
        except AgentError:
            refused += 1
    assert bool(CODEC.malformed_spans(body, PROBES)) == bool(refused)


@pytest.fixture(scope="module")
def vault_task(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return settings_task(Vault(tmp_path_factory.mktemp("vault"))).model_copy(update={"tools": tuple(t.name for t in PROBES)})


def _tag(bracket: int, header: str) -> list[int]:
    return [bracket, *TOKENIZER.encode(header), CODEC.sep]


def _call(header: str, argument: str, value: str) -> list[int]:
    """A call, all tags spelled out."""
    inner = [*_tag(CODEC.open, argument), *TOKENIZER.encode(value), *_tag(CODEC.close, "arg")]
    return [*_tag(CODEC.open, header), *inner, *_tag(CODEC.close, "call")]


def _body(*calls: list[int]) -> list[int]:
    return [*_tag(CODEC.close, "think"), *_tag(CODEC.open, "tools"), *chain(*calls), *_tag(CODEC.close, "tools"), CODEC.end]


GOOD = _call('call tool="search" index="0"', 'arg name="query"', "5")
LEAD = len(_tag(CODEC.close, "think")) + len(_tag(CODEC.open, "tools"))
"""Where the first call of a `_body` starts."""


def test_tags_spelled_out_mean_the_same_as_single_tokens() -> None:
    assert CODEC.decode_assistant(_body(GOOD)) == Message(role="assistant", calls=(ToolCall(tool="search", arguments={"query": "5"}),))


BAD_CALLS = [
    ('call tool="x" index="²"', 'arg name="a"', "1"),
    ('call tool="x" index="-1"', 'arg name="a"', "1"),
    ('call tool="x" index="' + "9" * 5000 + '"', 'arg name="a"', "1"),
    ('call tool="\\ud800" index="0"', 'arg name="a"', "1"),
    ('call tool="\\q" index="0"', 'arg name="a"', "1"),
    ('call tool="x" tool="y"', 'arg name="a"', "1"),
    ('call tool="x" colour="red"', 'arg name="a"', "1"),
    ("call", 'arg name="a"', "1"),
    ("tool", 'arg name="a"', "1"),
    ('call tool="x"', 'arg name="\\ud800"', "1"),
    ('call tool="x"', "arg", "1"),
    ('call tool="x"', 'par name="a"', "1"),
    ('call tool="x"', 'arg name="a" type="json"', "{"),
    ('call tool="x"', 'arg name="a" type="json"', ""),
    ('call tool="x"', 'arg name="a" type="number"', "NaN"),
    ('call tool="x"', 'arg name="a" type="number"', "1e999"),
    ('call tool="x"', 'arg name="a" type="integer"', "1.5"),
    ('call tool="x"', 'arg name="a" type="integer"', "true"),
    ('call tool="x"', 'arg name="a" type="boolean"', "1"),
    ('call tool="x"', 'arg name="a" type="text"', "1"),
    ('call tool="x"', 'arg name="a" type="json"', '"\\ud800"'),
    ('call tool="x"', 'arg name="a" type="json"', "[" * 5000),
    ('call tool="x"', 'arg name="a" type="integer"', "9" * 5000),
    ('call tool="x', 'arg name="a"', "1"),
]


@pytest.mark.parametrize(("header", "argument", "value"), BAD_CALLS)
def test_a_bad_call_between_good_ones_is_malformed_alone(header: str, argument: str, value: str) -> None:
    bad = _call(header, argument, value)
    body = _body(GOOD, bad, GOOD)
    first, malformed, last = CODEC.decode_assistant(body).calls
    assert first == last == ToolCall(tool="search", arguments={"query": "5"})
    assert malformed.malformed == CODEC.transcript(bad)
    assert not malformed.arguments
    assert malformed.tool in ("x", "")
    (span,) = CODEC.malformed_spans(body)
    assert body[span.start : span.end] == bad
    assert 0 < len(span.reason) < 200


OPEN_CALL, CLOSE_CALL = _tag(CODEC.open, 'call tool="search" index="1"'), _tag(CODEC.close, "call")
OPEN_ARG, CLOSE_ARG = _tag(CODEC.open, 'arg name="query"'), _tag(CODEC.close, "arg")


@pytest.mark.parametrize(
    ("broken", "lost"),
    [
        ([*OPEN_CALL, *TOKENIZER.encode('{"query": 5}'), *CLOSE_CALL], ""),
        ([*OPEN_CALL, *OPEN_ARG, *TOKENIZER.encode("5"), *CLOSE_CALL], "close arg"),
        ([*OPEN_CALL, *OPEN_ARG, *TOKENIZER.encode("5"), *CLOSE_ARG], "close call"),
        ([*OPEN_CALL, *OPEN_ARG, *TOKENIZER.encode("5")], "close both"),
        ([*OPEN_CALL, *OPEN_ARG, *OPEN_ARG, *CLOSE_ARG, *CLOSE_CALL], "nested"),
        ([*OPEN_CALL, *OPEN_ARG, *CLOSE_ARG, *OPEN_ARG, *CLOSE_ARG, *CLOSE_CALL], "twice"),
        ([*OPEN_CALL, *OPEN_ARG, *CLOSE_ARG, *TOKENIZER.encode(" "), *CLOSE_CALL], "loose"),
        ([*OPEN_CALL, CODEC.sep, *CLOSE_CALL], "stray separator"),
        ([*OPEN_CALL, *TOKENIZER.encode("5"), CODEC.sep, *TOKENIZER.encode("5"), *CLOSE_CALL], "text, then a stray separator"),
        ([*OPEN_CALL, *TOKENIZER.encode("5"), *OPEN_ARG, *CLOSE_ARG, *CLOSE_CALL], "text, then an argument"),
        ([*OPEN_CALL, CODEC.open, *TOKENIZER.encode("arg"), *CLOSE_CALL], "unended tag"),
        ([*OPEN_CALL, *_tag(CODEC.open, "tools"), *CLOSE_CALL], "nested channel"),
        ([*OPEN_CALL, *_tag(CODEC.close, "think"), *CLOSE_CALL], "wrong close"),
    ],
)
def test_broken_structure_within_a_call_ends_with_it(broken: list[int], lost: str) -> None:
    body = _body(GOOD, broken, GOOD)
    first, malformed, last = CODEC.decode_assistant(body).calls
    assert first == last == ToolCall(tool="search", arguments={"query": "5"})
    assert malformed == ToolCall(tool="search", index=1, malformed=CODEC.transcript(broken) if lost else '{"query": 5}')
    (span,) = CODEC.malformed_spans(body)
    assert body[span.start : span.end] == broken


def test_a_message_that_ends_within_a_call_keeps_the_calls_before() -> None:
    body = [*_body(GOOD)[: LEAD + len(GOOD)], *OPEN_CALL, *OPEN_ARG, CODEC.end]
    assert [bool(c.malformed) for c in CODEC.decode_assistant(body).calls] == [False, True]
    assert CODEC.malformed_spans(body) == [Span(LEAD + len(GOOD), len(body), "the call is not closed")]


def _second(**arguments: Any) -> ToolCall:
    return ToolCall(tool=PROBES[1].name, arguments=arguments)


@pytest.mark.parametrize(
    ("call", "bad"),
    [
        (ToolCall(tool="shout", arguments={"query": "x"}), None),
        (ToolCall(tool="search", arguments={"query": 5}), '[open]arg name="query" type="integer"[sep]5[close]arg[sep]'),
        (ToolCall(tool="search", arguments={"query": "x", "k": 5}), '[open]arg name="k" type="integer"[sep]5[close]arg[sep]'),
        (ToolCall(tool="search"), "[close]call[sep]"),
        (_second(naïve={}, count=True), '[open]arg name="count" type="boolean"[sep]true[close]arg[sep]'),
        (_second(naïve={}, count=1.0), '[open]arg name="count" type="number"[sep]1.0[close]arg[sep]'),
        (_second(naïve=None, count=1), '[open]arg name="na\\u00efve" type="json"[sep]null[close]arg[sep]'),
        (_second(naïve={}, count=1, rate=1), ""),
    ],
)
def test_a_call_that_does_not_fit_its_tool_is_marked_where_it_does_not(call: ToolCall, bad: str | None) -> None:
    fine = ToolCall(tool="search", arguments={"query": ""}, index=1)
    body = CODEC.assistant_body(Message(role="assistant", thinking="hm", content="so", calls=(fine, call)))
    whole = CODEC.transcript(CODEC._call(call))
    marked = [CODEC.transcript(body[s.start : s.end]) for s in CODEC.malformed_spans(body, PROBES)]
    assert marked == ([whole] if bad is None else [bad] if bad else [])
    assert CODEC.malformed_spans(body) == []


@pytest.mark.parametrize("cut", [False, True])
def test_a_broken_call_is_marked_once_whatever_else_is_wrong_with_it(cut: bool) -> None:
    wrong = [*_tag(CODEC.open, 'arg name="colour"'), *CLOSE_ARG]
    lead, broken = _body(GOOD)[: LEAD + len(GOOD)], [*OPEN_CALL, *wrong, *wrong]
    for tools in (None, PROBES):
        body = [*lead, *broken] if cut else [*lead, *broken, *CLOSE_CALL, *_tag(CODEC.close, "tools"), CODEC.end]
        (span,) = CODEC.malformed_spans(body, tools)
        assert body[span.start : span.end] == [*broken, *([] if cut else CLOSE_CALL)]
    (mild,) = CODEC.malformed_spans([*lead, *OPEN_CALL, *wrong], PROBES)
    assert mild[:2] == (len(lead) + len(OPEN_CALL), len(lead) + len(OPEN_CALL) + len(wrong))


def test_damage_outside_calls_breaks_the_message_from_there() -> None:
    close = CODEC._tag(CLOSE, "think")
    tools = CODEC._tag(OPEN, "tools")
    for body, at, match in [
        ([*close, *CODEC._element("shout", []), CODEC.end], 1, "no channel"),
        ([*close, *CODEC._element("response", []), *CODEC._element("response", []), CODEC.end], 3, "came before"),
        ([*close, *TOKENIZER.encode("loose"), CODEC.end], 1, "must open"),
        ([*close, *tools, *TOKENIZER.encode("\n"), *GOOD], 2, "must open"),
        ([*close, *tools, *GOOD, CODEC.end], 2 + len(GOOD), "ends within"),
        ([*close, CODEC.end, CODEC.end], 2, "or twice"),
        ([CODEC.end], 0, "ends within"),
        ([CODEC.sep], 0, "separator"),
        ([CODEC.open, CODEC.end], 0, "not ended"),
        ([*CODEC._tag(CLOSE, "response"), CODEC.end], 0, "close think"),
    ]:
        with pytest.raises(MalformedCallError, match=match) as caught:
            CODEC.decode_assistant(body)
        assert CODEC.malformed_spans(body) == [Span(at, len(body), caught.value.message)]
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(MalformedCallError, match="cut short"):
        CODEC.decode_assistant([])


@pytest.mark.parametrize(
    "header",
    [
        *["massage", "message", 'message role="judge"', 'message role="system" option="all"'],
        *['message role="tool" index="x"', 'message role="user" id="5"'],
    ],
)
def test_a_message_header_that_is_none_is_refused(header: str) -> None:
    with pytest.raises(MalformedCallError) as caught:
        CODEC.decode([*_tag(CODEC.open, header), CODEC.end])
    assert caught.value.fix


# --- token in, token out ---


@settings(max_examples=60, deadline=None)
@given(assistants)
def test_decoding_never_tokenises_and_takes_tokens_that_encoding_never_gives(message: Message) -> None:
    lossy = LossyTokenizer(TOKENIZER)
    codec = Xtml(lossy)
    body = lossy.twins(CODEC.assistant_body(message))
    with lossy.sealed():
        found = codec.decode_assistant(body)
        spans = codec.malformed_spans(body, PROBES)
        assert codec.transcript(body) == CODEC.transcript(CODEC.assistant_body(message))
    assert found == message  # capitals and all: encoding would have lost them
    assert spans == CODEC.malformed_spans(CODEC.assistant_body(message), PROBES)
    plain = [t for t in body if t not in codec.structure.ids]
    assert not plain or lossy.encode(lossy.decode(body)) != plain


# --- the tokenizer itself ---


def test_a_tokenizer_survives_saving_and_names_a_broken_one(tmp_path: Path) -> None:
    from environments.errors import CorruptArtifactError

    TOKENIZER.save(tmp_path / "t")
    again = XtmlTokenizer.load(tmp_path / "t")
    assert (again.reserved, again.elements, again.vocab_size) == (TOKENIZER.reserved, TOKENIZER.elements, TOKENIZER.vocab_size)
    assert [again.encode(s) for s in SAMPLES] == [TOKENIZER.encode(s) for s in SAMPLES]
    (tmp_path / "t" / "tokenizer.json").write_text("{")
    with pytest.raises(CorruptArtifactError, match="holds no tokenizer"):
        XtmlTokenizer.load(tmp_path / "t")


def test_digits_stand_alone_and_the_vocabulary_keeps_to_its_size() -> None:
    assert len(TOKENIZER.encode("1234567890")) == 10
    assert TOKENIZER.vocab_size <= 420
    assert END in TOKENIZER.reserved
