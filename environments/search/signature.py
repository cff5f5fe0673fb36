"""Parameters and literal defaults of an API document, read from its first line."""

from __future__ import annotations

import ast

from environments.protocols import Document


def signature_line(document: Document) -> str:
    """The first line when it is a signature `name(a, b=1)`, else empty."""
    line = document.text.split("\n", 1)[0].strip()
    return line if "(" in line and line.endswith(")") and line.split("(", 1)[0].isidentifier() else ""


def literal_defaults(document: Document) -> dict[str, object]:
    """Parameter -> default, for the defaults that are Python literals; empty for other documents."""
    line = signature_line(document)
    if not line:
        return {}
    try:
        tree = ast.parse(f"def {line}: pass")
    except SyntaxError:
        return {}
    node = tree.body[0]
    assert isinstance(node, ast.FunctionDef)
    arguments = node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    pairs: list[tuple[ast.arg, ast.expr | None]] = list(
        zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults, strict=True)
    )
    pairs += list(zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True))
    found: dict[str, object] = {}
    for argument, default in pairs:
        if default is not None:
            try:
                found[argument.arg] = ast.literal_eval(default)
            except (ValueError, TypeError, SyntaxError):
                continue
    return found


def integer_defaults(document: Document) -> dict[str, int]:
    """Parameter -> integer default (booleans are not integers here)."""
    return {name: value for name, value in literal_defaults(document).items() if type(value) is int}
