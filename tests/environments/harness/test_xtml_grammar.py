"""The grammar of constrained decoding: every walk under the mask is a message that fits its tools, and every such message is a walk."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from environments.errors import InputError, MalformedCallError
from environments.harness.xtml import CLOSE, OPEN, RESERVED, SEP, Xtml
from environments.harness.xtml_grammar import Matcher, Vocabulary, XtmlGrammar
from environments.harness.xtml_json import MAX_DEPTH, json_complete, json_start, json_step
from environments.task import Message, ToolCall, ToolParameter, ToolSpec
from tests.environments.harness.xtml_cases import (
    CODEC,
    PROBES,
    SPELLED,
    SPELLED_CODEC,
    TOKENIZER,
    LossyTokenizer,
    damaged_bodies,
    fitting,
    fitting_calls,
    json_values,
)

VOCABULARY, SPELLED_VOCABULARY = Vocabulary(TOKENIZER, TOKENIZER.vocab_size), Vocabulary(SPELLED, SPELLED.vocab_size)
SECOND = 'tool="do \\u0022it\\u0022 \\u6f22"'
"""The second probe's name in a tag."""
KINDS = ("integer", "number", "boolean", "array", "object")


@cache
def grammar(thinking: bool = True, tool_choice: str = "auto", max_calls: int = 16) -> XtmlGrammar:
    return XtmlGrammar(VOCABULARY, PROBES, thinking=thinking, tool_choice=tool_choice, max_calls=max_calls)


def accepts(matcher: Matcher, ids: Sequence[int]) -> bool:
    """Whether the tokens are a whole message."""
    try:
        for token in ids:
            matcher.accept(token)
    except MalformedCallError:
        return False
    return matcher.done


# --- every message that fits is accepted ---


@settings(max_examples=120, deadline=None)
@given(fitting, st.booleans())
@example(Message(role="assistant"), True)
@example(Message(role="assistant"), False)
def test_every_message_that_fits_is_accepted_token_by_token(message: Message, thinking: bool) -> None:
    if not thinking:
        message = message.model_copy(update={"thinking": ""})
    for codec, vocabulary in ((CODEC, VOCABULARY), (SPELLED_CODEC, SPELLED_VOCABULARY)):
        matcher = XtmlGrammar(vocabulary, PROBES, thinking=thinking).matcher()
        for token in codec.assistant_body(message, thinking):
            assert not matcher.done
            assert matcher.mask()[token], codec.transcript([token])
            matcher.accept(token)
        assert matcher.done
        assert not matcher.mask().any()


@settings(max_examples=60, deadline=None)
@given(fitting, st.data())
def test_a_tag_may_be_spelled_in_any_tokens(message: Message, data: st.DataObject) -> None:
    """Each tag as one token, or spelled out and cut anywhere: both decode equally and both are accepted."""
    ids: list[int] = []
    for token in CODEC.assistant_body(message):
        tag = CODEC.structure.names.get(token, "")
        if tag not in RESERVED and tag and data.draw(st.booleans()):
            bracket = OPEN if tag.startswith(OPEN) else CLOSE
            header = tag.removeprefix(bracket).removesuffix(SEP)
            cut = data.draw(st.integers(0, len(header)))
            ids += [TOKENIZER.reserved[bracket], *TOKENIZER.encode(header[:cut]), *TOKENIZER.encode(header[cut:]), CODEC.sep]
        else:
            ids.append(token)
    assert CODEC.decode_assistant(ids) == message
    assert accepts(grammar().matcher(), ids)


# --- every walk under the mask is a message that fits ---


