"""The XTML parser: tokens go in, one at a time or many, and events come out; damage is located token by token.

Whole messages are read by the same parser, fed at once, so streamed and batch results cannot differ. What a call contains is
checked within the call: a bad one becomes a `ToolCall` with `malformed`, and parsing goes on where the call ends. Damage
outside calls breaks the message. Nothing is ever encoded here: spans are positions in the tokens that were sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from environments.errors import MalformedCallError
from environments.harness.xtml_tags import Structure, read_index, read_tag, read_value, unfit
from environments.task import Image, Message, Option, ToolCall, ToolSpec

# --- events ---


class Span(NamedTuple):
    """Malformed tokens: positions `start` to `end`, exclusive, in what the decoder was fed."""

    start: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class TextDelta:
    """More thinking or content; only whole characters."""

    channel: Literal["thinking", "content"]
    text: str


@dataclass(frozen=True, slots=True)
class ImageRead:
    """A picture within the content."""

    image: Image


@dataclass(frozen=True, slots=True)
class CallStarted:
    """A call has opened; its arguments follow. One whose header cannot be read only finishes."""

    tool: str
    index: int


@dataclass(frozen=True, slots=True)
class ArgumentStarted:
    """An argument of the open call. `type` is empty for text, else the JSON type that was declared."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class ArgumentDelta:
    """More of the open argument, as written; only whole characters."""

    text: str


@dataclass(frozen=True, slots=True)
class CallFinished:
    """The open call has ended, with parsed values or `malformed`. It is not to be executed before the message has ended."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """The whole message."""

    message: Message


@dataclass(frozen=True, slots=True)
class MessageBroken:
    """Structure outside calls is damaged: there is no message, and further tokens are not read."""

    error: MalformedCallError


Event = TextDelta | ImageRead | CallStarted | ArgumentStarted | ArgumentDelta | CallFinished | MessageEnd | MessageBroken


# --- the parser ---

_ROLES = get_args(Message.model_fields["role"].annotation)
_OPTIONS = get_args(Option)
_MEDIA = get_args(Image.model_fields["media_type"].annotation)


class _Text:
    """Decodes a run of text in pieces that end between characters, in time linear in its tokens."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._probe = 1

    def push(self, ids: Sequence[int]) -> str:
        self._ids += ids
        if len(self._ids) < self._probe:
            return ""
        # A replacement character at the end may be the first bytes of a character: the last few tokens wait.
        for held in range(min(4, len(self._ids))):
            cut = len(self._ids) - held
            text = self._decode(self._ids[:cut])
            if not text.endswith("\ufffd"):
                del self._ids[:cut]
                self._probe = 1
                return text
        # Bytes that are no text, or tokens that all end within characters: look again when there are twice as many.
        self._probe = len(self._ids) + 1 if len(self._ids) < 4 else 2 * len(self._ids)
        return ""

    def flush(self) -> str:
        text = self._decode(self._ids) if self._ids else ""
        self._ids, self._probe = [], 1
        return text


@dataclass
class _Call:
    start: int
    """Position of its opening tag."""
    spans_before: int
    tool: str = ""
    index: int = 0
    arguments: dict[str, object] = field(default_factory=dict)
    reason: str = ""
    """Why it is malformed."""
    loose: list[int] | None = None
    """Its tokens, when they are nothing but text."""
    argument: tuple[int, str, str | None] = (0, "", None)
    """Start, name and type of the open argument."""
    parts: list[str] = field(default_factory=list)


Start = Literal["message", "think", "response"]
"""Where the tokens begin: at a message's opening tag, or right after the generation prefix of thinking or instruct mode."""
_State = Literal["start", "think", "content", "image", "between", "tools", "call", "argument", "skip", "done", "broken"]
_CHANNELS: dict[str, _State] = {"think": "think", "response": "content", "tools": "tools"}
_CLOSES: dict[_State, str] = {
    "think": "think",
    "content": "response",
    "image": "image",
    "tools": "tools",
    "call": "call",
    "argument": "arg",
}
"""The tag that closes a state."""


