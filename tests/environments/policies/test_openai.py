"""The OpenAI-compatible policy against a real HTTP server: shapes, failures, and whole episodes of every family."""

from __future__ import annotations

import json
import logging
import pickle
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from environments.errors import ConfigError, EngineError
from environments.families import TOOLS
from environments.harness.loop import run_messages
from environments.policies import OpenAIChatPolicy
from environments.policies.chat_wire import write_messages, write_tools
from environments.protocols import MessagePolicy
from environments.resources import Resources
from environments.task import Image, Message, TaskSpec, ToolCall
from environments.vault import Vault
from tests.environments.policies.chat_server import Answer, calls, completion, from_reference, nothing, ok, serve
from tests.environments.small_tasks import coding_task, make_resources, search_task, settings_task

KEY = "sk-test-0123456789-secret"
ASK = [Message(role="user", content="hello")]
FAMILIES = [
    pytest.param(search_task, id="search"),
    pytest.param(settings_task, id="assistant"),
    pytest.param(coding_task, id="coding", marks=pytest.mark.sandbox),
]


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture
def resources(tmp_path: Path) -> Iterator[Resources]:
    with make_resources(Vault(tmp_path / "vault")) as made:
        yield made


def policy(url: str, **options: Any) -> OpenAIChatPolicy:
    return OpenAIChatPolicy(url, "scripted", **{"backoff_s": 0.01, "timeout_s": 10.0, **options})


# --- whole episodes, tasks unchanged ---


@pytest.mark.parametrize("make", FAMILIES)
def test_every_family_runs_unchanged_and_the_reference_passes(make: Callable[[Vault], TaskSpec], resources: Resources) -> None:
    task = make(resources.vault)
    reference = resources.vault.get_reference(task.reference_sha256)
    with serve(from_reference(reference)) as server:
        chat = policy(server.url)
        trace = run_messages(chat, task, resources)
    assert trace.stop == "submitted"
    assert trace.verdict is not None
    assert trace.verdict.status == "pass", trace.verdict.evidence
    assert trace.trainable is False
    assert trace.policy == "scripted"
    assert [r.error for r in trace.tool_records] == [""] * len(trace.tool_records)
    assert [c for m in trace.segments[0].messages for c in m.calls] == [c for m in reference for c in m.calls]
    assert (chat.usage.requests, chat.usage.prompt_tokens, chat.usage.completion_tokens) == (
        len(reference),
        11 * len(reference),
        7 * len(reference),
    )
    last = server.requests[-1]
    assert [t["function"]["name"] for t in last["tools"]] == list(task.tools)
    ids = [c["id"] for m in last["messages"] for c in m.get("tool_calls", ())]
    assert len(set(ids)) == len(ids)
    assert [m["tool_call_id"] for m in last["messages"] if m["role"] == "tool"] == ids
    assert last["messages"][-1]["role"] == "tool"
    # The world's answers reach the endpoint as the harness shows them.
    assert [m["content"] for m in last["messages"] if m["role"] == "tool"] == [r.result for r in trace.tool_records[:-1]]


@pytest.mark.parametrize("make", FAMILIES)
def test_every_family_fails_a_policy_that_does_nothing(make: Callable[[Vault], TaskSpec], resources: Resources) -> None:
    task = make(resources.vault)
    with serve(nothing) as server:
        trace = run_messages(policy(server.url), task, resources)
    assert (trace.stop, len(server.requests)) == ("finished", 1)
    assert trace.verdict is not None
    assert (trace.verdict.status, trace.verdict.reward) == ("fail", 0.0)


