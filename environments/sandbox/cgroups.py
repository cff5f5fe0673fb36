"""Limits on the sum of a sandbox's memory and processes, where this process may make control groups (version 1 or 2).

As root, or in a group that was delegated to us (cgroups(7), "Delegation"). The kernel keeps an empty group when its maker is
killed, so a small janitor process waits for that and removes what is left.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from functools import cache
from pathlib import Path

from environments.errors import SandboxError

ROOT = Path("/sys/fs/cgroup")
_JANITOR = """
import os, select, sys, time
owner, parents = int(sys.argv[1]), sys.argv[2:]
if os.getppid() == owner:
    poller = select.poll()
    poller.register(os.pidfd_open(owner), select.POLLIN)
    poller.poll()
for _ in range(300):
    left = [os.path.join(p, n) for p in parents for n in os.listdir(p) if n.startswith(f"ninefold-{owner}-")]
    for path in left:
        try: os.rmdir(path)
        except OSError: pass
    if not left: break
    time.sleep(0.05)
"""
_keeper: tuple[int, subprocess.Popen[bytes]] | None = None


def _own_paths() -> dict[str, str]:
    """Controller to path of our own group; the unified hierarchy has the name ''."""
    found = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        found.update(dict.fromkeys(controllers.split(","), path))
    return found


def _works(parent: Path, files: tuple[str, ...]) -> bool:
    """Whether groups can be made below `parent` that have these files, and a process can be moved into one."""
    trial = parent / f"ninefold-{os.getpid()}-{uuid.uuid4().hex[:8]}"
    try:
        trial.mkdir()
    except OSError:
        return False
    null = subprocess.DEVNULL
    child = subprocess.Popen(["sleep", "60"], stdin=null, stdout=null, stderr=null)
    try:
        (trial / "cgroup.procs").write_text(str(child.pid))
        return all(os.access(trial / name, os.W_OK) for name in files)
    except OSError:
        return False
    finally:
        child.kill()
        child.wait()
        with contextlib.suppress(OSError):
            trial.rmdir()


@cache
def _parents(pid: int) -> tuple[tuple[Path, str, str], ...]:
    """(parent folder, memory file or '', processes file or '') of the groups to make; empty where there can be none."""
    try:
        own = _own_paths()
    except OSError:
        return ()
    first = (ROOT / "memory" / own.get("memory", "").lstrip("/"), "memory.limit_in_bytes", "")
    second = (ROOT / "pids" / own.get("pids", "").lstrip("/"), "", "pids.max")
    if {"memory", "pids"} <= own.keys() and all(_works(parent, (memory or count,)) for parent, memory, count in (first, second)):
        return first, second
    if "" in own:
        here = ROOT / own[""].lstrip("/")
        for parent in (here, here.parent):
            with contextlib.suppress(OSError):
                (parent / "cgroup.subtree_control").write_text("+memory +pids")
            if parent.is_relative_to(ROOT) and _works(parent, ("memory.max", "pids.max")):
                return ((parent, "memory.max", "pids.max"),)
    return ()


def usable() -> bool:
    """Whether this process can limit a sandbox as a whole."""
    return bool(_parents(os.getpid()))


def _watch(parents: tuple[Path, ...]) -> None:
    """Start the janitor of this process, once."""
    global _keeper
    if _keeper is None or _keeper[0] != os.getpid():
        command = [sys.executable, "-I", "-S", "-c", _JANITOR, str(os.getpid()), *map(str, parents)]
        null = subprocess.DEVNULL
        _keeper = (os.getpid(), subprocess.Popen(command, stdin=null, stdout=null, stderr=null, cwd="/", env={}, start_new_session=True))


class Group:
    """A control group (a pair of them in version 1) for one box.

    Raises:
        SandboxError: it cannot be made.
    """

    def __init__(self) -> None:
        parents = _parents(os.getpid())
        name = f"ninefold-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._files = [(parent / name, memory, count) for parent, memory, count in parents]
        _watch(tuple(parent for parent, _, _ in parents))
        try:
            for folder, _, _ in self._files:
                folder.mkdir()
        except OSError as error:
            self.remove()
            raise SandboxError(f"no control group for a sandbox: {error}", "see `ninefold doctor`") from error

    def limit(self, memory_bytes: int, processes: int) -> None:
        """Set or change the limits."""
        for folder, memory, count in self._files:
            if memory:
                (folder / memory).write_text(str(memory_bytes))
            if count:
                (folder / count).write_text(str(processes))

    def add(self, pid: int) -> None:
        """Move a process in, with all that it will start."""
        for folder, _, _ in self._files:
            (folder / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        """Remove it once its processes are gone; the last of them may still be on the way out."""
        for folder, _, _ in self._files:
            for _ in range(200):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:
                    time.sleep(0.005)
        self._files = []