def _walk(matcher: Matcher, rng: random.Random, wander: int) -> list[int]:
    """Tokens drawn under the mask; after `wander` of them those that lead out come first."""
    vocabulary = matcher.grammar.vocabulary
    structure = vocabulary.structure
    ids: list[int] = []
    while not matcher.done:
        possible = np.flatnonzero(matcher.mask()).tolist()
        assert possible, structure.spell(ids)
        marks = [t for t in possible if t in structure.ids]
        closing = [t for t in marks if structure.names[t].startswith(CLOSE)]
        if len(ids) < wander:
            token = rng.choice(marks if marks and rng.random() < 0.3 else possible)
        elif structure.end in marks:
            token = structure.end
        elif closing or marks:
            token = rng.choice(closing or marks)
        else:
            # Within a tag or JSON: the tokens that end something, else short ones.
            ends = [t for t in possible if re.fullmatch(r'[\]}"]+', vocabulary.texts[t])]
            token = rng.choice(ends) if ends else min(possible, key=lambda t: (len(vocabulary.texts[t]), rng.random()))
        matcher.accept(token)
        ids.append(token)
        assert len(ids) < wander + 3000
    return ids


def _fits(message: Message, tools: Sequence[ToolSpec]) -> bool:
    types: dict[str, Callable[[Any], bool]] = {
        "string": lambda v: type(v) is str,
        "integer": lambda v: type(v) is int,
        "number": lambda v: type(v) in (int, float),
        "boolean": lambda v: type(v) is bool,
        "array": lambda v: type(v) is list,
        "object": lambda v: type(v) is dict,
    }
    for index, call in enumerate(message.calls):
        tool = next((t for t in tools if t.name == call.tool), None)
        if tool is None or call.index != index or call.malformed:
            return False
        declared = {p.name: p for p in tool.parameters}
        if not all(name in declared and types[declared[name].type](value) for name, value in call.arguments.items()):
            return False
        if not all(p.name in call.arguments for p in tool.parameters if p.required):
            return False
    return True


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from(["auto", "none", "required", "search", PROBES[1].name]), st.integers(0, 150))
def test_every_walk_under_the_mask_decodes_and_fits(seed: int, thinking: bool, tool_choice: str, wander: int) -> None:
    rng = random.Random(seed)
    for codec, vocabulary in ((CODEC, VOCABULARY), (SPELLED_CODEC, SPELLED_VOCABULARY)):
        matcher = XtmlGrammar(vocabulary, PROBES, thinking=thinking, tool_choice=tool_choice, max_calls=3).matcher()
        ids = _walk(matcher, rng, wander)
        message = codec.decode_assistant(ids, thinking)
        assert codec.malformed_spans(ids, PROBES, thinking) == []
        assert _fits(message, PROBES)
        assert len(message.calls) <= 3
        if tool_choice == "none":
            assert not message.calls
        elif tool_choice != "auto":
            assert message.calls
            assert tool_choice == "required" or {c.tool for c in message.calls} == {tool_choice}


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 80))
def test_mask_description_and_accept_agree_on_every_token(seed: int, wander: int) -> None:
    rng = random.Random(seed)
    matcher = grammar().matcher()
    for token in _walk(grammar().matcher(), rng, wander)[: rng.randrange(wander + 20)]:
        matcher.accept(token)
    mask, allowed = matcher.mask(), matcher.allowed()
    for token in range(TOKENIZER.vocab_size):
        plain = allowed.plain and token in VOCABULARY.texts and token not in allowed.without
        assert mask[token] == (token in allowed.ids or plain)
        trial = matcher.copy()
        if mask[token]:
            trial.accept(token)
        else:
            with pytest.raises(MalformedCallError, match="not allowed"):
                trial.accept(token)
            assert trial.allowed() == allowed


# --- settings ---


def _body(*calls: ToolCall, content: str = "") -> list[int]:
    return CODEC.assistant_body(Message(role="assistant", content=content, calls=calls))


SEARCH, SUBMIT = ToolCall(tool="search", arguments={"query": "x"}), ToolCall(tool="submit", index=1)


@pytest.mark.parametrize(
    ("tool_choice", "none", "one", "both"),
    [("auto", True, True, True), ("none", True, False, False), ("required", False, True, True), ("search", False, True, False)],
)
def test_the_tool_choice_says_which_calls_there_may_be(tool_choice: str, none: bool, one: bool, both: bool) -> None:
    for calls, expected in (((), none), ((SEARCH,), one), ((SEARCH, SUBMIT), both)):
        assert accepts(grammar(tool_choice=tool_choice).matcher(), _body(*calls, content="so")) == expected


