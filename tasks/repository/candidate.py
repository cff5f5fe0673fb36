"""A fix before it is a task, and what became of it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.repository.tree import Layout, Tree, is_test, layout_of, text_of

Origin = Literal["debian", "index", "git"]
Stage = Literal["fetch", "buildability", "design", "environment", "self-test"]


@dataclass(frozen=True)
class Candidate:
    """A tree before and after one fix."""

    name: str
    """`jinja2 CVE-2024-56201`: unique among the candidates of a build."""
    package: str
    origin: Origin
    version: str
    """Of the distribution package, `old -> new` for releases, a commit for git."""
    before: Tree
    after: Tree
    statement: str
    """What was wrong, in the words of the patch header, the release notes or the commit."""
    licence: str
    sources: tuple[tuple[str, str], ...]
    """(file name, sha256) of what was fetched."""
    requirements: tuple[str, ...] = ("pytest>=8,<10",)
    plugins: tuple[str, ...] = ()

    @cached_property
    def layout(self) -> Layout:
        """The layout of the fixed tree, which has every module that the old one has or gains."""
        return layout_of(self.after)

    @cached_property
    def changed(self) -> tuple[str, ...]:
        """Files of the package that the fix changes, adds or removes."""
        both = self.before.keys() | self.after.keys()
        return tuple(sorted(p for p in both if self.layout.holds(p) and self.before.get(p) != self.after.get(p)))

    @cached_property
    def tests(self) -> tuple[str, ...]:
        """Test modules of the fixed tree."""
        names = (p for p in self.after if p.endswith(".py") and is_test(p) and not p.endswith(("/__init__.py", "conftest.py")))
        return tuple(sorted(p for p in names if p.rsplit("/", 1)[-1].startswith("test") or p.endswith("_test.py")))

    @cached_property
    def added_lines(self) -> tuple[str, ...]:
        """Lines that only the fixed package has, stripped."""
        old = {line.strip() for path in self.before if self.layout.holds(path) for line in _lines(self.before, path)}
        new = [line for path in self.changed for line in _lines(self.after, path) if line.strip() not in old]
        return tuple(dict.fromkeys(line.strip() for line in new if line.strip()))

    @cached_property
    def size(self) -> int:
        """Lines of the package that the fix adds or removes."""
        total = 0
        for path in self.changed:
            diff = difflib.unified_diff(_lines(self.before, path), _lines(self.after, path), n=0, lineterm="")
            total += sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in diff)
        return total


def _lines(tree: Tree, path: str) -> list[str]:
    return (text_of(tree.get(path, b"")) or "").splitlines()


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rejected(_Row):
    """A candidate that became no task."""

    name: str
    stage: Stage
    reason: str


class ManifestRow(_Row):
    """What is published of a built task: enough to build it again and to see that it is the same."""

    name: str
    package: str
    origin: Origin
    version: str
    licence: str
    sources: tuple[tuple[str, str], ...]
    changed: tuple[str, ...]
    lines: int
    """Lines of the package that the fix adds or removes."""
    fail_to_pass: int
    pass_to_pass: int
    flaky: tuple[str, ...]
    """Tests left out because their outcome changed between runs."""
    controls: int
    """Spoiled tests that must fail."""
    runs: int
    """Runs of each side."""
    requirements: tuple[str, ...]
    payload_sha256: str
