"""Source trees as values, and what the parts of one are: package, tests, configuration, history."""

from __future__ import annotations

import io
import posixpath
import re
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from environments.errors import InputError

Tree = Mapping[str, bytes]
"""Files by path relative to the tree's top."""

MAX_BYTES = 128 << 20
MAX_FILES = 20_000
"""Bounds on an unpacked tree: a source release of one package stays far below both."""

_TEST_FOLDER = {"test", "tests", "testing", "unittests", "test_suite"}
_NO_PACKAGE = _TEST_FOLDER | {"doc", "docs", "example", "examples", "benchmark", "benchmarks", "scripts", "tools", "tasks", "build", "dist"}
_NO_TESTS = {"doc", "docs", "example", "examples", "benchmark", "benchmarks", "scripts", "tools", "fuzz", "fuzzing"}
_NO_MODULE = {"setup.py", "conftest.py", "noxfile.py", "tasks.py", "sitecustomize.py", "usercustomize.py", "versioneer.py"}
_CONFIG = {"pyproject.toml", "setup.cfg", "pytest.ini", "tox.ini", "conftest.py"}
_HISTORY = re.compile(r"(^|/)(change(s|log)?|history|news|release(s|[-_]?notes)?|whats[-_]?new)([._-][^/]*)?$|(^|/)newsfragments/", re.I)
_OLD = re.compile(
    r"(^|/)(\.git|\.hg|\.svn|\.pc|__pycache__|\.tox|\.eggs)(/|$)|^(debian|build|dist)/|\.(pyc|pyo|orig|rej|patch|diff|egg|whl)$|egg-info",
    re.I,
)


class TreeError(InputError):
    """An archive, patch or repository that cannot be read as a source tree."""


def read_tar(path: Path) -> Tree:
    """The regular files of a source archive, without the folder that all of them are in.

    Raises:
        TreeError: no readable archive, too large, or names that leave the tree.
    """
    try:
        with tarfile.open(path) as archive:
            return without_top(_members(archive))
    except (tarfile.TarError, OSError, EOFError) as error:
        raise TreeError(f"{path.name} is no readable archive ({error})", "fetch it again") from error


def read_tar_bytes(data: bytes) -> Tree:
    """As `read_tar`, of an archive in memory, and nothing taken off the paths."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return _members(archive)
    except (tarfile.TarError, EOFError) as error:
        raise TreeError(f"no readable archive ({error})", "fetch it again") from error


def _members(archive: tarfile.TarFile) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    size = 0
    for member in archive:
        if not member.isfile():
            continue
        path = posixpath.normpath(member.name)
        if path.startswith(("/", "..")):
            raise TreeError(f"{member.name!r:.80} leaves the tree", "do not use this archive")
        size += member.size
        if size > MAX_BYTES or len(files) >= MAX_FILES:
            raise TreeError(f"the archive holds more than {MAX_FILES} files or {MAX_BYTES >> 20} MiB", "choose a smaller package")
        stream = archive.extractfile(member)
        files[path] = stream.read() if stream is not None else b""
    return files


def without_top(files: Tree) -> Tree:
    """Without the one folder that every path begins with, if there is one."""
    tops = {path.split("/", 1)[0] for path in files}
    if len(tops) != 1 or any("/" not in path for path in files):
        return files
    return {path.split("/", 1)[1]: data for path, data in files.items()}


def is_test(path: str) -> bool:
    """Whether a file belongs to the tests: by its folder, or by pytest's naming."""
    *folders, name = path.split("/")
    if folders and folders[0] in _NO_TESTS:
        return False
    return (
        any(f in _TEST_FOLDER for f in folders) or name == "conftest.py" or bool(re.fullmatch(r"test_.*\.py|.*_test\.py|tests?\.py", name))
    )


def is_history(path: str) -> bool:
    """Whether a file tells what changed later: a change log, a patch, a repository's objects, byte code, packaging."""
    return bool(_OLD.search(path)) or (not path.endswith(".py") and bool(_HISTORY.search(path)))


def is_config(path: str) -> bool:
    """Whether pytest reads it at the top of the tree."""
    return path in _CONFIG


@dataclass(frozen=True)
class Layout:
    """Where a tree keeps its importable code."""

    roots: tuple[str, ...]
    """Folders that imports start from."""
    editable: tuple[str, ...]
    """Packages (with `/` at the end) and modules that a solver may change."""

    @property
    def names(self) -> tuple[str, ...]:
        """What is imported: `jinja2`."""
        return tuple(posixpath.basename(path.rstrip("/")).removesuffix(".py") for path in self.editable)

    def holds(self, path: str) -> bool:
        """Whether a solver may change this file."""
        inside = any(path == place or (place.endswith("/") and path.startswith(place)) for place in self.editable)
        return inside and not is_test(path) and not is_history(path) and posixpath.basename(path) not in _NO_MODULE


def layout_of(tree: Tree) -> Layout:
    """The packages and modules of a tree, in `src/` or `lib/` where there is one, else at its top.

    Raises:
        TreeError: nothing importable in it.
    """
    for root in ("src", "lib", ""):
        prefix = f"{root}/" if root else ""
        inside = [path[len(prefix) :] for path in tree if path.startswith(prefix)]
        packages = {p.split("/")[0] for p in inside if p.count("/") == 1 and p.endswith("/__init__.py")}
        modules = {p for p in inside if "/" not in p and p.endswith(".py") and p not in _NO_MODULE and not is_test(p)}
        places = [f"{prefix}{name}/" for name in sorted(packages - _NO_PACKAGE)] + [f"{prefix}{name}" for name in sorted(modules)]
        if places:
            return Layout(tuple(dict.fromkeys((root, ""))), tuple(places))
    raise TreeError("the tree holds no importable package", "choose a Python package with its sources at the top or in src/")


def text_of(data: bytes) -> str | None:
    """A file's text; None when it is not UTF-8 text."""
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
