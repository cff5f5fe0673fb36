"""gVisor sandboxes: the shared suite and attacks, and what only a checkpoint of the whole tree can do."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.errors import BadArgumentsError, MissingDependencyError, SandboxError, UnsupportedError
from environments.sandbox.base import Backend, Sandbox, SandboxConfig
from environments.sandbox.gvisor import GVisorBackend, GVisorSandbox
from environments.sandbox.gvisor_area import area
from environments.sandbox.gvisor_bundle import programs
from environments.sandbox.gvisor_runsc import find_runsc
from tests.environments.sandbox.attacks import Attacks
from tests.environments.sandbox.conformance import Conformance, boxes_of, wait_for

pytestmark = pytest.mark.gvisor
_UID = 54321


@pytest.fixture(autouse=True, scope="module")
def _they_work_here() -> None:
    if reason := GVisorBackend().probe():
        pytest.skip(reason)


class TestGVisor(Conformance, Attacks):
    config = SandboxConfig(memory_mb=256, workspace_mb=16, processes=48)

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls) -> Backend:
        return GVisorBackend()

    def destroy(self, box: Sandbox) -> None:
        assert isinstance(box, GVisorSandbox)
        os.kill(box._boxes[0].pids[0], signal.SIGKILL)


def test_the_other_platform() -> None:
    with GVisorBackend(platform="ptrace").create(SandboxConfig(memory_mb=256, workspace_mb=16)) as box:
        box.python("x = 1")
        with boxes_of(box.fork())[0] as child:
            assert (child.python("x + 1").stdout, child.exec(["echo", "alive"]).stdout) == ("2\n", "alive\n")


def test_a_python_of_another_version_compiles_its_program_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "MAGIC_NUMBER", b"none")
    programs.cache_clear()
    try:
        with GVisorBackend().create(SandboxConfig(memory_mb=256, workspace_mb=16)) as box:
            assert (box.exec(["echo", "x"]).stdout, box.python("1 + 1").stdout) == ("x\n", "2\n")
    finally:
        programs.cache_clear()


@pytest.fixture
def box() -> Iterator[GVisorSandbox]:
    with GVisorBackend().create(SandboxConfig(memory_mb=256, workspace_mb=16)) as made:
        yield made


_COUNTER = """
import os, socket, time
a, b = socket.socketpair()
deleted = open("deleted", "w+")
deleted.write("still here")
os.unlink("deleted")
if os.fork() == 0:
    count = 0
    while True:
        b.sendall(b"%d\\n" % count)
        count += 1
        time.sleep(0.01)
for line in a.makefile():
    deleted.seek(0)
    open("count.tmp", "w").write(f"{line.strip()} {deleted.read()}")
    os.rename("count.tmp", "count")
