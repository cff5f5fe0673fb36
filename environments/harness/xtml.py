"""XTML: XML-like messages whose angle brackets are reserved tokens (Kimi K3 report, appendix F).

An element is ``[open]tag attr="v"[sep] ... [close]tag[sep]``; a message runs from its opening element to
``[end_of_msg]``, the only stop token. Text can never forge structure: reserved tokens have ids that encoding text does
not produce. String arguments are raw text; other types are compact JSON with a `type` attribute.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Protocol

from environments.errors import MalformedCallError
from environments.task import Message, ToolCall

OPEN, SEP, CLOSE, END = "[open]", "[sep]", "[close]", "[end_of_msg]"
RESERVED = (OPEN, SEP, CLOSE, END)


class TextTokenizer(Protocol):
    """What the codec needs of a tokenizer."""

    reserved: dict[str, int]
    """Ids of `RESERVED`; never produced by `encode`."""
    elements: dict[str, int]
    """Whole tags that have an id of their own, such as ``[open]call tool="search" index="0"[sep]`` or ``[close]arg[sep]``."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


def _attributes(header: str) -> tuple[str, dict[str, str]]:
    match = re.fullmatch(r'(\w+)((?: \w+="[^"]*")*)', header)
    if match is None:
        raise MalformedCallError(f"the element header {header!r:.80} is not XTML", 'write tag attr="value"')
    return match[1], dict(re.findall(r' (\w+)="([^"]*)"', match[2]))


def _quote(value: str) -> str:
    return json.dumps(value)[1:-1].replace('\\"', "\\u0022")


def _unquote(value: str) -> str:
    try:
        text = str(json.loads(f'"{value}"'))
        text.encode()  # an escape can spell a lone surrogate
        return text
    except ValueError as error:
        raise MalformedCallError(f"the attribute value {value!r:.40} has a broken escape", "use JSON's escapes") from error


