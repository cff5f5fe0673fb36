"""Single fixes from any git repository that the user names: commits that change both the package and its tests."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from environments.errors import MissingDependencyError
from tasks.repository.candidate import Candidate
from tasks.repository.index import OfflineError, licence_of
from tasks.repository.tree import Tree, TreeError, is_test, read_tar_bytes, text_of

_GIT_S = 300
_LICENCES = {"MIT License": "MIT", "Apache License": "Apache-2.0", "Redistribution and use in source": "BSD", "Mozilla Public": "MPL-2.0"}


def clone(address: str, folder: Path) -> Path:
    """A bare copy of a repository (a folder or an address), made once; nothing of it is checked out or run.

    Raises:
        OfflineError: it cannot be cloned.
        MissingDependencyError: git is not installed.
    """
    place = folder / f"{hashlib.sha256(address.encode()).hexdigest()[:16]}.git"
    if not place.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _git(folder, "clone", "--quiet", "--bare", "--", address, f"{place}.part")
        except TreeError as error:
            raise OfflineError(f"{address!r:.100} cannot be cloned: {error.message}", "check the address and the network") from error
        Path(f"{place}.part").rename(place)
    return place


def commit_candidates(
    repository: Path, name: str, limit: int = 20, scan: int = 2000, revision: str = "HEAD", requirements: tuple[str, ...] = ()
) -> Iterator[Candidate]:
    """Commits with one parent that change a test and a module, newest first, at most `limit` of the last `scan`.

    Raises:
        TreeError: no such revision, or no Python package in it.
    """
    count = 0
    for line in (
        _git(repository, "log", "--no-merges", f"--max-count={scan}", "--format=%H %P", "--end-of-options", revision).decode().splitlines()
    ):
        commit, *parents = line.split()
        if len(parents) != 1 or count >= limit:
            continue
        paths = _git(repository, "diff-tree", "-r", "--no-commit-id", "--name-only", "-z", parents[0], commit).decode(errors="replace")
        changed = [p for p in paths.split("\0") if p.endswith(".py")]
        if not any(map(is_test, changed)) or all(map(is_test, changed)):
            continue
        before, after = (_tree(repository, c) for c in (parents[0], commit))
        message = _git(repository, "log", "-1", "--format=%B", commit).decode(errors="replace").strip()
        yield Candidate(
            name=f"{name} {commit[:12]}",
            package=name,
            origin="git",
            version=commit,
            before=before,
            after=after,
            statement=message[:2500],
            licence=_licence(after),
            sources=((commit, hashlib.sha256(_git(repository, "cat-file", "commit", commit)).hexdigest()),),
            requirements=requirements or ("pytest>=8,<10",),
        )
        count += 1


def _tree(repository: Path, commit: str) -> Tree:
    return read_tar_bytes(_git(repository, "archive", "--format=tar", commit))


def _licence(tree: Tree) -> str:
    stated = licence_of(tree)
    texts = [
        text_of(data) or "" for path, data in tree.items() if "/" not in path and path.upper().startswith(("LICENSE", "LICENCE", "COPYING"))
    ]
    return stated or next((short for text in texts for said, short in _LICENCES.items() if said in text), "")


def _git(folder: Path, *arguments: str) -> bytes:
    """Run git without the user's configuration, hooks or prompts."""
    env = {**os.environ, "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    options = ["-c", "core.hooksPath=/dev/null", "-c", "protocol.ext.allow=never", "-c", "safe.directory=*"]
    try:
        said = subprocess.run(["git", *options, *arguments], cwd=folder, env=env, capture_output=True, timeout=_GIT_S)
    except FileNotFoundError as error:
        raise MissingDependencyError("git is not installed", "apt-get install -y git") from error
    if said.returncode:
        raise TreeError(f"git {arguments[0]}: {said.stderr.decode(errors='replace').strip()[-200:]}", "check the repository and revision")
    return said.stdout
