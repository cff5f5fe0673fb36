"""Consecutive source releases of a package, from the package index that pip is configured for.

Releases are found and fetched by unearth (the finder of PDM), which checks the index's hashes and, unlike `pip download`,
runs nothing of what it fetches.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from email.message import Message
from email.parser import BytesParser
from functools import cache
from pathlib import Path

import httpx2
from unearth import PackageFinder

from environments.errors import InfrastructureError
from tasks.repository.candidate import Candidate
from tasks.repository.tree import Tree, TreeError, is_history, read_tar, text_of

_STATEMENT_CHARS = 2500


class OfflineError(InfrastructureError):
    """An index, a mirror or a repository cannot be reached."""


@cache
def index_urls() -> tuple[str, ...]:
    """What pip is configured to ask, first the main index; pip's own default where nothing is configured."""
    program = "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"

    def said(*command: str) -> str:
        return subprocess.run([sys.executable, "-I", *command], capture_output=True, text=True, timeout=60).stdout.strip()

    main = os.environ.get("PIP_INDEX_URL") or said("-m", "pip", "config", "get", "global.index-url") or said("-c", program)
    return (main, *os.environ.get("PIP_EXTRA_INDEX_URL", "").split())


def fetch_release(package: str, version: str, folder: Path) -> Path:
    """The source archive of one release, from `folder` when it is there already.

    Raises:
        TreeError: the index has no source archive of that release.
        OfflineError: the index cannot be reached.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[-_.]+", "[-_.]", re.escape(package).replace("\\-", "-"))
    there = [p for p in sorted(folder.iterdir()) if re.fullmatch(rf"{stem}-{re.escape(version)}\.(tar\.gz|tar\.bz2)", p.name, re.I)]
    if there:
        return there[0]
    try:
        finder = PackageFinder(index_urls=index_urls(), no_binary=[":all:"])
        found = [match for match in finder.find_matches(f"{package}=={version}") if not match.link.is_wheel]
    except (OSError, ValueError, httpx2.HTTPError) as error:
        raise OfflineError(f"the package index cannot be asked for {package} ({error})", "try again with a network") from error
    if not found:
        raise TreeError(f"the package index has no source archive of {package} {version}", "name a release that has one, with a network")
    link = found[0].link
    try:
        response = finder.session.get(link.normalized)
        response.raise_for_status()
        data: bytes = response.content
    except (OSError, httpx2.HTTPError) as error:
        raise OfflineError(f"{link.filename} cannot be fetched ({type(error).__name__}: {error})", "try again with a network") from error
    wanted = (link.hashes or {}).get("sha256", "")
    if wanted and hashlib.sha256(data).hexdigest() != wanted:
        raise TreeError(f"{link.filename} does not have the hash that the index states", "fetch it again")
    part = folder / f".{link.filename}.part"
    part.write_bytes(data)
    part.rename(folder / link.filename)
    return folder / link.filename


def release_candidate(
    package: str, old: str, new: str, folder: Path, requirements: tuple[str, ...] = (), plugins: tuple[str, ...] = ()
) -> Candidate:
    """The step from one release to the next as a candidate.

    Raises:
        TreeError, OfflineError: as `fetch_release`; or an archive that does not read.
    """
    archives = [fetch_release(package, version, folder) for version in (old, new)]
    before, after = map(read_tar, archives)
    return Candidate(
        name=f"{package} {old} -> {new}",
        package=package,
        origin="index",
        version=f"{old} -> {new}",
        before=before,
        after=after,
        statement=release_notes(after, before, new) or f"Release {new} of {package} corrects faults of {old}.",
        licence=licence_of(after),
        sources=tuple((a.name, hashlib.sha256(a.read_bytes()).hexdigest()) for a in archives),
        requirements=requirements or ("pytest>=8,<10",),
        plugins=plugins,
    )


_SHORT = {
    "mit license": "MIT",
    "bsd license": "BSD",
    "apache software license": "Apache-2.0",
    "python software foundation license": "PSF-2.0",
}


def licence_of(tree: Tree) -> str:
    """What the release's metadata or project file states; empty when they state none."""
    if stated := stated_licence(BytesParser().parsebytes(tree.get("PKG-INFO", b""))):
        return stated
    text = (text_of(tree.get("setup.cfg", b"")) or "") + (text_of(tree.get("pyproject.toml", b"")) or "")
    written = re.search(r"""^license\s*=\s*(?:\{\s*text\s*=\s*)?["']?([A-Za-z][\w.+ -]*)["']?""", text, re.M)
    return written[1].strip() if written else ""


def stated_licence(metadata: Message) -> str:
    """The licence expression, else the classifiers', else the first line of the licence field."""
    if expression := metadata.get("License-Expression"):
        return str(expression)
    classified = [str(c).rpartition(" :: ")[2] for c in metadata.get_all("Classifier") or [] if str(c).startswith("License ::")]
    if classified:
        return "; ".join(_SHORT.get(name.lower(), name) for name in classified)
    return str(metadata.get("License") or "").strip().partition("\n")[0][:80]


def release_notes(after: Tree, before: Tree, version: str) -> str:
    """What the fixed tree's change log or read-me says of `version` that the old one does not; empty when it says nothing."""
    for path in sorted(after, key=lambda p: (not is_history(p), p.count("/"), p)):
        readme = path.count("/") == 0 and path.lower().startswith("readme")
        if not (
            (is_history(path) and path.endswith((".rst", ".md", ".txt")))
            or readme
            or re.search(r"(changelog|versions?|history)\.(rst|md)$", path)
        ):
            continue
        text, old = text_of(after[path]) or "", set((text_of(before.get(path, b"")) or "").splitlines())
        new = [line for line in text.splitlines() if line not in old]
        section = "\n".join(new).strip()
        if version in section and len(section) > len(version) + 20:
            return section[:_STATEMENT_CHARS]
    return ""