def test_there_are_at_most_so_many_calls_numbered_in_order() -> None:
    assert not accepts(grammar(max_calls=1).matcher(), _body(SEARCH, SUBMIT))
    assert not accepts(grammar().matcher(), _body(SUBMIT))
    assert not accepts(grammar().matcher(), _body(SEARCH, SEARCH))
    assert accepts(XtmlGrammar(VOCABULARY).matcher(), _body(content="so"))
    assert not accepts(XtmlGrammar(VOCABULARY).matcher(), _body(SEARCH))


@pytest.mark.parametrize(
    "arguments",
    [
        {"naïve": {}},
        {"count": 1},
        {"count": 1.0, "naïve": {}},
        {"count": True, "naïve": {}},
        {"count": "1", "naïve": {}},
        {"count": 1, "naïve": []},
        {"count": 1, "naïve": None},
        {"count": 1, "naïve": {}, "on": 1},
        {"count": 1, "naïve": {}, "other": 1},
        {"count": 1, "naïve": {}, "list": {}},
    ],
)
def test_calls_that_do_not_fit_are_not_accepted(arguments: dict[str, Any]) -> None:
    fine = {"count": 1, "naïve": {}, "on": False, "list": [1], "rate": 1}
    for given_arguments, expected in ((arguments, False), (fine, True)):
        body = _body(ToolCall(tool=PROBES[1].name, arguments=given_arguments))
        assert accepts(grammar().matcher(), body) == expected
        assert recogniser().recognises(CODEC.transcript(body)) == expected


def test_wrong_settings_are_named() -> None:
    for options, match in [
        ({"tool_choice": "shout"}, "no tool 'shout'"),
        ({"tools": (), "tool_choice": "required"}, "no tools"),
        ({"tools": (PROBES[0], PROBES[0])}, "one name"),
        ({"max_calls": 0}, "at least 1"),
    ]:
        with pytest.raises(InputError, match=match):
            XtmlGrammar(VOCABULARY, **{"tools": PROBES, **options})


def test_matching_never_tokenises_and_takes_tokens_that_encoding_never_gives() -> None:
    lossy = LossyTokenizer(TOKENIZER)
    call = ToolCall(tool=PROBES[1].name, arguments={"count": -5, "naïve": {"K": ['A"b', 1.5e300]}})
    ids = lossy.twins(_body(call, SUBMIT, content="So"))
    with lossy.sealed():
        matcher = XtmlGrammar(Vocabulary(lossy, lossy.vocab_size), PROBES).matcher()
        assert accepts(matcher, ids)
        assert Xtml(lossy).decode_assistant(ids).calls == (call, SUBMIT)


# --- JSON ---


def _reads(kind: str, value: str) -> bool:
    state = json_start(kind)
    for char in value:
        after = json_step(state, char)
        if after is None:
            return False
        state = after
    return json_complete(state)


_OF = {"integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}


def _is(kind: str, value: Any) -> bool:
    return isinstance(value, _OF[kind]) and (kind == "boolean" or not isinstance(value, bool))


@settings(max_examples=400, deadline=None)
@given(json_values, st.booleans())
@example({"": "\ud83d\ude42".encode("utf-16", "surrogatepass").decode("utf-16")}, True)
@example([1.7976931348623157e308, -5e-324, -0.0, 10**300], False)
def test_json_of_the_type_is_read_and_of_others_is_not(value: Any, ascii_only: bool) -> None:
    written = json.dumps(value, separators=(",", ":"), ensure_ascii=ascii_only)
    for kind in KINDS:
        assert _reads(kind, written) == _is(kind, value)


_PIECES = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    '"a"',
    "\\",
    "\\n",
    "\\u00e9",
    "\\ud83d",
    "\\ude42",
    "\\uD8",
    "0",
    "1",
    "12",
    "-",
    ".",
    "e",
    "E+",
    "e5",
]
_PIECES += ["true", "false", "null", "tru", "NaN", " ", "\n", "é", "9" * 310, "e400", "e308", "\x7f", "x"]


