"""Cache keys: what a step was given, and the code it runs.

Prefect's own source policy hashes the task function alone; a step's result depends on the domain packages it calls. They are
hashed as syntax trees without docstrings, so that a comment or a blank line redoes nothing.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from environments.search.sources import parse_python
from environments.task import content_hash

ROOT = Path(__file__).resolve().parents[2]
"""Folder that holds the packages."""

CONTRACTS = ("environments/*.py",)
_JUDGING = (
    "environments/answers/**/*.py",
    "environments/families/**/*.py",
    "environments/harness/**/*.py",
    "environments/verifiers/**/*.py",
    "environments/sandbox/**/*.py",
    "environments/tools/**/*.py",
    "environments/mcp/**/*.py",
)
_SEARCH = ("environments/search/**/*.py",)
_PUBLISHING = ("tasks/dataset.py", "tasks/split.py")
CODE: dict[str, tuple[str, ...]] = {
    "corpus": _SEARCH,
    "grow": (*CONTRACTS, *_SEARCH, "kg/**/*.py"),
    "synthesize": (*CONTRACTS, *_SEARCH, *_JUDGING, "tasks/**/*.py", *(f"!{p}" for p in (*_PUBLISHING, "tasks/catalog*.py"))),
    "validate": (*CONTRACTS, *_SEARCH, *_JUDGING, "environments/hardening/**/*.py"),
    "probe": (*CONTRACTS, *_SEARCH, *_JUDGING, "environments/hardening/**/*.py"),
    "publish": (*CONTRACTS, *_PUBLISHING),
    "select": ("tasks/catalog.py", "tasks/sql/*"),
    "training": (*CONTRACTS, *_SEARCH, *_JUDGING, "training/**/*.py", "kernels/**/*.py", "!training/sglang_cpu/**/*.py"),
}
"""Which source files decide the result of which step; a pattern behind `!` leaves files out again."""


def step_key(step: str, inputs: Any, code: str) -> str:
    """Key of a step: its name, a JSON value with everything it is given, and the hash of its code."""
    return content_hash([step, inputs, code])[:32]


@cache
def stage_code(stage: str) -> str:
    """Hash of the code of a stage in `CODE`, as it was when this process first asked: an edit during a run counts for the next."""
    return code_hash(CODE[stage])


def code_hash(patterns: Sequence[str], root: Path = ROOT) -> str:
    """sha256 (hex) over the syntax trees of the files that match, with their paths; files that do not parse count as text."""
    wanted = {path for pattern in patterns if not pattern.startswith("!") for path in root.glob(pattern) if path.is_file()}
    left_out = {path for pattern in patterns if pattern.startswith("!") for path in root.glob(pattern[1:])}
    files = sorted(wanted - left_out)
    digest = hashlib.sha256()
    for path in files:
        stat = path.stat()
        digest.update(str(path.relative_to(root)).encode() + b"\0" + _file_hash(path, stat.st_mtime_ns, stat.st_size))
    return digest.hexdigest()


@lru_cache(maxsize=4096)
def _file_hash(path: Path, mtime_ns: int, size: int) -> bytes:
    source = path.read_bytes()
    try:
        tree = parse_python(source)
    except (SyntaxError, ValueError):
        return hashlib.sha256(source).digest()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [
                s
                for s in node.body
                if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant) and isinstance(s.value.value, str))
            ]
    return hashlib.sha256(ast.dump(tree).encode()).digest()
