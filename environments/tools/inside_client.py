"""Lets code in a sandbox call the task's tools. Runs inside, with the standard library only.

In the interpreter its text is executed and `install` puts the tools there as functions; imported as a module (so that it is
compiled once), `main` is a command, with arguments by position or as `--name value`.
"""

from __future__ import annotations

import base64
import builtins
import json
import os
import socket
import sys
import types
from typing import Any


class ToolError(Exception):
    """A tool refused a call, or could not do what it was asked."""


class ToolAnswer(str):
    """What a tool answered; `images` holds the files of its pictures."""

    images: list[bytes]

    def _repr_png_(self) -> bytes | None:
        return self.images[0] if self.images else None


def ask(port: int, request: dict[str, Any]) -> dict[str, Any]:
    """One request, one answer. A connection for each: it survives forks and needs no lock."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as answers:
            line = answers.readline()
    if not line:
        raise OSError("no answer")
    answer: dict[str, Any] = json.loads(line)
    return answer


def bind(tool: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The request for a call. What cannot be bound goes along under a name that no tool has, so that the host refuses it."""
    names = [p["name"] for p in tool["parameters"]]
    arguments = {name: value for name, value in kwargs.items() if value is not None}
    for i, value in enumerate(args):
        name = names[i] if i < len(names) else f"argument {i + 1}"
        if name in kwargs:
            name = f"{name}, given twice"
        if value is not None:
            arguments[name] = value
    try:
        json.dumps(arguments, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError):
        return {"tool": tool["name"], "malformed": repr(arguments)[:1000]}
    return {"tool": tool["name"], "arguments": arguments}


def fits(tool: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a call is one of the tool, rather than of the builtin that has its name."""
    types_of: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
    given = bind(tool, args, kwargs).get("arguments")
    return (
        given is not None
        and set(given) <= {p["name"] for p in tool["parameters"]}
        and all(p["name"] in given or not p["required"] for p in tool["parameters"])
        and all(isinstance(given[p["name"]], types_of[p["type"]]) for p in tool["parameters"] if p["name"] in given)
    )


def function(port: int, tool: dict[str, Any]) -> Any:
    """A tool as a function."""

    def call(*args: Any, **kwargs: Any) -> ToolAnswer:
        answer = ask(port, bind(tool, args, kwargs))
        if answer["error"] or answer["failed"]:
            raise ToolError(answer["text"])
        text = ToolAnswer(answer["text"])
        text.images = [base64.b64decode(data) for data in answer["images"]]
        return text

    call.__name__ = call.__qualname__ = tool["name"]
    parameters = ", ".join(f"{p['name']}: {p['type']}" + ("" if p["required"] else " = None") for p in tool["parameters"])
    call.__doc__ = f"{tool['name']}({parameters})\n\n{tool['description']}"
    return call


def dispatching(tool: dict[str, Any], call: Any) -> Any:
    """A tool whose name Python uses itself: the builtin still answers every call that is none of the tool."""
    own = getattr(builtins, tool["name"])

    def either(*args: Any, **kwargs: Any) -> Any:
        return call(*args, **kwargs) if fits(tool, args, kwargs) else own(*args, **kwargs)

    either.__name__ = either.__qualname__ = tool["name"]
    either.__doc__ = call.__doc__
    return either


def install(namespace: dict[str, Any], port: int, tools: list[dict[str, Any]], take_builtins: bool) -> None:
    """Put the tools into an interpreter's variables, and all of them into a module `tools`."""
    module = types.ModuleType("tools")
    module.__dict__.update(ToolError=ToolError, ToolAnswer=ToolAnswer)
    for tool in tools:
        call = function(port, tool)
        setattr(module, tool["name"], call)
        if not hasattr(builtins, tool["name"]):
            namespace[tool["name"]] = call
        elif take_builtins:
            namespace[tool["name"]] = dispatching(tool, call)
    sys.modules["tools"] = namespace["tools"] = module


def value_of(text: str, kind: str) -> Any:
    """A command's word as a value; one that does not read as its type stays text, which the host refuses by name."""
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def parse(tool: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """A command line's arguments: by position, `--name value` or `--name=value`; `--` ends the names."""
    kinds = {p["name"]: p["type"] for p in tool["parameters"]}
    positional: list[str] = []
    named: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            positional += rest
            break
        if not word.startswith("--"):
            positional.append(word)
            continue
        name, equals, text = word[2:].partition("=")
        name = name if name in kinds else name.replace("-", "_")
        if not equals:
            if kinds.get(name) == "boolean" and (not rest or rest[0] not in ("true", "false")):
                text = "true"
            else:
                text = rest.pop(0) if rest else ""
        named[name] = value_of(text, kinds.get(name, "string"))
    free = [name for name in kinds if name not in named]
    for text in positional:
        name = free.pop(0) if free else f"argument {len(named) + 1}"
        named[name] = value_of(text, kinds.get(name, "string"))
    return named


def usage(tool: dict[str, Any]) -> str:
    """A tool as a command, one line."""
    words = [tool["name"], *(p["name"].upper() if p["required"] else f"[--{p['name']} {p['name'].upper()}]" for p in tool["parameters"])]
    return f"{' '.join(words)}    # {tool['description']}"


def command(port: int, tools: list[dict[str, Any]], words: list[str]) -> int:
    """Run one command. 0: answered; 1: could not be done; 2: refused; 3: nobody answers."""
    by_name = {tool["name"]: tool for tool in tools}
    if not words or words[0] in ("-h", "--help"):
        print("\n".join(usage(tool) for tool in tools))
        return 0
    name, words = words[0], words[1:]
    if words == ["--help"] and name in by_name:
        print(usage(by_name[name]))
        return 0
    tool = by_name.get(name, {"name": name, "parameters": []})
    try:
        answer = ask(port, bind(tool, (), parse(tool, words)))
    except OSError as error:
        print(f"{name}: the tools do not answer ({error})", file=sys.stderr)
        return 3
    if answer["error"] or answer["failed"]:
        print(answer["text"], file=sys.stderr)
        return 2 if answer["error"] else 1
    print(answer["text"])
    for data in answer["images"]:
        import tempfile  # here only: it is slow to load, and a command starts for every call

        fd, path = tempfile.mkstemp(prefix=f"{name}-", suffix=".png", dir=os.path.dirname(os.path.abspath(__file__)))
        with os.fdopen(fd, "wb") as file:
            file.write(base64.b64decode(data))
        print(f"[image: {path}]")
    return 0


def main() -> None:
    """The command: `PORT TOOLS_JSON TOOL [argument ...]`."""
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = command(int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
        sys.stdout.flush()
    except BrokenPipeError:  # `search words | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 0
    sys.exit(code)