"""


def test_a_fork_carries_background_processes_their_open_files_and_connections(box: GVisorSandbox) -> None:
    box.write("counter.py", _COUNTER.encode())
    box.exec(["sh", "-c", "python3 counter.py > /dev/null 2>&1 &"])
    wait_for(lambda: "count" in box.list(), "it counts")
    child = boxes_of(box.fork())[0]
    with child:
        for branch in (box, child):
            before = int(branch.read("count").split()[0])
            wait_for(lambda branch=branch, before=before: int(branch.read("count").split()[0]) > before + 5, "it goes on counting")  # type: ignore[misc]
            assert branch.read("count").endswith(b"still here")
        box.exec(["pkill", "-f", "counter.py"])
        before = int(child.read("count").split()[0])
        wait_for(lambda: int(child.read("count").split()[0]) > before, "the child's counter is its own")


def test_a_paused_sandbox_uses_no_cpu_even_with_a_busy_process(box: GVisorSandbox) -> None:
    box.exec(["sh", "-c", "(while :; do :; done) > /dev/null 2>&1 &"])
    busy = _cpu_ticks(box)
    wait_for(lambda: _cpu_ticks(box) > busy, "it is busy")
    box.pause()
    wait_for(lambda: _cpu_ticks(box) == (time.sleep(0.3), _cpu_ticks(box))[1], "it comes to rest")
    before = _cpu_ticks(box)
    time.sleep(1.0)
    assert _cpu_ticks(box) == before
    box.resume()
    wait_for(lambda: _cpu_ticks(box) > before, "it is busy again")
    assert box.exec(["echo", "alive"]).stdout == "alive\n"


def _cpu_ticks(box: GVisorSandbox) -> int:
    """CPU time used so far by all processes of a sandbox on the host."""
    stats = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stats[int(entry)] = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
    tree = [box._boxes[0].outer.pid]
    for pid in tree:
        tree += [child for child, fields in stats.items() if int(fields[1]) == pid]
    return sum(int(stats[pid][11]) + int(stats[pid][12]) for pid in tree if pid in stats)


def test_a_pause_to_disk_frees_the_memory_and_loses_nothing() -> None:
    with GVisorBackend(pause_to_disk=True).create(SandboxConfig(memory_mb=256, workspace_mb=16)) as box:
        assert box.capabilities().pause == "cpu+memory"
        listener = box.serve(4321)
        box.write("kept", b"x")
        box.python("x = list(range(3)); import random; random.seed(5)")
        pids = box._boxes[0].pids
        box.pause()
        wait_for(lambda: not any(Path("/proc", str(pid)).exists() for pid in pids), "nothing of it is left")
        box.resume()
        assert (box.read("kept"), box.python("x, random.random()").stdout) == (b"x", "([0, 1, 2], 0.6229016948897019)\n")
        with listener:
            assert _greet(box, listener, 4321) == "hello\n"


def _greet(box: Sandbox, listener: socket.socket, port: int) -> str:
    """What a client inside reads from a service of the host that answers `hello`."""
    listener.settimeout(30)

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"hello")

    thread = threading.Thread(target=answer)
    thread.start()
    said = box.exec(["python3", "-c", f"import socket; print(socket.create_connection(('127.0.0.1', {port})).recv(9).decode())"]).stdout
    thread.join(30)
    return said


def test_services_carry_much_at_once_and_end_with_their_connections(box: GVisorSandbox) -> None:
    data = os.urandom(3_000_000)
    with box.serve(5000) as listener, pytest.raises(BadArgumentsError, match="5000"):
        box.serve(5000)
    with box.serve(5001) as listener:
        listener.settimeout(30)

        def echo(connection: socket.socket) -> None:
            with connection:
                while chunk := connection.recv(65536):
                    connection.sendall(chunk)

        def serve() -> None:
            for _ in range(3):
                threading.Thread(target=echo, args=(listener.accept()[0],)).start()

        thread = threading.Thread(target=serve)
        thread.start()
        box.write("data", data)
        client = (
            "import socket, threading\ndata = open('data', 'rb').read()\ndef one(n):\n"
            "    with socket.create_connection(('127.0.0.1', 5001)) as s:\n"
            "        def send():\n            s.sendall(data); s.shutdown(socket.SHUT_WR)\n"
            "        t = threading.Thread(target=send); t.start()\n"
            "        got = b''.join(iter(lambda: s.recv(65536), b'')); t.join(); print(got == data)\n"
            "threads = [threading.Thread(target=one, args=(n,)) for n in range(3)]\n"
            "for t in threads: t.start()\nfor t in threads: t.join()\n"
        )
        done = box.exec(["python3", "-c", client], timeout_s=60)
        thread.join(30)
        assert done.stdout == "True\n" * 3, done.stderr
    assert "refused" in box.exec(["python3", "-c", "import socket; socket.create_connection(('127.0.0.1', 5002))"]).stderr


def test_memory_is_limited_in_sum_over_the_processes(box: GVisorSandbox) -> None:
    hold = "import os, time\nx = bytearray(90 << 20)\nopen(f'held{os.getpid()}', 'w')\ntime.sleep(100)"
    box.write("hold.py", hold.encode())
    box.exec(["sh", "-c", "for n in 1 2 3 4; do (python3 hold.py > /dev/null 2>&1; echo $? > ended$n) & done"])

    def settled() -> bool:
        names = box.list()
        held, ended = (sum(name.startswith(kind) for name in names) for kind in ("held", "ended"))
        return ended > 0 and held + ended >= 4

    wait_for(settled, "one of them is killed")
    alive = int(box.exec(["pgrep", "-xfc", "python3 hold.py"]).stdout)
    assert 1 <= alive * 90 <= 256


def test_a_service_of_the_sandboxes_user_that_is_killed_is_replaced(box: GVisorSandbox) -> None:
    box.exec(["sh", "-c", "kill -9 -1; sleep 5"])
    assert box.exec(["echo", "alive"]).stdout == "alive\n"


def test_nothing_is_left(tmp_path: Path) -> None:
    with GVisorBackend().create(SandboxConfig(memory_mb=256, workspace_mb=16)):
        pass  # the first one starts the threads and the folder that stay
    before = _census()
    backend = GVisorBackend()
    box = backend.create(SandboxConfig(memory_mb=256, workspace_mb=16))
    box.serve(4000).close()
    box.exec(["sh", "-c", "sleep 100 > /dev/null 2>&1 &"])
    children = boxes_of(box.fork(2))
    snapshot = box.snapshot(tmp_path)
    box.restore(snapshot)
    box.pause()
    for each in (box, *children):
        each.close()
    wait_for(lambda: _census() == before, "threads end and everything is gone")


def _census() -> tuple[int, list[str], int, int]:
    """Descriptors, folders of sandboxes, processes of gVisor below this process's folder, mounts."""
    folder = str(area().folder)
    processes = 0
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                processes += folder.encode() in Path("/proc", entry, "cmdline").read_bytes()
            except OSError:
                continue
    mounts = len(Path("/proc/self/mounts").read_text().splitlines())
    return len(os.listdir("/proc/self/fd")), sorted(os.listdir(folder)), processes, mounts


