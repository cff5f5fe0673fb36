"""XTML: XML-like messages whose angle brackets are reserved tokens (Kimi K3 report, appendix F).

An element is ``[open]tag attr="v"[sep] ... [close]tag[sep]``; a message runs from its opening element to
``[end_of_msg]``, the only stop token. Text can never forge structure: reserved tokens have ids that encoding text does
not produce. String arguments are raw text; other types are compact JSON with a `type` attribute.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Protocol

from environments.errors import MalformedCallError
from environments.task import Message, ToolCall

OPEN, SEP, CLOSE, END = "[open]", "[sep]", "[close]", "[end_of_msg]"
RESERVED = (OPEN, SEP, CLOSE, END)


class TextTokenizer(Protocol):
    """What the codec needs of a tokenizer."""

    reserved: dict[str, int]
    """Ids of `RESERVED`; never produced by `encode`."""
    headers: dict[str, int]
    """Whole element headers that have a token of their own, such as ``call tool="search" index="0"``."""

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
    return str(json.loads(f'"{value}"'))


class Xtml:
    """Encoder and decoder over one tokenizer."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self.open, self.sep, self.close, self.end = (tokenizer.reserved[r] for r in RESERVED)
        self._header_text = {i: h for h, i in tokenizer.headers.items()}
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

    def _header(self, header: str) -> list[int]:
        known = self.tokenizer.headers.get(header)
        return [known] if known is not None else self._text(header)

    def _element(self, header: str, body: list[int]) -> list[int]:
        tag = header.split(" ", 1)[0]
        return [self.open, *self._header(header), self.sep, *body, self.close, *self._header(tag), self.sep]

    def _argument(self, name: str, value: object) -> list[int]:
        if isinstance(value, str):
            return self._element(f'arg name="{_quote(name)}"', self._text(value))
        kind = {bool: "boolean", int: "integer", float: "number"}.get(type(value), "json")
        return self._element(f'arg name="{_quote(name)}" type="{kind}"', self._text(json.dumps(value, separators=(",", ":"))))

    def assistant_body(self, message: Message) -> list[int]:
        """What the policy itself produces: everything after `generation_prefix`, the end token included."""
        ids = [*self._text(message.thinking), self.close, *self._header("think"), self.sep]
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
        return [self.open, *self._header('message role="assistant"'), self.sep, self.open, *self._header("think"), self.sep]

    def encode(self, message: Message) -> list[int]:
        """One whole message."""
        if message.role == "assistant":
            return self.generation_prefix + self.assistant_body(message)
        header = f'message role="{message.role}"'
        if message.role == "tool":
            header += f' tool="{_quote(message.tool)}" index="{message.index}"'
        return [self.open, *self._header(header), self.sep, *self._text(message.content), self.end]

    # --- decoding ---

    def _read(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids)

    def _read_header(self, ids: Sequence[int]) -> str:
        if len(ids) == 1 and ids[0] in self._header_text:
            return self._header_text[ids[0]]
        return self._read(ids)

    def thinking_length(self, body: Sequence[int]) -> int:
        """Tokens of thinking in a sampled body: those before the first [close]."""
        return next((i for i, t in enumerate(body) if t == self.close), len(body))

    def decode_assistant(self, body: Sequence[int]) -> Message:
        """Parse what a policy sampled after `generation_prefix`.

        Raises:
            MalformedCallError: it is not a well-formed message.
        """
        reader = _Reader(self, body)
        thinking = self._read(reader.until_close("think"))
        content, calls = "", []
        while not reader.at(self.end):
            tag, _ = _attributes(reader.header())
            if tag == "response":
                content = self._read(reader.until_close("response"))
            elif tag == "tools":
                while reader.at(self.open):
                    calls.append(self._call(reader))
                reader.closing("tools")
            else:
                raise MalformedCallError(f"there is no channel {tag!r:.40}", "use think, response or tools")
        return Message(role="assistant", thinking=thinking, content=content, calls=tuple(calls))

    def _call(self, reader: _Reader) -> ToolCall:
        tag, attributes = _attributes(reader.header())
        if tag != "call" or "tool" not in attributes or not attributes.get("index", "0").isdigit():
            raise MalformedCallError(f"expected a call, got {tag!r:.40}", 'write call tool="name" index="0"')
        arguments: dict[str, object] = {}
        while reader.at(self.open):
            arg_tag, arg = _attributes(reader.header())
            if arg_tag != "arg" or "name" not in arg:
                raise MalformedCallError(f"expected an argument, got {arg_tag!r:.40}", 'write arg name="name"')
            text = self._read(reader.until_close("arg"))
            if "type" in arg:
                try:
                    arguments[_unquote(arg["name"])] = json.loads(text)
                except ValueError as error:
                    raise MalformedCallError(f"argument {arg['name']!r:.40} is not JSON: {text!r:.40}", "write compact JSON") from error
            else:
                arguments[_unquote(arg["name"])] = text
        reader.closing("call")
        return ToolCall(tool=_unquote(attributes["tool"]), arguments=arguments, index=int(attributes.get("index", "0")))

    def transcript(self, ids: Sequence[int]) -> str:
        """All tokens as text, reserved ones spelled out: for people to read."""
        names = {i: r for r, i in self.tokenizer.reserved.items()} | self._header_text
        out, text = [], []
        for token in ids:
            if token in names:
                out += [self._read(text), names[token]]
                text = []
            else:
                text.append(token)
        return "".join([*out, self._read(text)])


class _Reader:
    """A cursor over one message's tokens."""

    def __init__(self, codec: Xtml, ids: Sequence[int]) -> None:
        self.codec, self.ids, self.position = codec, ids, 0

    def at(self, token: int) -> bool:
        if self.position >= len(self.ids):
            raise MalformedCallError("the message is cut short", "close every element and end the message")
        return self.ids[self.position] == token

    def _take_to(self, token: int) -> Sequence[int]:
        start = self.position
        while not self.at(token):
            self.position += 1
        self.position += 1
        return self.ids[start : self.position - 1]

    def header(self) -> str:
        if not self.at(self.codec.open):
            raise MalformedCallError("text stands where an element must open", "put text inside a channel")
        self.position += 1
        return self.codec._read_header(self._take_to(self.codec.sep))

    def until_close(self, tag: str) -> Sequence[int]:
        body = self._take_to(self.codec.close)
        if any(t in (self.codec.open, self.codec.sep, self.codec.end) for t in body):
            raise MalformedCallError(f"{tag} holds markup where only text may stand", f"close {tag} first")
        self.position -= 1
        self.closing(tag)
        return body

    def closing(self, tag: str) -> None:
        if not self.at(self.codec.close):
            raise MalformedCallError(f"{tag} is not closed", f"close {tag}")
        self.position += 1
        closed = self.codec._read_header(self._take_to(self.codec.sep))
        if closed != tag:
            raise MalformedCallError(f"{closed!r:.40} closes {tag}", f"close {tag}")
