"""The OpenAI chat-completions wire: a request as `ChatRequest`, a reply as JSON or as server-sent events.

After the public API reference of /v1/chat/completions; thinking goes out as `reasoning_content`, as open servers do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from environments.gateway.messages import (
    Answered,
    ChatRequest,
    Kind,
    Reader,
    RequestError,
    Said,
    WireTool,
    arguments_text,
    make_call,
    read_data_url,
    read_tool,
)
from environments.gateway.session import Reply, Session, response_id
from environments.task import Image, Message

TYPES: dict[Kind, tuple[str, str | None]] = {
    "invalid": ("invalid_request_error", None),
    "context": ("invalid_request_error", "context_length_exceeded"),
    "auth": ("invalid_request_error", "invalid_api_key"),
    "not_found": ("invalid_request_error", "not_found"),
    "too_large": ("invalid_request_error", "request_too_large"),
    "limit": ("insufficient_quota", "insufficient_quota"),
    "engine": ("server_error", "engine_failed"),
}
"""`type` and `code` of an error."""
DELTA_CHARS = 48
"""Of streamed text in one event."""


class OpenAIChat:
    """One wire: `parse` what came in, spell what goes out."""

    keepalive = ": waiting\n\n"

    # --- requests ----------------------------------------------------------------------------------------------------------------

    def parse(self, payload: dict[str, Any], session: Session) -> ChatRequest:
        """Raises RequestError: a field that is missing, malformed, or asks for what this gateway does not do."""
        body = Reader(payload)
        if body.has("n") and body.value["n"] != 1:
            raise body.fail("n", "one answer a request", "send n=1")
        if body.has("top_logprobs") and body.value["top_logprobs"] != 0:
            raise body.fail("top_logprobs", "only the sampled tokens' log-probabilities are known", "leave it out")
        if body.has("functions"):
            raise body.fail("functions", "replaced by tools", "declare tools")
        logprobs = body.flag("logprobs", False)
        if logprobs and not session.backend.trainable:
            raise body.fail("logprobs", "the policy behind this gateway has none", "leave it out")
        tools = tuple(self._tool(t) for t in body.objects("tools"))
        format_ = body.object("response_format") if body.has("response_format") else None
        return ChatRequest(
            history=tuple(self._history(body)),
            model=body.text("model"),
            tools=tools,
            tool_choice=read_choice(body, tools),
            parallel=body.flag("parallel_tool_calls", True),
            response_format="" if format_ is None or format_.text("type") == "text" else json.dumps(format_.value, ensure_ascii=False),
            max_tokens=body.count("max_completion_tokens") or body.count("max_tokens"),
            stop=read_stop(body, "stop"),
            temperature=body.number("temperature", 1.0, 0.0, 2.0),
            logprobs=logprobs,
            stream=body.flag("stream", False),
            stream_usage=body.has("stream_options") and body.object("stream_options").flag("include_usage", False),
        )

    def _tool(self, tool: Reader) -> WireTool:
        if tool.text("type") != "function":
            raise tool.fail("type", f"{tool.value['type']!r:.40} tools are not executed here", "declare functions")
        return read_tool(tool.object("function"), "parameters", optional_schema=True)

    def _history(self, body: Reader) -> Iterator[Said]:
        messages = body.objects("messages", required=True)
        if not messages:
            raise body.fail("messages", "there is none", "send at least one message")
        answered = Answered()
        for message in messages:
            role = message.text("role")
            text, images = self._content(message, role)
            if role in ("system", "developer"):
                yield Said(Message(role="system", content=text))
            elif role == "user":
                yield Said(Message(role="user", content=text, images=images))
            elif role == "tool":
                yield answered.result(message, "tool_call_id", text, images)
            elif role == "assistant":
                said = self._assistant(message, text)
                answered.spoken(said.call_ids, said.message.calls)
                yield said
            else:
                raise message.fail("role", f"there is no role {role!r:.40}", "use system, developer, user, assistant or tool")

    def _assistant(self, message: Reader, text: str) -> Said:
        calls, ids = [], []
        for index, call in enumerate(message.objects("tool_calls")):
            function = call.object("function")
            calls.append(make_call(function.text("name"), function.text("arguments", ""), index))
            ids.append(call.text("id"))
        thinking = message.text("reasoning_content", "") or message.text("reasoning", "")
        return Said(Message(role="assistant", content=text, thinking=thinking, calls=tuple(calls)), tuple(ids))

    def _content(self, message: Reader, role: str) -> tuple[str, tuple[Image, ...]]:
        content = message.value.get("content")
        if content is None and role == "assistant":
            return "", ()
        if isinstance(content, str):
            return content, ()
        texts, images = [], []
        for part in message.objects("content", required=True):
            kind = part.text("type")
            if kind == "text":
                texts.append(part.text("text"))
            elif kind == "refusal" and role == "assistant":
                texts.append(part.text("refusal"))
            elif kind == "image_url" and role in ("user", "tool"):
                url = part.object("image_url")
                images.append(read_data_url(url, "url", url.text("url")))
            else:
                raise part.fail("type", f"{kind!r:.40} parts cannot be read in a {role} message", "send text or image_url")
        return "".join(texts), tuple(images)

    # --- replies -----------------------------------------------------------------------------------------------------------------

    def body(self, reply: Reply, request: ChatRequest, session: Session) -> dict[str, Any]:
        """The whole reply."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.message.content or None, "refusal": None}
        if not reply.message.calls and not reply.message.content:
            message["content"] = ""
        if reply.message.thinking:
            message["reasoning_content"] = reply.message.thinking
        if reply.message.calls:
            message["tool_calls"] = _calls(reply)
        choice = {"index": 0, "message": message, "finish_reason": _finish(reply), "logprobs": _logprobs(reply)}
        return {**_head(reply, request, session, "chat.completion"), "choices": [choice], "usage": _usage(reply)}

    def events(self, reply: Reply, request: ChatRequest, session: Session) -> Iterator[str]:
        """The same as events."""
        head = _head(reply, request, session, "chat.completion.chunk")
        usage: dict[str, Any] = {"usage": None} if request.stream_usage else {}

        def chunk(delta: dict[str, Any], finish: str | None = None, logprobs: Any = None) -> str:
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
            return event({**head, "choices": [choice], **usage})

        yield chunk({"role": "assistant", "content": ""})
        for text in pieces(reply.message.thinking):
            yield chunk({"reasoning_content": text})
        if reply.pieces is not None:
            for text, logprob in reply.pieces:
                yield chunk({"content": text}, logprobs={"content": [_token(text, logprob)], "refusal": None})
        else:
            for text in pieces(reply.message.content):
                yield chunk({"content": text})
        for index, call in enumerate(_calls(reply)):
            function = call["function"]
            yield chunk({"tool_calls": [{**call, "index": index, "function": {"name": function["name"], "arguments": ""}}]})
            for text in pieces(function["arguments"]):
                yield chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})
        yield chunk({}, _finish(reply))
        if request.stream_usage:
            yield event({**head, "choices": [], "usage": _usage(reply)})
        yield "data: [DONE]\n\n"

    def error(self, error: RequestError) -> dict[str, Any]:
        """An error's body."""
        kind, code = TYPES[error.kind]
        return {"error": {"message": str(error), "type": kind, "param": error.param or None, "code": code}}

    def failed(self, error: RequestError) -> str:
        """An error within a stream."""
        return event(self.error(error))


