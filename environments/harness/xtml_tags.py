"""What XTML is made of: reserved tokens, tags with attributes, and values that are text or JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Protocol

from environments.errors import InputError, MalformedCallError
from environments.task import ToolParameter, ToolSpec

OPEN, SEP, CLOSE, END = "[open]", "[sep]", "[close]", "[end_of_msg]"
RESERVED = (OPEN, SEP, CLOSE, END)
MAX_INDEX = 9999
"""Of a call or of the message that answers it."""


class TextTokenizer(Protocol):
    """What the codec needs of a tokenizer. Decoding is piecewise: ids cut between characters decode to the parts of the text."""

    reserved: dict[str, int]
    """Ids of `RESERVED`; never produced by `encode`."""
    elements: dict[str, int]
    """Whole tags that have an id of their own, such as ``[open]call tool="search" index="0"[sep]`` or ``[close]arg[sep]``."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...


class Structure:
    """Which ids of a tokenizer are structure, and what they mean. Made once per tokenizer."""

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self.tokenizer = tokenizer
        self.open, self.sep, self.close, self.end = (tokenizer.reserved[r] for r in RESERVED)
        self.elements = {i: (text.startswith(OPEN), text.split("]", 1)[1].removesuffix(SEP)) for text, i in tokenizer.elements.items()}
        """Id -> (opens, header) of the tags with an id of their own."""
        self.names = {i: text for text, i in [*tokenizer.reserved.items(), *tokenizer.elements.items()]}
        self.ids = frozenset(self.names)

    def spell(self, ids: Sequence[int]) -> str:
        """All tokens as text, reserved ones spelled out."""
        out: list[str] = []
        start = 0
        for at, token in enumerate(ids):
            if token in self.names:
                out += [self.tokenizer.decode(ids[start:at]), self.names[token]]
                start = at + 1
        return "".join([*out, self.tokenizer.decode(ids[start:])])


# --- tags and values ---

_HEADER = re.compile(r'(\w+)((?: \w+="[^"]*")*)', re.ASCII)
_ATTRIBUTE = re.compile(r' (\w+)="([^"]*)"', re.ASCII)
_ATTRIBUTES = {
    "message": {"role", "tool", "index", "option"},
    "call": {"tool", "index"},
    "arg": {"name", "type"},
    "image": {"type"},
}
_KINDS: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "json": (object,),
}
"""`type` of an argument and what its JSON may be; bool counts as boolean alone."""
PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
"""What a value may be, by the type of a `ToolParameter`."""


def whole(text: str) -> str:
    """The text itself. Raises InputError when it holds a lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{text!r:.60} holds a lone surrogate", "replace it: no tokenizer takes half a character") from error
    return text


def quote(value: str) -> str:
    """An attribute's value, in ASCII and without quotes. Raises InputError when it holds a lone surrogate."""
    return json.dumps(whole(value))[1:-1].replace('\\"', "\\u0022")


def call_header(tool: str, index: int) -> str:
    """What stands in a call's opening tag."""
    return f'call tool="{quote(tool)}" index="{index}"'


def argument_header(name: str, kind: str = "") -> str:
    """What stands in an argument's opening tag. `kind`: boolean, integer, number, json, or empty for text."""
    return f'arg name="{quote(name)}"' + (f' type="{kind}"' if kind else "")


def _unquote(value: str) -> str:
    try:
        text = str(json.loads(f'"{value}"'))
        text.encode()  # an escape can spell a lone surrogate
    except ValueError as error:
        raise MalformedCallError(f"the attribute value {value!r:.40} has a broken escape", "use JSON's escapes") from error
    return text


def read_tag(header: str) -> tuple[str, dict[str, str]]:
    """Tag and attributes of ``tag attr="v"``.

    Raises:
        MalformedCallError: it is not of that form, or an attribute is unknown or given twice.
    """
    match = _HEADER.fullmatch(header)
    if match is None:
        raise MalformedCallError(f"the element header {header!r:.80} is not XTML", 'write tag attr="value"')
    pairs = _ATTRIBUTE.findall(match[2])
    attributes = {name: _unquote(value) for name, value in pairs}
    known = _ATTRIBUTES.get(match[1], set())
    if len(attributes) != len(pairs) or not attributes.keys() <= known:
        raise MalformedCallError(f"{header!r:.80} has unknown or repeated attributes", f"use once: {', '.join(sorted(known)) or 'none'}")
    return match[1], attributes


def read_index(text: str) -> int:
    """The number of a call or of its answer. Raises MalformedCallError when it is none."""
    if not re.fullmatch(r"[0-9]{1,4}", text):
        raise MalformedCallError(f"the index {text!r:.40} is not a number from 0 to {MAX_INDEX}", "number calls from 0")
    return int(text)


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not JSON")


def read_value(name: str, text: str, kind: str | None) -> object:
    """An argument's value: JSON of its `kind`, or the text itself where that is None.

    Raises:
        MalformedCallError: an unknown kind, or text that is not JSON of it, not finite or not Unicode.
    """
    if kind is None:
        return text
    if kind not in _KINDS:
        raise MalformedCallError(f"argument {name!r:.40} has no known type: {kind!r:.40}", f"use {', '.join(_KINDS)}, or none for text")
    try:
        value = json.loads(text, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # 1e999 reads as infinity, "\ud800" as half a character
    except (ValueError, RecursionError) as error:
        raise MalformedCallError(f"argument {name!r:.40} is not JSON: {text!r:.40}", "write compact JSON") from error
    if not _is(value, _KINDS[kind]):
        raise MalformedCallError(f"argument {name!r:.40} is not of its type {kind}: {text!r:.40}", "write a value of the type")
    return value


def _is(value: object, types: tuple[type, ...]) -> bool:
    return isinstance(value, types) and (not isinstance(value, bool) or bool in types or object in types)


def unfit(tool: ToolSpec, parameter: ToolParameter | None, name: str, value: object) -> str:
    """Why a tool does not take this argument; empty when it does. The rules are those of `Environment.step`."""
    if parameter is None:
        return f"{tool.name} has no argument {name!r:.60}"
    if not _is(value, PYTHON_TYPES[parameter.type]):
        return f"{tool.name}.{name} is not of type {parameter.type}: {value!r:.60}"
    return ""