class StreamDecoder:
    """Reads one message. `feed` it tokens until it is `done`; then `message` or `error` is set."""

    def __init__(self, structure: Structure, start: Start = "think", tools: Sequence[ToolSpec] | None = None) -> None:
        """With `tools`, calls are also checked against them; this shows in `spans` alone."""
        self.message: Message | None = None
        self.error: MalformedCallError | None = None
        self._structure = structure
        self._tools = None if tools is None else {t.name: t for t in tools}
        self._ids: list[int] = []
        self._at = 0
        self._tag: tuple[int, bool] | None = None
        """Start of the tag that is being spelled out, and whether it opens."""
        self._state: _State = "start" if start == "message" else _CHANNELS[start]
        self._head: dict[str, Any] = {"role": "assistant"}
        self._seen: set[str] = {start}
        self._bare = False
        """Content stands in the message itself, not in a channel."""
        self._text = _Text(structure.tokenizer.decode)
        self._parts: dict[str, list[str]] = {"thinking": [], "content": [], "image": []}
        self._images: list[Image] = []
        self._media = ""
        self._calls: list[ToolCall] = []
        self._call = _Call(0, 0)
        self._spans: list[Span] = []
        self._events: list[Event] = []

    @property
    def done(self) -> bool:
        """True once the message has ended or is broken."""
        return self._state in ("done", "broken")

    @property
    def spans(self) -> list[Span]:
        """Malformed tokens so far, in order: a malformed or unknown call whole, a bad argument's element, the tag that closes a call
        without a required argument; of a broken message everything from where it broke."""
        spans = [s if s.end >= 0 else Span(s.start, len(self._ids), s.reason) for s in self._spans]
        if self._state == "skip":
            spans[self._call.spans_before :] = [Span(self._call.start, len(self._ids), self._call.reason)]
        return spans

    def feed(self, tokens: Sequence[int]) -> list[Event]:
        """Read more tokens; what they completed, in order."""
        self._events = []
        ids, structural = self._ids, self._structure.ids
        ids.extend(tokens)
        at, stop = self._at, len(ids)
        while at < stop and self._state != "broken":
            start = at
            while at < stop and ids[at] not in structural:
                at += 1
            if at > start and self._tag is None:
                self._read_text(start, at)
            if at < stop:
                self._read_structure(ids[at], at)
                at += 1
        self._at = stop
        return self._events

    def close(self) -> list[Event]:
        """No more tokens come, though the message may not have ended: what was held back of its text."""
        self._events = []
        self._take(self._text.flush())
        return self._events

    def result(self) -> Message:
        """The message.

        Raises:
            MalformedCallError: it is broken or has not ended.
        """
        if self.error is not None:
            raise self.error
        if self.message is None:
            raise MalformedCallError("the message is cut short", "close every element and end the message")
        return self.message

    # --- tokens to items ---

    def _read_structure(self, token: int, at: int) -> None:
        s = self._structure
        if self._tag is not None:
            start, opens = self._tag
            self._tag = None
            if token == s.sep:
                self._item(opens, s.tokenizer.decode(self._ids[start + 1 : at]), start, at + 1)
                return
            self._damage(MalformedCallError("a tag is not ended", "end every tag with [sep]"), start)
        else:
            self._take(self._text.flush())
        if token == s.open or token == s.close:
            self._tag = (at, token == s.open)
        elif token == s.end:
            self._end(at)
        elif token == s.sep:
            self._damage(MalformedCallError("a separator stands outside a tag", "write [open]tag[sep] or [close]tag[sep]"), at)
        else:
            self._item(*s.elements[token], at, at + 1)

    def _item(self, opens: bool, header: str, start: int, stop: int) -> None:
        if self._state == "skip":
            self._skip(opens, header, start, stop)
            return
        try:
            (self._opening if opens else self._closing)(header, start, stop)
        except MalformedCallError as error:
            if self._damage(error, start):
                self._skip(opens, header, start, stop)

    # --- text ---

    def _read_text(self, start: int, stop: int) -> None:
        ids = self._ids[start:stop]
        if self._state in ("think", "image", "argument") or (self._state == "content" and not self._images):
            self._take(self._text.push(ids))
        elif self._state == "call":
            self._damage(MalformedCallError(f"text stands in the call of {self._call.tool!r:.40}", 'write arg name="name"'), start)
            self._call.loose = None if self._call.arguments else ids
        elif self._state == "skip":
            if self._call.loose is not None:
                self._call.loose += ids
        elif self._state != "broken":
            self._damage(MalformedCallError("text stands where an element must open", "put text inside a channel"), start)

    def _take(self, text: str) -> None:
        if not text:
            return
        if self._state == "think":
            self._parts["thinking"].append(text)
            self._events.append(TextDelta("thinking", text))
        elif self._state == "content":
            self._parts["content"].append(text)
            self._events.append(TextDelta("content", text))
        elif self._state == "image":
            self._parts["image"].append(text)
        elif self._state == "argument":
            self._call.parts.append(text)
            self._events.append(ArgumentDelta(text))

    # --- items ---

    def _opening(self, header: str, start: int, stop: int) -> None:
        if self._state == "tools":
            self._open_call(header, start)
            return
        tag, attributes = read_tag(header)
        if self._state == "call" and tag == "arg":
            self._open_argument(attributes, start)
        elif self._state == "content" and tag == "image":
            self._media = attributes.get("type", "")
            if self._media not in _MEDIA:
                raise MalformedCallError(f"there is no image type {self._media!r:.40}", "use image/png or image/jpeg")
            self._state = "image"
        elif self._state == "between" or (self._state == "content" and self._bare):
            if tag in self._seen or tag not in _CHANNELS:
                raise MalformedCallError(f"there is no channel {tag!r:.40}, or it came before", "use think, response or tools, each once")
            self._seen.add(tag)
            self._state, self._bare = _CHANNELS[tag], False
        elif self._state == "start" and tag == "message":
            self._open_message(attributes)
        else:
            raise MalformedCallError(f"{header!r:.40} opens where it may not", "close the element before it")

    def _closing(self, tag: str, start: int, stop: int) -> None:
        expected = _CLOSES.get(self._state)
        if expected != tag or (self._state == "content" and self._bare):
            raise MalformedCallError(f"{tag!r:.40} closes where it may not", f"close {expected or 'nothing here'}")
        if self._state == "argument":
            self._close_argument(stop)
        elif self._state == "call":
            self._close_call(start, stop)
        elif self._state == "image":
            image = Image.model_validate({"data": "".join(self._parts["image"]), "media_type": self._media})
            self._parts["image"] = []
            self._images.append(image)
            self._events.append(ImageRead(image))
            self._state = "content"
        else:
            self._state = "between"

    def _end(self, at: int) -> None:
        if self._state in ("call", "argument"):
            self._damage(MalformedCallError("the call is not closed", "close it before the message ends"), at)
        if self._state == "skip":
            self._end_malformed(at, at + 1)
        elif self._state != "between" and not (self._state == "content" and self._bare):
            self._damage(MalformedCallError("the message ends within an element, or twice", "close every element and end the message"), at)
            return
        self._state = "done"
        self.message = Message(
            thinking="".join(self._parts["thinking"]),
            content="".join(self._parts["content"]),
            images=tuple(self._images),
            calls=tuple(self._calls),
            **self._head,
        )
        self._events.append(MessageEnd(self.message))

    def _open_message(self, attributes: dict[str, str]) -> None:
        role, option = attributes.get("role", ""), attributes.get("option", "")
        if role not in _ROLES or option not in _OPTIONS:
            raise MalformedCallError(f"there is no role {role!r:.40}, or no option {option!r:.40}", "use system, user, assistant or tool")
        index = read_index(attributes.get("index", "0"))
        self._head = {"role": role, "option": option, "tool": attributes.get("tool", ""), "index": index}
        if role == "assistant":
            self._state = "between"
        else:
            self._state, self._bare = "content", True
            self._seen.add("response")

    # --- calls ---

    def _open_call(self, header: str, start: int) -> None:
        self._call = _Call(start, len(self._spans))
        self._state = "call"
        try:
            tag, attributes = read_tag(header)
            if tag != "call" or "tool" not in attributes:
                raise MalformedCallError(f"expected a call, got {header!r:.40}", 'write call tool="name" index="0"')
            self._call.tool = attributes["tool"]
            self._call.index = read_index(attributes.get("index", "0"))
        except MalformedCallError as error:
            self._damage(error, start)
            return
        self._events.append(CallStarted(self._call.tool, self._call.index))

    def _open_argument(self, attributes: dict[str, str], start: int) -> None:
        if "name" not in attributes:
            raise MalformedCallError("an argument has no name", 'write arg name="name"')
        if attributes["name"] in self._call.arguments:
            raise MalformedCallError(f"argument {attributes['name']!r:.40} is given twice", "give it once")
        self._call.argument = (start, attributes["name"], attributes.get("type"))
        self._call.parts = []
        self._state = "argument"
        self._events.append(ArgumentStarted(attributes["name"], attributes.get("type", "")))

    def _close_argument(self, stop: int) -> None:
        start, name, kind = self._call.argument
        value = read_value(name, "".join(self._call.parts), kind)
        self._call.arguments[name] = value
        self._state = "call"
        if self._tools is not None and self._call.tool in self._tools:
            tool = self._tools[self._call.tool]
            parameter = next((p for p in tool.parameters if p.name == name), None)
            if reason := unfit(tool, parameter, name, value):
                self._spans.append(Span(start, stop, reason))

    def _close_call(self, start: int, stop: int) -> None:
        call = self._call
        if self._tools is not None:
            tool = self._tools.get(call.tool)
            if tool is None:
                self._spans.append(Span(call.start, stop, f"there is no tool {call.tool!r:.60}"))
            elif missing := [p.name for p in tool.parameters if p.required and p.name not in call.arguments]:
                self._spans.append(Span(start, stop, f"{tool.name} lacks {', '.join(missing)}"))
        self._finish(ToolCall(tool=call.tool, arguments=call.arguments, index=call.index))

    def _finish(self, call: ToolCall) -> None:
        self._calls.append(call)
        self._events.append(CallFinished(call))
        self._state = "tools"

    # --- damage ---

    def _damage(self, error: MalformedCallError, at: int) -> bool:
        """Within a call (then True): it is malformed, and skipped to its end. Elsewhere the message is broken."""
        self._text.flush()
        if self._state in ("call", "argument"):
            self._call.reason = error.message
            self._state = "skip"
        elif self._state == "skip":
            self._call.loose = None
        elif self._state != "broken":
            self.error = error
            self.message = None
            self._state = "broken"
            self._spans.append(Span(at, -1, error.message))
            self._events.append(MessageBroken(error))
        return self._state == "skip"

    def _skip(self, opens: bool, header: str, start: int, stop: int) -> None:
        """A malformed call ends where it closes, or where another call opens or the channel closes."""
        if not opens and header == "call":
            self._end_malformed(stop, stop)
        elif opens and header.startswith("call"):
            self._end_malformed(start, start)
            self._open_call(header, start)
        elif not opens and header == "tools":
            self._end_malformed(start, start)
            self._state = "between"
        else:
            self._call.loose = None

    def _end_malformed(self, stop: int, marked: int) -> None:
        """`marked`: where the malformed tokens end, which may be past the call's own."""
        call, s = self._call, self._structure
        text = s.tokenizer.decode(call.loose) if call.loose else ""
        malformed = text or s.spell(self._ids[call.start : stop])
        self._spans[call.spans_before :] = [Span(call.start, marked, call.reason)]
        self._finish(ToolCall(tool=call.tool, malformed=malformed, index=call.index))
