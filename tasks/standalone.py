"""Documented functions of installed packages as source that runs without the package.

Nothing is imported: modules are read as syntax trees, and a function is taken together with what it needs of its own package
(helpers, constants, classes) and of the standard library. What needs more than that has no standalone source.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib.metadata
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from functools import cache
from pathlib import Path
from typing import Any, cast

from tasks.repository.index import stated_licence

MAX_LINES = 200
MAX_DEFINITIONS = 40
MAX_MODULE_BYTES = 400_000
_BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class Example:
    """One documented call with its result; plain JSON values, the arguments in order."""

    arguments: tuple[Any, ...]
    result: Any


@dataclass(frozen=True)
class Documented:
    """A function with its documentation and its standalone source."""

    title: str
    """`toolz.itertoolz.partition`."""
    package: str
    """The distribution."""
    top: str
    """What is imported."""
    version: str
    licence: str
    parameters: str
    """As in its signature, without annotations."""
    doc: str
    """The documentation without its examples."""
    examples: tuple[Example, ...]
    wrapper: str
    """`list` where the examples turn its result into one, else empty."""
    source: str
    """Defines `solve`."""
    lines: int


class _Module:
    """The top-level names of one module."""

    def __init__(self, name: str, path: Path, is_package: bool) -> None:
        self.name, self.path, self.is_package = name, path, is_package
        text = path.read_text("utf-8", "replace") if path.stat().st_size <= MAX_MODULE_BYTES else ""
        try:
            self.tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            self.tree = ast.parse("")
        self.names: dict[str, ast.stmt] = {}
        self.twice: set[str] = set()
        for node in self.tree.body:
            for name in _bound(node):
                if name in self.names:
                    self.twice.add(name)
                self.names[name] = node


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [t.id for target in node.targets for t in ast.walk(target) if isinstance(t, ast.Name)]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
        return [node.target.id]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    return []


class _Cannot(Exception):
    """The function needs something that cannot be taken along."""


class Package:
    """The modules of one top-level package, read when they are asked for."""

    def __init__(self, top: str, root: Path) -> None:
        self.top = top
        self._paths: dict[str, tuple[Path, bool]] = {}
        for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
            parts = (top, *path.relative_to(root).with_suffix("").parts) if root.is_dir() else (top,)
            package = parts[-1] == "__init__"
            if not any(part in ("tests", "test", "testing", "_vendor", "vendor") for part in parts):
                self._paths[".".join(parts[:-1] if package else parts)] = (path, package)
        self._modules: dict[str, _Module] = {}

    @property
    def modules(self) -> tuple[str, ...]:
        """Dotted names."""
        return tuple(self._paths)

    def module(self, name: str) -> _Module | None:
        """A module by its dotted name; None when there is none."""
        if name not in self._paths:
            return None
        if name not in self._modules:
            self._modules[name] = _Module(name, *self._paths[name])
        return self._modules[name]

    def text_has(self, name: str, part: bytes) -> bool:
        """Whether a module's file contains `part`, without reading it as Python."""
        path = self._paths[name][0]
        return path.stat().st_size <= MAX_MODULE_BYTES and part in path.read_bytes()


