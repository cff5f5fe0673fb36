"""Real fixes that are known to make tasks: what is built by default, smallest first. `manifest.json` holds what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from environments.errors import InfrastructureError, MissingDependencyError, NinefoldError
from tasks.repository.candidate import Candidate, Origin, Rejected
from tasks.repository.debian import fetch_source, patch_candidates
from tasks.repository.index import release_candidate
from tasks.repository.tree import TreeError

_OLD_PYTEST = ("pytest>=7.4,<8",)


@dataclass(frozen=True)
class Fix:
    """Where one fix comes from."""

    package: str
    origin: Origin
    old: str = ""
    """Release before the fix, of an index fix."""
    new: str = ""
    """Release with the fix, or the name of the patch."""
    requirements: tuple[str, ...] = ()
    plugins: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The candidate's name."""
        return f"{self.package} {self.old} -> {self.new}" if self.origin == "index" else f"{self.package} {self.new}"

    def candidate(self, folder: Path) -> Candidate:
        """Fetch it; what `folder` has is not fetched again.

        Raises:
            TreeError: it is not there, or does not read.
            OfflineError: index or mirror cannot be reached.
            MissingDependencyError: apt or patch is not installed.
        """
        if self.origin == "index":
            return release_candidate(self.package, self.old, self.new, folder / "index", self.requirements, self.plugins)
        found, refused = patch_candidates(fetch_source(self.package, folder / "debian"), (self.new,), self.requirements, self.plugins)
        if not found:
            raise TreeError(
                f"{self.name}: {'; '.join(reason for name, reason in refused if name == self.new)}", "see the series of the package"
            )
        return found[0]


def _release(package: str, old: str, new: str, *requirements: str) -> Fix:
    return Fix(package, "index", old, new, requirements)


def _patch(package: str, patch: str, *requirements: str) -> Fix:
    return Fix(package, "debian", "", patch, requirements)


FIXES: tuple[Fix, ...] = (
    _release("parse", "1.20.1", "1.20.2"),
    _release("parse", "1.20.2", "1.21.0"),
    _release("boltons", "24.1.0", "25.0.0", *_OLD_PYTEST),
    _release("more-itertools", "10.7.0", "10.8.0"),
    _release("humanize", "4.12.3", "4.13.0", "pytest>=8,<10", "freezegun>=1.5,<2"),
    _release("sqlparse", "0.5.0", "0.5.1"),
    _release("sqlparse", "0.5.1", "0.5.2"),
    _release("pathspec", "0.12.0", "0.12.1"),
    _release("semver", "3.0.1", "3.0.2"),
    _release("bleach", "6.0.0", "6.1.0", "pytest>=8,<10", "six", "webencodings", "tinycss2>=1.1,<1.3"),
    _patch("jinja2", "0001-xmlattr-filter-disallows-keys-with-spaces.patch", "pytest>=8,<10", "markupsafe>=2,<4"),
    _patch("jinja2", "0002-disallow-invalid-characters-in-keys-to-xmlattr-filte.patch", "pytest>=8,<10", "markupsafe>=2,<4"),
    _patch("jinja2", "0006-Fix-CVE-2024-56201.patch", "pytest>=8,<10", "markupsafe>=2,<4"),
    _patch("jinja2", "0007-Fix-CVE-2024-56326.patch", "pytest>=8,<10", "markupsafe>=2,<4"),
)


def fetch_all(fixes: tuple[Fix, ...], folder: Path) -> Iterator[Candidate | Rejected | NinefoldError]:
    """Each fix as a candidate, or why there is none: rejected, or out of reach just now, which says nothing about it."""
    for fix in fixes:
        try:
            yield fix.candidate(folder)
        except TreeError as error:
            yield Rejected(name=fix.name, stage="fetch", reason=str(error)[:600])
        except (InfrastructureError, MissingDependencyError) as error:
            yield error
