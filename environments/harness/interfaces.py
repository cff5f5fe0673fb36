"""How calls are written: natively (XTML, an endpoint's `tools` field) or into the text of the answer, in the styles of public agents.

A text style leaves the message as the policy wrote it and reads the calls out of its content. What cannot be read becomes a
call with `malformed` set, which is refused, answered and counted like every other bad call.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from environments.errors import MalformedCallError
from environments.harness.config import Interface
from environments.task import ToolCall, ToolParameter, ToolSpec


@dataclass(frozen=True)
class WrittenCall:
    """A call and where it stands in the text, in characters."""

    call: ToolCall
    start: int
    end: int


class ToolInterface(Protocol):
    """One way to write calls."""

    instructions: str
    """For the declaration: how a call is written."""

    def declare(self, tool: ToolSpec) -> str:
        """One tool's lines of the declaration."""
        ...

    def read(self, text: str, tools: Mapping[str, ToolSpec]) -> list[WrittenCall]:
        """The calls in a text, in order and numbered."""
        ...

    def write(self, call: ToolCall) -> str:
        """A call as text; `read` gives it back. Raises MalformedCallError for what the style cannot spell."""
        ...


def json_schema(tool: ToolSpec) -> dict[str, object]:
    """A tool's parameters as a JSON schema."""
    return {
        "type": "object",
        "properties": {p.name: {"type": p.type, **({"description": p.description} if p.description else {})} for p in tool.parameters},
        "required": [p.name for p in tool.parameters if p.required],
        "additionalProperties": False,
    }


def schema_line(tool: ToolSpec) -> str:
    """A tool as one line of JSON."""
    return json.dumps({"name": tool.name, "description": tool.description, "parameters": json_schema(tool)}, ensure_ascii=False)


def json_object(text: str) -> dict[str, object]:
    """A JSON object that can be stored and sent. Raises ValueError."""

    def refuse(name: str) -> object:
        raise ValueError(f"{name} is not JSON")

    try:
        value = json.loads(text, parse_constant=refuse)
        json.dumps(value, ensure_ascii=False).encode()  # an escape can spell a lone surrogate
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