def test_a_malformed_call_is_answered_and_the_episode_goes_on(resources: Resources) -> None:
    task = settings_task(resources.vault)
    script = [
        calls(("get", '{"name": "wid')),
        calls(("get", '["width"]'), ("get", '{"name": "width"}')),
        calls(("nosuch", "{}"), ("get", '{"name": 5}'), ("set", '{"name": "width", "value": NaN}')),
        calls(("set", '{"name": "width", "value": "113"}')),
        calls(("submit", "")),
    ]

    def answer(request: dict[str, Any]) -> Answer:
        return ok(completion(script[sum(m["role"] == "assistant" for m in request["messages"])], "tool_calls"))

    with serve(answer) as server:
        trace = run_messages(policy(server.url), task, resources)
    assert [r.error for r in trace.tool_records] == [
        "MalformedCallError",
        "MalformedCallError",
        "",
        "UnknownToolError",
        "BadArgumentsError",
        "MalformedCallError",
        "",
        "",
    ]
    assert trace.malformed_calls == 5
    assert trace.verdict is not None
    assert trace.verdict.status == "pass"
    told = [m["content"] for m in server.requests[1]["messages"] if m["role"] == "tool"]
    assert len(told) == 1
    assert "cannot be read" in told[0]
    for message in server.requests[-1]["messages"]:  # servers parse the history's arguments
        for call in message.get("tool_calls", ()):
            assert isinstance(json.loads(call["function"]["arguments"]), dict)


def test_an_endpoint_that_dies_in_the_middle_is_no_score(resources: Resources) -> None:
    task = settings_task(resources.vault)
    reference = from_reference(resources.vault.get_reference(task.reference_sha256))

    def answer(request: dict[str, Any]) -> Answer:
        return reference(request) if len(request["messages"]) < 3 else (500, {}, b"down")

    with serve(answer) as server, pytest.raises(EngineError, match="failed 2 times, last: status 500: 'down'"):
        run_messages(policy(server.url, retries=1), task, resources)


# --- one request ---


def test_thinking_content_and_lone_surrogates_are_read() -> None:
    body = completion({"content": "ab\ud800c", "reasoning_content": "because"})
    with serve(lambda _: ok(body)) as server:
        said = policy(server.url).reply(ASK, ())
    assert said == Message(role="assistant", content="ab\ufffdc", thinking="because")
    assert "tools" not in server.requests[0]
    assert server.paths == ["/v1/chat/completions"]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"content": None}, Message(role="assistant")),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, Message(role="assistant", content="ab")),
        ({"content": "x", "reasoning": "r"}, Message(role="assistant", content="x", thinking="r")),
        (
            {"tool_calls": [{"function": {"name": "get", "arguments": {"name": "a"}}}]},
            Message(role="assistant", calls=(ToolCall(tool="get", arguments={"name": "a"}),)),
        ),
        (calls(("get", '{"name": "\\ud800"}')), Message(role="assistant", calls=(ToolCall(tool="get", malformed='{"name": "\\ud800"}'),))),
        (calls(("get", "[" * 100_000)), Message(role="assistant", calls=(ToolCall(tool="get", malformed="[" * 100_000),))),
    ],
    ids=["empty", "parts", "reasoning", "parsed-arguments", "surrogate", "deep"],
)
def test_dialects(message: dict[str, Any], expected: Message) -> None:
    with serve(lambda _: ok(completion(message))) as server:
        assert policy(server.url).reply(ASK, TOOLS) == expected


def test_options_reach_the_request() -> None:
    with serve(nothing) as server:
        policy(server.url + "/", temperature=0.3, max_tokens=9, extra_body={"seed": 4}).reply(ASK, ())
    request = server.requests[0]
    assert (request["model"], request["temperature"], request["max_tokens"], request["seed"], request["stream"]) == (
        "scripted",
        0.3,
        9,
        4,
        False,
    )
    assert server.headers[0]["Authorization"] == f"Bearer {KEY}"


def test_without_a_key_no_header_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with serve(nothing) as server:
        policy(server.url).reply(ASK, ())
    assert "Authorization" not in server.headers[0]


