"""Whatever a policy samples is recognised when it comes back over any wire, and no request makes a wire fail untyped."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from environments.gateway.anthropic_messages import AnthropicMessages
from environments.gateway.backends import EngineBackend
from environments.gateway.messages import RequestError, read_json
from environments.gateway.openai_chat import OpenAIChat
from environments.gateway.openai_responses import OpenAIResponses
from environments.gateway.session import Limits, Reply, Session
from environments.task import Message, ToolCall
from tests.environments.gateway.engines import PreparedEngine, make_codec, say

CODEC = make_codec()
WIRES: dict[str, Any] = {"chat": OpenAIChat(), "messages": AnthropicMessages(), "responses": OpenAIResponses()}
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["  two  words\r\n", "[end_of_msg]", '{"a": 1}'])
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=4,
)
calls = st.lists(st.tuples(text, st.dictionaries(text, values, max_size=2)), max_size=2)
replies = st.builds(lambda content, thinking, made: say(content, thinking, *made), text, text, calls)


def squeezed(message: str) -> str:
    return " ".join(message.split())


def javascript(value: Any) -> Any:
    """As a client in JavaScript writes it: whole floats without a point, large integers rounded, keys in another order."""
    if isinstance(value, dict):
        return {k: javascript(v) for k, v in reversed(value.items())}
    if isinstance(value, list):
        return [javascript(v) for v in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
        return int(float(value))
    return value


def turn(wire: str, session: Session, history: list[Any]) -> tuple[Any, Reply]:
    """One request and its answer, through JSON as on a socket."""
    key = "input" if wire == "responses" else "messages"
    body = {"model": "m", "max_tokens": 20_000, "thinking": {"type": "enabled"}, key: history}
    request = WIRES[wire].parse(read_json(json.dumps(body).encode()), session)
    asked = session.ask(request)
    reply = session.commit(asked, session.backend.ask(asked.turn).result())
    return json.loads(json.dumps(WIRES[wire].body(reply, request, session))), reply


def sent_back(wire: str, body: Any, drop_thinking: bool) -> list[Any]:
    """The reply as a client puts it into its history, with the results of its calls and a word of the user's."""
    if wire == "chat":
        message = body["choices"][0]["message"]
        message["content"] = squeezed(message["content"] or "") or None
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(javascript(json.loads(call["function"]["arguments"])), indent=1)
        if drop_thinking:
            message.pop("reasoning_content", None)
        results = [{"role": "tool", "tool_call_id": c["id"], "content": "r"} for c in message.get("tool_calls", ())]
        return [message, *results, {"role": "user", "content": "go on"}]
    if wire == "messages":
        blocks = [b for b in body["content"] if not (drop_thinking and b["type"] == "thinking")]
        blocks = [{**b, "input": javascript(b["input"])} if b["type"] == "tool_use" else b for b in blocks]
        results = [{"type": "tool_result", "tool_use_id": b["id"], "content": "r"} for b in blocks if b["type"] == "tool_use"]
        return [{"role": "assistant", "content": blocks}, {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]}]
    items = [i for i in body["output"] if not (drop_thinking and i["type"] == "reasoning")]
    results = [{"type": "function_call_output", "call_id": i["call_id"], "output": "r"} for i in items if i["type"] == "function_call"]
    return [*items, *results, {"role": "user", "content": "go on"}]


@pytest.mark.parametrize("wire", sorted(WIRES))
@settings(max_examples=40, deadline=None)
@given(said=st.lists(replies, min_size=1, max_size=3), drop=st.booleans())
@example(said=[say()], drop=True)
@example(said=[say("", "only thoughts"), say(" \n ")], drop=True)
@example(said=[say("same", "a"), say("same", "b"), say("same", "a")], drop=True)
@example(said=[say("", "", ("", {"": {"a": [1.0, 10**20 + 1, -0.0, True]}}))] * 2, drop=False)
def test_every_reply_is_recognised_and_the_context_only_grows(wire: str, said: list[Message], drop: bool) -> None:
    engine = PreparedEngine(CODEC, [*said, say("end")])
    session = Session(EngineBackend(engine, CODEC, 100_000), Limits(), 0, None)
    history: list[Any] = [{"role": "user", "content": "go"}]
    for _ in said:
        body, _ = turn(wire, session, history)
        history += sent_back(wire, body, drop)
    turn(wire, session, history)
    session.backend.close()
    recording = session.recording()
    assert len(recording.segments) == 1
    segment = recording.segments[0]
    for prefix, body in engine.sampled:
        assert list(segment.tokens[: len(prefix) + len(body)]) == prefix + body
    assert sum(segment.loss_mask) == sum(len(body) for _, body in engine.sampled)
    assert [m for m in segment.messages if m.role == "assistant"] == [*said, say("end")]
    assert len(recording.tool_records) == sum(len(m.calls) for m in said)


