"""The rules of who may import what, as data and one pure function.

Imports point one way, ``flows -> training -> tasks -> kg -> environments -> kernels``, and each heavy library has its
place. `violations` reads a module's source and needs nothing installed.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import PurePosixPath

ORDER = ("flows", "training", "tasks", "kg", "environments", "ninefold_kernels")
"""Each may import those to its right. `ninefold_kernels` lies in the folder kernels/."""

FOLDERS = {"kernels": "ninefold_kernels"} | {name: name for name in ORDER if name != "ninefold_kernels"}


@dataclass(frozen=True)
class Place:
    """Where a library may be imported: at any depth in `anywhere`, within functions only in `lazily` (file patterns)."""

    anywhere: tuple[str, ...]
    lazily: tuple[str, ...] = ()


_DOCTOR = "flows/doctor.py"
"""A diagnosis tries the very libraries it reports on."""

_MODELS = Place(("training/*", "kernels/*"), lazily=("environments/search/*", _DOCTOR))
_DATABASE = Place(("tasks/catalog*",), lazily=(_DOCTOR,))
_ORCHESTRATION = Place(("flows/*",))

PLACES: dict[str, Place] = {
    "prefect": _ORCHESTRATION,
    "prefect_dask": _ORCHESTRATION,
    "dask": _ORCHESTRATION,
    "distributed": _ORCHESTRATION,
    "deepspeed": Place(("training/*",)),
    "sglang": Place(("training/*",)),
    "torch": _MODELS,
    "transformers": _MODELS,
    "duckdb": _DATABASE,
    "duckdb_extensions": _DATABASE,
    "playwright": Place(("environments/*",), lazily=(_DOCTOR,)),
    # Hugging Face's package, or by accident our own folder under its wrong name.
    "kernels": Place(()),
    "tests": Place(()),
}


@dataclass(frozen=True)
class _Import:
    module: str
    line: int
    lazy: bool


def _imports(path: PurePosixPath, tree: ast.Module) -> list[_Import]:
    found: list[_Import] = []

    def add(module: str, node: ast.AST, lazy: bool) -> None:
        found.append(_Import(module, getattr(node, "lineno", 0), lazy))

    def walk(node: ast.AST, lazy: bool) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            # Never executed, but it still ties the packages together: only the library rules are eased.
            for child in node.body:
                walk(child, True)
            for child in node.orelse:
                walk(child, lazy)
            return
        if isinstance(node, ast.Import):
            for alias in node.names:
                add(alias.name, node, lazy)
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                parts = path.parts[: len(path.parts) - node.level]
                add(".".join((*parts, node.module or "")).rstrip("."), node, lazy)
            elif node.module:
                add(node.module, node, lazy)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("importlib.import_module", "import_module", "__import__"):
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant) and isinstance(name.value, str):
                add(name.value, node, lazy)
        lazy = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            walk(child, lazy)

    walk(tree, False)
    return found


def violations(path: str, source: str) -> list[str]:
    """What the module at `path` (relative to the repository) imports against the rules, one line each."""
    place = PurePosixPath(path)
    own = FOLDERS[place.parts[0]]
    broken = []
    for item in _imports(place, ast.parse(source)):
        top = item.module.partition(".")[0]
        where = f"{path}:{item.line} imports {item.module}"
        if top in ORDER and ORDER.index(top) < ORDER.index(own):
            broken.append(f"{where}: {own} may not import {top}, which lies to its left in {' -> '.join(ORDER)}")
        rule = PLACES.get(top)
        if rule is None:
            continue
        in_place = any(fnmatch(path, pattern) for pattern in rule.anywhere)
        in_lazy_place = any(fnmatch(path, pattern) for pattern in rule.lazily)
        if in_place or (in_lazy_place and item.lazy):
            continue
        if in_lazy_place:
            broken.append(f"{where}: {top} must be imported within a function here")
        else:
            broken.append(f"{where}: {top} belongs to {', '.join(rule.anywhere) or 'nobody'}")
    return broken
