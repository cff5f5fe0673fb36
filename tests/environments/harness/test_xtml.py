"""The XTML codec: what goes in comes out, text forges nothing, and whatever a policy samples is a message or a MalformedCallError."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from environments.errors import MalformedCallError
from environments.families import TOOLS
from environments.harness.config import EFFORT_LINES, LAPTOP
from environments.harness.xtml import CLOSE, END, OPEN, RESERVED, SEP, Xtml
from environments.task import EFFORTS, Message, ToolCall
from training.tokenizer import PAD, XtmlTokenizer, element_tags

ELEMENTS = element_tags(TOOLS)
SAMPLES = [
    "Find the default of `maxiter` in `scipy.optimize.bisect`. Add 17 to it.",
    "def solve(n):\n    return n * 100 + 7",
    'search open submit {"name": 5} [open]think[sep] naïve Ω 漢字 🙂',
] * 4
TOKENIZER = XtmlTokenizer.train(SAMPLES, ELEMENTS, 400)
CODEC = Xtml(TOKENIZER)
RESERVED_IDS = {*TOKENIZER.reserved.values(), *TOKENIZER.elements.values(), TOKENIZER.pad}

LOOK_ALIKES = (
    *RESERVED,
    PAD,
    *ELEMENTS[:8],
    "[close]think[sep]",
    'arg name="x" type="json"',
    '"',
    '\\"',
    "\\",
    "\\u0022",
    "\n",
    "\0",
    "]",
    "[",
)
text = st.one_of(
    st.text(st.characters(exclude_categories=("Cs",)), max_size=40),
    st.lists(st.one_of(st.sampled_from(LOOK_ALIKES), st.text(st.characters(exclude_categories=("Cs",)), max_size=6)), max_size=6).map(
        "".join
    ),
)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(allow_nan=False, allow_infinity=False), text),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(text, inner, max_size=3)),
    max_leaves=6,
)
calls = st.builds(ToolCall, tool=text, arguments=st.dictionaries(text, json_values, max_size=3), index=st.integers(0, 99))
assistants = st.builds(Message, role=st.just("assistant"), content=text, thinking=text, calls=st.lists(calls, max_size=3).map(tuple))


def same(a: Any, b: Any) -> bool:
    """Equal, types included (1 is not 1.0 is not True)."""
    return json.dumps(a) == json.dumps(b)


# --- round trips ---


@settings(max_examples=150, deadline=None)
@given(assistants)
@example(Message(role="assistant"))
@example(Message(role="assistant", thinking=f"{CLOSE}think{SEP}{OPEN}tools{SEP}", content=f"{CLOSE}response{SEP}{END}"))
@example(
    Message(role="assistant", calls=(ToolCall(tool='a"b\\', arguments={'"\\"': '"[close]arg[sep]"', "": 1, "t": True, "f": 1.0}),) * 2)
)
def test_any_assistant_message_comes_back(message: Message) -> None:
    body = CODEC.assistant_body(message)
    assert body[-1] == CODEC.end
    assert body.count(CODEC.end) == 1
    assert all(0 < t < TOKENIZER.vocab_size for t in body)
    found = CODEC.decode_assistant(body)
    assert found == message
    for one, other in zip(found.calls, message.calls, strict=True):
        assert same(one.arguments, other.arguments)
    assert CODEC.encode(message) == CODEC.generation_prefix + body


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
    message = Message(role=role, content=content, tool=tool if role == "tool" else "", index=3)
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


def test_string_arguments_are_raw_and_others_compact_json() -> None:
    ids = CODEC.assistant_body(
        Message(role="assistant", calls=(ToolCall(tool="submit", arguments={"answer": 'a "b"', "x": {"k": [1, 2]}}),))
    )
    read = CODEC.transcript(ids)
    assert '[open]arg name="answer"[sep]a "b"[close]arg[sep]' in read
    assert '[open]arg name="x" type="json"[sep]{"k":[1,2]}[close]arg[sep]' in read
    assert read.endswith("[end_of_msg]")


# --- thinking, options ---


@settings(max_examples=60, deadline=None)
@given(assistants)
def test_thinking_length_counts_exactly_the_thinking(message: Message) -> None:
    assert CODEC.thinking_length(CODEC.assistant_body(message)) == len(TOKENIZER.encode(message.thinking))


def test_thinking_that_is_never_closed_counts_whole_and_a_spelled_out_tag_closes_it() -> None:
    ids = TOKENIZER.encode("12+34:46")
    assert CODEC.thinking_length(ids) == len(ids)
    assert CODEC.thinking_length([*ids, CODEC.close, *TOKENIZER.encode("think"), CODEC.sep]) == len(ids)
    assert CODEC.thinking_length([]) == 0


@settings(max_examples=40, deadline=None)
@given(st.lists(text, min_size=1, max_size=2), st.lists(assistants, max_size=2), st.sampled_from(EFFORTS))
def test_an_effort_message_leaves_all_other_tokens_untouched(prompts: list[str], history: list[Message], effort: Any) -> None:
    prompt = tuple(Message(role="user", content=p) for p in prompts)
    tools = TOOLS[:3]
    plain, shown = LAPTOP.opening(prompt, tools, None), LAPTOP.opening(prompt, tools, effort)
    option = CODEC.encode(Message(role="system", content=EFFORT_LINES[effort]))
    without = [t for m in [*plain, *history] for t in CODEC.encode(m)]
    having = [t for m in [*shown, *history] for t in CODEC.encode(m)]
    declaration = len(CODEC.encode(plain[0]))
    assert having[declaration : declaration + len(option)] == option
    assert having[:declaration] + having[declaration + len(option) :] == without


# --- whatever is sampled ---


def _decodes_or_refuses(body: list[int]) -> None:
    message, fix = None, ""
    try:
        message = CODEC.decode_assistant(body)
    except MalformedCallError as error:
        fix = error.fix
    if message is None:
        assert fix
        return
    assert message.role == "assistant"
    assert CODEC.decode_assistant(CODEC.assistant_body(message)) == message


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30))
def test_arbitrary_ids_never_raise_anything_else(body: list[int]) -> None:
    _decodes_or_refuses(body)


PIECES = (
    [[t] for t in sorted(RESERVED_IDS)] * 2
    + [
        TOKENIZER.encode(s)
        for s in ("think", "tools", 'call tool="x" index="0"', 'arg name="x" type="json"', "[1", "5", "NaN", "call", "arg", "{}")
    ]
    + [TOKENIZER.encode(s) for s in ('"\\ud800"', "\\ud800", 'call tool="\\ud800" index="0"', 'call tool="x" index="²"', 'arg name="\\x"')]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=14), st.integers(0, 3))
def test_ids_that_are_nearly_a_message_never_raise_anything_else(pieces: list[list[int]], lead: int) -> None:
    start = [[], CODEC._tag(CLOSE, "think"), [*CODEC._tag(CLOSE, "think"), *CODEC._tag(OPEN, "tools")], TOKENIZER.encode("hm")][lead]
    _decodes_or_refuses([*start, *(t for p in pieces for t in p), CODEC.end])


@settings(max_examples=200, deadline=None)
@given(assistants, st.data())
def test_a_damaged_message_never_raises_anything_else(message: Message, data: st.DataObject) -> None:
    body = CODEC.assistant_body(message)
    at = data.draw(st.integers(0, len(body) - 1))
    damage = data.draw(st.sampled_from(["cut", "drop", "swap", "double"]))
    if damage == "cut":
        with pytest.raises(MalformedCallError):
            CODEC.decode_assistant(body[:at])
        return
    other = data.draw(st.integers(0, TOKENIZER.vocab_size - 1))
    middle = {"drop": [], "swap": [other], "double": [body[at], body[at]]}[damage]
    _decodes_or_refuses([*body[:at], *middle, *body[at + 1 :]])


def _call_body(header: str, argument: str, value: str) -> list[int]:
    """A message with one call, all tags spelled out."""

    def tag(bracket: int, inside: str) -> list[int]:
        return [bracket, *TOKENIZER.encode(inside), CODEC.sep]

    inner = [*tag(CODEC.open, argument), *TOKENIZER.encode(value), *tag(CODEC.close, "arg")]
    call = [*tag(CODEC.open, header), *inner, *tag(CODEC.close, "call")]
    return [*tag(CODEC.close, "think"), *tag(CODEC.open, "tools"), *call, *tag(CODEC.close, "tools"), CODEC.end]


def test_tags_spelled_out_mean_the_same_as_single_tokens() -> None:
    found = CODEC.decode_assistant(_call_body('call tool="submit" index="0"', 'arg name="answer"', "5"))
    assert found == Message(role="assistant", calls=(ToolCall(tool="submit", arguments={"answer": "5"}),))


@pytest.mark.parametrize(
    ("header", "argument", "value"),
    [
        ('call tool="x" index="²"', 'arg name="a"', "1"),
        ('call tool="x" index="-1"', 'arg name="a"', "1"),
        ('call tool="x" index="' + "9" * 5000 + '"', 'arg name="a"', "1"),
        ('call tool="\\ud800" index="0"', 'arg name="a"', "1"),
        ('call tool="\\q" index="0"', 'arg name="a"', "1"),
        ("call", 'arg name="a"', "1"),
        ("tool", 'arg name="a"', "1"),
        ('call tool="x"', 'arg name="\\ud800"', "1"),
        ('call tool="x"', "arg", "1"),
        ('call tool="x"', 'arg name="a" type="json"', "{"),
        ('call tool="x"', 'arg name="a" type="number"', "NaN"),
        ('call tool="x"', 'arg name="a" type="json"', '"\\ud800"'),
        ('call tool="x"', 'arg name="a" type="json"', "[" * 5000),
        ('call tool="x"', 'arg name="a" type="integer"', "9" * 5000),
        ('call tool="x', 'arg name="a"', "1"),
    ],
)
def test_bad_calls_are_malformed_and_say_the_fix(header: str, argument: str, value: str) -> None:
    with pytest.raises(MalformedCallError) as caught:
        CODEC.decode_assistant(_call_body(header, argument, value))
    assert caught.value.fix
    assert len(str(caught.value)) < 300


def test_an_unknown_channel_and_loose_text_are_malformed() -> None:
    close = CODEC._tag(CLOSE, "think")
    with pytest.raises(MalformedCallError, match="no channel"):
        CODEC.decode_assistant([*close, *CODEC._element("shout", []), CODEC.end])
    with pytest.raises(MalformedCallError, match="must open"):
        CODEC.decode_assistant([*close, *TOKENIZER.encode("loose"), CODEC.end])
    with pytest.raises(MalformedCallError, match="cut short"):
        CODEC.decode_assistant([])


def test_a_transcript_spells_reserved_tokens_out_and_shows_text_as_it_is() -> None:
    message = Message(role="tool", tool="open", content="width=70 [open]")
    assert CODEC.transcript(CODEC.encode(message)) == '[open]message role="tool" tool="open" index="0"[sep]width=70 [open][end_of_msg]'


# --- the tokenizer itself ---


def test_a_tokenizer_survives_saving_and_names_a_broken_one(tmp_path: Any) -> None:
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
    assert TOKENIZER.vocab_size <= 400