def test_history_is_one_system_message_then_turns_and_orphans_are_the_users() -> None:
    history = [
        Message(role="system", content="one"),
        Message(role="system", content="two"),
        Message(role="user", content="task"),
        Message(
            role="assistant",
            thinking="hm",
            calls=(ToolCall(tool="get", arguments={"name": "ä"}), ToolCall(tool="get", malformed="{", index=1)),
        ),
        Message(role="tool", tool="get", content="5"),
        Message(role="tool", tool="get", content="error: no JSON", index=1),
        Message(role="assistant", content="talk"),
        Message(role="tool", content="error: cut short"),
    ]
    wire = write_messages(history)
    assert wire[0] == {"role": "system", "content": "one\n\ntwo"}
    assert [m["role"] for m in wire] == ["system", "user", "assistant", "tool", "tool", "assistant", "user"]
    assert wire[2]["reasoning_content"] == "hm"
    assert wire[2]["content"] is None
    assert [c["id"] for c in wire[2]["tool_calls"]] == [wire[3]["tool_call_id"], wire[4]["tool_call_id"]]
    assert [json.loads(c["function"]["arguments"]) for c in wire[2]["tool_calls"]] == [{"name": "ä"}, {"malformed": "{"}]
    assert "reasoning_content" not in write_messages(history, send_thinking=False)[2]


# --- against the official client ---


def test_shapes_are_those_of_the_official_client() -> None:
    openai = pytest.importorskip("openai", reason="no openai package. Fix: pip install openai")
    from openai.types.chat import ChatCompletion, ChatCompletionMessageParam, ChatCompletionToolParam

    history = [
        Message(role="system", content="s"),
        Message(role="user", content="u"),
        Message(role="assistant", calls=(ToolCall(tool="get", arguments={"name": "a"}),)),
        Message(role="tool", tool="get", content="5"),
    ]
    for wire in write_messages(history):
        TypeAdapter(ChatCompletionMessageParam).validate_python(wire, strict=False)
    for tool in write_tools(TOOLS):
        TypeAdapter(ChatCompletionToolParam).validate_python(tool)
    body = completion(calls(("get", '{"name": "a"}')), "tool_calls")
    ChatCompletion.model_validate(body, strict=True)
    with serve(lambda _: ok(body)) as server:
        client = openai.OpenAI(base_url=server.url, api_key="k", max_retries=0)
        theirs = client.chat.completions.create(model="m", messages=write_messages(history), tools=write_tools(TOOLS))
        client.close()
        ours = policy(server.url).reply(history, TOOLS)
    their_call = theirs.choices[0].message.tool_calls[0].function
    assert [(c.tool, c.arguments) for c in ours.calls] == [(their_call.name, json.loads(their_call.arguments))]
    mine = {k: v for k, v in server.requests[1].items() if k in ("messages", "tools")}
    assert mine == {k: v for k, v in server.requests[0].items() if k in ("messages", "tools")}


# --- failures ---


def failing(times: int, status: int = 500, headers: dict[str, str] | None = None) -> Callable[[dict[str, Any]], Answer]:
    left = [times]

    def answer(request: dict[str, Any]) -> Answer:
        left[0] -= 1
        return (status, headers or {}, b'{"error": {"message": "busy"}}') if left[0] >= 0 else nothing(request)

    return answer


@pytest.mark.parametrize("status", [408, 429, 500, 503, 529])
def test_transient_failures_are_retried(status: int) -> None:
    with serve(failing(2, status)) as server:
        chat = policy(server.url, retries=2)
        assert chat.reply(ASK, ()).content == "I do nothing."
    assert (len(server.requests), chat.usage.retries, chat.usage.requests) == (3, 2, 1)


def test_retries_are_bounded_and_wait_as_asked() -> None:
    with serve(failing(9, 429, {"Retry-After": "0.2"})) as server:
        started = time.monotonic()
        with pytest.raises(EngineError, match="failed 3 times, last: status 429"):
            policy(server.url, retries=2).reply(ASK, ())
    assert len(server.requests) == 3
    assert 0.4 <= time.monotonic() - started < 3


def test_a_server_cannot_make_us_wait_for_ever() -> None:
    with serve(failing(1, 503, {"Retry-After": "86400"})) as server:
        started = time.monotonic()
        policy(server.url, retries=1, max_backoff_s=0.1).reply(ASK, ())
    assert time.monotonic() - started < 3