class Xtml:
    """Encoder and decoder over one tokenizer."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self.open, self.sep, self.close, self.end = (tokenizer.reserved[r] for r in RESERVED)
        self._elements = {i: (text.startswith(OPEN), text.split("]", 1)[1].removesuffix(SEP)) for text, i in tokenizer.elements.items()}
        """Id -> (opens, header) of the tags with an id of their own."""
        self._closing_think = tokenizer.elements.get(f"{CLOSE}think{SEP}", self.close)
        self._text_cache: dict[str, list[int]] = {}

    # --- encoding ---

    def _text(self, text: str) -> list[int]:
        if len(text) > 400:
            return self.tokenizer.encode(text)
        if text not in self._text_cache:
            if len(self._text_cache) > 100_000:
                self._text_cache.clear()
            self._text_cache[text] = self.tokenizer.encode(text)
        return self._text_cache[text]

    def _tag(self, bracket: str, header: str) -> list[int]:
        known = self.tokenizer.elements.get(f"{bracket}{header}{SEP}")
        if known is not None:
            return [known]
        return [self.tokenizer.reserved[bracket], *self._text(header), self.sep]

    def _element(self, header: str, body: list[int]) -> list[int]:
        return [*self._tag(OPEN, header), *body, *self._tag(CLOSE, header.split(" ", 1)[0])]

    def _argument(self, name: str, value: object) -> list[int]:
        if isinstance(value, str):
            return self._element(f'arg name="{_quote(name)}"', self._text(value))
        kind = {bool: "boolean", int: "integer", float: "number"}.get(type(value), "json")
        return self._element(f'arg name="{_quote(name)}" type="{kind}"', self._text(json.dumps(value, separators=(",", ":"))))

    def assistant_body(self, message: Message) -> list[int]:
        """What the policy itself produces: everything after `generation_prefix`, the end token included."""
        ids = [*self._text(message.thinking), *self._tag(CLOSE, "think")]
        if message.content:
            ids += self._element("response", self._text(message.content))
        if message.calls:
            calls: list[int] = []
            for call in message.calls:
                body = [t for name, value in call.arguments.items() for t in self._argument(name, value)]
                calls += self._element(f'call tool="{_quote(call.tool)}" index="{call.index}"', body)
            ids += self._element("tools", calls)
        return [*ids, self.end]

    @property
    def generation_prefix(self) -> list[int]:
        """Opens an assistant message in thinking mode."""
        return [*self._tag(OPEN, 'message role="assistant"'), *self._tag(OPEN, "think")]

    def encode(self, message: Message) -> list[int]:
        """One whole message."""
        if message.role == "assistant":
            return self.generation_prefix + self.assistant_body(message)
        header = f'message role="{message.role}"'
        if message.role == "tool":
            header += f' tool="{_quote(message.tool)}" index="{message.index}"'
        return [*self._tag(OPEN, header), *self._text(message.content), self.end]

    # --- decoding ---

    def thinking_length(self, body: Sequence[int]) -> int:
        """Tokens of thinking in a sampled body: those before it is closed."""
        return next((i for i, t in enumerate(body) if t in (self._closing_think, self.close)), len(body))

    def _items(self, body: Sequence[int]) -> Iterator[tuple[str, str]]:
        """The body as ("open", header), ("close", tag), ("text", text) and ("end", "") items."""
        text: list[int] = []
        position = 0
        while position < len(body):
            token = body[position]
            position += 1
            if token not in self._elements and token not in (self.open, self.close, self.end, self.sep):
                text.append(token)
                continue
            if text:
                yield "text", self.tokenizer.decode(text)
                text = []
            if token == self.end:
                yield "end", ""
            elif token in self._elements:
                opens, header = self._elements[token]
                yield ("open" if opens else "close"), header
            elif token == self.sep:
                raise MalformedCallError("a separator stands outside a tag", "write [open]tag[sep] or [close]tag[sep]")
            else:
                stop = next((i for i in range(position, len(body)) if body[i] == self.sep), None)
                header_ids = body[position : len(body) if stop is None else stop]
                if stop is None or any(t in self._elements or t in (self.open, self.close, self.end) for t in header_ids):
                    raise MalformedCallError("a tag is not ended", "end every tag with [sep]")
                yield ("open" if token == self.open else "close"), self.tokenizer.decode(header_ids)
                position = stop + 1
        raise MalformedCallError("the message is cut short", "close every element and end the message")

    def decode_assistant(self, body: Sequence[int]) -> Message:
        """Parse what a policy sampled after `generation_prefix`.

        Raises:
            MalformedCallError: it is not a well-formed message.
        """
        reader = _Reader(self._items(body))
        thinking = reader.text_until_close("think")
        content, calls = "", []
        while reader.kind != "end":
            tag, _ = _attributes(reader.opening())
            if tag == "response":
                content = reader.text_until_close("response")
            elif tag == "tools":
                while reader.kind == "open":
                    calls.append(_call(reader))
                reader.closing("tools")
            else:
                raise MalformedCallError(f"there is no channel {tag!r:.40}", "use think, response or tools")
        return Message(role="assistant", thinking=thinking, content=content, calls=tuple(calls))

    def transcript(self, ids: Sequence[int]) -> str:
        """All tokens as text, reserved ones spelled out: for people to read."""
        names = {i: text for text, i in [*self.tokenizer.reserved.items(), *self.tokenizer.elements.items()]}
        out: list[str] = []
        text: list[int] = []
        for token in ids:
            if token in names:
                out += [self.tokenizer.decode(text), names[token]]
                text = []
            else:
                text.append(token)
        return "".join([*out, self.tokenizer.decode(text)])


class _Reader:
    """A cursor over one message's items, one ahead."""

    def __init__(self, items: Iterator[tuple[str, str]]) -> None:
        self._items = items
        self.kind, self.value = next(items)

    def _next(self) -> None:
        self.kind, self.value = next(self._items)

    def opening(self) -> str:
        if self.kind != "open":
            raise MalformedCallError(f"{self.value!r:.40} stands where an element must open", "put text inside a channel")
        header = self.value
        self._next()
        return header

    def text_until_close(self, tag: str) -> str:
        text = ""
        if self.kind == "text":
            text = self.value
            self._next()
        self.closing(tag)
        return text

    def closing(self, tag: str) -> None:
        if self.kind != "close" or self.value != tag:
            raise MalformedCallError(f"{self.kind} {self.value!r:.40} stands where {tag} must close", f"close {tag}")
        self._next()


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def _call(reader: _Reader) -> ToolCall:
    tag, attributes = _attributes(reader.opening())
    if tag != "call" or "tool" not in attributes or not re.fullmatch(r"[0-9]{1,4}", attributes.get("index", "0")):
        raise MalformedCallError(f"expected a call, got {tag!r:.40}", 'write call tool="name" index="0"')
    arguments: dict[str, object] = {}
    while reader.kind == "open":
        arg_tag, arg = _attributes(reader.opening())
        if arg_tag != "arg" or "name" not in arg:
            raise MalformedCallError(f"expected an argument, got {arg_tag!r:.40}", 'write arg name="name"')
        text = reader.text_until_close("arg")
        if "type" in arg:
            try:
                value = json.loads(text, parse_constant=_no_constant)
                json.dumps(value, ensure_ascii=False).encode()  # an escape can spell a lone surrogate
            except (ValueError, RecursionError) as error:
                raise MalformedCallError(f"argument {arg['name']!r:.40} is not JSON: {text!r:.40}", "write compact JSON") from error
            arguments[_unquote(arg["name"])] = value
        else:
            arguments[_unquote(arg["name"])] = text
    reader.closing("call")
    return ToolCall(tool=_unquote(attributes["tool"]), arguments=arguments, index=int(attributes.get("index", "0")))
