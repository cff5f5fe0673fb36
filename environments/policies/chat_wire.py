"""Our messages as the JSON of a chat-completions request, and its response as a message.

The wire knows call ids, we know the position of a call within its message: ids are made from (assistant message, index), so
that the same history gives the same request. Whatever a model wrote is carried as a call, so that the harness answers it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from environments.harness.interfaces import json_object
from environments.task import Image, Message, ToolCall, ToolSpec


class Lenient(BaseModel):
    """Servers add fields of their own."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class WireFunction(Lenient):
    name: str = ""
    arguments: str | dict[str, Any] | None = ""
    """JSON text as the model wrote it; a few servers parse it."""


class WireCall(Lenient):
    function: WireFunction = WireFunction()


class WireMessage(Lenient):
    content: str | list[dict[str, Any]] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    """The same under the name that some servers use."""
    tool_calls: list[WireCall] | None = None


class WireChoice(Lenient):
    message: WireMessage
    finish_reason: str | None = None


class _CompletionDetails(Lenient):
    reasoning_tokens: int | None = None


class WireUsage(Lenient):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    completion_tokens_details: _CompletionDetails | None = None


class WireCompletion(Lenient):
    """The part of a chat completion that we read."""

    choices: list[WireChoice] = Field(min_length=1)
    usage: WireUsage | None = None


def read_completion(body: bytes) -> WireCompletion:
    """Parse a response body. Lone surrogates, which JSON can spell and no text may hold, become U+FFFD.

    Raises:
        ValueError: it is not JSON, or not a chat completion.
    """
    try:
        payload = json.loads(body)
    except RecursionError as error:
        raise ValueError("the body is nested too deeply") from error
    return WireCompletion.model_validate_json(whole_text(payload))


def whole_text(payload: Any) -> str:
    """JSON in which lone surrogates have become U+FFFD."""
    return json.dumps(payload, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_message(completion: WireCompletion) -> Message:
    """The first choice as an assistant message, its calls numbered in order."""
    said = completion.choices[0].message
    content = said.content
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content)
    calls = tuple(read_call(call, index) for index, call in enumerate(said.tool_calls or ()))
    return Message(role="assistant", content=content or "", thinking=said.reasoning_content or said.reasoning or "", calls=calls)


def read_call(call: WireCall, index: int) -> ToolCall:
    """A call; arguments that are not a JSON object are kept as `malformed`, which the environment refuses."""
    raw = call.function.arguments
    if isinstance(raw, dict):
        return ToolCall(tool=call.function.name, arguments=raw, index=index)
    text = (raw or "").strip()
    try:
        arguments = json_object(text) if text else {}
    except ValueError:
        return ToolCall(tool=call.function.name, malformed=text, index=index)
    return ToolCall(tool=call.function.name, arguments=arguments, index=index)


def write_messages(messages: Sequence[Message], *, send_thinking: bool = True) -> list[dict[str, Any]]:
    """The history as request messages.

    Leading system messages become one, since some chat templates take a single one. A tool message that answers no call is
    sent as the user's. Thinking goes back as `reasoning_content` (it is kept in the history; Kimi K3 report, appendix F).
    """
    lead = next((i for i, m in enumerate(messages) if m.role != "system"), len(messages))
    wire: list[dict[str, Any]] = []
    if lead:
        wire.append({"role": "system", "content": "\n\n".join(m.content for m in messages[:lead])})
    spoken = 0
    pictures: list[dict[str, Any]] = []
    """Of tool messages: the API takes pictures from users only."""
    open_calls: set[int] = set()
    for message in messages[lead:]:
        if message.role == "assistant":
            spoken += 1
            open_calls = {c.index for c in message.calls}
            wire.append(_assistant(message, spoken, send_thinking))
        elif message.role == "tool" and message.index in open_calls:
            wire.append({"role": "tool", "tool_call_id": _call_id(spoken, message.index), "content": message.content})
            pictures += [_picture(image) for image in message.images]
            continue
        else:
            content = [{"type": "text", "text": message.content}, *map(_picture, message.images)] if message.images else message.content
            wire.append({"role": "user" if message.role == "tool" else message.role, "content": content})
        if pictures:  # a turn ended: its pictures stand after all of its tool messages
            wire.insert(-1, {"role": "user", "content": pictures})
            pictures = []
    if pictures:
        wire.append({"role": "user", "content": pictures})
    return wire


def _picture(image: Image) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{image.media_type};base64,{image.data}"}}


def _assistant(message: Message, spoken: int, send_thinking: bool) -> dict[str, Any]:
    # Some templates fail on a missing content, others on an empty one beside calls: null is what the API itself returns.
    wire: dict[str, Any] = {"role": "assistant", "content": message.content or (None if message.calls else "")}
    if send_thinking and message.thinking:
        wire["reasoning_content"] = message.thinking
    if message.calls:
        wire["tool_calls"] = [
            {
                "id": _call_id(spoken, call.index),
                "type": "function",
                # Servers parse the history's arguments, so a malformed text travels inside a JSON object.
                "function": {
                    "name": call.tool,
                    "arguments": json.dumps({"malformed": call.malformed} if call.malformed else call.arguments),
                },
            }
            for call in message.calls
        ]
    return wire


def _call_id(spoken: int, index: int) -> str:
    """Nine letters and digits, the only form that every server takes."""
    return f"c{spoken % 10_000:04d}{index % 10_000:04d}"


def write_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Tools as functions with a JSON schema."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": {
                    "type": "object",
                    "properties": {p.name: {"type": p.type, "description": p.description} for p in tool.parameters},
                    "required": [p.name for p in tool.parameters if p.required],
                    "additionalProperties": False,
                },
            },
        }
        for tool in tools
    ]