@pytest.mark.parametrize(
    "body",
    [b"", b"<html>It works</html>", b"[]", b'{"choices": []}', b'{"choices": [{}]}', b'{"error": "x"}', b"\xff\xfe\x00", b"[" * 100_000],
)
def test_garbage_is_an_engine_error(body: bytes) -> None:
    with serve(lambda _: (200, {}, body)) as server, pytest.raises(EngineError, match="answered no chat completion"):
        policy(server.url).reply(ASK, ())
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [301, 400, 422])
def test_a_refused_request_is_not_repeated(status: int) -> None:
    with (
        serve(lambda _: (status, {"Location": "http://127.0.0.1:1/"}, b"too long")) as server,
        pytest.raises(EngineError, match=f"status {status}"),
    ):
        policy(server.url).reply(ASK, ())
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_wrong_key_or_model_stops_with_the_fix_and_never_shows_the_key(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serve(lambda r: (status, {}, f"Incorrect API key provided: {KEY}".encode())) as server, pytest.raises(ConfigError) as caught:
        policy(server.url).reply(ASK, ())
    assert len(server.requests) == 1
    assert caught.value.fix
    assert KEY not in str(caught.value)
    assert KEY not in caplog.text
    assert caught.value.__cause__ is None


def test_the_key_is_in_no_error_log_or_pickle(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serve(lambda _: (500, {}, KEY.encode())) as server:
        chat = policy(server.url, retries=1)
        with pytest.raises(EngineError) as caught:
            chat.reply(ASK, ())
        with serve(lambda _: (200, {}, KEY.encode())) as other, pytest.raises(EngineError) as garbage:
            policy(other.url).reply(ASK, ())
    assert "[key]" in str(caught.value)
    for text in (str(caught.value), str(garbage.value), caplog.text, repr(chat), str(pickle.dumps(chat))):
        assert KEY not in text


@pytest.mark.parametrize("key", ["line\nbreak", "ключ"])
def test_a_key_that_no_header_can_hold(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with serve(nothing) as server, pytest.raises(ConfigError, match="OPENAI_API_KEY") as caught:
        policy(server.url).reply(ASK, ())
    assert key not in str(caught.value)
    assert server.requests == []


@pytest.mark.parametrize("drip", [False, True], ids=["silent", "dripping"])
def test_a_hanging_server_is_given_up(drip: bool) -> None:
    def answer(request: dict[str, Any]) -> Answer:
        if drip:
            return 200, {"X-Drip": "0.05"}, b" " * 200
        time.sleep(1.5)
        return nothing(request)

    with serve(answer) as server:
        started = time.monotonic()
        with pytest.raises(EngineError, match=r"failed 2 times, last: no .*answer within 0\.3 s"):
            policy(server.url, timeout_s=0.3, retries=1).reply(ASK, ())
        assert time.monotonic() - started < 1.4


def test_a_dead_endpoint_is_an_engine_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(EngineError, match=rf"127\.0\.0\.1:{port} failed 2 times"):
        policy(f"http://127.0.0.1:{port}/v1", retries=1).reply(ASK, ())


def test_an_answer_cut_short_is_retried() -> None:
    sent = []

    def answer(request: dict[str, Any]) -> Answer:
        sent.append(1)
        return (200, {"Content-Length": "5000"}, b"{") if len(sent) == 1 else nothing(request)

    with serve(answer) as server:
        assert policy(server.url, retries=1).reply(ASK, ()).content == "I do nothing."


@pytest.mark.parametrize("url", ["", "127.0.0.1:8000/v1", "ftp://host/v1", "http://user:pw@host/v1", "http://host:port/v1"])
def test_a_url_that_is_none_is_named_at_once(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OpenAIChatPolicy(url, "m")
    assert "pw" not in str(caught.value)
    with pytest.raises(ConfigError, match="model"):
        OpenAIChatPolicy("http://host/v1", "")


def test_a_pickled_copy_connects_anew_and_missing_counts_are_counted() -> None:
    with serve(lambda _: ok(completion({"content": "x"}, usage={}) | {"usage": None})) as server:
        chat = pickle.loads(pickle.dumps(policy(server.url)))
        assert isinstance(chat, MessagePolicy)
        assert chat.reply(ASK, ()).content == "x"
        chat.close()
    assert (chat.usage.requests, chat.usage.unreported, chat.usage.completion_tokens) == (1, 1, 0)


# --- streams and pictures ---


def events(*chunks: dict[str, Any] | str, done: bool = True) -> bytes:
    lines = [c if isinstance(c, str) else f"data: {json.dumps(c)}" for c in chunks]
    return "\n\n".join([*lines, *(["data: [DONE]"] if done else []), ""]).encode()


def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


def call_delta(index: int, name: str | None, arguments: str) -> dict[str, Any]:
    function = {"arguments": arguments} | ({"name": name} if name else {})
    return delta(tool_calls=[{"index": index, "function": function}])


STREAM = events(
    ": a comment",
    delta(role="assistant", reasoning_content="thin"),
    delta(reasoning_content="king"),
    delta(content="naïve "),
    delta(content="🙂"),
    call_delta(0, "get", '{"na'),
    call_delta(1, "set", '{"name": "b", "value"'),
    call_delta(0, None, 'me": "a"}'),
    call_delta(1, None, ': "1"}'),
    delta("tool_calls"),
    {"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 7, "completion_tokens_details": {"reasoning_tokens": 3}}},
)


@pytest.mark.parametrize("drip", [False, True], ids=["at once", "byte by byte"])
def test_a_streamed_answer_is_put_together(drip: bool) -> None:
    heard: list[tuple[str, str]] = []
    headers = {"Content-Type": "text/event-stream"} | ({"X-Drip": "0.0005"} if drip else {})
    with serve(lambda _: (200, headers, STREAM.replace(b"\n", b"\r\n") if drip else STREAM)) as server:
        chat = policy(server.url, stream=True, on_delta=lambda channel, text: heard.append((channel, text)))
        said = chat.reply(ASK, ())
    assert (said.thinking, said.content) == ("thinking", "naïve 🙂")
    assert said.calls == (
        ToolCall(tool="get", arguments={"name": "a"}),
        ToolCall(tool="set", arguments={"name": "b", "value": "1"}, index=1),
    )
    assert heard == [("thinking", "thin"), ("thinking", "king"), ("content", "naïve "), ("content", "🙂")]
    assert (chat.usage.prompt_tokens, chat.usage.completion_tokens, chat.usage.reasoning_tokens) == (11, 7, 3)
    assert server.requests[0]["stream_options"] == {"include_usage": True}


def test_a_stream_cut_short_is_retried_and_one_without_streaming_is_read_whole() -> None:
    sent: list[int] = []

    def answer(request: dict[str, Any]) -> Answer:
        sent.append(1)
        if len(sent) == 1:
            return 200, {"Content-Type": "text/event-stream"}, events(delta(content="half"), done=False)
        return nothing(request)

    with serve(answer) as server:
        assert policy(server.url, stream=True, retries=1).reply(ASK, ()).content == "I do nothing."
    assert len(sent) == 2


@pytest.mark.parametrize("event", ["data: {broken", "data: [1]", 'data: {"error": {"message": "overloaded"}}'])
def test_a_stream_of_garbage_is_an_engine_error(event: str) -> None:
    headers = {"Content-Type": "text/event-stream"}
    with serve(lambda _: (200, headers, events(event))) as server, pytest.raises(EngineError, match="no chat completion"):
        policy(server.url, stream=True).reply(ASK, ())


def test_pictures_of_tools_follow_the_turns_tool_messages() -> None:
    picture = Image(data="aGk=")
    made = Message(role="assistant", calls=(ToolCall(tool="python"), ToolCall(tool="view", index=1)))
    history = [
        Message(role="user", content="look", images=(picture,)),
        made,
        Message(role="tool", tool="python", content="a figure", images=(picture,)),
        Message(role="tool", tool="view", index=1, content="text"),
        Message(role="assistant", content="seen"),
    ]
    wire = write_messages(history)
    shown = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    assert wire[0]["content"] == [{"type": "text", "text": "look"}, shown]
    assert [m["role"] for m in wire] == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert wire[4]["content"] == [shown]
    assert [m["role"] for m in write_messages(history[:4])][-2:] == ["tool", "user"]