class _Closure:
    """Collects definitions, those that others need first."""

    def __init__(self, package: Package) -> None:
        self.package = package
        self.imports: dict[str, str] = {}
        self.definitions: dict[str, tuple[str, str]] = {}
        """(module, source) by name, in order."""
        self._open: set[tuple[str, str]] = set()

    def take(self, module: _Module, name: str, depth: int = 0) -> None:
        """Add the definition of a name. Raises _Cannot."""
        if (module.name, name) in self._open:
            return
        self._open.add((module.name, name))
        node = module.names.get(name)
        if node is None or name in module.twice or depth > 12 or len(self.definitions) >= MAX_DEFINITIONS:
            raise _Cannot(name)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._import(module, node, name, depth)
            return
        if name in self.imports or self.definitions.get(name, (module.name, ""))[0] != module.name:
            raise _Cannot(f"two things are called {name}")
        plain = _Plain().visit(ast.parse(ast.unparse(node)).body[0])
        for used in _free(plain):
            if used in module.names:
                if used != name:
                    self.take(module, used, depth + 1)
            elif used not in _BUILTINS:
                raise _Cannot(used)
        self.definitions[name] = (module.name, ast.unparse(ast.fix_missing_locations(plain)))

    def _import(self, module: _Module, node: ast.Import | ast.ImportFrom, name: str, depth: int) -> None:
        alias = next(a for a in node.names if (a.asname or a.name.partition(".")[0]) == name)
        target = alias.name if isinstance(node, ast.Import) else _absolute(module, node)
        if target.partition(".")[0] in sys.stdlib_module_names:
            text = ast.unparse(type(node)(**{**{f: getattr(node, f) for f in node._fields}, "names": [alias]}))
            if name in self.definitions or self.imports.get(name, text) != text:
                raise _Cannot(f"two things are called {name}")
            self.imports[name] = text
            return
        source = self.package.module(target) if isinstance(node, ast.ImportFrom) else None
        if source is None or alias.asname not in (None, alias.name):
            raise _Cannot(target)
        self.take(source, alias.name, depth + 1)