def test_a_call_that_cannot_be_read_is_recognised_by_its_id() -> None:
    tokenizer = CODEC.tokenizer
    body = [
        tokenizer.elements["[close]think[sep]"],
        tokenizer.elements["[open]tools[sep]"],
        *CODEC._tag("[open]", 'call tool="x" index="0"'),
    ]
    body += [*tokenizer.encode('{"a'), tokenizer.elements["[close]call[sep]"], tokenizer.elements["[close]tools[sep]"], CODEC.end]
    for wire in WIRES:
        engine = PreparedEngine(CODEC, [body, say("end")])
        session = Session(EngineBackend(engine, CODEC, 4000), Limits(), 0, None)
        history: list[Any] = [{"role": "user", "content": "go"}]
        answer, reply = turn(wire, session, history)
        assert reply.message.calls == (ToolCall(tool="x", malformed='{"a'),)
        if wire == "chat":  # a client that repairs what it cannot parse
            call = answer["choices"][0]["message"]["tool_calls"][0]
            assert call["function"]["arguments"] == '{"a'
            call["function"]["arguments"] = "{}"
        turn(wire, session, history + sent_back(wire, answer, False))
        session.backend.close()
        recording = session.recording()
        assert [len(s.tokens) for s in recording.segments] == [len(engine.sampled[1][0]) + len(engine.sampled[1][1])]
        assert [r.error for r in recording.tool_records] == ["MalformedCallError"]


TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "input_schema": {"type": "object"}, "function": {"name": "f"}}
CALL = {"id": "call_1", "function": {"name": "f", "arguments": "{}"}}
BLOCKS = [
    {"type": "text", "text": "x"},
    {"type": "tool_use", "id": "t_1", "name": "f", "input": {}},
    {"type": "tool_result", "tool_use_id": "t_1", "content": [{"type": "text", "text": "x"}]},
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
    {"type": "function_call", "call_id": "c_1", "name": "f", "arguments": "{}"},
]
MESSAGES = [{"role": "assistant", "content": BLOCKS[:2], "tool_calls": [CALL]}, {"role": "user", "content": BLOCKS[2:4]}]
SOUND: dict[str, Any] = {
    "model": "m",
    "max_tokens": 5,
    "messages": MESSAGES,
    "input": [*MESSAGES, *BLOCKS],
    "tools": [TOOL],
    "tool_choice": "auto",
    "stop": ["x"],
    "stop_sequences": ["x"],
    "response_format": {"type": "json_object"},
    "text": {"format": {"type": "text"}},
    "stream_options": {"include_usage": True},
    "system": "s",
    "thinking": {"type": "enabled"},
}
odd: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([None, True, 0, -1, 1e400 * 0, "", "x", "auto", "data:image/png;base64,AA", "\ud800", [], {}]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "name", "role", "content"]), inner, max_size=3)
    ),
    max_leaves=4,
)


def spoiled(data: st.DataObject, value: Any) -> Any:
    """The value with something odd at one place."""
    while isinstance(value, dict | list) and value and data.draw(st.integers(0, 9)):
        copy: Any = dict(value) if isinstance(value, dict) else list(value)
        key = data.draw(st.sampled_from(sorted(copy))) if isinstance(copy, dict) else data.draw(st.integers(0, len(copy) - 1))
        copy[key] = spoiled(data, copy[key])
        return copy
    return data.draw(odd)


@pytest.mark.parametrize("wire", sorted(WIRES))
@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_odd_requests_are_refused_by_the_name_of_a_field_or_answered(wire: str, data: st.DataObject) -> None:
    body = json.dumps(spoiled(data, SOUND)).encode()
    session = Session(EngineBackend(PreparedEngine(CODEC, []), CODEC, 100_000), Limits(), 0, None)
    refusal: RequestError | None = None
    try:
        session.ask(WIRES[wire].parse(read_json(body), session))
    except RequestError as error:
        refusal = error
    session.backend.close()
    if refusal is not None:
        assert refusal.fix
        assert refusal.status == 400
        assert refusal.message in str(WIRES[wire].error(refusal)["error"]["message"])
