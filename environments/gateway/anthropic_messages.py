"""The Anthropic messages wire: a request as `ChatRequest`, a reply as JSON or as server-sent events.

After the public API reference of /v1/messages. Thinking goes out in signed blocks where the request enables it, and is
accepted back only with the signature it got.
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
    bare_id,
    read_image,
    read_tool,
)
from environments.gateway.openai_chat import chosen, event, pieces, read_stop
from environments.gateway.session import Reply, Session, response_id
from environments.task import Image, Message, ToolCall

TYPES: dict[Kind, str] = {
    "invalid": "invalid_request_error",
    "context": "invalid_request_error",
    "auth": "authentication_error",
    "not_found": "not_found_error",
    "too_large": "request_too_large",
    "limit": "rate_limit_error",
    "engine": "api_error",
}
"""`type` of an error."""


class AnthropicMessages:
    """One wire: `parse` what came in, spell what goes out."""

    keepalive = event({"type": "ping"}, "ping")

    # --- requests ----------------------------------------------------------------------------------------------------------------

    def parse(self, payload: dict[str, Any], session: Session, *, counting: bool = False) -> ChatRequest:
        """Raises RequestError: a field that is missing, malformed, or asks for what this gateway does not do."""
        body = Reader(payload)
        tools = tuple(self._tool(t) for t in body.objects("tools"))
        choice = body.object("tool_choice") if body.has("tool_choice") else Reader({"type": "auto"}, "tool_choice")
        thinking = body.object("thinking").text("type") if body.has("thinking") else "disabled"
        return ChatRequest(
            history=tuple(self._history(body, session)),
            model=body.text("model"),
            tools=tools,
            tool_choice=self._choice(body, choice, tools),
            parallel=not choice.flag("disable_parallel_tool_use", False),
            max_tokens=body.count("max_tokens", required=not counting),
            stop=read_stop(body, "stop_sequences"),
            temperature=body.number("temperature", 1.0, 0.0, 1.0),
            stream=body.flag("stream", False),
            show_thinking=thinking != "disabled",
        )

    def _tool(self, tool: Reader) -> WireTool:
        if (kind := tool.text("type", "custom")) != "custom":
            raise tool.fail("type", f"{kind!r:.40} tools are not executed here", "declare tools with an input_schema")
        return read_tool(tool, "input_schema")

    def _choice(self, body: Reader, choice: Reader, tools: tuple[WireTool, ...]) -> str:
        kind = choice.text("type")
        if kind in ("auto", "none"):
            return kind
        if not tools:
            raise body.fail("tool_choice", "calls are required, but there are no tools", "declare tools")
        if kind == "any":
            return "required"
        if kind == "tool":
            return chosen(body, choice.text("name"), tools)
        raise choice.fail("type", f"there is no choice {kind!r:.40}", "use auto, any, tool or none")

    def _history(self, body: Reader, session: Session) -> Iterator[Said]:
        messages = body.objects("messages", required=True)
        if not messages:
            raise body.fail("messages", "there is none", "send at least one message")
        if body.has("system"):
            yield Said(Message(role="system", content=self._text(body, "system", "\n\n")))
        answered = Answered()
        for message in messages:
            role = message.text("role")
            if role == "user":
                yield from self._user(message, answered)
            elif role == "assistant":
                said = self._assistant(message, session)
                answered.spoken(said.call_ids, said.message.calls)
                yield said
            elif role == "system":
                yield Said(Message(role="system", content=self._text(message, "content", "\n\n")))
            else:
                raise message.fail("role", f"there is no role {role!r:.40}", "use user, assistant or system")
        if messages[-1].value["role"] == "assistant":
            raise body.fail("messages", "the last message is the assistant's: no answer can be prefilled", "end with a user message")

    def _text(self, owner: Reader, key: str, joint: str) -> str:
        """A text or text blocks."""
        if isinstance(found := owner.value.get(key), str):
            return found
        texts = []
        for block in owner.objects(key, required=True):
            if (kind := block.text("type")) != "text":
                raise block.fail("type", f"{kind!r:.40} blocks cannot stand here", "send text blocks")
            texts.append(block.text("text"))
        return joint.join(texts)

    def _user(self, message: Reader, answered: Answered) -> Iterator[Said]:
        """Tool results as tool messages, in their order; what else the message holds follows as the user's."""
        if isinstance(found := message.value.get("content"), str):
            yield Said(Message(role="user", content=found))
            return
        texts: list[str] = []
        images: list[Image] = []
        results = False
        for block in message.objects("content", required=True):
            if block.text("type") == "tool_result":
                results = True
                yield self._result(block, answered)
            else:
                self._part(block, texts, images)
        if texts or images or not results:
            yield Said(Message(role="user", content="\n\n".join(texts), images=tuple(images)))

    def _result(self, block: Reader, answered: Answered) -> Said:
        texts: list[str] = []
        images: list[Image] = []
        content = block.value.get("content")
        if isinstance(content, str):
            texts.append(content)
        elif content is not None:
            for part in block.objects("content"):
                self._part(part, texts, images)
        return answered.result(block, "tool_use_id", "\n".join(texts), images, block.flag("is_error", False))

    def _part(self, block: Reader, texts: list[str], images: list[Image]) -> None:
        kind = block.text("type")
        if kind == "text":
            texts.append(block.text("text"))
        elif kind == "image":
            source = block.object("source")
            if (how := source.text("type")) != "base64":
                raise source.fail("type", f"{how!r:.40} pictures cannot be fetched, there is no route", "send base64")
            images.append(read_image(source, "media_type", source.text("media_type"), source.text("data")))
        else:
            raise block.fail("type", f"{kind!r:.40} blocks cannot be read in a user message", "send text, image or tool_result")

    def _assistant(self, message: Reader, session: Session) -> Said:
        if isinstance(found := message.value.get("content"), str):
            return Said(Message(role="assistant", content=found))
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[ToolCall] = []
        ids: list[str] = []
        for block in message.objects("content", required=True):
            kind = block.text("type")
            if kind == "text":
                texts.append(block.text("text"))
            elif kind == "thinking":
                thought = block.text("thinking")
                if not session.signed(thought, block.text("signature")):
                    raise block.fail("signature", "this is not the signature of this thinking", "send the block back as it came")
                thoughts.append(thought)
            elif kind == "tool_use":
                arguments = block.object("input").value
                calls.append(ToolCall(tool=block.text("name"), arguments=arguments, index=len(calls)))
                ids.append(block.text("id"))
            else:
                raise block.fail("type", f"{kind!r:.40} blocks cannot be read in an assistant message", "send text, thinking or tool_use")
        said = Message(role="assistant", content="".join(texts), thinking="".join(thoughts), calls=tuple(calls))
        return Said(said, tuple(ids))

    # --- replies -----------------------------------------------------------------------------------------------------------------

    def body(self, reply: Reply, request: ChatRequest, session: Session) -> dict[str, Any]:
        """The whole reply."""
        return {
            **self._head(reply, request, session),
            "content": _blocks(reply, request),
            "stop_reason": _stop_reason(reply),
            "stop_sequence": reply.stop_sequence or None,
            "usage": _usage(reply, reply.output_tokens),
        }

    def _head(self, reply: Reply, request: ChatRequest, session: Session) -> dict[str, Any]:
        return {"id": f"msg_{response_id(session, reply.number)}", "type": "message", "role": "assistant", "model": request.model}

    def events(self, reply: Reply, request: ChatRequest, session: Session) -> Iterator[str]:
        """The same as events."""
        begun: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": _usage(reply, 1)}
        yield event({"type": "message_start", "message": {**self._head(reply, request, session), **begun}}, "message_start")
        for index, block in enumerate(_blocks(reply, request)):
            empty, deltas = _streamed(block)
            yield event({"type": "content_block_start", "index": index, "content_block": empty}, "content_block_start")
            for delta in deltas:
                yield event({"type": "content_block_delta", "index": index, "delta": delta}, "content_block_delta")
            yield event({"type": "content_block_stop", "index": index}, "content_block_stop")
        end = {"stop_reason": _stop_reason(reply), "stop_sequence": reply.stop_sequence or None}
        yield event({"type": "message_delta", "delta": end, "usage": {"output_tokens": reply.output_tokens}}, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")

    def error(self, error: RequestError) -> dict[str, Any]:
        """An error's body."""
        return {"type": "error", "error": {"type": TYPES[error.kind], "message": str(error)}}

    def failed(self, error: RequestError) -> str:
        """An error within a stream."""
        return event(self.error(error), "error")


def _blocks(reply: Reply, request: ChatRequest) -> list[dict[str, Any]]:
    message = reply.message
    blocks: list[dict[str, Any]] = []
    if message.thinking and request.show_thinking:
        blocks.append({"type": "thinking", "thinking": message.thinking, "signature": reply.signature})
    if message.content:
        blocks.append({"type": "text", "text": message.content})
    for call, call_id in zip(message.calls, reply.call_ids, strict=True):
        given = {"malformed": call.malformed} if call.malformed else call.arguments  # the wire takes objects alone
        blocks.append({"type": "tool_use", "id": f"toolu_{bare_id(call_id)}", "name": call.tool, "input": given})
    return blocks


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it starts, and what is added to it."""
    if block["type"] == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": text} for text in pieces(block["thinking"])]
        return {**block, "thinking": "", "signature": ""}, [*deltas, {"type": "signature_delta", "signature": block["signature"]}]
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": text} for text in pieces(block["text"])]
    given = json.dumps(block["input"], ensure_ascii=False)
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text} for text in pieces(given)]


def _stop_reason(reply: Reply) -> str:
    if reply.finish == "length":
        return "max_tokens"
    if reply.finish == "stop_sequence":
        return "stop_sequence"
    return "tool_use" if reply.message.calls else "end_turn"


def _usage(reply: Reply, output_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
