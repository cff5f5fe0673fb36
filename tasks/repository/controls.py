"""Spoiled copies of tests: each expects something else than the true one, so an honest program fails it.

What a test expects is changed, never what it calls: the literal that a result is compared with, the exception that must be
raised, the value beside a parametrised input. A test in which none of these is found gets its assertions negated.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterable

_UNRAISED = "class _Unraised(Exception):\n    pass\n\n\n"
_EQUALITIES = {"assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertTupleEqual", "assertMultiLineEqual", "assertIs"}
_TRUTHS = {"assertTrue": "assertFalse", "assertFalse": "assertTrue", "assertIn": "assertNotIn", "assertIsNone": "assertIsNotNone"}


def spoil(source: str, tests: Iterable[str]) -> tuple[str, str]:
    """(true, spoiled): the module as it was and with what the named tests expect changed; two empty texts when nothing could be.

    Both are laid out alike and hold the same definitions beside the tests, under names of the module's own, so that a
    program under test that reads them does not learn from their form which of the two it is in.

    Args:
        tests: qualified names within the module, `test_x` or `TestCase.test_x`.

    Raises:
        SyntaxError: the source is not Python.
    """
    module = ast.parse(source)
    wanted, changed = set(tests), False
    for name, function in _functions(module):
        if name in wanted:
            changed = _spoil_function(function) or changed
    if not changed:
        return "", ""
    return _written(ast.parse(source), source), _written(module, source)


def _written(module: ast.Module, source: str) -> str:
    at = next((i for i, node in enumerate(module.body) if not _stays_first(node)), len(module.body))
    module.body[at:at] = ast.parse(_UNRAISED + inspect.getsource(_altered)).body
    text = ast.unparse(ast.fix_missing_locations(module)) + "\n"
    own = hashlib.sha256(source.encode()).hexdigest()[:8]
    return text.replace("_altered", f"_v{own}").replace("_Unraised", f"_E{own}")


def _stays_first(node: ast.stmt) -> bool:
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return docstring or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def functions_of(source: str) -> dict[str, str]:
    """Each function by its qualified name, in one layout whatever its own; none where the source is not Python."""
    try:
        return {name: ast.unparse(function) for name, function in _functions(ast.parse(source))}
    except (SyntaxError, ValueError):
        return {}


def source_of(source: str, name: str) -> str:
    """A function as it is written."""
    return next(ast.get_source_segment(source, function) or "" for known, function in _functions(ast.parse(source)) if known == name)


def _functions(module: ast.Module) -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    found: list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]] = []

    def walk(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.append((prefix + node.name, node))
            elif isinstance(node, ast.ClassDef):
                walk(node.body, f"{prefix}{node.name}.")

    walk(module.body, "")
    return found


def _spoil_function(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    parametrised = [_spoil_parameters(decorator) for decorator in function.decorator_list]
    if any(parametrised):
        return True
    spoiler = _Expectations()
    spoiler.visit(function)
    if not spoiler.changed:
        negation = _Negation()
        negation.visit(function)
        return negation.changed
    return True


def _spoil_parameters(decorator: ast.expr) -> bool:
    """Change the last value of each case of `@pytest.mark.parametrize("given, expected", [...])` with two names or more."""
    if not (isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Attribute) and decorator.func.attr == "parametrize"):
        return False
    if len(decorator.args) < 2 or not isinstance(decorator.args[1], (ast.List, ast.Tuple)):
        return False
    names = decorator.args[0]
    many = isinstance(names, (ast.Tuple, ast.List)) or (isinstance(names, ast.Constant) and "," in str(names.value))
    changed = False
    for case in decorator.args[1].elts if many else ():
        values = case.args if isinstance(case, ast.Call) else case.elts if isinstance(case, (ast.Tuple, ast.List)) else []
        if len(values) > 1 and (new := _other(values[-1])) is not None:
            values[-1] = new
            changed = True
    return changed


def _other(node: ast.expr) -> ast.expr | None:
    """A literal with its first leaf changed; None when it is no literal."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return ast.parse(repr(_altered(value)), mode="eval").body


def _altered(value: object) -> object:
    """Something that `value` does not equal; also written into the spoiled module."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float, complex)):
        return value + 1
    if isinstance(value, str):
        return value + "~"
    if isinstance(value, bytes):
        return value + b"~"
    if isinstance(value, list):
        return [*value, None]
    return (value, None)


def _spoiled(node: ast.expr) -> ast.expr:
    return _other(node) or ast.Call(ast.Name("_altered", ast.Load()), [node], [])


def _has_call(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Call) for part in ast.walk(node))


class _Expectations(ast.NodeTransformer):
    """Changes the other side of `==`, of unittest's equalities, and the class that must be raised."""

    def __init__(self) -> None:
        self.changed = False

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        test = node.test
        if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], (ast.Eq, ast.Is)):
            # The side without a call is what is expected; with calls on both, the right one.
            if _has_call(test.comparators[0]) and not _has_call(test.left):
                test.left = _spoiled(test.left)
            else:
                test.comparators[0] = _spoiled(test.comparators[0])
            self.changed = True
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id if isinstance(node.func, ast.Name) else ""
        if name in _EQUALITIES and len(node.args) >= 2:
            at = 0 if _has_call(node.args[1]) and not _has_call(node.args[0]) else 1
            node.args[at] = _spoiled(node.args[at])
            self.changed = True
        elif name in ("raises", "assertRaises", "assertRaisesRegex") and node.args:
            node.args[0] = ast.Name("_Unraised", ast.Load())
            self.changed = True
        return node


class _Negation(ast.NodeTransformer):
    """Turns assertions round."""

    def __init__(self) -> None:
        self.changed = False

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        node.test = ast.UnaryOp(ast.Not(), node.test)
        self.changed = True
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _TRUTHS:
            node.func.attr = _TRUTHS[node.func.attr]
            self.changed = True
        return node