# --- pieces ----------------------------------------------------------------------------------------------------------------------


def event(payload: dict[str, Any], name: str = "") -> str:
    """One server-sent event."""
    return (f"event: {name}\n" if name else "") + f"data: {json.dumps(payload, ensure_ascii=False)}\n\n"


def pieces(text: str) -> Iterator[str]:
    """A text in the pieces in which it is streamed."""
    for at in range(0, len(text), DELTA_CHARS):
        yield text[at : at + DELTA_CHARS]


def read_stop(body: Reader, key: str) -> tuple[str, ...]:
    """Stop sequences: one, or a list. Raises RequestError."""
    found = body.value.get(key)
    stop = [] if found is None else [found] if isinstance(found, str) else body.items(key)
    if not all(isinstance(s, str) and s for s in stop):
        raise body.fail(key, "must be texts", "send non-empty strings")
    return tuple(stop)


def read_choice(body: Reader, tools: tuple[WireTool, ...]) -> str:
    """`auto`, `none`, `required`, or the name of a declared tool. Raises RequestError."""
    choice = body.value.get("tool_choice") or "auto"
    if choice in ("auto", "none"):
        return str(choice)
    if choice == "required":
        if not tools:
            raise body.fail("tool_choice", "calls are required, but there are no tools", "declare tools")
        return "required"
    named = body.object("tool_choice")
    name = (named.object("function") if named.has("function") else named).text("name")
    return chosen(body, name, tools)


def chosen(body: Reader, name: str, tools: tuple[WireTool, ...]) -> str:
    """The name of a declared tool. Raises RequestError when it is none."""
    if name not in {t.name for t in tools}:
        raise body.fail("tool_choice", f"there is no tool {name!r:.60}", "choose one of the declared tools")
    return name


def _head(reply: Reply, request: ChatRequest, session: Session, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{response_id(session, reply.number)}", "object": kind, "created": reply.created, "model": request.model}


def _calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {"id": f"call_{call_id}", "type": "function", "function": {"name": call.tool, "arguments": arguments_text(call)}}
        for call, call_id in zip(reply.message.calls, reply.call_ids, strict=True)
    ]


def _finish(reply: Reply) -> str:
    if reply.finish == "length":
        return "length"
    return "tool_calls" if reply.message.calls else "stop"


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "prompt_tokens": reply.prompt_tokens,
        "completion_tokens": reply.output_tokens,
        "total_tokens": reply.prompt_tokens + reply.output_tokens,
        "completion_tokens_details": {"reasoning_tokens": reply.thinking_tokens},
    }


def _token(text: str, logprob: float) -> dict[str, Any]:
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}


def _logprobs(reply: Reply) -> dict[str, Any] | None:
    return None if reply.pieces is None else {"content": [_token(*p) for p in reply.pieces], "refusal": None}
