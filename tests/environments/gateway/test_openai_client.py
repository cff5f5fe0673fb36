"""The official `openai` client in front of the gateway: what it gets, and what is on record."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from environments.errors import ConfigError, EngineError
from environments.gateway.backends import EngineBackend, PolicyBackend
from environments.gateway.gateway import Gateway
from environments.gateway.session import DEFAULT_LIMITS, Limits, Recording, Session
from environments.policies import ScriptedPolicy
from environments.task import Message, ToolCall
from environments.trace import Segment
from tests.environments.gateway.engines import PreparedEngine, Squeezing, make_codec, say

CODEC = make_codec()
LOSSY = make_codec(Squeezing)
SEARCH: Any = {
    "type": "function",
    "function": {
        "name": "search",
        "description": "Search.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string"}, "limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
        },
    },
}
HELLO: Any = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "find  width"}]


@contextmanager
def opened(backend: Any, limits: Limits = DEFAULT_LIMITS, **more: Any) -> Iterator[tuple[Gateway, Session, openai.OpenAI]]:
    with Gateway(backend, **more) as gateway:
        session = gateway.open(limits)
        # Certificates, which loopback does not need, take longer to read than all else here.
        with openai.OpenAI(
            base_url=gateway.listen().url + "/v1", api_key=session.token, http_client=openai.DefaultHttpxClient(verify=False)
        ) as client:
            yield gateway, session, client


def engine_backend(lines: Any, codec: Any = CODEC, window: int = 4000) -> EngineBackend:
    return EngineBackend(PreparedEngine(codec, lines), codec, window)


def loss(segment: Segment) -> list[int]:
    return [t for t, m in zip(segment.tokens, segment.loss_mask, strict=True) if m]


def assert_exact(engine: PreparedEngine, recording: Recording) -> None:
    """Every sampled token carries loss once, behind the very prefix it was sampled from, with its log-probability and version."""
    wanted = sorted((prefix, body) for prefix, body in engine.sampled)
    found = []
    for segment in recording.segments:
        assert len(segment.tokens) == len(segment.logprobs) == len(segment.versions) == len(segment.loss_mask)
        at = 0
        while at < len(segment.tokens):
            if not segment.loss_mask[at]:
                assert (segment.logprobs[at], segment.versions[at]) == (0.0, -1)
                at += 1
                continue
            body = next(b for p, b in engine.sampled if p == list(segment.tokens[:at]))
            end = at + len(body)
            assert all(segment.loss_mask[at:end])
            assert segment.logprobs[at:end] == tuple(-(i + 1) / 64 for i in range(len(body)))
            assert set(segment.versions[at:end]) == {engine.version}
            found.append((list(segment.tokens[:at]), list(segment.tokens[at:end])))
            at = end
    assert sorted(found) == wanted


@pytest.mark.parametrize("codec", [CODEC, LOSSY], ids=["exact", "lossy"])
def test_what_was_sampled_is_on_record_whatever_the_client_makes_of_it(codec: Any) -> None:
    lines = [
        say("I  look\n", "hm,  where", ("search", {"query": "two  words", "limit": 3}), ("search", {"query": "Ω 漢字"})),
        say("the  width  is 70", "done"),
        say("bye"),
    ]
    backend = engine_backend(lines, codec)
    engine: Any = backend.engine
    with opened(backend) as (gateway, session, client):
        messages = list(HELLO)
        first = client.chat.completions.create(model="m", messages=messages, tools=[SEARCH]).choices[0]
        assert first.finish_reason == "tool_calls"
        assert first.message.tool_calls
        # The client squeezes white space, reorders the arguments' keys and drops the thinking.
        calls = [c.model_dump() for c in first.message.tool_calls]
        for call in calls:
            given = json.loads(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps(dict(reversed(given.items())), indent=2)
        messages.append({"role": "assistant", "content": " ".join((first.message.content or "").split()), "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": c["id"], "content": f"result {i}"} for i, c in enumerate(calls)]
        second = client.chat.completions.create(model="m", messages=messages, tools=[SEARCH]).choices[0]
        assert second.finish_reason == "stop"
        assert second.message.model_extra == {"reasoning_content": "done"}
        messages += [{"role": "assistant", "content": second.message.content}, {"role": "user", "content": "thanks"}]
        client.chat.completions.create(model="m", messages=messages, tools=[SEARCH])
        recording = gateway.trace(session)
    assert len(recording.segments) == 1
    body = engine.sampled[0][1]
    assert codec.assistant_body(codec.decode_assistant(body)) != body  # tokenising the text again would give other tokens
    assert_exact(engine, recording)
    assert [(r.step, r.tool, r.arguments, r.result) for r in recording.tool_records] == [
        (1, "search", first_arguments(first, 0), "result 0"),
        (1, "search", first_arguments(first, 1), "result 1"),
    ]
    assert recording.trainable
    assert (recording.requests, recording.output_tokens) == (3, sum(len(b) for _, b in engine.sampled))
    assert recording.segments[0].messages[0].content == "be brief"
    assert recording.segments[0].messages[1].option == "tools"
    assert '"anyOf"' in recording.segments[0].messages[1].content  # schemas go in as they came


def first_arguments(choice: Any, index: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(choice.message.tool_calls[index].function.arguments)
    return found


def test_changed_history_forks_and_keeps_the_tokens_of_what_was_kept() -> None:
    lines = [say("one", "t", ("search", {"query": "a"})), say("two", "", ("search", {"query": "b"})), say("three"), say("four")]
    backend = engine_backend(lines)
    engine: Any = backend.engine
    with opened(backend) as (gateway, session, client):

        def ask(messages: Any, **more: Any) -> Any:
            return client.chat.completions.create(model="m", messages=messages, **{"tools": [SEARCH], **more}).choices[0].message

        history: Any = list(HELLO)
        for result in ("long result", "other result"):
            said = ask(history)
            history += [said.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": result}]
        cleared = [*history]
        cleared[3] = {**cleared[3], "content": "[cleared]"}
        assert ask(cleared).content == "three"
        assert ask([{"role": "system", "content": "you are a helper"}, {"role": "user", "content": "go"}], tools=[]).content == "four"
        recording = gateway.trace(session)
    assert_exact(engine, recording)
    assert [(s.fork, s.parent_id) for s in recording.segments] == [("root", None), ("context", 0), ("subagent", 0)]
    # In the fork the kept replies stand with their sampled tokens, without loss.
    forked = list(recording.segments[1].tokens)
    for _, body in engine.sampled[:2]:
        assert any(forked[i : i + len(body)] == body for i in range(len(forked)))
    assert loss(recording.segments[1]) == engine.sampled[2][1]
    assert [r.result for r in recording.tool_records] == ["long result", "other result"]
    assert [r.conversation for r in recording.tool_records] == [0, 0]


def test_changed_arguments_are_the_clients_own_words() -> None:
    backend = engine_backend([say("", "", ("search", {"query": "a"})), say("ok")])
    engine: Any = backend.engine
    with opened(backend) as (gateway, session, client):
        first = client.chat.completions.create(model="m", messages=HELLO, tools=[SEARCH]).choices[0].message
        said: Any = first.model_dump(exclude_none=True)
        said["tool_calls"][0]["function"]["arguments"] = '{"query": "b"}'
        result: Any = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "r"}
        client.chat.completions.create(model="m", messages=[*HELLO, said, result], tools=[SEARCH])
        recording = gateway.trace(session)
    assert_exact(engine, recording)
    assert [loss(s) for s in recording.segments] == [body for _, body in engine.sampled]
    assert recording.segments[1].messages[3].calls[0].arguments == {"query": "b"}


def test_streams_say_the_same_as_whole_replies() -> None:
    line = say("a long answer, naïve Ω 漢字 🙂 " * 4, "thinking " * 20, ("search", {"query": "x" * 120}), ("search", {}))
    backend = engine_backend([line, line])
    with opened(backend) as (_, _, client):
        whole = client.chat.completions.create(model="m", messages=HELLO, tools=[SEARCH])
        usage = {"include_usage": True}
        with client.chat.completions.stream(model="m", messages=HELLO, tools=[SEARCH], stream_options=usage) as stream:  # type: ignore[arg-type]
            kinds = {e.type for e in stream}
            streamed = stream.get_final_completion()
    one, other = whole.choices[0], streamed.choices[0]
    assert {"content.delta", "tool_calls.function.arguments.delta"} <= kinds
    assert (one.message.content, one.finish_reason) == (other.message.content, other.finish_reason)
    assert [c.function.arguments for c in one.message.tool_calls or ()] == [c.function.arguments for c in other.message.tool_calls or ()]  # type: ignore[union-attr]
    assert whole.usage == streamed.usage
    assert whole.usage
    assert whole.usage.completion_tokens == len(backend.engine.sampled[0][1])  # type: ignore[attr-defined]


def test_logprobs_are_those_of_the_sampled_content() -> None:
    backend = engine_backend([say("width Ω", "hm"), say("width Ω", "hm")])
    with opened(backend) as (_, _, client):
        whole = client.chat.completions.create(model="m", messages=HELLO, logprobs=True).choices[0]
        chunks = list(client.chat.completions.create(model="m", messages=HELLO, logprobs=True, stream=True))
    assert whole.logprobs
    assert whole.logprobs.content
    assert "".join(p.token for p in whole.logprobs.content) == "width Ω"
    streamed = [p for c in chunks if c.choices[0].logprobs for p in c.choices[0].logprobs.content or ()]
    assert [p.logprob for p in streamed] == [p.logprob for p in whole.logprobs.content]
    _, body = backend.engine.sampled[0]  # type: ignore[attr-defined]
    first = next(i for i in range(len(body)) if CODEC.tokenizer.decode(body[i : i + 1]) == "w")
    assert whole.logprobs.content[0].logprob == -(first + 1) / 64


def test_stop_and_max_tokens_cut_what_is_shown_and_what_is_recorded() -> None:
    backend = engine_backend([say("alpha STOP omega", "t"), say("a long answer without an end"), say("fine")])
    engine: Any = backend.engine
    with opened(backend) as (gateway, session, client):
        first = client.chat.completions.create(model="m", messages=HELLO, stop=["STOP"]).choices[0]
        assert (first.message.content, first.finish_reason) == ("alpha ", "stop")
        second = client.chat.completions.create(model="m", messages=HELLO, max_completion_tokens=12).choices[0]
        assert second.finish_reason == "length"
        assert "a long answer".startswith((second.message.content or "").strip())
        more = [*HELLO, {"role": "assistant", "content": second.message.content}, {"role": "user", "content": "go on"}]
        client.chat.completions.create(model="m", messages=more)
        recording = gateway.trace(session)
    stopped, continued = recording.segments
    assert CODEC.transcript(loss(stopped)).endswith("alpha STOP")
    assert loss(continued) == engine.sampled[1][1] + engine.sampled[2][1]
    assert engine.sampled[2][0][len(engine.sampled[1][0]) + 12] == CODEC.end  # the cut message was ended, which was not sampled


def test_tool_choice_follows_the_input_and_leaves_the_prefix_untouched() -> None:
    backend = engine_backend([say("one"), say("two")])
    engine: Any = backend.engine
    with opened(backend) as (gateway, session, client):
        client.chat.completions.create(model="m", messages=HELLO, tools=[SEARCH], tool_choice="required")
        more: Any = [*HELLO, {"role": "assistant", "content": "one"}, {"role": "user", "content": "again"}]
        client.chat.completions.create(model="m", messages=more, tools=[SEARCH])
        recording = gateway.trace(session)
    assert len(recording.segments) == 1
    assert_exact(engine, recording)
    assert 'option="tool_choice"' in CODEC.transcript(engine.sampled[0][0])
    assert engine.sampled[1][0][: len(engine.sampled[0][0])] == engine.sampled[0][0]


def test_effort_and_format_are_option_messages() -> None:
    backend = engine_backend([say("{}")])
    with Gateway(backend) as gateway:
        session = gateway.open(effort="low")
        client = openai.OpenAI(
            base_url=gateway.listen().url + "/v1", api_key=session.token, http_client=openai.DefaultHttpxClient(verify=False)
        )
        client.chat.completions.create(model="m", messages=HELLO, tools=[SEARCH], response_format={"type": "json_object"})
    said = CODEC.transcript(backend.engine.sampled[0][0])  # type: ignore[attr-defined]
    order = [said.index(f'option="{option}"') for option in ("tools", "effort", "response_format")]
    assert order == sorted(order)
    assert order[1] < said.index("find  width") < order[2]
    assert "Reasoning effort: low." in said


def test_no_log_holds_a_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("httpx", "httpx2", "httpcore", "httpcore2", "openai"):  # the clients' own logs are theirs
        caplog.set_level(logging.CRITICAL, name)
    with Gateway(engine_backend([say("one"), EngineError("it burns")])) as gateway:
        session = gateway.open()
        url = f"{gateway.listen().url}/s/{session.token}/v1"
        client = openai.OpenAI(base_url=url, api_key=session.token, http_client=openai.DefaultHttpxClient(verify=False))
        client.chat.completions.create(model="m", messages=HELLO)
        for call in (client.embeddings.create, client.chat.completions.create):
            with pytest.raises(openai.APIStatusError) as caught:
                call(model="m", **({"input": "x"} if call == client.embeddings.create else {"messages": HELLO}))
            assert session.token not in str(caught.value)
        assert session.token not in gateway.trace(session).failure
    assert session.token not in caplog.text


def test_calls_that_are_none_are_marked_and_counted() -> None:
    prefix = [*CODEC.tokenizer.encode("x"), CODEC.close, *CODEC.tokenizer.encode("think"), CODEC.sep]
    broken = [*prefix, CODEC.open, *CODEC.tokenizer.encode("nonsense"), CODEC.sep, CODEC.end]
    backend = engine_backend([broken, say("", "", ("search", {"query": "a"}), ("delete", {"x": 1})), say("ok")])
    with opened(backend) as (gateway, session, client):
        first = client.chat.completions.create(model="m", messages=HELLO, tools=[SEARCH]).choices[0].message
        assert "nonsense" in (first.content or "")
        client.chat.completions.create(model="m", messages=HELLO, tools=[SEARCH])
        recording = gateway.trace(session)
    assert recording.malformed_calls == 2
    assert recording.tool_records[0].error == "MalformedCallError"
    marked = [[t for t, m in zip(s.tokens, s.malformed or (), strict=True) if m] for s in recording.segments]
    assert CODEC.transcript(marked[0]).startswith("[open]nonsense")
    assert CODEC.transcript(marked[1]).startswith('[open]call tool="delete"')
    assert "search" not in CODEC.transcript(marked[1])


def test_budgets_end_a_session_in_the_wires_own_words() -> None:
    lines = [say("one"), say("two"), say("three")]
    with opened(engine_backend(lines), Limits(requests=1)) as (gateway, session, client):
        client.chat.completions.create(model="m", messages=HELLO)
        with pytest.raises(openai.RateLimitError, match="requests are used") as caught:
            client.chat.completions.create(model="m", messages=HELLO)
        assert caught.value.code == "insufficient_quota"
        assert (gateway.trace(session).stop, gateway.trace(session).requests) == ("steps", 1)
    with opened(engine_backend(lines), Limits(output_tokens=4)) as (gateway, session, client):
        assert client.chat.completions.create(model="m", messages=HELLO).choices[0].finish_reason == "length"
        assert gateway.trace(session).stop == "output_tokens"
        with pytest.raises(openai.RateLimitError, match="output tokens"):
            client.chat.completions.create(model="m", messages=HELLO)
        assert (gateway.trace(session).stop, gateway.trace(session).output_tokens) == ("output_tokens", 4)
    with opened(engine_backend(lines), Limits(wall_s=0.0)) as (gateway, session, client):
        with pytest.raises(openai.RateLimitError, match="have passed"):
            client.chat.completions.create(model="m", messages=HELLO)
        assert gateway.trace(session).stop == "wall"
    with opened(engine_backend(lines, window=40)) as (gateway, session, client):
        with pytest.raises(openai.BadRequestError, match="prompt is too long") as long:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 200}])
        assert long.value.code == "context_length_exceeded"
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}])  # it may shorten and go on
        assert gateway.trace(session).stop is None


@pytest.mark.parametrize("error", [EngineError("it burns", "water"), ConfigError("no key", "set it"), ZeroDivisionError("bug")])
def test_a_failure_behind_the_gateway_is_infrastructure(error: Exception) -> None:
    with opened(engine_backend([say("fine"), error, say("never")])) as (gateway, session, client):
        client.chat.completions.create(model="m", messages=HELLO)
        for _ in range(2):
            with pytest.raises(openai.InternalServerError) as caught:
                client.chat.completions.create(model="m", messages=HELLO)
            assert caught.value.status_code == 503
        recording = gateway.trace(session)
    assert recording.stop == "infrastructure"
    assert str(error.args[0]) in recording.failure
    assert recording.requests == 1


FAR = {"type": "image_url", "image_url": {"url": "http://x/y.png"}}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hello"}, "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "messages[0].content[0].type"),
    ({"messages": [{"role": "user", "content": [FAR]}]}, "messages[0].content[0].image_url.url"),
    ({"messages": [{"role": "tool", "tool_call_id": "call_1", "content": "x"}]}, "messages[0].tool_call_id"),
    ({"n": 2}, "n"),
    ({"top_logprobs": 3, "logprobs": True}, "top_logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"temperature": 9}, "temperature"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "function": {"name": "x", "parameters": {"type": "array"}}}]}, "tools[0].function.parameters"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice"),
]


def test_bad_requests_are_named_and_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(engine_backend([])) as (gateway, session, client):
        for change, param in BAD:
            with pytest.raises(openai.BadRequestError) as caught:
                client.post("/chat/completions", body={"model": "m", "messages": HELLO, **change}, cast_to=object)
            assert (caught.value.param, caught.value.type) == (param, "invalid_request_error")
        with pytest.raises(openai.BadRequestError, match="not JSON"):
            client.post("/chat/completions", content=b"{", cast_to=object)
        monkeypatch.setattr("environments.gateway.app.MAX_BODY_BYTES", 1000)
        with pytest.raises(openai.APIStatusError, match="the request is over") as large:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x" * 2000}])
        assert large.value.status_code == 413
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="m", input="x")
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").chat.completions.create(model="m", messages=HELLO)
        assert [m.id for m in client.models.list()] == ["engine"]
        assert (gateway.trace(session).requests, gateway.trace(session).segments) == (0, ())


def test_sessions_are_told_apart_and_can_be_in_the_path() -> None:
    backend = engine_backend([say("one"), say("two"), say("three")])
    with Gateway(backend) as gateway:
        url = gateway.listen().url
        sessions = [gateway.open(seed=i) for i in range(2)]
        by_path = openai.OpenAI(
            base_url=f"{url}/s/{sessions[0].token}/v1", api_key="any", http_client=openai.DefaultHttpxClient(verify=False)
        )
        by_key = openai.OpenAI(base_url=f"{url}/v1", api_key=sessions[1].token, http_client=openai.DefaultHttpxClient(verify=False))
        assert by_path.chat.completions.create(model="m", messages=HELLO).choices[0].message.content == "one"
        assert by_key.chat.completions.create(model="m", messages=HELLO).choices[0].message.content == "two"
        assert [len(gateway.trace(s).segments) for s in sessions] == [1, 1]
        assert [r.key[0] for r in backend.engine.requests] == [0, 1]  # type: ignore[attr-defined]
        assert sessions[0].token not in repr(sessions[0])
        gateway.drop(sessions[0])
        with pytest.raises(openai.AuthenticationError) as caught:
            by_path.with_options(api_key="gone").chat.completions.create(model="m", messages=HELLO)
        assert sessions[0].token not in str(caught.value)


def test_a_message_policy_answers_with_tools_and_is_not_trainable() -> None:
    seen: list[Any] = []

    def look(messages: Any, tools: Any) -> Message:
        seen.append((list(messages), list(tools)))
        return Message(role="assistant", thinking="hm", calls=(ToolCall(tool="search", arguments={"query": "a"}),))

    def finish(messages: Any, tools: Any) -> Message:
        seen.append((list(messages), list(tools)))
        return say("done")

    policy = ScriptedPolicy(look, finish)
    with opened(PolicyBackend(policy)) as (gateway, session, client):
        first = client.chat.completions.create(model="m", messages=HELLO, tools=[SEARCH]).choices[0].message
        assert first.tool_calls
        result: Any = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "r"}
        history: Any = [*HELLO, {"role": "assistant", "tool_calls": [c.model_dump() for c in first.tool_calls]}, result]
        assert client.chat.completions.create(model="m", messages=history, tools=[SEARCH]).choices[0].message.content == "done"
        with pytest.raises(openai.BadRequestError, match="logprobs"):
            client.chat.completions.create(model="m", messages=HELLO, logprobs=True)
        recording = gateway.trace(session)
    assert [m.role for m in seen[1][0]] == ["system", "user", "assistant", "tool"]
    assert seen[1][0][2].thinking == "hm"  # kept, though the wire dropped it
    assert [t.name for t in seen[0][1]] == ["search"]
    assert (recording.trainable, recording.segments[0].tokens) == (False, ())
    assert recording.segments[0].messages[-1].content == "done"
    assert recording.tool_records[0].result == "r"


def test_a_slow_answer_keeps_the_stream_alive_and_fails_inside_it() -> None:
    def slow(*_: Any) -> Message:
        time.sleep(0.3)
        return say("late")

    def broken(*_: Any) -> Message:
        time.sleep(0.3)
        raise EngineError("it burns")

    with opened(PolicyBackend(ScriptedPolicy(slow, broken)), keepalive_s=0.05) as (gateway, session, client):
        chunks = client.chat.completions.create(model="m", messages=HELLO, stream=True)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "late"
        with pytest.raises(openai.APIError, match="it burns"):
            list(client.chat.completions.create(model="m", messages=HELLO, stream=True))
        assert gateway.trace(session).stop == "infrastructure"


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_nobody_waits_for_counts_and_is_no_part_of_any_context(stream: bool) -> None:
    asked, free = threading.Event(), threading.Event()

    def slow(*_: Any) -> Message:
        asked.set()
        free.wait(20)
        return say("too late")

    with opened(PolicyBackend(ScriptedPolicy(slow, say("in time"))), keepalive_s=0.05) as (gateway, session, client):
        body = json.dumps({"model": "m", "messages": HELLO, "stream": stream}).encode()
        head = f"POST /s/{session.token}/v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection((client.base_url.host, client.base_url.port)) as gone:
            gone.sendall(head.encode() + body)
            assert asked.wait(20)
            if stream:
                assert b"200 OK" in gone.recv(4096)
        time.sleep(0.2)  # the server sees the end of the connection in its own time
        free.set()
        while gateway.trace(session).requests < 1:
            time.sleep(0.01)
        assert gateway.trace(session).segments == ()
        assert client.chat.completions.create(model="m", messages=HELLO).choices[0].message.content == "in time"
        recording = gateway.trace(session)
    assert recording.requests == 2
    assert [m.content for s in recording.segments for m in s.messages if m.role == "assistant"] == ["in time"]