@settings(max_examples=800, deadline=None)
@given(st.lists(st.sampled_from(_PIECES), max_size=9).map("".join), st.sampled_from(KINDS))
def test_what_is_read_is_json_of_the_type(written: str, kind: str) -> None:
    """What the automaton reads, the codec reads as that type; what it refuses is no compact JSON of it."""
    codec_kind = "json" if kind in ("array", "object") else kind
    body = [*CODEC._tag(CLOSE, "think"), *CODEC._tag(OPEN, "tools"), *CODEC._tag(OPEN, 'call tool="x" index="0"')]
    body += [*CODEC._element(f'arg name="a" type="{codec_kind}"', TOKENIZER.encode(written)), *CODEC._tag(CLOSE, "call")]
    message = CODEC.decode_assistant([*body, *CODEC._tag(CLOSE, "tools"), CODEC.end])
    value = message.calls[0].arguments.get("a", ...)
    valid = value is not ... and _is(kind, value)
    if _reads(kind, written):
        assert valid
    elif valid:
        assert re.search(r"[ \n]", re.sub(r'"([^"\\]|\\.)*"', '""', written)), "only white space is refused"


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(_PIECES), max_size=9).map("".join), st.sampled_from(KINDS))
@example("0." + "1" * 4297 + "e", "number")
@example("[" * MAX_DEPTH, "array")
@example('["\\ud83d', "array")
def test_json_never_runs_into_a_dead_end(written: str, kind: str) -> None:
    state = json_start(kind)
    for char in written:
        state = json_step(state, char) or state
    for _ in range(4 * MAX_DEPTH):
        if json_complete(state):
            return
        # The first of these that fits closes what is open, or begins the shortest value.
        state = next(after for char in '"]}:0\\udctrefalsn[{' if (after := json_step(state, char)))
    pytest.fail(f"{state} does not end")


@pytest.mark.parametrize(
    ("escapes", "whole"),
    [
        *[(r"\ud83d\ude42", True), (r"\uD83D\uDE42\ud83d\ude42", True), (r"\u00e9\n\/\\ \" \ud7ff\ue000", True)],
        *[(r"\ude42", False), (r"\ud83d", False), (r"\ud83dx", False), (r"\ud83d\n", False), (r"\ud83d\ud83d", False)],
        *[(r"\ud83d\u00e9", False), (r"\q", False), (r"\u12g4", False), (r"\u12", False), ("\n", False)],
    ],
)
def test_escapes_spell_whole_characters(escapes: str, whole: bool) -> None:
    for written in (f'["{escapes}"]', f'[{{"{escapes}":0}}]'):
        assert _reads("array", written) == whole
        call = f'[open]call {SECOND} index="0"[sep][open]arg name="list" type="json"[sep]{written}[close]arg[sep]'
        call += '[open]arg name="count" type="integer"[sep]1[close]arg[sep][open]arg name="na\\u00efve" type="json"[sep]{}[close]arg[sep]'
        spelled = f"[close]think[sep][open]tools[sep]{call}[close]call[sep][close]tools[sep][end_of_msg]"
        assert recogniser().recognises(spelled) == whole


def test_json_has_its_bounds() -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert _reads("array", deep)
    assert not _reads("array", f"[{deep}]")
    assert _reads("integer", "9" * 4299)
    assert not _reads("integer", "9" * 4301)
    assert _reads("number", "1.7976931348623157e308")
    for number in ("1.7976931348623159e308", "1e309", "9" * 310 + ".0", "9" * 310 + "e0", "01", "1.", "-", "+1", ".5", "1e", ""):
        assert not _reads("number", number)


# --- EBNF ---


