"""Documents from installed Python packages, read from their source with `ast`; nothing is imported or run.

A package's public names come from following `from .x import y` and `from .x import *` through its modules, so that
`scipy.optimize.bisect` carries that title although it is written in a private module. What only exists in compiled
code (numpy's ufuncs, most of torch) is not seen.
"""

from __future__ import annotations

import ast
import email.message
import hashlib
import importlib.metadata
import inspect
import sysconfig
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from environments.protocols import Document
from environments.search.markup import rst_links

STDLIB = "python-stdlib"
"""Source name of the standard library."""

DEFAULT_PACKAGES: tuple[str, ...] = (
    STDLIB,
    "numpy",
    "scipy",
    "networkx",
    "sympy",
    "mpmath",
    "torch",
    "dask",
    "distributed",
    "prefect",
    "pandas",
    "pyarrow",
    "pydantic",
    "httpx",
    "Jinja2",
    "SQLAlchemy",
    "fsspec",
    "tornado",
    "rich",
    "cryptography",
    "toolz",
    "sortedcontainers",
    "humanize",
    "plotly",
)
"""Distributions whose documentation makes the floor of the corpus; those not installed are left out."""

_SKIP_WORDS = """
test tests testing _testing conftest benchmarks examples idlelib lib2to3 turtledemo ensurepip distutils pydoc_data msilib
_vendor vendor vendored _vendored extern externals site-packages dist-packages __pycache__ _pyrepl
validators graph_objs graph_objects _migrations versions
_inductor _dynamo _functorch _refs _prims _prims_common _decomp _export _higher_order_ops _subclasses _numpy onnx ao fx
"""
_SKIP_PARTS = frozenset(_SKIP_WORDS.split())
"""Folders and modules without documentation of their own: tests, copies of other packages, generated and internal code."""

MAX_TEXT_CHARS = 40_000
"""Longer documents are cut here; only a handful of manuals are."""

MIN_DOC_CHARS = 30
"""A docstring under this length says less than its name."""


@dataclass
class _Definition:
    name: str
    signature: str
    doc: str
    module: str
    methods: list[_Definition] = field(default_factory=list)


@dataclass
class _Module:
    name: str
    is_package: bool
    doc: str = ""
    definitions: dict[str, _Definition] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    exported: list[str] | None = None


def document_id(source: str, title: str) -> str:
    """Stable id of a document: 10 hex characters of the sha256 of source and title."""
    return hashlib.sha256(f"{source}\0{title}".encode()).hexdigest()[:10]


# --- reading one module --------------------------------------------------------------------------------------------


