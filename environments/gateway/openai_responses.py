"""The OpenAI responses wire: a request as `ChatRequest`, a reply as JSON or as server-sent events.

After the public API reference of /v1/responses. Thinking goes out as reasoning items with their text, as open models' servers do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from environments.gateway.messages import (
    Answered,
    ChatRequest,
    Reader,
    RequestError,
    Said,
    WireTool,
    arguments_text,
    make_call,
    read_data_url,
    read_tool,
)
from environments.gateway.openai_chat import TYPES, event, pieces, read_choice
from environments.gateway.session import Reply, Session, response_id
from environments.task import Image, Message, ToolCall

_ECHOED = (
    "instructions",
    "max_output_tokens",
    "metadata",
    "parallel_tool_calls",
    "previous_response_id",
    "temperature",
    "tool_choice",
    "tools",
)


class _Turn:
    """An assistant's items in a row, which make one message."""

    def __init__(self) -> None:
        self.thinking = ""
        self.text: str | None = None
        self.calls: list[ToolCall] = []
        self.ids: list[str] = []

    def takes(self, kind: str) -> bool:
        """Reasoning comes before text, text before calls."""
        started = self.text is not None or bool(self.calls)
        return {"reasoning": not started, "message": not started, "function_call": True}[kind]

    def said(self) -> Said:
        message = Message(role="assistant", content=self.text or "", thinking=self.thinking, calls=tuple(self.calls))
        return Said(message, tuple(self.ids))