class Recogniser:
    """Reads a grammar in XGrammar's EBNF and recognises texts with it. Written for these tests; left recursion is not supported."""

    _TOKEN = re.compile(r'\s+|(\w+)|(::=)|("(?:[^"\\]|\\.)*")|(\[(?:[^\]\\]|\\.)*\])|([()|*+?])')

    def __init__(self, source: str) -> None:
        assert r"\x" not in source, "XGrammar reads any number of digits after it"
        self.rules: dict[str, Any] = {}
        for line in source.splitlines():
            tokens: list[str] = []
            at = 0
            while at < len(line):
                match = self._TOKEN.match(line, at)
                assert match is not None, line[at:]
                at = match.end()
                if match[0].strip():
                    tokens.append(match[0])
            assert tokens[1] == "::=", line
            assert tokens[0] not in self.rules, tokens[0]
            self._tokens, self._at = tokens[2:], 0
            self.rules[tokens[0]] = self._choice()
            assert self._at == len(self._tokens), line
        used = set(re.findall(r"'ref', '(\w+)'", repr(self.rules)))
        assert used <= self.rules.keys(), used - self.rules.keys()
        assert self.rules.keys() - used == {"root"}

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _choice(self) -> Any:
        ways = [self._sequence()]
        while self._peek() == "|":
            self._next()
            ways.append(self._sequence())
        return ("or", ways)

    def _sequence(self) -> Any:
        parts = []
        while self._peek() not in ("", "|", ")"):
            token = self._next()
            part: Any
            if token == "(":
                part = self._choice()
                assert self._next() == ")"
            elif token.startswith('"'):
                part = ("text", self._unescape(token[1:-1]))
            elif token.startswith("["):
                part = ("class", re.compile(token))  # the same escapes as Python's
            else:
                part = ("ref", token)
            if self._peek() in ("*", "+", "?") and self._peek():
                part = (self._next(), part)
            parts.append(part)
        assert parts
        return ("and", parts)

    @staticmethod
    def _unescape(literal: str) -> str:
        return re.sub(r"\\(.)", lambda m: {"n": "\n", "r": "\r", "t": "\t"}.get(m[1], m[1]), literal)

    def recognises(self, value: str) -> bool:
        self._value, self._known = value, {}
        return len(value) in self._ends(("ref", "root"), 0)

    def _ends(self, part: Any, at: int) -> frozenset[int]:
        key = (id(part), at) if part[0] != "ref" else (part[1], at)
        if key not in self._known:
            self._known[key] = frozenset(self._find(part, at))
        return self._known[key]

    def _find(self, part: Any, at: int) -> set[int]:
        kind, inner = part
        if kind == "ref":
            return set(self._ends(self.rules[inner], at))
        if kind == "text":
            return {at + len(inner)} if self._value.startswith(inner, at) else set()
        if kind == "class":
            return {at + 1} if inner.match(self._value, at) else set()
        if kind == "or":
            return set().union(*(self._ends(way, at) for way in inner))
        if kind == "and":
            places = {at}
            for step in inner:
                places = set().union(*(self._ends(step, place) for place in places))
            return places
        found = set() if kind == "+" else {at}
        new = {at}
        while new:
            new = set().union(*(self._ends(inner, place) for place in new)) - found
            found |= new
            if kind == "?":
                break
        return found


@cache
def recogniser(thinking: bool = True, tool_choice: str = "auto", max_calls: int = 3) -> Recogniser:
    return Recogniser(grammar(thinking, tool_choice, max_calls).ebnf())


short = st.one_of(st.text(max_size=8), st.lists(st.sampled_from(["[", "[op", "[end", "]", '"', "\\", "\n", "é"]), max_size=4).map("".join))
short_messages = st.builds(Message, role=st.just("assistant"), content=short, thinking=short, calls=fitting_calls(most=2))


def _spells_reserved(message: Message) -> bool:
    return any(
        r in piece for r in RESERVED for piece in (message.content, message.thinking, json.dumps([c.arguments for c in message.calls]))
    )


