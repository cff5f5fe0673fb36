"""The grammar of assistant messages as EBNF, for engines that constrain decoding themselves (sglang's `ebnf`, XGrammar's syntax).

Reserved tokens are spelled as text. Text and JSON strings therefore never spell one, not even in plain characters: such
messages are admitted by `XtmlGrammar`, not here. Numbers are not bounded here, nor is the depth of JSON; a tool of more
than `MAX_SHUFFLED` parameters takes them in the order of their declaration.
"""

from __future__ import annotations

from collections.abc import Sequence

from environments.harness.xtml_tags import CLOSE, END, OPEN, RESERVED, SEP, argument_header, call_header
from environments.task import ToolParameter, ToolSpec

MAX_SHUFFLED = 5
"""Each order needs a rule per set of parameters: 2 to this power."""

_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_JSON = r"""
value ::= object | array | "\"" chars | number | boolean | "null"
object ::= "{" (member ("," member)*)? "}"
member ::= "\"" chars ":" value
array ::= "[" (value ("," value)*)? "]"
boolean ::= "true" | "false"
integer ::= "-"? ("0" | [1-9] [0-9]*)
number ::= integer ("." [0-9]+)? ([eE] [+\-]? [0-9]+)?
escape ::= "\\" (["\\/bfnrt] | "u" ([0-9a-cA-CefEF] hex hex hex | [dD] [0-7] hex hex | [dD] [89abAB] hex hex "\\u" [dD] [c-fC-F] hex hex))
hex ::= [0-9a-fA-F]
""".strip()
_TYPES = {"integer": "integer", "boolean": "boolean", "array": "array", "object": "object"}


def ebnf(tools: Sequence[ToolSpec], *, thinking: bool = True, required: bool = False, max_calls: int = 16) -> str:
    """Rules, a line each, from `root`: what follows the generation prefix. Meanings as in `XtmlGrammar`."""
    tail = ("tools " if required else "tools? ") if tools else ""
    answer = f"{_tag(OPEN, 'response')} text {_tag(CLOSE, 'response')}"
    root = f"text {_tag(CLOSE, 'think')} ({answer})? {tail}" if thinking else f"text {_tag(CLOSE, 'response')} {tail}"
    rules = [f"root ::= {root}{_quoted(END)}", *_avoiding("text", "", '""')]
    if tools:
        rules += [f"tools ::= {_tag(OPEN, 'tools')} calls0 {_tag(CLOSE, 'tools')}"]
        for k in range(max_calls):
            calls = " | ".join(f"{_tag(OPEN, call_header(t.name, k))} tool{i}" for i, t in enumerate(tools))
            rules += [f"calls{k} ::= ({calls})" + (f" calls{k + 1}?" if k + 1 < max_calls else "")]
        for i, tool in enumerate(tools):
            rules += _call(f"tool{i}", tool)
        rules += [*_avoiding("chars", r'"\\\u0000-\u001f', r'"\"" | escape chars'), _JSON]
    return "\n".join(rules) + "\n"


def _quoted(text: str) -> str:
    return '"' + "".join(_ESCAPED.get(c, c) for c in text) + '"'


def _tag(bracket: str, header: str) -> str:
    return _quoted(f"{bracket}{header}{SEP}")


def _call(name: str, tool: ToolSpec) -> list[str]:
    """Rules of a call after its opening tag; rule `name` of those that have no argument yet."""
    parameters, close = tool.parameters, _tag(CLOSE, "call")
    rules = [f"{name}_{i} ::= {_argument(p)}" for i, p in enumerate(parameters)]
    if len(parameters) > MAX_SHUFFLED:
        ordered = " ".join(f"{name}_{i}" + ("" if p.required else "?") for i, p in enumerate(parameters))
        return [*rules, f"{name} ::= {ordered} {close}"]
    needed = sum(1 << i for i, p in enumerate(parameters) if p.required)
    for given in range(1 << len(parameters)):
        ways = [f"{name}_{i} {_given(name, given | 1 << i)}" for i in range(len(parameters)) if not given >> i & 1]
        rules.append(f"{_given(name, given)} ::= " + " | ".join([*ways, *([close] if given & needed == needed else [])]))
    return rules


def _given(name: str, given: int) -> str:
    return f"{name}_given{given}" if given else name


def _argument(parameter: ToolParameter) -> str:
    close = _tag(CLOSE, "arg")
    if parameter.type == "string":
        return f"{_tag(OPEN, argument_header(parameter.name))} text {close}"
    if parameter.type == "number":
        kinds = {"number": "number", "integer": "integer"}
    else:
        kinds = {"json" if parameter.type in ("array", "object") else parameter.type: _TYPES[parameter.type]}
    return " | ".join(f"{_tag(OPEN, argument_header(parameter.name, kind))} {rule} {close}" for kind, rule in kinds.items())


def _avoiding(name: str, excluded: str, tail: str) -> list[str]:
    """Right-linear rules for text that spells no reserved token: one rule per beginning of one (Aho and Corasick, 1975).

    Args:
        excluded: further characters that may not stand in it, as within a character class.
        tail: what else may come after any part of it, its end included.
    """
    beginnings = sorted({r[:n] for r in RESERVED for n in range(1, len(r))})
    rules = [f"{name} ::= [^\\[{excluded}]+ {name}_rest | {name}_rest", f'{name}_rest ::= "[" {name}_b0 | {tail}']
    for b, beginning in enumerate(beginnings):
        longer = {w[len(beginning)]: w[: len(beginning) + 1] for w in RESERVED if w.startswith(beginning)}
        ways = [f'"{c}" {name}_b{beginnings.index(text)}' for c, text in sorted(longer.items()) if text not in RESERVED]
        # No reserved token holds a second bracket, so any other character leads back to the start.
        others = f"[^\\[{excluded}{''.join(sorted(longer)).replace(']', chr(92) + ']')}]"
        rules.append(f"{name}_b{b} ::= " + " | ".join([*ways, f'"[" {name}_b0', f"{others} {name}", tail]))
    return rules
