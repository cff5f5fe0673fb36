"""Compact JSON as an automaton over characters: what may come next in a value of a tool parameter's type.

It reads exactly what the codec reads back: no white space, at most `MAX_DEPTH` open brackets, numbers that are finite, and
escapes that spell whole characters. States are immutable and hashable.
"""

from __future__ import annotations

import math
from typing import NamedTuple

MAX_DEPTH = 64
"""Of arrays and objects within an argument."""
MAX_DIGITS = 4300
"""Of a number before its exponent, sign and point included: Python's own limit for reading integers."""


class Json(NamedTuple):
    """A state: what comes next, the open brackets, and the number, literal or escape so far."""

    mode: str
    stack: str = ""
    text: str = ""


_FIRST = {"integer": "-0123456789", "number": "-0123456789", "boolean": "tf", "array": "[", "object": "{"}
"""Characters that a value of a parameter's type starts with."""
_WHOLE = "I"
"""Bottom of the stack where only an integer may stand."""
_DONE = frozenset({"end", "zero", "int", "frac", "exp"})
_DIGITS = frozenset("0123456789")
_NUMBER: dict[str, dict[str, str]] = {
    "neg": {"0": "zero", "1": "int"},
    "zero": {".": "dot", "e": "e"},
    "int": {"0": "int", "1": "int", ".": "dot", "e": "e"},
    "dot": {"0": "frac", "1": "frac"},
    "frac": {"0": "frac", "1": "frac", "e": "e"},
    "e": {"0": "exp", "1": "exp", "+": "sign"},
    "sign": {"0": "exp", "1": "exp"},
    "exp": {"0": "exp", "1": "exp"},
}
"""A number's modes; 1 stands for all digits but 0, e for E too, + for -."""
_CLASS = {**dict.fromkeys("123456789", "1"), "E": "e", "-": "+"}


def json_start(kind: str) -> Json:
    """Before a value of a parameter's type."""
    return Json(kind, _WHOLE if kind == "integer" else "")


def json_complete(state: Json) -> bool:
    """Whether a whole value has been read."""
    return state.stack in ("", _WHOLE) and state.mode in _DONE


def json_step(state: Json, char: str) -> Json | None:
    """The state after one more character, or None where compact JSON cannot go on so. Any non-ASCII character may stand for all."""
    mode, stack, text = state
    if mode in ("string", "key"):
        return _in_string(state, char)
    if mode in _NUMBER:
        longer = _in_number(state, char)
        if longer is not None or mode not in _DONE:
            return longer
        mode = "end"
    if mode == "end":
        if stack in ("", _WHOLE):
            return None
        if char == ",":
            return Json("name" if stack[-1] == "{" else "value", stack)
        return Json("end", stack[:-1]) if char == ("}" if stack[-1] == "{" else "]") else None
    if mode == "literal":
        return (Json("literal", stack, text[1:]) if text[1:] else Json("end", stack)) if char == text[0] else None
    if mode == "colon":
        return Json("value", stack) if char == ":" else None
    if mode in ("pair", "name"):
        if char == '"':
            return Json("key", stack)
        return Json("end", stack[:-1]) if mode == "pair" and char == "}" else None
    if mode == "item" and char == "]":
        return Json("end", stack[:-1])
    return None if char not in _FIRST.get(mode, char) else _begin(stack, char)


def _begin(stack: str, char: str) -> Json | None:
    if char == '"':
        return Json("string", stack)
    if char in "[{":
        return Json("item" if char == "[" else "pair", stack + char) if len(stack) < MAX_DEPTH else None
    if char in "tfn":
        return Json("literal", stack, {"t": "rue", "f": "alse", "n": "ull"}[char])
    if char == "-":
        return Json("neg", stack, char)
    return Json("zero" if char == "0" else "int", stack, char) if char in _DIGITS else None


def _in_number(state: Json, char: str) -> Json | None:
    mode = _NUMBER[state.mode].get(_CLASS.get(char, char))
    text = state.text + char
    if mode is None or (state.stack == _WHOLE and mode in ("dot", "e")) or (mode in ("int", "frac") and len(text) > MAX_DIGITS):
        return None
    # JSON bounds no exponent, but nothing beyond the largest double can be read back.
    if mode in ("dot", "e") and len(text) > 300 and math.isinf(float(state.text)):
        return None
    if mode == "exp" and (len(text) - text.lower().rindex("e") > 8 or math.isinf(float(text))):
        return None
    return Json(mode, state.stack, text)


_HEX = frozenset("0123456789abcdefABCDEF")


def _in_string(state: Json, char: str) -> Json | None:
    """`text` is an escape so far; after a high surrogate it starts with w, and the low one must follow."""
    mode, stack, text = state
    if not text:
        if char == '"':
            return Json("colon" if mode == "key" else "end", stack)
        return state._replace(text="\\") if char == "\\" else (state if char >= " " else None)
    pair = text.startswith("w")
    if text == "w":
        return state._replace(text="w\\") if char == "\\" else None
    if text.endswith("\\"):
        if char == "u":
            return state._replace(text="wu" if pair else "u")
        return state._replace(text="") if not pair and char in '"\\/bfnrt' else None
    if char not in _HEX:
        return None
    digits = (text.lstrip("wu") + char).lower()
    low = digits[0] == "d" and digits[1:2] in tuple("cdef")
    if (low and not pair) or (pair and (digits[0] != "d" or (len(digits) > 1 and not low))):
        return None
    if len(digits) < 4:
        return state._replace(text=text + char)
    return state._replace(text="w" if digits[0] == "d" and digits[1] in "89ab" and not pair else "")
