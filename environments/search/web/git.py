"""A git repository as material: one commit, fetched shallow into the cache, read without ever being checked out.

Git runs with a clean environment and its own configuration only: no hooks, no filters, no submodules, no credentials, no
redirects; the protocol is the one that the address names, and over https it connects to the address that was checked.
The repository's files are data: they are listed and read as objects of the commit, never written where git would
interpret them, and nothing of them is imported or run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from environments.errors import InputError, MissingDependencyError
from environments.files import replacing
from environments.search.web.config import GitConfig
from environments.search.web.guard import Guard, port_of
from environments.search.web.outcome import RefusedError

log = logging.getLogger(__name__)

_COMMIT = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64})\tHEAD$", re.M)
_POLL_S = 0.1


@dataclass(frozen=True)
class File:
    """One file of a commit."""

    path: str
    blob: str
    size_bytes: int


class GitCommand:
    """Runs git on one bare repository folder, within time and size limits."""

    def __init__(self, config: GitConfig, guard: Guard, home: Path) -> None:
        self._config = config
        self._guard = guard
        self._home = home
        self._deadline = time.monotonic() + config.fetch_s
        program = shutil.which("git")
        if program is None:
            raise MissingDependencyError("git is not installed", "apt-get install git")
        self._program = program

    def remote_head(self) -> str:
        """The commit that HEAD of the remote points at.

        Raises:
            RefusedError: `git`, or what `Guard` says of the host.
        """
        said = self._remote("ls-remote", "--exit-code", *self._address(), "HEAD")
        match = _COMMIT.search(said)
        if match is None:
            raise RefusedError("git", f"{self._config.url} has no HEAD")
        return match[1].decode()

    def fetch(self, commit: str) -> None:
        """Fetch one commit, without history, into the (new) bare repository.

        Raises:
            RefusedError: `git`, `timeout`, `too_large`, or what `Guard` says of the host.
        """
        hashes = ("--object-format=sha256",) if len(commit) == 64 else ()
        self._run("init", "--quiet", "--bare", "--template=", *hashes, str(self._home))
        limit = f"--filter=blob:limit={self._config.max_file_bytes}"  # a server that cannot filter sends everything
        options = ("--quiet", "--depth=1", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--no-auto-maintenance")
        self._remote("fetch", *options, limit, *self._address(), commit)
        with contextlib.suppress(RefusedError):  # there is none when nothing was filtered
            # Or git would fetch, one by one and by itself, what the filter has left out.
            self._run("config", "--remove-section", f"remote.{self._address()[1]}")
        kind = self._run("cat-file", "-t", commit).strip()
        if kind != b"commit":
            raise RefusedError("git", f"{commit} is a {kind.decode()}, not a commit")

    def files(self, commit: str) -> list[File]:
        """Regular files of the commit, by path. Links and submodules are left out, as are names that are no UTF-8."""
        found = []
        for entry in self._run("ls-tree", "-r", "-z", "--long", commit).split(b"\0"):
            head, _, name = entry.partition(b"\t")
            parts = head.split()
            if len(parts) != 4 or parts[1] != b"blob" or parts[0] not in (b"100644", b"100755") or not parts[3].isdigit():
                continue  # 120000 is a symbolic link, 160000 a submodule; a size of BAD was left out by the filter
            with contextlib.suppress(UnicodeDecodeError):
                found.append(File(name.decode(), parts[2].decode(), int(parts[3])))
        return found

    def read(self, files: Sequence[File]) -> Iterator[tuple[File, bytes]]:
        """The contents of files, in their order."""
        asked = "".join(f"{file.blob}\n" for file in files).encode()
        said = self._run("cat-file", "--batch", stdin=asked)
        position = 0
        for file in files:
            end = said.index(b"\n", position)
            head = said[position:end].split()
            if len(head) != 3:
                position = end + 1  # "<name> missing"
                continue
            size = int(head[2])
            yield file, said[end + 1 : end + 1 + size]
            position = end + 2 + size

    # --- running --------------------------------------------------------------------------------------------------------------

    def _address(self) -> tuple[str, str]:
        # A path goes as file://: git takes no filter from a remote that begins with a slash.
        return "--", self._config.url if "://" in self._config.url else Path(self._config.url).resolve().as_uri()

    def _remote(self, command: str, *arguments: str) -> bytes:
        """Run a command that speaks to the remote: its protocol and no other, at the checked address."""
        url = self._config.url
        scheme = urlsplit(url).scheme if "://" in url else "file"
        options = ["-c", f"protocol.{scheme}.allow=always"]
        if scheme in ("http", "https"):
            parsed = httpx.URL(url)
            self._guard.check(parsed)
            port = port_of(parsed)
            if scheme == "http" and not self._guard.private(parsed.host, port):
                raise RefusedError("git", f"{url} is not encrypted: use https")
            addresses = self._guard.addresses(parsed.host, port, self._guard.config.connect_s)
            pinned = ",".join(f"[{a}]" if ":" in a else a for a in addresses)
            options += ["-c", f"http.curloptResolve={parsed.host}:{port}:{pinned}", "-c", "http.followRedirects=false"]
            options += ["-c", "http.lowSpeedLimit=1000", "-c", f"http.lowSpeedTime={max(1, round(self._guard.config.idle_s))}"]
            options += ["-c", f"http.userAgent={self._guard.config.user_agent}"]
            if self._guard.config.ca_file is not None:
                options += ["-c", f"http.sslCAInfo={self._guard.config.ca_file}"]
        return self._run(command, *arguments, options=options)

    def _run(self, command: str, *arguments: str, options: Sequence[str] = (), stdin: bytes = b"") -> bytes:
        fixed = ["core.hooksPath=/dev/null", "core.fsmonitor=false", "core.symlinks=false", "submodule.recurse=false", "gc.auto=0"]
        fixed += [
            "protocol.allow=never",
            "credential.helper=",
            "fetch.fsckObjects=true",
            "core.attributesFile=/dev/null",
            "uploadpack.packObjectsHook=",
        ]
        settings = [argument for setting in fixed for argument in ("-c", setting)]
        folder = self._home if (self._home / "HEAD").exists() else self._home.parent
        environment = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self._home.parent),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ASKPASS": "/bin/false",
            "GIT_CEILING_DIRECTORIES": str(self._home.parent.resolve().parent),
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_ADVICE": "0",
        }
        if command not in ("init", "ls-remote"):
            environment["GIT_DIR"] = str(self._home)
        out, said = self._home.parent / f".{self._home.name}.out", self._home.parent / f".{self._home.name}.err"
        try:
            with out.open("w+b") as stdout, said.open("w+b") as stderr, (out.with_suffix(".in")).open("w+b") as given:
                given.write(stdin)
                given.seek(0)
                process = subprocess.Popen(
                    [self._program, *settings, *options, command, *arguments],
                    cwd=folder,
                    env=environment,
                    stdin=given,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
                self._watch(process, command)
                stderr.seek(0)
                if process.returncode != 0:
                    lines = stderr.read(20_000).decode("utf-8", "replace").strip().splitlines()
                    raise RefusedError("git", f"git {command} failed: {lines[-1][:300] if lines else process.returncode}")
                stdout.seek(0)
                return stdout.read()
        finally:
            for path in (out, said, out.with_suffix(".in")):
                path.unlink(missing_ok=True)

    def _watch(self, process: subprocess.Popen[bytes], command: str) -> None:
        """Wait for it to end; kill it with its children when it takes too long or fills the disk."""
        try:
            while True:
                try:
                    process.wait(min(_POLL_S, max(0.01, self._deadline - time.monotonic())))
                    return
                except subprocess.TimeoutExpired:
                    pass
                if time.monotonic() > self._deadline:
                    raise RefusedError("timeout", f"git {command} was not done within {self._config.fetch_s:g} s")
                if command == "fetch" and _size(self._home) > self._config.max_bytes:
                    raise RefusedError("too_large", f"more than {self._config.max_bytes} bytes")
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _size(folder: Path) -> int:
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(root) / name).lstat().st_size
    return total


def fetch_repository(config: GitConfig, guard: Guard, folder: Path) -> tuple[str, list[tuple[File, bytes]]]:
    """The pinned commit of a repository and those of its files that are material, read into memory.

    `folder` is the repository's own in the cache: the commit of a configuration without one is pinned there when it is first seen.

    Raises:
        RefusedError: what went wrong, by kind.
        InputError: the repository's path does not exist.
    """
    if "://" not in config.url and not Path(config.url).is_dir():
        raise InputError(f"{config.url} is no folder", "name a git repository by its path or https address")
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / f".{uuid.uuid4().hex}.git"
    git = GitCommand(config, guard, home)
    try:
        commit = config.commit or pinned_commit(folder) or git.remote_head()
        git.fetch(commit)
        if (size := _size(home)) > config.max_bytes:
            raise RefusedError("too_large", f"{size} bytes, at most {config.max_bytes} are kept")
        wanted = [f for f in git.files(commit) if f.size_bytes <= config.max_file_bytes and is_material(f.path)]
        contents = list(git.read(wanted))
        if not config.commit:
            with replacing(folder / "pinned.json") as part:
                part.write_text(json.dumps({"url": config.url, "commit": commit}))
        return commit, contents
    finally:
        shutil.rmtree(home, ignore_errors=True)


def pinned_commit(folder: Path) -> str:
    """The commit that a repository without a configured one was pinned to; empty before it was."""
    try:
        commit = str(json.loads((folder / "pinned.json").read_bytes())["commit"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    return commit if re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit) else ""


_TEXTS = (".md", ".rst", ".txt", ".adoc", ".markdown")
_LICENCE = re.compile(r"(licen[cs]e|copying|unlicense)([-._][a-z0-9.-]+)?", re.I)
_SKIPPED = frozenset({"node_modules", "vendor", "vendored", "_vendor", "third_party", "site-packages", "dist", "build", ".git"})


def is_licence(path: str) -> bool:
    """Whether a file is the licence of the repository: LICENSE, COPYING or the like, at its root or in LICENSES/."""
    folder, _, name = path.rpartition("/")
    return (folder in ("", "LICENSES", "licenses") and _LICENCE.fullmatch(name) is not None) or folder == "LICENSES"


def is_material(path: str) -> bool:
    """Whether a file is read: README files, texts under documentation folders or at the root, Python sources, licences."""
    parts = path.split("/")
    if any(part.lower() in _SKIPPED or part in ("", ".", "..") for part in parts[:-1]) or "\\" in path:
        return False
    name = parts[-1].lower()
    if is_licence(path) or name.endswith(".py") or name.startswith("readme"):
        return True
    documented = len(parts) == 1 or parts[0].lower() in ("doc", "docs", "documentation", "guide", "guides", "man", "manual")
    return documented and name.endswith(_TEXTS) and not name.startswith(("requirements", "constraints"))


def repository_folder(cache: Path, config: GitConfig) -> Path:
    """Where in the cache a repository lies."""
    place = config.url if "://" in config.url else str(Path(config.url).resolve())
    return cache / "git" / hashlib.sha256(place.encode()).hexdigest()[:16]
