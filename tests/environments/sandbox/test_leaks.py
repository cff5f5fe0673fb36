"""Nothing is left behind: processes, descriptors, folders; not after a hundred cycles, not when the owner is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from environments.sandbox import CodePool, ProcessSandbox

pytestmark = pytest.mark.sandbox


def descendants(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {root}


def census() -> tuple[int, set[int], set[str], int]:
    mounts = len(Path("/proc/self/mounts").read_text().splitlines())
    return len(os.listdir("/proc/self/fd")), descendants(os.getpid()), set(os.listdir(tempfile.gettempdir())), mounts


@pytest.mark.slow
def test_a_hundred_cycles_leave_nothing_behind() -> None:
    def cycle(i: int) -> None:
        if i % 2:
            with ProcessSandbox.create() as box:
                box.exec(["sh", "-c", "sleep 100 & echo x > f"])
        else:
            with CodePool(1) as pool:
                assert pool.call("def solve(n):\n    return n\n", "solve", [[i]]).outputs == [i]

    cycle(0)
    cycle(1)
    before = census()
    for i in range(100):
        cycle(i)
    after = census()
    assert after[0] == before[0]
    assert after[1] == before[1]
    assert {name for name in after[2] - before[2] if "bwrap" in name or "ninefold" in name} == set()
    assert after[3] == before[3]


def test_a_failed_start_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    from environments.errors import SandboxError
    from environments.sandbox import process

    ProcessSandbox.create().close()
    before = census()
    monkeypatch.setattr(process, "root_arguments", lambda: ["--ro-bind", "/no/such/folder", "/usr"])
    for _ in range(3):
        with pytest.raises(SandboxError, match="no/such/folder"):
            ProcessSandbox.create()
    assert census()[:2] == before[:2]


_OWNER = """
import sys, time
from environments.sandbox import CodePool, ProcessSandbox
box = ProcessSandbox.create()
box.exec(["sh", "-c", "sleep 500 &"])
pool = CodePool(1)
pool.call("def solve():\\n    return 1\\n", "solve", [[]])
print("ready", flush=True)
time.sleep(500)
"""


@pytest.mark.parametrize("end", ["kill", "forget"])
def test_sandboxes_die_with_their_owner(end: str, repo_root: Path) -> None:
    source = _OWNER if end == "kill" else _OWNER.replace("time.sleep(500)", "sys.exit(0)")
    owner = subprocess.Popen([sys.executable, "-c", source], cwd=repo_root, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == b"ready\n"
        children = descendants(owner.pid)
        if end == "kill":
            assert len(children) >= 4
            owner.send_signal(signal.SIGKILL)
    finally:
        owner.wait(30)
        owner.stdout.close()
    for _ in range(100):
        left = {pid for pid in children if _alive(pid)}
        if not left:
            return
        time.sleep(0.1)
    pytest.fail(f"processes {left} outlived their owner")


def _alive(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