class JsonStyle:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, as Hermes models write it."""

    instructions = (
        'To call a tool write <tool_call>{"name": "tool", "arguments": {"parameter": "value"}}</tool_call>; '
        "several calls follow one another."
    )
    _CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)

    def declare(self, tool: ToolSpec) -> str:
        return schema_line(tool)

    def read(self, text: str, tools: Mapping[str, ToolSpec]) -> list[WrittenCall]:
        calls = []
        for index, match in enumerate(self._CALL.finditer(text)):
            name = ""
            try:
                value = json_object(match[1])
                name = str(value.get("name") or "")
                arguments = value.get("arguments", {})
                if not (match[2] and name and isinstance(arguments, dict) and value.keys() <= {"name", "arguments"}):
                    raise ValueError("not a call")
                call = ToolCall(tool=name, arguments=arguments, index=index)
            except ValueError:
                call = ToolCall(tool=name, malformed=match[1].strip() or "nothing", index=index)
            calls.append(WrittenCall(call, match.start(), match.end()))
        return calls

    def write(self, call: ToolCall) -> str:
        body = json.dumps({"name": call.tool, "arguments": call.arguments}, ensure_ascii=False)
        escaped = body.replace("</", "<\\/")  # JSON's own escape keeps a closing tag out of the text
        return f"<tool_call>{escaped}</tool_call>"


class XmlStyle:
    """`<invoke name="tool"><parameter name="p">text</parameter></invoke>`; texts are raw, other values are JSON."""

    instructions = (
        'To call a tool write <invoke name="tool"><parameter name="parameter">value</parameter></invoke>. '
        "Texts are written as they are, other values as JSON."
    )
    _CALL = re.compile(r'<invoke name="([^"<>]*)">(.*?)(</invoke>|\Z)', re.DOTALL)
    _PARAMETER = re.compile(r'\s*<parameter name="([^"<>]*)">(.*?)</parameter>', re.DOTALL)

    def declare(self, tool: ToolSpec) -> str:
        return schema_line(tool)

    def read(self, text: str, tools: Mapping[str, ToolSpec]) -> list[WrittenCall]:
        matches = enumerate(self._CALL.finditer(text))
        return [WrittenCall(self._call(index, match, tools), match.start(), match.end()) for index, match in matches]

    def _call(self, index: int, match: re.Match[str], tools: Mapping[str, ToolSpec]) -> ToolCall:
        name, body = match[1], match[2]
        types = {p.name: p.type for p in tools[name].parameters} if name in tools else {}
        arguments: dict[str, object] = {}
        position = 0
        try:
            while parameter := self._PARAMETER.match(body, position):
                position = parameter.end()
                key, value = parameter[1], parameter[2]
                if key in arguments:
                    raise ValueError("a parameter twice")
                arguments[key] = value if types.get(key, "string") == "string" else json_object(f'{{"v":{value}}}')["v"]
            if body[position:].strip() or not match[3] or not name:
                raise ValueError("not a call")
        except ValueError:
            return ToolCall(tool=name, malformed=body.strip() or "nothing", index=index)
        return ToolCall(tool=name, arguments=arguments, index=index)

    def write(self, call: ToolCall) -> str:
        lines = []
        for name, value in call.arguments.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            if "</parameter>" in text or "</invoke>" in text or re.search(r'["<>]', name):
                raise MalformedCallError(f"{call.tool}.{name} holds a closing tag: {text!r:.60}", "use another interface for such texts")
            lines.append(f'<parameter name="{name}">{text}</parameter>')
        return f'<invoke name="{call.tool}">' + "".join(f"\n{line}" for line in lines) + "\n</invoke>"


class FenceStyle:
    """A markdown fence whose info string is `call tool`, with the arguments as one JSON object."""

    instructions = "To call a tool write a fenced block: first line ```call tool, then its arguments as one JSON object."
    _CALL = re.compile(r"^```call[ \t]*([^\s`]*)[ \t]*\n(.*?)(^```[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)

    def declare(self, tool: ToolSpec) -> str:
        return schema_line(tool)

    def read(self, text: str, tools: Mapping[str, ToolSpec]) -> list[WrittenCall]:
        calls = []
        for index, match in enumerate(self._CALL.finditer(text)):
            body = match[2].strip()
            try:
                if not (match[1] and match[3]):
                    raise ValueError("not a call")
                call = ToolCall(tool=match[1], arguments=json_object(body) if body else {}, index=index)
            except ValueError:
                call = ToolCall(tool=match[1], malformed=body or "nothing", index=index)
            calls.append(WrittenCall(call, match.start(), match.end()))
        return calls

    def write(self, call: ToolCall) -> str:
        return f"```call {call.tool}\n{json.dumps(call.arguments, ensure_ascii=False)}\n```"


class _BlockStyle:
    """One fenced block of a language is the argument of one tool; tools are what the block's code can call."""

    language = ""
    tool = ""
    argument = ""
    instructions = ""

    def read(self, text: str, tools: Mapping[str, ToolSpec]) -> list[WrittenCall]:
        blocks = list(re.finditer(rf"^```{self.language}[ \t]*\n(.*?)(^```[ \t]*$|\Z)", text, re.DOTALL | re.MULTILINE))
        if not blocks:
            return []
        first, last = blocks[0], blocks[-1]
        if len(blocks) > 1 or not first[2]:
            what = f"{len(blocks)} blocks where one is allowed" if len(blocks) > 1 else "a block that is not closed"
            return [WrittenCall(ToolCall(tool=self.tool, malformed=what), first.start(), last.end())]
        return [WrittenCall(ToolCall(tool=self.tool, arguments={self.argument: first[1]}), first.start(), first.end())]

    def write(self, call: ToolCall) -> str:
        source = str(call.arguments.get(self.argument, ""))
        if call.tool != self.tool or re.search(r"^```", source, re.MULTILINE):
            raise MalformedCallError(f"a {self.language} block cannot spell {call.tool}({source!r:.40})", f"call {self.tool}")
        return f"```{self.language}\n{source}{'' if source.endswith(chr(10)) else chr(10)}```"


class BashStyle(_BlockStyle):
    """One shell command a message, as mini-swe-agent does; the task's tools are commands."""

    language, tool, argument = "bash", "bash", "command"
    instructions = "Answer with exactly one ```bash block a message; it is run in a shell. These are commands there:"

    def declare(self, tool: ToolSpec) -> str:
        return f"{' '.join([tool.name, *map(_usage, tool.parameters)])}    # {tool.description}"


class CodeStyle(_BlockStyle):
    """One Python cell a message, in which the task's tools are functions (programmatic tool calls)."""

    language, tool, argument = "python", "python", "code"
    instructions = (
        "Answer with exactly one ```python block a message; it is run in an interpreter that keeps its variables. "
        "These are functions there:"
    )

    def declare(self, tool: ToolSpec) -> str:
        parameters = ", ".join(f"{p.name}: {p.type}" + ("" if p.required else " = None") for p in tool.parameters)
        return f"{tool.name}({parameters})    # {tool.description}"


def _usage(parameter: ToolParameter) -> str:
    return parameter.name.upper() if parameter.required else f"[--{parameter.name} {parameter.name.upper()}]"


TEXT_STYLES: dict[Interface, ToolInterface] = {
    "json": JsonStyle(),
    "xml": XmlStyle(),
    "fence": FenceStyle(),
    "bash": BashStyle(),
    "code": CodeStyle(),
}
"""Every interface but `native`."""

CARRIER: dict[Interface, str] = {"bash": BashStyle.tool, "code": CodeStyle.tool}
"""The tool that carries everything in the interfaces that have just one."""