_DOOMED = """
import json, sys, time
from environments.sandbox.base import SandboxConfig
from environments.sandbox.gvisor import GVisorBackend
from environments.sandbox.gvisor_area import area
box = GVisorBackend().create(SandboxConfig(memory_mb=256, workspace_mb=16))
box.exec(["sh", "-c", "sleep 100 > /dev/null 2>&1 &"])
paused = GVisorBackend().create(SandboxConfig(memory_mb=256, workspace_mb=16))
paused.pause()
print(json.dumps({"folder": str(area().folder), "pids": [*box._boxes[0].pids, *paused._boxes[0].pids]}), flush=True)
time.sleep(600)
"""


def test_a_killed_owner_takes_its_sandboxes_along_and_the_next_one_sweeps_its_folder(repo_root: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", _DOOMED], cwd=repo_root, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner.stdout:
        said = json.loads(owner.stdout.readline())
    owner.kill()
    owner.wait()
    assert len(said["pids"]) == 4
    wait_for(lambda: not any(Path("/proc", str(pid)).exists() for pid in said["pids"]), "its sandboxes died")
    assert Path(said["folder"]).is_dir()
    subprocess.run(
        [sys.executable, "-c", "from environments.sandbox.gvisor_area import area; area()"], cwd=repo_root, check=True, timeout=60
    )
    assert not Path(said["folder"]).exists()


_ORDINARY = """
import json, os, pickle, sys, tempfile
from pathlib import Path
from environments.sandbox.base import SandboxConfig
from environments.sandbox.gvisor import GVisorBackend
config = SandboxConfig(memory_mb=256, workspace_mb=16)
backend = GVisorBackend()
if reason := backend.probe():
    sys.exit(reason)
with tempfile.TemporaryDirectory() as folder, backend.create(config) as box:
    box.write("a", b"text")
    box.python("x = 41")
    said = [os.geteuid(), box.exec(["sh", "-c", "cat a; id -u; ls /home /srv 2>/dev/null | wc -l"]).stdout.split()]
    box.pause()
    box.resume()
    child = box.fork(1)[0]
    said.append(child.python("x + 1").stdout)
    child.close()
    snapshot = box.snapshot(Path(folder))
    with backend.create(config, snapshot) as other:
        said.append(other.python("x").stdout)
print(json.dumps(said))
"""


def test_the_same_for_an_ordinary_user(repo_root: Path) -> None:
    assert _as_an_ordinary_user(_ORDINARY, repo_root) == [_uid(), ["text65534", "0"], "42\n", "41\n"]


_ATTACKED = """
import json
from environments.sandbox.gvisor import GVisorBackend
from tests.environments.sandbox.attacks import ATTACKS, run_all
from tests.environments.sandbox.test_gvisor import TestGVisor
said = run_all(GVisorBackend(), TestGVisor.config)
assert len(said) == len(ATTACKS)
print(json.dumps({name: what for name, what in said.items() if what}))
"""


@pytest.mark.slow
def test_no_attack_gets_through_for_an_ordinary_user(repo_root: Path) -> None:
    assert _as_an_ordinary_user(_ATTACKED, repo_root) == {}


def _uid() -> int:
    return _UID if os.geteuid() == 0 else os.geteuid()


def _as_an_ordinary_user(program: str, repo_root: Path) -> object:
    """What a Python program that runs without privileges prints, read as JSON."""
    drop = ["setpriv", "--reuid", str(_UID), "--regid", str(_UID), "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
    paths = ":".join([str(repo_root), *filter(None, sys.path)])
    environment = {"PATH": "/usr/bin:/bin", "NINEFOLD_RUNSC": str(find_runsc()), "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"}
    argv = [*(drop if os.geteuid() == 0 else []), sys.executable, "-c", program]
    done = subprocess.run(argv, cwd=repo_root, env=environment, capture_output=True, text=True, timeout=300, check=False)
    hidden = ("Permission denied", "is not a program", "No module named")
    if os.geteuid() == 0 and not done.stdout and any(words in done.stderr for words in hidden):
        pytest.skip("this checkout, its interpreter or runsc cannot be reached by an ordinary user")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_an_image_lies_over_the_hosts_programs() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        package = Path(folder, "packages", "mine")
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("answer = 42\n")
        config = SandboxConfig(memory_mb=256, workspace_mb=16, image=Path(folder), env={"PYTHONPATH": "/packages"})
        with GVisorBackend().create(config) as box, boxes_of(box.fork())[0] as child:
            for each in (box, child):
                assert each.python("import mine; mine.answer").stdout == "42\n"
                assert "Read-only" in each.exec(["sh", "-c", "echo x > /packages/new"]).stderr
        with pytest.raises(UnsupportedError, match="not a folder"):
            GVisorBackend().create(config.model_copy(update={"image": Path(folder, "nothing")}))


def test_what_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NINEFOLD_RUNSC", "/nowhere/runsc")
    assert GVisorBackend().probe() == "NINEFOLD_RUNSC=/nowhere/runsc is not a program. Fix: unset it, or bash .ci/gvisor.sh .cache/bin"
    with pytest.raises(MissingDependencyError, match=r"gvisor\.sh"):
        GVisorBackend().create()
    old = tmp_path / "runsc"
    old.write_text("#!/bin/sh\necho 'runsc version release-20221219.0'\n")
    old.chmod(0o755)
    monkeypatch.setenv("NINEFOLD_RUNSC", str(old))
    assert "release-20221219.0; 20240729 or later is needed" in GVisorBackend().probe()


def test_a_snapshot_of_another_release_is_refused(box: GVisorSandbox, tmp_path: Path) -> None:
    snapshot = box.snapshot(tmp_path)
    manifest = snapshot.path / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"runsc": "', '"runsc": "another-'))
    with pytest.raises(SandboxError, match="of runsc another-"):
        GVisorBackend().create(snapshot=pickle.loads(pickle.dumps(snapshot)))
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def test_the_installer_installs_once_and_says_what_it_lacks(repo_root: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        script = repo_root / ".ci" / "gvisor.sh"
        bare = subprocess.run(
            ["bash", script, folder],
            env={"PATH": "/nowhere"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            executable="/bin/bash",
        )
        assert bare.returncode == 0
        assert "Fix:" in bare.stdout
        Path(folder, "runsc").symlink_to(find_runsc())
        started = time.monotonic()
        again = subprocess.run(["bash", script, folder], capture_output=True, text=True, timeout=60, check=False)
        assert (again.returncode, again.stdout, Path(folder, "runsc").is_symlink()) == (0, "", True), started