def _absolute(module: _Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    base = parts[: len(parts) - node.level + (1 if module.is_package else 0)]
    return ".".join([*base, *([node.module] if node.module else [])])


class _Plain(ast.NodeTransformer):
    """Takes off docstrings, annotations, and nothing that runs."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        node.body = _without_docstring(node.body)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self.generic_visit(node)
        node.body = _without_docstring(node.body)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        return ast.Assign([node.target], node.value) if node.value is not None else node


def _without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:] or [ast.Pass()]
    return body


def _free(node: ast.AST) -> list[str]:
    """Names that a definition reads and does not itself bind. Raises _Cannot for imports in it that are not the standard library's."""
    read: dict[str, None] = {}
    bound: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            if isinstance(part.ctx, ast.Load):
                read[part.id] = None
            else:
                bound.add(part.id)
        elif isinstance(part, ast.arg):
            bound.add(part.arg)
        elif isinstance(part, (ast.FunctionDef, ast.ClassDef)):
            bound |= {part.name} if part is not node else set()
        elif isinstance(part, ast.ExceptHandler):
            bound |= {part.name} if part.name else set()
        elif isinstance(part, (ast.Import, ast.ImportFrom)):
            target = part.names[0].name if isinstance(part, ast.Import) else "." * part.level + (part.module or "")
            if target.partition(".")[0] not in sys.stdlib_module_names:
                raise _Cannot(target)
            bound.update(_bound(part))
        elif isinstance(part, (ast.Global, ast.AsyncFunctionDef)):
            raise _Cannot(type(part).__name__)
    if isinstance(node, (ast.Assign, ast.ClassDef)):
        return list(read)
    return [name for name in read if name not in bound]


def _standalone(package: Package, module: _Module, name: str, wrapper: str) -> str:
    closure = _Closure(package)
    closure.take(module, name)
    if "solve" in closure.definitions or "solve" in closure.imports:
        raise _Cannot("solve")
    call = f"{name}(*arguments)"
    body = f"def solve(*arguments):\n    return {f'{wrapper}({call})' if wrapper else call}"
    text = "\n".join([*dict.fromkeys(closure.imports.values()), *(source for _, source in closure.definitions.values()), body]) + "\n"
    if text.count("\n") > MAX_LINES:
        raise _Cannot("too long")
    return text


def plain(value: Any) -> bool:
    """Whether a value is the same after a way through JSON, and exact: no floats."""
    if isinstance(value, list):
        return all(map(plain, value))
    if isinstance(value, dict):
        return all(isinstance(k, str) and plain(v) for k, v in value.items())
    return value is None or type(value) in (bool, int, str)


def _listed(value: Any) -> Any:
    """Tuples as lists, since that is how arguments arrive."""
    if isinstance(value, (list, tuple)):
        return [_listed(v) for v in value]
    return {k: _listed(v) for k, v in value.items()} if isinstance(value, dict) else value


def _example(example: doctest.Example, name: str, parameters: ast.arguments) -> tuple[str, Example] | None:
    """(wrapper, example) of `name(literals)` or `list(name(literals))` with a literal result."""
    try:
        node = ast.parse(example.source.strip(), mode="eval").body
        result = ast.literal_eval(example.want.strip())
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None
    wrapper = ""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "list" and len(node.args) == 1 and name != "list":
        wrapper, node = "list", node.args[0]
    if not isinstance(node, ast.Call):
        return None
    called = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if called != name or (parameters.kwonlyargs and node.keywords):
        return None
    try:
        values = [ast.literal_eval(a) for a in node.args]
        named = {k.arg or "": ast.literal_eval(k.value) for k in node.keywords}
        names = [a.arg for a in (*parameters.posonlyargs, *parameters.args)]
        defaults = dict(zip(reversed(names), reversed([ast.literal_eval(d) for d in parameters.defaults]), strict=False)) if named else {}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    while named:
        if len(values) >= len(names) or (names[len(values)] not in named and names[len(values)] not in defaults):
            return None
        here = names[len(values)]
        values.append(named.pop(here) if here in named else defaults[here])
    values = [_listed(v) for v in values]
    return (wrapper, Example(tuple(values), result)) if values and plain(values) and plain(result) else None


def _read(package: Package, module: _Module, node: ast.FunctionDef, distribution: str, version: str, licence: str) -> Documented | None:
    doc = ast.get_docstring(node) or ""
    try:
        parts = doctest.DocTestParser().parse(doc)
    except ValueError:
        return None
    found = [e for p in parts if isinstance(p, doctest.Example) and (e := _example(p, node.name, node.args)) is not None]
    wrappers = [wrapper for wrapper, _ in found]
    if not found:
        return None
    wrapper = max(dict.fromkeys(wrappers), key=wrappers.count)
    examples = {repr(e.arguments): e for w, e in found if w == wrapper}
    try:
        source = _standalone(package, module, node.name, wrapper)
    except (_Cannot, RecursionError, OSError):
        return None
    header = _Plain().visit(ast.parse(f"def f({ast.unparse(node.args)}): pass").body[0])
    return Documented(
        title=f"{module.name}.{node.name}",
        package=distribution,
        top=package.top,
        version=version,
        licence=licence,
        parameters=ast.unparse(header.args),
        doc=_prose(doc),
        examples=tuple(examples.values()),
        wrapper=wrapper,
        source=source,
        lines=source.count("\n"),
    )


_NOT_PROSE = ("examples", "example", "references", "see also", "usage", "example:", "examples:", "references:", "see also:", "notes")


def _prose(doc: str) -> str:
    """The documentation up to its examples, their headings and what comes behind them."""
    kept: list[str] = []
    for line in doc.splitlines():
        if line.strip().startswith(">>>") or line.strip().lower().rstrip(":") in {n.rstrip(":") for n in _NOT_PROSE}:
            break
        kept.append(line)
    return "\n".join(kept).strip()


@cache
def package_of(distribution: str) -> tuple[Package, ...]:
    """The importable packages of an installed distribution; none when it is not installed."""
    try:
        installed = importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ()
    tops = {str(file).split("/")[0] for file in installed.files or () if str(file).endswith(".py") and not str(file).startswith("..")}
    found = []
    for top in sorted(tops):
        root = Path(str(installed.locate_file(top)))
        if root.suffix == ".py" or (root / "__init__.py").is_file():
            found.append(Package(top.removesuffix(".py"), root))
    return tuple(found)


def documented(distribution: str, module: str = "", name: str = "") -> Iterator[Documented]:
    """Public functions of an installed distribution that have executable examples and a standalone source.

    Args:
        module: only of this module (dotted).
        name: only those of this name.
    """
    for package in package_of(distribution):
        metadata = importlib.metadata.distribution(distribution).metadata
        licence = stated_licence(cast(Message, metadata))  # it is one, though typed as less
        for dotted in (module,) if module else package.modules:
            if (
                dotted not in package.modules
                or not package.text_has(dotted, b">>>")
                or (name and not package.text_has(dotted, name.encode()))
            ):
                continue
            read = package.module(dotted)
            for node in read.tree.body if read is not None else ():
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and (not name or node.name == name):
                    assert read is not None
                    made = _read(package, read, node, distribution, str(metadata["Version"]), licence)
                    if made is not None:
                        yield made