@settings(max_examples=60, deadline=None)
@given(short_messages, st.booleans())
def test_the_ebnf_recognises_every_message_that_fits(message: Message, thinking: bool) -> None:
    if not thinking:
        message = message.model_copy(update={"thinking": ""})
    spelled = CODEC.transcript(CODEC.assistant_body(message, thinking))
    assert recogniser(thinking).recognises(spelled) == (not _spells_reserved(message))


@settings(max_examples=200, deadline=None)
@given(damaged_bodies(short_messages), st.sampled_from(["auto", "none", "required", "search"]))
def test_automaton_and_ebnf_agree(body: list[int], tool_choice: str) -> None:
    assume(not any(CODEC.structure.spell([t]) == "" or "\ufffd" in CODEC.structure.spell([t]) for t in body))
    plain = "\0".join(TOKENIZER.decode([t]) for t in body if t not in CODEC.structure.ids)
    assume(not any(r in plain.replace("\0", "") for r in RESERVED))
    accepted = accepts(grammar(True, tool_choice, 3).matcher(), body)
    assert recogniser(True, tool_choice).recognises(CODEC.transcript(body)) == accepted


@pytest.mark.parametrize(
    ("value", "reserved"),
    [
        ("[[open]", True),
        ("[ope[close]n]", True),
        ("[end_of_ms", False),
        ("[sep", False),
        ("[se[sep]p]", True),
        ("[]", False),
        ("[ope\nn]", False),
    ],
)
def test_text_of_the_ebnf_spells_no_reserved_token(value: str, reserved: bool) -> None:
    spelled = f"{value}[close]think[sep][end_of_msg]"
    assert recogniser().recognises(spelled) == (not reserved)
    in_json = json.dumps({"k": value}, separators=(",", ":"))
    call = f'[open]call {SECOND} index="0"[sep][open]arg name="count" type="integer"[sep]1[close]arg[sep]'
    call += f'[open]arg name="na\\u00efve" type="json"[sep]{in_json}[close]arg[sep][close]call[sep]'
    assert recogniser().recognises(f"[close]think[sep][open]tools[sep]{call}[close]tools[sep][end_of_msg]") == (not reserved)


def test_many_parameters_keep_their_order_in_the_ebnf() -> None:
    names = [f"p{i}" for i in range(7)]
    tool = ToolSpec(name="wide", description="", parameters=tuple(ToolParameter(name=n, required=n == "p3") for n in names))
    wide = XtmlGrammar(VOCABULARY, [tool])
    recognise = Recogniser(wide.ebnf()).recognises
    for given_names, expected in ((names, True), (["p3"], True), (["p0", "p3", "p6"], True), (["p6", "p3"], False), (["p0"], False)):
        body = _body(ToolCall(tool="wide", arguments=dict.fromkeys(given_names, "x")))
        assert recognise(CODEC.transcript(body)) == expected
        assert accepts(wide.matcher(), body) == ("p3" in given_names)


def test_xgrammar_reads_the_ebnf_and_agrees() -> None:
    xgrammar = pytest.importorskip("xgrammar")
    from xgrammar.testing import _is_grammar_accept_string as accepts_text

    compiled = xgrammar.Grammar.from_ebnf(grammar(True, "auto", 3).ebnf())
    second = ToolCall(tool=PROBES[1].name, arguments={"naïve": {"k": ["é\n", -1.5e9, None]}, "count": -12, "on": True}, index=1)
    for body in (
        _body(),
        _body(content="[so\n]"),
        _body(SEARCH, content="so"),
        _body(SEARCH, second),
        _body(SUBMIT),
        _body(ToolCall(tool="search")),
        _body(ToolCall(tool=PROBES[1].name, arguments={"count": 1.5, "naïve": {}})),
        _body(content="[open]"),
        _body(SEARCH)[:-1],
    ):
        spelled = CODEC.transcript(body)
        assert accepts_text(compiled, spelled) == recogniser().recognises(spelled), spelled
