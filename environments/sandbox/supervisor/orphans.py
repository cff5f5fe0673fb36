"""What a killed supervisor leaves behind, and how the next one removes it: processes by a journal, files by folder."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import psutil

_LOG = logging.getLogger(__name__)
JOURNAL = "processes"
_REAP_S = 5.0
_CHILDREN_FILES = Path("/proc/thread-self/children").exists()
"""A kernel may be built without them (CONFIG_PROC_CHILDREN)."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def _status(pid: int) -> tuple[int, str] | None:
    """(parent, start time in ticks since boot) of a process that is not a zombie, or None. The pair of pid and start time is unique."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (int(fields[1]), fields[19])


def _descendants(roots: set[int]) -> set[int]:
    """`roots` and everything below them."""
    parents = {int(entry): status[0] for entry in os.listdir("/proc") if entry.isdigit() and (status := _status(int(entry)))}
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found


class ProcessJournal:
    """The processes that this process has started, noted on disk as they appear. Only for a process whose every child is a sandbox's."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: set[int] = set()
        self._lock = threading.Lock()
        path.write_text(f"{_BOOT_ID.read_text().strip()}\n")

    def note(self) -> None:
        """Add what has appeared since the last call. What a noted process starts later is found through it."""
        with self._lock:
            children = set(_children("self"))
            lines = [f"{pid} {status[1]}\n" for pid in _with_children(children - self._known) if (status := _status(pid))]
            self._known = children
            with self._path.open("a") as file:
                file.writelines(lines)


def _children(pid: int | str) -> list[int]:
    """Direct children, asked of each thread (a child belongs to the thread that started it). Costs less than a walk of /proc."""
    if not _CHILDREN_FILES:
        return [child.pid for child in psutil.Process(os.getpid() if pid == "self" else int(pid)).children()]
    found: list[int] = []
    with contextlib.suppress(OSError):  # it has just ended
        for task in Path("/proc", str(pid), "task").iterdir():
            with contextlib.suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def _with_children(pids: set[int]) -> list[int]:
    found = list(pids)
    for pid in found:
        found += _children(pid)
    return found


def reap_processes(instance: Path) -> int:
    """Kill what is left of the processes of a dead supervisor whose folder was `instance`; returns how many there were.

    They are those in its journal with all their descendants, and any that took the folder's TMPDIR over or were given a path
    in it, such as a runtime that detached itself.

    Returns when they are gone, or after five seconds.
    """
    doomed = _journaled(instance / JOURNAL) | _referring(instance)
    deadline = time.monotonic() + _REAP_S
    while time.monotonic() < deadline:
        doomed = _descendants(doomed) - {os.getpid()}  # one that was forking appears in the next round
        if not (alive := [pid for pid in doomed if _status(pid) is not None]):
            break
        for pid in alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return len(doomed)


def _journaled(journal: Path) -> set[int]:
    try:
        boot, *lines = journal.read_text().splitlines()
    except (OSError, ValueError):
        return set()
    if boot != _BOOT_ID.read_text().strip():
        return set()  # every one of them ended with the machine
    found = set()
    for line in lines:
        number, _, started = line.partition(" ")
        if number.isdigit() and (status := _status(int(number))) is not None and status[1] == started:
            found.add(int(number))
    return found


def _referring(instance: Path) -> set[int]:
    inside, variable = os.fsencode(f"{instance}/"), os.fsencode(f"TMPDIR={instance}/tmp")
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                variables = (entry / "environ").read_bytes().split(b"\0")
                if inside in (entry / "cmdline").read_bytes() or variable in variables:
                    found.add(int(entry.name))
    return found


def remove_folder(folder: Path) -> None:
    """Remove a dead supervisor's folder. Mounts below it are detached first: nothing of the host may be deleted through one."""
    for point in _mounts_below(folder):
        subprocess.run(["umount", "-l", point], stdin=subprocess.DEVNULL, capture_output=True)
    if still := _mounts_below(folder):
        _LOG.warning("%s stays: %s is mounted there", folder, still[0])
        return
    shutil.rmtree(folder, ignore_errors=True)


def _mounts_below(folder: Path) -> list[str]:
    points = [
        line.split()[1].encode().decode("unicode_escape").encode("latin-1").decode("utf-8", "surrogateescape")
        for line in Path("/proc/self/mounts").read_text().splitlines()
    ]
    return sorted((point for point in points if Path(point).is_relative_to(folder.resolve())), reverse=True)