def _docstring(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    doc = ast.get_docstring(node, clean=False)
    return inspect.cleandoc(doc).strip() if doc else ""


def _decorators(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> set[str]:
    names = set()
    for decorator in node.decorator_list:
        target = decorator.func if isinstance(decorator, ast.Call) else decorator
        names.add(target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", ""))
    return names


def _default(node: ast.expr, constants: dict[str, ast.Constant]) -> str:
    if isinstance(node, ast.Name) and node.id in constants:
        node = constants[node.id]
    text = ast.unparse(node)
    return text if len(text) <= 60 else "..."


def _signature(name: str, arguments: ast.arguments, constants: dict[str, ast.Constant], bound: bool) -> str:
    """`name(a, b=1, *args, c=2)`; annotations left out, module constants resolved, the bound first argument dropped."""
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    parts = []
    for index, (argument, default) in enumerate(zip(positional, defaults, strict=True)):
        if bound and index == 0:
            continue
        parts.append(argument.arg if default is None else f"{argument.arg}={_default(default, constants)}")
        if arguments.posonlyargs and index == len(arguments.posonlyargs) - 1 and not (bound and index == 0):
            parts.append("/")
    if arguments.vararg:
        parts.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        parts.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parts.append(argument.arg if default is None else f"{argument.arg}={_default(default, constants)}")
    if arguments.kwarg:
        parts.append(f"**{arguments.kwarg.arg}")
    return f"{name}({', '.join(parts)})"


def _class(node: ast.ClassDef, module: str, constants: dict[str, ast.Constant]) -> _Definition:
    signature, methods = f"class {node.name}", []
    for item in node.body:
        if not isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = _decorators(item)
        if item.name == "__init__":
            signature = _signature(node.name, item.args, constants, bound=True)
        elif not item.name.startswith("_") and not decorators & {
            "overload",
            "property",
            "cached_property",
            "setter",
            "deleter",
            "hybrid_property",
        }:
            doc = _docstring(item)
            if doc:
                bound = "staticmethod" not in decorators
                methods.append(_Definition(item.name, _signature(item.name, item.args, constants, bound), doc, module))
    return _Definition(node.name, signature, _docstring(node), module, methods)


def _literal_names(node: ast.expr) -> list[str] | None:
    try:
        value = ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError):
        return None
    return list(value) if isinstance(value, list | tuple | set) and all(isinstance(v, str) for v in value) else None


def _absolute(module: _Module, level: int, target: str | None) -> str:
    if level == 0:
        return target or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - level + (1 if module.is_package else 0)]
    return ".".join([*parts, *(target.split(".") if target else [])])


def _read_statements(body: Iterable[ast.stmt], module: _Module, constants: dict[str, ast.Constant]) -> None:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if "overload" not in _decorators(node):
                found = _Definition(node.name, _signature(node.name, node.args, constants, bound=False), _docstring(node), module.name)
                if found.doc or node.name not in module.definitions:
                    module.definitions[node.name] = found
        elif isinstance(node, ast.ClassDef):
            module.definitions[node.name] = _class(node, module.name, constants)
        elif isinstance(node, ast.ImportFrom):
            target = _absolute(module, node.level, node.module)
            for alias in node.names:
                if alias.name == "*":
                    module.stars.append(target)
                else:
                    module.imports[alias.asname or alias.name] = (target, alias.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target_node in targets:
                if not isinstance(target_node, ast.Name) or node.value is None:
                    continue
                if target_node.id == "__all__":
                    names = _literal_names(node.value)
                    extends = isinstance(node, ast.AugAssign)
                    if names is None:
                        module.exported = None
                    else:
                        module.exported = [*(module.exported or []), *names] if extends else names
                elif isinstance(node.value, ast.Constant) and not isinstance(node, ast.AugAssign):
                    constants[target_node.id] = node.value
        elif isinstance(node, ast.If | ast.Try | ast.With):
            _read_statements(node.body, module, constants)
            for extra in (getattr(node, "orelse", []), getattr(node, "finalbody", [])):
                _read_statements(extra, module, constants)
            for handler in getattr(node, "handlers", []):
                _read_statements(handler.body, module, constants)


_PARSER = threading.Lock()
"""CPython 3.11 counts the depth of `ast.parse` in one place for all threads and fails when two parse (its issue 106905)."""


def parse_python(source: bytes) -> ast.Module:
    """The syntax tree of a source. CPython 3.11's parser fails where two threads parse at once, whatever the source: tried again.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: as `ast.parse`.
    """
    for _ in range(5):
        try:
            with _PARSER, warnings.catch_warnings():
                warnings.simplefilter("ignore")  # SyntaxWarning: invalid escapes in other people's docstrings
                return ast.parse(source)
        except SystemError:  # Some other thread parsed too, outside this lock.
            continue
    return ast.parse(source)


def _read_module(path: Path, name: str) -> _Module | None:
    module = _Module(name, path.name == "__init__.py")
    try:
        tree = parse_python(path.read_bytes())
        module.doc = _docstring(tree)
        _read_statements(tree.body, module, {})
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):  # the last two: nested too deeply
        return None
    return module


# --- public names of a package -------------------------------------------------------------------------------------


def _public(name: str) -> bool:
    return not any(part.startswith("_") for part in name.split("."))


class _Package:
    """All modules of one top-level package, and which public names lead where."""

    def __init__(self, modules: dict[str, _Module], top: str) -> None:
        self.modules = modules
        self.top = top
        self._names: dict[str, dict[str, _Definition]] = {}

    def _resolve(self, module: str, name: str, depth: int = 0) -> _Definition | None:
        found = self.modules.get(module)
        if found is None or depth > 8:
            return None
        if name in found.definitions:
            return found.definitions[name]
        if name in found.imports:
            target, original = found.imports[name]
            return self._resolve(target, original, depth + 1)
        for star in found.stars:
            if (hit := self._resolve(star, name, depth + 1)) is not None:
                return hit
        return None

    def names(self, module: str, depth: int = 0) -> dict[str, _Definition]:
        """Public names that `from module import *` would bind to a definition within the package."""
        found = self.modules.get(module)
        if found is None or depth > 8:
            return {}
        if module in self._names:
            return self._names[module]
        self._names[module] = {}  # Import cycles end here.
        names: dict[str, _Definition] = {}
        if found.exported is not None:
            candidates: Iterable[str] = found.exported
        else:
            for star in found.stars:
                names.update(self.names(star, depth + 1))
            candidates = [*found.imports, *found.definitions] if found.is_package or not _public(module) else list(found.definitions)
        for name in candidates:
            if not name.startswith("_") and (definition := self._resolve(module, name)) is not None:
                names[name] = definition
        self._names[module] = names
        return names

    def titled(self) -> Iterator[tuple[str, _Definition]]:
        """Each definition once, under its best public title: within its own package first, then the shortest."""
        best: dict[int, tuple[tuple[bool, int, str], _Definition]] = {}
        for module in sorted(self.modules):
            if not _public(module):
                continue
            for name, definition in self.names(module).items():
                title = f"{module}.{name}"
                home = definition.module == module or definition.module.startswith(f"{module}.")
                rank = (not home, title.count("."), title)
                if id(definition) not in best or rank < best[id(definition)][0]:
                    best[id(definition)] = (rank, definition)
        for rank, definition in sorted(best.values(), key=lambda item: item[0][2]):
            yield rank[2], definition


def package_documents(root: Path, top: str, source: str, licence: str) -> Iterator[Document]:
    """Documents of one package (a folder) or module (a file) anywhere, whose import name is `top`."""
    files = [root] if root.is_file() else sorted(root.rglob("*.py"))
    modules: dict[str, _Module] = {}
    for path in files:
        parts = [top] if root.is_file() else [top, *path.relative_to(root).with_suffix("").parts]
        if any(part in _SKIP_PARTS or part.startswith(("test_", "_test")) or part.endswith("_test") for part in parts[1:]):
            continue
        if parts[-1] == "__init__":
            parts = parts[:-1]
        elif parts[-1] == "__main__":
            continue
        name = ".".join(parts)
        if (module := _read_module(path, name)) is not None:
            modules[name] = module
    package = _Package(modules, top)
    for name in sorted(modules):
        if _public(name) and len(modules[name].doc) >= MIN_DOC_CHARS:
            yield _document(name, f"module {name}", modules[name].doc, source, licence)
    for title, definition in package.titled():
        if len(definition.doc) >= MIN_DOC_CHARS:
            yield _document(title, definition.signature, definition.doc + _origin(title, definition), source, licence)
        for method in definition.methods:
            if len(method.doc) >= MIN_DOC_CHARS:
                yield _document(f"{title}.{method.name}", method.signature, f"{method.doc}\n\nMethod of {title}.", source, licence)


def _origin(title: str, definition: _Definition) -> str:
    """Names the public module an object was defined in, where its title does not: that places it in the package's own order."""
    parts = definition.module.split(".")
    private = next((i for i, part in enumerate(parts) if part.startswith("_")), len(parts))
    module = ".".join(parts[:private])
    return "" if title.rpartition(".")[0] == module or not title.startswith(f"{parts[0]}.") else f"\n\nDefined in {module}."


def _document(title: str, signature: str, doc: str, source: str, licence: str) -> Document:
    text = f"{signature}\n\n{doc}"[:MAX_TEXT_CHARS]
    return Document(document_id(source, title), title, text, source, licence, rst_links(text))


# --- distributions -------------------------------------------------------------------------------------------------


def _licence(metadata: email.message.Message) -> str:
    """Licence expression, else the classifiers', else the first short line of the licence field, else `unknown`."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classifiers = [c.rsplit("::", 1)[1].strip() for c in metadata.get_all("Classifier") or [] if c.startswith("License ::")]
    if classifiers:
        return ", ".join(classifiers)
    line = str(metadata.get("License") or "").strip().split("\n")[0].strip()
    return line if 0 < len(line) <= 60 else "unknown"


def stdlib_documents(root: Path | None = None) -> Iterator[Document]:
    """Documents of the standard library (licence PSF-2.0)."""
    root = root or Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.iterdir()):
        name = path.stem
        if name.startswith("_") or name in _SKIP_PARTS or not name.isidentifier():
            continue
        if path.suffix == ".py" or (path / "__init__.py").is_file():
            yield from package_documents(path, name, STDLIB, "PSF-2.0")


def distribution_documents(name: str) -> Iterator[Document]:
    """Documents of one installed distribution; nothing when it is not installed."""
    if name == STDLIB:
        yield from stdlib_documents()
        return
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return
    metadata = cast("email.message.Message", distribution.metadata)
    source, licence = str(metadata["Name"]).lower(), _licence(metadata)
    tops = sorted({f.parts[0] for f in distribution.files or [] if f.suffix == ".py" and ".." not in f.parts})
    for top in tops:
        root = Path(str(distribution.locate_file(top)))
        stem = root.stem if root.is_file() else root.name
        if stem.startswith("_") or not stem.isidentifier() or stem in _SKIP_PARTS:
            continue
        if root.is_file() or (root / "__init__.py").is_file():
            yield from package_documents(root, stem, source, licence)


def unique_documents(documents: Iterable[Document]) -> Iterator[Document]:
    """Documents without repeats: one per id, and one per text (a re-export under another name says nothing new)."""
    ids: set[str] = set()
    texts: set[bytes] = set()
    for document in documents:
        digest = hashlib.sha256(document.text.encode("utf-8", "replace")).digest()
        if document.document_id not in ids and digest not in texts:
            ids.add(document.document_id)
            texts.add(digest)
            yield document