class OpenAIResponses:
    """One wire: `parse` what came in, spell what goes out."""

    keepalive = ": waiting\n\n"

    # --- requests ----------------------------------------------------------------------------------------------------------------

    def parse(self, payload: dict[str, Any], session: Session) -> ChatRequest:
        """Raises RequestError: a field that is missing, malformed, or asks for what this gateway does not do."""
        body = Reader(payload)
        if body.has("top_logprobs") and body.value["top_logprobs"] != 0:
            raise body.fail("top_logprobs", "only the sampled tokens' log-probabilities are known", "leave it out")
        if body.flag("background", False):
            raise body.fail("background", "answers are not kept for later", "leave it out")
        tools = tuple(self._tool(t) for t in body.objects("tools"))
        text = body.object("text") if body.has("text") else Reader({})
        format_ = text.object("format") if text.has("format") else None
        return ChatRequest(
            history=tuple(self._history(body, session)),
            model=body.text("model"),
            tools=tools,
            tool_choice=read_choice(body, tools),
            parallel=body.flag("parallel_tool_calls", True),
            response_format="" if format_ is None or format_.text("type") == "text" else json.dumps(format_.value, ensure_ascii=False),
            max_tokens=body.count("max_output_tokens"),
            temperature=body.number("temperature", 1.0, 0.0, 2.0),
            stream=body.flag("stream", False),
            echo={key: payload[key] for key in _ECHOED if key in payload},
        )

    def _tool(self, tool: Reader) -> WireTool:
        if tool.text("type") != "function":
            raise tool.fail("type", f"{tool.value['type']!r:.40} tools are not executed here", "declare functions")
        return read_tool(tool, "parameters", optional_schema=True)

    def _history(self, body: Reader, session: Session) -> Iterator[Said]:
        """New instructions replace the system messages that an earlier response began with."""
        answered = Answered()
        before = session.continued(body.text("previous_response_id")) if body.has("previous_response_id") else []
        if body.has("instructions"):
            yield Said(Message(role="system", content=body.text("instructions")))
            lead = next((i for i, s in enumerate(before) if s.message.role != "system"), len(before))
            before = before[lead:]
        for said in before:
            answered.spoken(said.call_ids, said.message.calls)
            yield said
        if isinstance(given := body.value.get("input"), str):
            yield Said(Message(role="user", content=given))
            return
        items = body.objects("input", required=True)
        if not items and not before:
            raise body.fail("input", "there is none", "send at least one item")
        yield from self._items(items, answered)

    def _items(self, items: list[Reader], answered: Answered) -> Iterator[Said]:
        turn: _Turn | None = None
        for item in items:
            kind = item.text("type", "message")
            assistants = kind in ("reasoning", "function_call") or (kind == "message" and item.text("role") == "assistant")
            if turn is not None and not (assistants and turn.takes(kind)):
                answered.spoken(turn.ids, turn.calls)
                yield turn.said()
                turn = None
            if assistants:
                turn = turn or _Turn()
                self._assistants(item, kind, turn)
            else:
                yield self._others(item, kind, answered)
        if turn is not None:
            yield turn.said()

    def _assistants(self, item: Reader, kind: str, turn: _Turn) -> None:
        if kind == "reasoning":
            turn.thinking += "".join(part.text("text") for part in item.objects("content"))
        elif kind == "message":
            turn.text = self._content(item, "content")[0]
        else:
            turn.calls.append(make_call(item.text("name"), item.text("arguments", ""), len(turn.calls)))
            turn.ids.append(item.text("call_id"))

    def _others(self, item: Reader, kind: str, answered: Answered) -> Said:
        if kind == "function_call_output":
            text, images = self._content(item, "output")
            return answered.result(item, "call_id", text, images)
        if kind != "message":
            raise item.fail("type", f"{kind!r:.40} items cannot be read", "send messages, reasoning, function calls and their outputs")
        text, images = self._content(item, "content")
        role = item.text("role")
        if role in ("system", "developer"):
            return Said(Message(role="system", content=text))
        if role == "user":
            return Said(Message(role="user", content=text, images=images))
        raise item.fail("role", f"there is no role {role!r:.40}", "use system, developer, user or assistant")

    def _content(self, item: Reader, key: str) -> tuple[str, tuple[Image, ...]]:
        if isinstance(found := item.value.get(key), str):
            return found, ()
        texts, images = [], []
        for part in item.objects(key, required=True):
            kind = part.text("type")
            if kind in ("input_text", "output_text", "text"):
                texts.append(part.text("text"))
            elif kind == "refusal":
                texts.append(part.text("refusal"))
            elif kind == "input_image":
                images.append(read_data_url(part, "image_url", part.text("image_url")))
            else:
                raise part.fail("type", f"{kind!r:.40} parts cannot be read", "send text or input_image")
        return "".join(texts), tuple(images)

    # --- replies -----------------------------------------------------------------------------------------------------------------

    def body(self, reply: Reply, request: ChatRequest, session: Session) -> dict[str, Any]:
        """The whole reply."""
        cut = reply.finish == "length"
        return {
            **self._head(reply, request, session),
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": _items(reply, session),
            "usage": {
                "input_tokens": reply.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens": reply.output_tokens,
                "output_tokens_details": {"reasoning_tokens": reply.thinking_tokens},
                "total_tokens": reply.prompt_tokens + reply.output_tokens,
            },
        }

    def _head(self, reply: Reply, request: ChatRequest, session: Session) -> dict[str, Any]:
        return {
            "id": f"resp_{response_id(session, reply.number)}",
            "object": "response",
            "created_at": reply.created,
            "model": request.model,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "output": [],
            "parallel_tool_calls": True,
            "temperature": request.temperature,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None,
            **request.echo,
        }

    def events(self, reply: Reply, request: ChatRequest, session: Session) -> Iterator[str]:
        """The same as events."""
        done = self.body(reply, request, session)
        begun = self._head(reply, request, session)
        stream: list[tuple[str, dict[str, Any]]] = [("created", {"response": begun}), ("in_progress", {"response": begun})]
        for index, item in enumerate(done["output"]):
            at = {"output_index": index, "item_id": item["id"]}
            empty: dict[str, Any] = {"arguments": ""} if item["type"] == "function_call" else {"content": []}
            stream.append(("output_item.added", {"output_index": index, "item": {**item, "status": "in_progress", **empty}}))
            if item["type"] == "function_call":
                stream += [("function_call_arguments.delta", {**at, "delta": text}) for text in pieces(item["arguments"])]
                stream.append(("function_call_arguments.done", {**at, "arguments": item["arguments"], "name": item["name"]}))
            else:
                stream += _texts(item, {**at, "content_index": 0})
            stream.append(("output_item.done", {"output_index": index, "item": item}))
        stream.append((done["status"], {"response": done}))
        for number, (name, fields) in enumerate(stream):
            kind = f"response.{name}"
            yield event({"type": kind, "sequence_number": number, **fields}, kind)

    def error(self, error: RequestError) -> dict[str, Any]:
        """An error's body."""
        kind, code = TYPES[error.kind]
        return {"error": {"message": str(error), "type": kind, "param": error.param or None, "code": code}}

    def failed(self, error: RequestError) -> str:
        """An error within a stream."""
        return event({"type": "error", **self.error(error)}, "error")


def _items(reply: Reply, session: Session) -> list[dict[str, Any]]:
    message, name = reply.message, response_id(session, reply.number)
    items: list[dict[str, Any]] = []
    if message.thinking:
        content = [{"type": "reasoning_text", "text": message.thinking}]
        items.append({"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": content, "encrypted_content": reply.signature})
    if message.content or not message.calls:
        text = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
        items.append({"type": "message", "id": f"msg_{name}", "role": "assistant", "status": "completed", "content": [text]})
    for index, (call, call_id) in enumerate(zip(message.calls, reply.call_ids, strict=True)):
        called = {"call_id": f"call_{call_id}", "name": call.tool, "arguments": arguments_text(call)}
        items.append({"type": "function_call", "id": f"fc_{name}{index}", "status": "completed", **called})
    return items


def _texts(item: dict[str, Any], at: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The events between the beginning and the end of an item of text."""
    part = item["content"][0]
    text = part["text"]
    if item["type"] == "reasoning":
        return [*(("reasoning_text.delta", {**at, "delta": d}) for d in pieces(text)), ("reasoning_text.done", {**at, "text": text})]
    return [
        ("content_part.added", {**at, "part": {**part, "text": ""}}),
        *(("output_text.delta", {**at, "delta": d, "logprobs": []}) for d in pieces(text)),
        ("output_text.done", {**at, "text": text, "logprobs": []}),
        ("content_part.done", {**at, "part": part}),
    ]
