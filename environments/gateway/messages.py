"""What every wire is read into: a history, tools, options; and the error that every wire can spell."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from environments.errors import AgentError, ConfigError
from environments.gateway.schema import tool_spec
from environments.task import Image, Message, ToolCall, ToolSpec

Kind = Literal["invalid", "context", "auth", "not_found", "too_large", "limit", "engine"]
STATUS: dict[Kind, int] = {
    "invalid": 400,
    "context": 400,
    "auth": 401,
    "not_found": 404,
    "too_large": 413,
    "limit": 429,
    "engine": 503,
}


class RequestError(AgentError):
    """A request that is not answered. `kind` decides the status and each wire's own words; `param` names the field."""

    def __init__(self, message: str, fix: str = "", kind: Kind = "invalid", param: str = "") -> None:
        super().__init__(message, fix)
        self.args = (message, fix, kind, param)
        self.kind: Kind = kind
        self.param = param

    @property
    def status(self) -> int:
        return STATUS[self.kind]


@dataclass(frozen=True)
class Said:
    """One message of the history that a client sent."""

    message: Message
    call_ids: tuple[str, ...] = ()
    """Of an assistant message: its calls' ids, in order."""
    answers: str = ""
    """Of a tool message: the id of the call."""
    failed: bool = False
    """Of a tool message: the client marks it as an error."""


@dataclass(frozen=True)
class WireTool:
    """A tool as the client declared it."""

    name: str
    description: str
    schema: Mapping[str, Any]

    @cached_property
    def spec(self) -> ToolSpec:
        """The nearest `ToolSpec`; what it cannot say stands in the descriptions."""
        return tool_spec(self.name, self.description, self.schema, lenient=True)

    @property
    def line(self) -> str:
        """The tool as one line of JSON, its schema as it came."""
        return json.dumps({"name": self.name, "description": self.description, "parameters": self.schema}, ensure_ascii=False)


@dataclass(frozen=True)
class ChatRequest:
    """One request, whatever wire it came over."""

    history: tuple[Said, ...]
    model: str
    tools: tuple[WireTool, ...] = ()
    tool_choice: str = "auto"
    """`auto`, `none`, `required`, or a tool's name."""
    parallel: bool = True
    """Several calls in one message are welcome."""
    response_format: str = ""
    """JSON of the format that was asked for; empty for plain text."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    temperature: float = 1.0
    logprobs: bool = False
    stream: bool = False
    stream_usage: bool = False
    show_thinking: bool = True
    echo: Mapping[str, Any] = field(default_factory=dict)
    """Fields that the wire repeats in its reply."""

    @property
    def options(self) -> list[Message]:
        """Option messages that follow the input and hold for one answer (Kimi K3 report, appendix F)."""
        lines = {
            "auto": "",
            "none": "Call no tool in this answer.",
            "required": "Call at least one tool in this answer.",
        }
        wish = lines.get(self.tool_choice, f"Call the tool {self.tool_choice} in this answer.") if self.tools else ""
        if not self.parallel and self.tools and self.tool_choice != "none":
            wish = f"{wish} Make at most one call.".strip()
        options = [Message(role="system", option="tool_choice", content=wish)] if wish else []
        if self.response_format:
            text = f"Answer in this format: {self.response_format}"
            options.append(Message(role="system", option="response_format", content=text))
        return options


def declaration(tools: Sequence[WireTool]) -> Message:
    """The option message that declares tools."""
    return Message(role="system", option="tools", content="\n".join(["Tools:", *(t.line for t in tools)]))


# --- reading JSON --------------------------------------------------------------------------------------------------------


def read_json(body: bytes) -> dict[str, Any]:
    """A request's body. Lone surrogates, which JSON can spell and no text may hold, become U+FFFD.

    Raises:
        RequestError: it is no JSON object.
    """
    try:
        payload = json.loads(body, parse_constant=_no_constant)
        if b"\\u" in body:  # only an escape can spell one
            text = json.dumps(payload, ensure_ascii=False)
            payload = json.loads(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error!s:.80}", "send one JSON object") from None
    if not isinstance(payload, dict):
        raise RequestError("the body is not a JSON object", "send one JSON object")
    return payload


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


class Reader:
    """Typed access to one JSON object of a request. Every failure is a RequestError that names the field."""

    def __init__(self, value: Any, where: str = "") -> None:
        if not isinstance(value, dict):
            raise RequestError(f"{where or 'the body'} must be an object, not {_name(value)}", "send an object", param=where)
        self.value: dict[str, Any] = value
        self.where = where

    def path(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def fail(self, key: str, message: str, fix: str) -> RequestError:
        return RequestError(f"{self.path(key)}: {message}", fix, param=self.path(key))

    def has(self, key: str) -> bool:
        """Present and not null."""
        return self.value.get(key) is not None

    def text(self, key: str, default: str | None = None) -> str:
        found = self.value.get(key)
        if found is None and default is not None:
            return default
        if not isinstance(found, str):
            raise self.fail(key, f"must be text, not {_name(found)}", "send a string")
        return found

    def flag(self, key: str, default: bool) -> bool:
        found = self.value.get(key)
        if found is None:
            return default
        if not isinstance(found, bool):
            raise self.fail(key, f"must be true or false, not {_name(found)}", "send a boolean")
        return found

    def number(self, key: str, default: float, low: float, high: float) -> float:
        found = self.value.get(key)
        if found is None:
            return default
        if isinstance(found, bool) or not isinstance(found, int | float) or not low <= found <= high:
            raise self.fail(key, f"must be a number from {low:g} to {high:g}, not {found!r:.40}", "send one in the range")
        return float(found)

    def count(self, key: str, *, required: bool = False) -> int | None:
        found = self.value.get(key)
        if found is None and not required:
            return None
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise self.fail(key, f"must be a whole number of at least 1, not {found!r:.40}", "send a positive integer")
        return found

    def items(self, key: str, *, required: bool = False) -> list[Any]:
        found = self.value.get(key)
        if found is None and not required:
            return []
        if not isinstance(found, list):
            raise self.fail(key, f"must be a list, not {_name(found)}", "send an array")
        return found

    def objects(self, key: str, *, required: bool = False) -> list[Reader]:
        return [Reader(v, f"{self.path(key)}[{i}]") for i, v in enumerate(self.items(key, required=required))]

    def object(self, key: str) -> Reader:
        return Reader(self.value.get(key), self.path(key))


def _name(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "text", bool: "a boolean", int: "a number", float: "a number"}
    return kinds.get(type(value), "null")


def read_tool(reader: Reader, schema_key: str, *, optional_schema: bool = False) -> WireTool:
    """A tool's name, description and schema. Raises RequestError."""
    name = reader.text("name")
    if not name or len(name) > 256:
        raise reader.fail("name", f"{name!r:.40} is no tool's name", "send 1 to 256 characters")
    schema = reader.value.get(schema_key)
    if schema is None and optional_schema:
        schema = {"type": "object", "properties": {}}
    tool = WireTool(name, reader.text("description", ""), Reader(schema, reader.path(schema_key)).value)
    try:
        _ = tool.spec
    except ConfigError as error:
        raise reader.fail(schema_key, error.message, error.fix) from None
    return tool


