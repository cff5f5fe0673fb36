"""The official `anthropic` client in front of the gateway."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import anthropic
import pytest

from environments.errors import EngineError
from environments.gateway.backends import EngineBackend, PolicyBackend
from environments.gateway.gateway import Gateway
from environments.gateway.session import DEFAULT_LIMITS, Limits, Session
from environments.policies import ScriptedPolicy
from environments.task import Message
from tests.environments.gateway.engines import PreparedEngine, make_codec, say
from tests.environments.gateway.test_openai_client import assert_exact, loss

CODEC = make_codec()
PNG = "iVBORw0KGgo="
SEARCH: Any = {
    "name": "search",
    "description": "Search.",
    "input_schema": {"type": "object", "properties": {"query": {"type": "string"}}},
    "cache_control": {"type": "ephemeral"},
}
SYSTEM: Any = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
HELLO: Any = [{"role": "user", "content": [{"type": "text", "text": "find  width"}]}]
THINK: Any = {"type": "enabled", "budget_tokens": 1024}


@contextmanager
def opened(
    lines: Any, limits: Limits = DEFAULT_LIMITS, **more: Any
) -> Iterator[tuple[Gateway, Session, anthropic.Anthropic, PreparedEngine]]:
    engine = PreparedEngine(CODEC, lines)
    with Gateway(EngineBackend(engine, CODEC, 4000), **more) as gateway:
        session = gateway.open(limits)
        with anthropic.Anthropic(
            base_url=gateway.listen().url, api_key=session.token, http_client=anthropic.DefaultHttpxClient(verify=False)
        ) as client:
            yield gateway, session, client, engine


def ask(client: anthropic.Anthropic, messages: Any, **more: Any) -> Any:
    return client.messages.create(**{"model": "m", "max_tokens": 2000, "system": SYSTEM, "messages": messages, "tools": [SEARCH], **more})


@pytest.mark.parametrize("thinking", [True, False], ids=["thinking sent back", "thinking hidden"])
def test_tool_use_over_several_turns_is_one_exact_segment(thinking: bool) -> None:
    lines = [
        say("I  look", "where  is it", ("search", {"query": "two  words", "z": [1.0, None]}), ("search", {"query": "Ω"})),
        say("", "", ("search", {"query": "b"})),
        say("it is 70"),
    ]
    more = {"thinking": THINK} if thinking else {}
    with opened(lines) as (gateway, session, client, engine):
        history = list(HELLO)
        for turn in range(3):
            said = ask(client, history, **more)
            history.append({"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in said.content]})
            uses = [b for b in said.content if b.type == "tool_use"]
            if turn == 0:
                assert [b.type for b in said.content] == (["thinking"] if thinking else []) + ["text", "tool_use", "tool_use"]
            results = [
                {"type": "tool_result", "tool_use_id": b.id, "content": [{"type": "text", "text": f"r{turn}"}], "is_error": turn == 1}
                for b in uses
            ]
            history.append({"role": "user", "content": [*results, {"type": "text", "text": "and?"}]})
        assert said.stop_reason == "end_turn"
        recording = gateway.trace(session)
    assert len(recording.segments) == 1
    assert_exact(engine, recording)
    assert [(r.step, r.result, r.error) for r in recording.tool_records] == [(1, "r0", ""), (1, "r0", ""), (2, "r1", "AgentError")]
    assert recording.tool_records[0].arguments == {"query": "two  words", "z": [1.0, None]}
    roles = [m.role for m in recording.segments[0].messages]
    assert roles == ["system", "system", "user", "assistant", "tool", "tool", "user", "assistant", "tool", "user", "assistant"]
    assert recording.segments[0].messages[3].thinking == "where  is it"


def test_streams_say_the_same_as_whole_replies() -> None:
    line = say("a long answer, naïve Ω 漢字 🙂 " * 4, "thinking " * 20, ("search", {"query": "x" * 120}), ("search", {}))
    with opened([line, line]) as (_, _, client, engine):
        whole = ask(client, HELLO, thinking=THINK)
        with client.messages.stream(model="m", max_tokens=2000, system=SYSTEM, messages=HELLO, tools=[SEARCH], thinking=THINK) as stream:
            kinds = {e.type for e in stream}
            streamed = stream.get_final_message()
    assert {"text", "thinking", "input_json", "signature", "message_stop"} <= kinds
    drop = {"id"}
    assert [b.model_dump(include={"type", "text", "thinking", "signature", "name", "input"}) for b in whole.content] == [
        b.model_dump(include={"type", "text", "thinking", "signature", "name", "input"}) for b in streamed.content
    ]
    assert (whole.stop_reason, whole.usage.output_tokens) == (streamed.stop_reason, streamed.usage.output_tokens)
    assert whole.usage.output_tokens == len(engine.sampled[0][1])
    assert whole.model_dump(exclude=drop)["role"] == "assistant"


def test_thinking_comes_back_signed_or_not_at_all() -> None:
    with opened([say("yes", "hm"), say("ok")]) as (_, _, client, _):
        block = ask(client, HELLO, thinking=THINK).content[0].model_dump()
        for change in ({"thinking": "other"}, {"signature": "AAAA"}):
            said = {"role": "assistant", "content": [{**block, **change}, {"type": "text", "text": "yes"}]}
            with pytest.raises(anthropic.BadRequestError, match="signature"):
                ask(client, [*HELLO, said, *HELLO], thinking=THINK)


def test_compaction_continues_its_conversation_and_a_subagent_is_another() -> None:
    with opened([say("one", "", ("search", {"query": "a"})), say("sub"), say("summary"), say("two")]) as (gateway, session, client, engine):
        said = ask(client, HELLO)
        ask(client, [{"role": "user", "content": "look"}], system="you search", tools=[])
        use = next(b.id for b in said.content if b.type == "tool_use")
        turn = {"role": "assistant", "content": [b.model_dump(exclude_none=True) for b in said.content]}
        ask(
            client,
            [*HELLO, turn, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use}, {"type": "text", "text": "sum up"}]}],
        )
        ask(client, [{"role": "user", "content": "so far: summary. go on"}])
        recording = gateway.trace(session)
    assert_exact(engine, recording)
    assert [(s.fork, s.parent_id) for s in recording.segments] == [("root", None), ("subagent", 0), ("context", 0)]
    assert [len(loss(s)) for s in recording.segments] == [
        len(engine.sampled[0][1]) + len(engine.sampled[2][1]),
        len(engine.sampled[1][1]),
        len(engine.sampled[3][1]),
    ]


def test_cuts_counts_pictures_and_models() -> None:
    with opened([say("alpha STOP omega"), say("a long answer without an end"), say("I see")]) as (gateway, session, client, engine):
        first = ask(client, HELLO, stop_sequences=["nothing", "STOP"])
        assert (first.content[0].text, first.stop_reason, first.stop_sequence) == ("alpha ", "stop_sequence", "STOP")
        assert ask(client, HELLO, max_tokens=9).stop_reason == "max_tokens"
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
        messages: Any = [{"role": "user", "content": [{"type": "text", "text": "look"}, image]}]
        counted = client.messages.count_tokens(model="m", system=SYSTEM, messages=messages, tools=[SEARCH]).input_tokens
        assert ask(client, messages).usage.input_tokens == counted == len(engine.sampled[2][0])
        assert [m.id for m in client.models.list()] == ["engine"]
        recording = gateway.trace(session)
    assert recording.segments[2].messages[2].images[0].data == PNG
    assert recording.requests == 3


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1"}]}]}, "tool_use_id"),
    ({"messages": [*HELLO, {"role": "assistant", "content": "I"}]}, "prefilled"),
    ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "document"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "not executed here"),
    ({"tools": [{"name": "x"}]}, "input_schema"),
    ({"tools": [], "tool_choice": {"type": "any"}}, "no tools"),
    ({"tool_choice": {"type": "tool", "name": "x"}}, "there is no tool"),
    ({"system": [{"type": "image"}]}, "system"),
]


def test_errors_are_the_wires_own() -> None:
    with opened([EngineError("it burns")], Limits(requests=1)) as (gateway, session, client, _):
        for change, words in BAD:
            body = {"model": "m", "max_tokens": 9, "messages": HELLO, "tools": [SEARCH], **change}
            with pytest.raises(anthropic.BadRequestError, match=words) as caught:
                client.post("/v1/messages", body=body, cast_to=object)
            assert isinstance(caught.value.body, dict)
            assert caught.value.body["error"]["type"] == "invalid_request_error"
        with pytest.raises(anthropic.AuthenticationError):
            ask(client.with_options(api_key="wrong"), HELLO)
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            ask(client, [{"role": "user", "content": "x " * 9000}])
        with pytest.raises(anthropic.InternalServerError, match="it burns") as burnt:
            ask(client, HELLO)
        assert burnt.value.status_code == 503
        assert gateway.trace(session).stop == "infrastructure"
        spent = gateway.open(Limits(requests=0))
        with pytest.raises(anthropic.RateLimitError, match="requests are used"):
            ask(client.with_options(api_key=spent.token), HELLO)


def test_a_slow_answer_pings_and_fails_inside_the_stream() -> None:
    def broken(*_: Any) -> Message:
        time.sleep(0.3)
        raise EngineError("it burns")

    with Gateway(PolicyBackend(ScriptedPolicy(broken)), keepalive_s=0.05) as gateway:
        session = gateway.open()
        client = anthropic.Anthropic(
            base_url=gateway.listen().url, auth_token=session.token, http_client=anthropic.DefaultHttpxClient(verify=False)
        )
        with (
            pytest.raises(anthropic.APIStatusError, match="it burns"),
            client.messages.stream(model="m", max_tokens=9, messages=HELLO) as stream,
        ):
            stream.get_final_message()


def test_sessions_run_side_by_side_and_share_batches() -> None:
    with opened([say(f"answer {i}") for i in range(24)]) as (gateway, _, client, engine):
        engine._lock.acquire()  # the first batch waits until all have asked
        sessions = [gateway.open() for _ in range(8)]
        with ThreadPoolExecutor(8) as threads:
            asked = [threads.submit(ask, client.with_options(api_key=s.token), HELLO) for s in sessions]
            while gateway.backend._waiting.qsize() < 7 and not any(f.done() for f in asked):  # type: ignore[attr-defined]
                time.sleep(0.01)
            engine._lock.release()
            said = [f.result() for f in asked]
        assert sorted(engine.batches) == [1, 7]
        assert sorted(s.content[0].text for s in said) == sorted(f"answer {i}" for i in range(8))
        assert [s.content[0].text for s in said] == [gateway.trace(s).segments[0].messages[-1].content for s in sessions]
