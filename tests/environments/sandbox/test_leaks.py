"""Nothing is left behind: processes, descriptors, mounts, folders, cgroups; not after hundreds of cycles, not when the owner is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from environments.errors import SandboxError
from environments.sandbox import CodePool, ProcessSandbox, SandboxConfig
from environments.sandbox.base import Mode

pytestmark = pytest.mark.sandbox
MODES: tuple[Mode, ...] = ("strict", "forkable")


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


def own_groups(pid: int) -> int:
    """Cgroups that a process has made."""
    return sum(1 for folder, _, _ in os.walk("/sys/fs/cgroup") if os.path.basename(folder).startswith(f"ninefold-{pid}-"))


def census() -> dict[str, object]:
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "processes": descendants(os.getpid()),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
        "files": {name for name in os.listdir(tempfile.gettempdir()) if "bwrap" in name},
        "cgroups": own_groups(os.getpid()),
    }


@pytest.mark.slow
def test_hundreds_of_cycles_leave_nothing_behind() -> None:
    def cycle(i: int) -> None:
        with ProcessSandbox.create(SandboxConfig(mode=MODES[i % 2])) as box:
            box.exec(["sh", "-c", "sleep 100 & echo x > f"])
            if i % 10 < 2:
                box.python("x = 1")
                for child in box.fork(2):
                    assert isinstance(child, ProcessSandbox)
                    child.close()
            elif i % 10 == 3:
                with CodePool(1) as pool:
                    assert pool.call("def solve(n):\n    return n\n", "solve", [[i]]).outputs == [i]

    for i in range(4):
        cycle(i)
    before = census()
    for i in range(200):
        cycle(i)
    assert census() == before


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_start_leaves_nothing_behind(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    from environments.sandbox import places

    config = SandboxConfig(mode=mode)
    ProcessSandbox.create(config).close()
    before = census()
    monkeypatch.setattr(places, "root_arguments", lambda image: ["--ro-bind", "/no/such/folder", "/usr"])
    for _ in range(3):
        with pytest.raises(SandboxError, match="no/such/folder"):
            ProcessSandbox.create(config)
    assert census() == before


_OWNER = """
import sys, time
from environments.sandbox import CodePool, ProcessSandbox, SandboxConfig
boxes = []
for mode in ("strict", "forkable"):
    box = ProcessSandbox.create(SandboxConfig(mode=mode))
    box.exec(["sh", "-c", "setsid sleep 500 &"])
    box.python("import subprocess; p = subprocess.Popen(['sleep', '500'])")
    boxes += [box, *box.fork(2)]
boxes[0].pause()
boxes[4].pause()
pool = CodePool(1)
pool.call("def solve():\\n    return 1\\n", "solve", [[]])
print("ready", flush=True)
time.sleep(500)
"""


@pytest.mark.parametrize("end", ["kill", "forget"])
def test_sandboxes_die_with_their_owner(end: str, repo_root: Path) -> None:
    source = _OWNER if end == "kill" else _OWNER.replace("time.sleep(500)", "sys.stdin.read()")
    before = census()
    owner = subprocess.Popen([sys.executable, "-c", source], cwd=repo_root, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdin is not None
    assert owner.stdout is not None
    try:
        assert owner.stdout.readline() == b"ready\n"
        children = descendants(owner.pid)
        assert len(children) >= 20
        if end == "kill":
            owner.send_signal(signal.SIGKILL)
    finally:
        owner.stdin.close()
        owner.wait(30)
        owner.stdout.close()
    for _ in range(100):
        left = {pid for pid in children if _alive(pid)}
        if not left:
            break
        time.sleep(0.1)
    assert not left, f"processes {left} outlived their owner"
    after = census()
    assert (after["mounts"], after["files"]) == (before["mounts"], before["files"])
    for _ in range(100):
        if own_groups(owner.pid) == 0:
            break
        time.sleep(0.1)
    assert own_groups(owner.pid) == 0


def _alive(pid: int) -> bool:
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