def read_arguments(text: str) -> dict[str, Any] | None:
    """The object that a call's arguments spell; None when they spell none."""
    try:
        value = json.loads(text, parse_constant=_no_constant) if text.strip() else {}
        if "\\u" in text:  # an escape can spell a lone surrogate
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def make_call(tool: str, text: str, index: int) -> ToolCall:
    """A call of a client's history, its arguments as JSON text."""
    arguments = read_arguments(text)
    return ToolCall(tool=tool, malformed=text, index=index) if arguments is None else ToolCall(tool=tool, arguments=arguments, index=index)


def arguments_text(call: ToolCall) -> str:
    """A call's arguments as the wire's JSON text; what could not be read goes out as it was written."""
    return call.malformed or json.dumps(call.arguments, ensure_ascii=False)


def read_data_url(reader: Reader, key: str, url: str) -> Image:
    """A picture from a data URL. Raises RequestError for any other URL: there is no route to fetch it."""
    head, _, data = url.partition(",")
    media, _, coding = head.removeprefix("data:").partition(";")
    if not url.startswith("data:") or coding != "base64":
        raise reader.fail(key, f"{url[:40]!r} is no base64 data URL", "send the picture itself, there is no route to fetch it")
    return read_image(reader, key, media, data)


def read_image(reader: Reader, key: str, media: str, data: str) -> Image:
    if media not in ("image/png", "image/jpeg"):
        raise reader.fail(key, f"{media!r:.40} is no picture that can be shown", "send image/png or image/jpeg")
    return Image.model_validate({"data": data, "media_type": media})


def bare_id(call_id: str) -> str:
    """An id without the prefix that a wire puts before it."""
    return call_id.rpartition("_")[2]


class Answered:
    """The calls of a history so far, by id: what a tool result answers."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[str, int]] = {}

    def spoken(self, ids: Sequence[str], calls: Sequence[ToolCall]) -> None:
        for call_id, call in zip(ids, calls, strict=True):
            self._calls[bare_id(call_id)] = (call.tool, call.index)

    def result(self, reader: Reader, key: str, content: str, images: Sequence[Image] = (), failed: bool = False) -> Said:
        """A tool message. Raises RequestError when no earlier call has the id."""
        call_id = reader.text(key)
        if bare_id(call_id) not in self._calls:
            raise reader.fail(key, f"{call_id!r:.60} is no call of an earlier assistant message", "send results after their calls")
        tool, index = self._calls[bare_id(call_id)]
        message = Message(role="tool", tool=tool, index=index, content=content, images=tuple(images))
        return Said(message, answers=call_id, failed=failed)
