"""XTML: XML-like messages whose angle brackets are reserved tokens (Kimi K3 report, appendix F).

An element is ``[open]tag attr="v"[sep] ... [close]tag[sep]``; a message runs from its opening element to
``[end_of_msg]``, the only stop token. Text can never forge structure: reserved tokens have ids that encoding text does
not produce. String arguments are raw text; other types are compact JSON with a `type` attribute. Pictures are elements
after a message's text. A call whose arguments could not be read stands in the history as the bare text of them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from environments.errors import InputError
from environments.harness.xtml_stream import Span, StreamDecoder
from environments.harness.xtml_tags import (
    CLOSE,
    END,
    MAX_INDEX,
    OPEN,
    RESERVED,
    SEP,
    Structure,
    TextTokenizer,
    argument_header,
    call_header,
    quote,
    whole,
)
from environments.task import Message, ToolCall, ToolSpec

__all__ = ["CLOSE", "END", "OPEN", "RESERVED", "SEP", "Span", "StreamDecoder", "TextTokenizer", "Xtml"]


class Xtml:
    """Encoder and decoder over one tokenizer. `thinking=False` everywhere means instruct mode: the answer comes at once."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self.structure = Structure(tokenizer)
        self.open, self.sep, self.close, self.end = (tokenizer.reserved[r] for r in RESERVED)
        self._closing_think = tokenizer.elements.get(f"{CLOSE}think{SEP}", self.close)
        self._text_cache: dict[str, list[int]] = {}

    # --- encoding ---

    def _text(self, text: str) -> list[int]:
        known = self._text_cache.get(text)
        if known is not None:
            return known
        ids = self.tokenizer.encode(whole(text))
        if len(text) <= 400:
            if len(self._text_cache) > 100_000:
                self._text_cache.clear()
            self._text_cache[text] = ids
        return ids

    def _tag(self, bracket: str, header: str) -> list[int]:
        known = self.tokenizer.elements.get(f"{bracket}{header}{SEP}")
        if known is not None:
            return [known]
        return [self.tokenizer.reserved[bracket], *self._text(header), self.sep]

    def _element(self, header: str, body: list[int]) -> list[int]:
        return [*self._tag(OPEN, header), *body, *self._tag(CLOSE, header.split(" ", 1)[0])]

    def _argument(self, name: str, value: object) -> list[int]:
        if isinstance(value, str):
            return self._element(argument_header(name), self._text(value))
        kind = {bool: "boolean", int: "integer", float: "number"}.get(type(value), "json")
        try:
            text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InputError(f"argument {name!r:.40} is not JSON: {error!s:.80}", "pass plain finite values") from error
        return self._element(argument_header(name, kind), self._text(text))

    def _call(self, call: ToolCall) -> list[int]:
        if call.malformed and call.arguments:
            raise InputError(f"a malformed call of {call.tool!r:.40} has arguments", "give it either")
        if not 0 <= call.index <= MAX_INDEX:
            raise InputError(f"call index {call.index} is not in 0 to {MAX_INDEX}", "number the calls of a message from 0")
        body = self._text(call.malformed) if call.malformed else [t for name, v in call.arguments.items() for t in self._argument(name, v)]
        return self._element(call_header(call.tool, call.index), body)

    def _content(self, message: Message) -> list[int]:
        pictures = [t for i in message.images for t in self._element(f'image type="{i.media_type}"', self._text(i.data))]
        return [*self._text(message.content), *pictures]

    def _tools(self, message: Message) -> list[int]:
        return self._element("tools", [t for call in message.calls for t in self._call(call)]) if message.calls else []

    def assistant_body(self, message: Message, thinking: bool = True) -> list[int]:
        """What the policy itself produces: everything after the generation prefix, the end token included.

        Raises:
            InputError: thinking in instruct mode, a value that is not JSON, a lone surrogate, or an index out of range.
        """
        if thinking:
            ids = [*self._text(message.thinking), *self._tag(CLOSE, "think")]
            if message.content or message.images:
                ids += self._element("response", self._content(message))
        else:
            if message.thinking:
                raise InputError(f"instruct mode has no room for thinking: {message.thinking!r:.60}", "encode it in thinking mode")
            ids = [*self._content(message), *self._tag(CLOSE, "response")]
        return [*ids, *self._tools(message), self.end]

    @property
    def generation_prefix(self) -> list[int]:
        """Opens an assistant message in thinking mode."""
        return self.prefix()

    def prefix(self, thinking: bool = True) -> list[int]:
        """Opens an assistant message; this alone selects thinking or instruct mode."""
        return [*self._tag(OPEN, 'message role="assistant"'), *self._tag(OPEN, "think" if thinking else "response")]

    def encode(self, message: Message, thinking: bool = True) -> list[int]:
        """One whole message. Fields that are unusual for its role are encoded too: `decode` gives back what came in.

        Raises:
            InputError: as `assistant_body`; an index out of range.
        """
        if not 0 <= message.index <= MAX_INDEX:
            raise InputError(f"message index {message.index} is not in 0 to {MAX_INDEX}", "repeat the call's")
        header = f'message role="{message.role}"'
        if message.option:
            header += f' option="{message.option}"'
        if message.role == "tool" or message.tool or message.index:
            header += f' tool="{quote(message.tool)}" index="{message.index}"'
        ids = self._tag(OPEN, header)
        if message.role == "assistant":
            return [*ids, *self._tag(OPEN, "think" if thinking else "response"), *self.assistant_body(message, thinking)]
        thoughts = self._element("think", self._text(message.thinking)) if message.thinking else []
        return [*ids, *self._content(message), *thoughts, *self._tools(message), self.end]

    # --- decoding ---

    def stream(self, thinking: bool = True, tools: Sequence[ToolSpec] | None = None) -> StreamDecoder:
        """A decoder for what a policy samples after the prefix; with `tools`, its spans also cover calls that these do not take."""
        return StreamDecoder(self.structure, "think" if thinking else "response", tools)

    def decode(self, ids: Sequence[int]) -> Message:
        """Parse one whole message of any role, from its opening tag to its end token.

        Raises:
            MalformedCallError: it is not a well-formed message.
        """
        decoder = StreamDecoder(self.structure, "message")
        decoder.feed(ids)
        return decoder.result()

    def decode_assistant(self, body: Sequence[int], thinking: bool = True) -> Message:
        """Parse what a policy sampled after the prefix. A call that cannot be read comes back as malformed.

        Raises:
            MalformedCallError: it is not a well-formed message.
        """
        decoder = self.stream(thinking)
        decoder.feed(body)
        return decoder.result()

    def malformed_spans(self, body: Sequence[int], tools: Sequence[ToolSpec] | None = None, thinking: bool = True) -> list[Span]:
        """Which tokens of a sampled body are malformed: the h of behaviour regularisation (MiMo V2.6, eq. 5).

        A call that cannot be read or, given `tools`, is of an unknown tool counts whole; of a bad argument its element; of a
        missing one the tag that closes the call without it; of a broken message everything from where it broke. Spans are in
        order and do not overlap. A body that was cut short is not malformed for that.
        """
        decoder = self.stream(thinking, tools)
        decoder.feed(body)
        return decoder.spans

    def thinking_length(self, body: Sequence[int], thinking: bool = True) -> int:
        """Tokens of thinking in a sampled body: those before it is closed."""
        if not thinking:
            return 0
        return next((i for i, t in enumerate(body) if t in (self._closing_think, self.close)), len(body))

    def transcript(self, ids: Sequence[int]) -> str:
        """All tokens as text, reserved ones spelled out: for people to read."""
        return self.structure.spell(ids)
