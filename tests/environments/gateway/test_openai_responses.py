"""The official `openai` client's responses API in front of the gateway."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from environments.errors import EngineError
from tests.environments.gateway.engines import make_codec, say
from tests.environments.gateway.test_openai_client import assert_exact, engine_backend, loss, opened

CODEC = make_codec()
SEARCH: Any = {
    "type": "function",
    "name": "search",
    "description": "Search.",
    "parameters": {"type": "object", "properties": {}},
    "strict": None,
}
HELLO: Any = [{"role": "user", "content": [{"type": "input_text", "text": "find  width"}]}]
LINES = [
    say("I  look", "where  is it", ("search", {"query": "two  words", "z": 1.5}), ("search", {"query": "Ω"})),
    say("", "", ("search", {"query": "b"})),
    say("it is 70"),
]


def outputs(response: Any) -> list[Any]:
    return [
        {"type": "function_call_output", "call_id": i.call_id, "output": f"r {i.name}"}
        for i in response.output
        if i.type == "function_call"
    ]


def test_items_sent_back_are_the_turns_that_were_sampled() -> None:
    backend = engine_backend(LINES)
    with opened(backend) as (gateway, session, client):
        history = list(HELLO)
        for _ in LINES:
            response = client.responses.create(model="m", instructions="be brief", input=history, tools=[SEARCH])
            history += [i.model_dump(exclude_none=True) for i in response.output] + outputs(response)
        assert response.output_text == "it is 70"
        recording = gateway.trace(session)
    assert len(recording.segments) == 1
    assert_exact(backend.engine, recording)  # type: ignore[arg-type]
    assert [(r.step, r.result) for r in recording.tool_records] == [(1, "r search"), (1, "r search"), (2, "r search")]
    assert [m.role for m in recording.segments[0].messages] == [
        *("system", "system", "user"),
        *("assistant", "tool", "tool"),
        *("assistant", "tool"),
        "assistant",
    ]


def test_a_response_is_continued_by_its_id() -> None:
    backend = engine_backend(LINES)
    with opened(backend) as (gateway, session, client):
        response = client.responses.create(model="m", instructions="be brief", input="find width", tools=[SEARCH])
        for _ in LINES[1:]:
            response = client.responses.create(model="m", previous_response_id=response.id, input=outputs(response), tools=[SEARCH])
        assert response.output_text == "it is 70"
        with pytest.raises(openai.NotFoundError, match="resp_none"):
            client.responses.create(model="m", previous_response_id="resp_none", input="x")
        recording = gateway.trace(session)
    assert len(recording.segments) == 1
    assert_exact(backend.engine, recording)  # type: ignore[arg-type]
    assert loss(recording.segments[0]) == [t for _, body in backend.engine.sampled for t in body]  # type: ignore[attr-defined]


def test_streams_say_the_same_as_whole_replies() -> None:
    line = say("a long answer, naïve Ω 漢字 🙂 " * 4, "thinking " * 20, ("search", {"query": "x" * 120}), ("search", {}))
    backend = engine_backend([line, line, say("cut off here")])
    with opened(backend) as (_, _, client):
        whole = client.responses.create(model="m", input=HELLO, tools=[SEARCH])
        with client.responses.stream(model="m", input=HELLO, tools=[SEARCH]) as stream:
            kinds = {e.type for e in stream}
            streamed = stream.get_final_response()
        cut = client.responses.create(model="m", input=HELLO, max_output_tokens=5)
    assert {"response.output_text.delta", "response.function_call_arguments.delta", "response.reasoning_text.delta"} <= kinds
    assert whole.output_text == streamed.output_text == line.content
    assert [i.type for i in whole.output] == ["reasoning", "message", "function_call", "function_call"]
    assert [json.loads(i.arguments) for i in streamed.output if i.type == "function_call"] == [c.arguments for c in line.calls]
    assert whole.usage == streamed.usage
    assert (cut.status, cut.incomplete_details and cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
    ({"input": [{"type": "function_call_output", "call_id": "call_1", "output": "x"}]}, "input[0].call_id"),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"background": True}, "background"),
    ({"tool_choice": "required"}, "tool_choice"),
]


def test_errors_are_the_wires_own() -> None:
    with opened(engine_backend([EngineError("it burns")])) as (gateway, session, client):
        for change, param in BAD:
            with pytest.raises(openai.BadRequestError) as caught:
                client.post("/responses", body={"model": "m", "input": HELLO, **change}, cast_to=object)
            assert caught.value.param == param
        with pytest.raises(openai.InternalServerError, match="it burns"):
            client.responses.create(model="m", input="x")
        assert gateway.trace(session).stop == "infrastructure"
