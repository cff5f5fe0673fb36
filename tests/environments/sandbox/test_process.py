"""The process backend in its two modes: the shared suite, the attacks, and what only it has."""

from __future__ import annotations

import io
import os
import platform
import socket
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.errors import MissingDependencyError, SandboxError
from environments.sandbox import ProcessBackend, ProcessSandbox, archive, available, bubblewrap, cgroups
from environments.sandbox.base import Backend, Mode, Sandbox, SandboxConfig
from tests.environments.sandbox.attacks import SYSCALLS, Attacks, alive, trying
from tests.environments.sandbox.conformance import Conformance, boxes_of, wait_for

pytestmark = pytest.mark.sandbox
MODES: tuple[Mode, ...] = ("strict", "forkable")


class _Process(Conformance, Attacks):
    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls) -> Backend:
        return ProcessBackend()

    def destroy(self, box: Sandbox) -> None:
        assert isinstance(box, ProcessSandbox)
        os.kill(box._place.processes()[0], 9)


class TestStrict(_Process):
    config = SandboxConfig(memory_mb=256, workspace_mb=16, processes=32)


class TestForkable(_Process):
    config = SandboxConfig(memory_mb=256, workspace_mb=16, processes=32, mode="forkable")


@pytest.fixture
def strict() -> Iterator[ProcessSandbox]:
    with ProcessSandbox.create(SandboxConfig(memory_mb=256, workspace_mb=16, processes=32)) as box:
        yield box


@pytest.fixture
def forkable() -> Iterator[ProcessSandbox]:
    with ProcessSandbox.create(SandboxConfig(memory_mb=512, workspace_mb=16, mode="forkable")) as box:
        yield box


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user can read, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def cpu_ticks(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        fields = bubblewrap.process_fields(pid)
        total += int(fields[11]) + int(fields[12]) if fields else 0
    return total


def private_kb(pid: int) -> int:
    lines = Path("/proc", str(pid), "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private"))


@pytest.mark.parametrize("mode", MODES)
def test_it_runs_as_nobody(mode: Mode) -> None:
    with ProcessSandbox.create(SandboxConfig(mode=mode)) as box:
        box.python("x = 1")
        for pid in box._place.processes():
            uid = int(Path(f"/proc/{pid}/status").read_text().split("Uid:\t")[1].split()[0])
            assert uid == (65534 if os.geteuid() == 0 else os.geteuid())


@pytest.mark.parametrize("mode", MODES)
def test_a_paused_sandbox_uses_no_cpu(mode: Mode) -> None:
    with ProcessSandbox.create(SandboxConfig(mode=mode)) as box:
        box.exec(["sh", "-c", "(while :; do :; done) > /dev/null 2>&1 &"])
        box.python("import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin, daemon=True).start()")
        box.pause()
        pids = box._place.processes()
        assert len(pids) >= 3
        before = cpu_ticks(pids)
        time.sleep(0.5)
        assert cpu_ticks(pids) == before
        box.resume()
        wait_for(lambda: cpu_ticks(pids) > before, "it runs again")
        assert box.python("x = 2\nx").stdout == "2\n"


@pytest.mark.parametrize("mode", MODES)
def test_a_paused_sandbox_keeps_no_memory_where_there_is_swap(mode: Mode) -> None:
    with ProcessSandbox.create(SandboxConfig(mode=mode)) as box:
        if len(Path("/proc/swaps").read_text().splitlines()) < 2 or os.geteuid() != 0:
            assert box.capabilities().pause == "cpu"
            return
        box.python("import os\nx = os.urandom(1 << 20) * 50")
        assert sum(private_kb(pid) for pid in box._place.processes()) > 50 << 10
        box.pause()
        wait_for(lambda: sum(private_kb(pid) for pid in box._place.processes()) < 10 << 10, "its memory is in swap")
        box.resume()
        assert box.python("len(x) >> 20").stdout == "50\n"


@pytest.mark.parametrize("mode", MODES)
def test_an_image_takes_the_place_of_the_hosts_files(mode: Mode, folder: Path) -> None:
    (folder / "usr").symlink_to("/usr")
    for name in ("bin", "lib", "lib64"):
        if Path("/", name).is_symlink():
            (folder / name).symlink_to(os.readlink(f"/{name}"))
    (folder / "etc").mkdir()
    (folder / "etc" / "release").write_text("of the image\n")
    (folder / "opt" / "libs").mkdir(parents=True)
    (folder / "opt" / "libs" / "special.py").write_text("answer = 42\n")
    config = SandboxConfig(image=folder, mode=mode, env={"PYTHONPATH": "/opt/libs"})
    with ProcessBackend().create(config) as box:
        assert box.exec(["cat", "/etc/release"]).stdout == "of the image\n"
        assert box.python("import special; special.answer").stdout == "42\n"
        assert box.exec(["sh", "-c", "echo x > /opt/x || echo refused"]).stdout == "refused\n"
        assert boxes_of(box.fork())[0].python("special.answer").stdout == "42\n"
    (folder / "usr").unlink()
    (folder / "usr").mkdir()  # a system of its own, without an interpreter
    bubblewrap.image_python.cache_clear()
    with pytest.raises(SandboxError, match="no python3 in the image"):
        ProcessBackend().create(config)


def test_variables_that_cannot_be_carried_are_named(strict: ProcessSandbox, tmp_path: Path) -> None:
    cell = """
import threading, dataclasses, collections
lock = threading.Lock()
lines = (n for n in range(3))
@dataclasses.dataclass
class Point:
    x: int
    def double(self): return Point(2 * self.x)
class Named(Point):
    def double(self): return super().double()
point, named = Point(1), Named(5)
def counter(start):
    def step():
        nonlocal start
        start += 1
        return start
    return step
count = counter(10)
count()
"""
    assert strict.python(cell).error == ""
    child = boxes_of(strict.fork())[0]
    assert isinstance(child, ProcessSandbox)
    with child:
        assert set(child.left_out) == {"lock", "lines"}
        assert child.python("point.double(), named.double(), isinstance(named, Point), count(), collections.Counter('a')").stdout == (
            "(Point(x=2), Point(x=10), True, 12, Counter({'a': 1}))\n"
        )
        assert child.python("dataclasses.asdict(point), dataclasses.replace(point, x=3)").stdout == "({'x': 1}, Point(x=3))\n"
        assert "NameError" in child.python("lock").error
    snapshot = strict.snapshot(tmp_path)
    assert set(snapshot.details["left_out"].split(",")) == {"lock", "lines"}


def test_pictures_of_matplotlib_and_pillow(strict: ProcessSandbox) -> None:
    if strict.exec(["python3", "-c", "import matplotlib, PIL"]).exit_code != 0:  # apt-get install python3-matplotlib python3-pil
        assert "ModuleNotFoundError" in strict.python("import matplotlib, PIL").error
        return
    figure = "import matplotlib; matplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\n"
    assert len(strict.python(figure + "from PIL import Image\nImage.new('RGB', (3, 3))", timeout_s=60).images) == 2


def test_an_archive_of_a_stranger_stays_inside(strict: ProcessSandbox, tmp_path: Path) -> None:
    def fill(folder: Path) -> dict[str, str]:
        with tarfile.open(folder / archive.FILES, "w") as tar:
            for name in ("../../escaped", "/usr/escaped", "inside"):
                item = tarfile.TarInfo(name)
                item.size = 1
                tar.addfile(item, io.BytesIO(b"x"))
        (folder / archive.VARIABLES).write_bytes(b"")
        return {}

    snapshot = archive.write(tmp_path, "process", strict.config, fill)
    try:
        strict.restore(snapshot)
    except SandboxError as error:
        assert "could not do it" in str(error)  # noqa: PT017 - either way is fine, as long as nothing is outside
    assert not Path("/escaped").exists()
    assert not Path("/usr/escaped").exists()
    alive(strict)


def test_a_sparse_workspace_does_not_fill_the_hosts_disk(strict: ProcessSandbox, tmp_path: Path) -> None:
    strict.exec(["sh", "-c", "for i in $(seq 40); do truncate -s 16M sparse$i; done"])
    with pytest.raises(SandboxError, match=r"larger than an archive may be|File too large"):
        strict.snapshot(tmp_path)
    assert list(tmp_path.iterdir()) == []
    alive(strict)


def test_a_fork_bomb_in_the_background_goes_when_there_is_no_room_left(strict: ProcessSandbox) -> None:
    strict.python("x = 1")
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    strict.write("bomb.py", bomb.encode())
    strict.exec(["sh", "-c", "python3 bomb.py > /dev/null 2>&1 &"])
    wait_for(lambda: len(strict._place.processes()) >= 30, "the bomb has filled the sandbox")
    assert strict.exec(["echo", "alive"]).stdout == "alive\n"
    wait_for(lambda: len(strict._place.processes()) <= 3, "the bomb is gone")
    assert strict.python("x").stdout == "1\n"


@pytest.mark.parametrize("mode", MODES)
def test_memory_is_limited_in_sum_where_it_can_be(mode: Mode) -> None:
    config = SandboxConfig(memory_mb=64, workspace_mb=4, mode=mode)
    if not cgroups.usable():  # run as root, or in a delegated group (systemd-run --user --scope)
        assert ProcessBackend().capabilities(config).memory_limit == "process"
        return
    many = "for i in 1 2 3 4 5 6; do python3 -S -c 'x = bytearray(40 << 20); import time; time.sleep(1); print(1)' & done; wait"
    with ProcessBackend().create(config) as box:
        box.exec(["true"])
        assert box.exec(["sh", "-c", many], timeout_s=60).stdout.count("1") < 4
        alive(box)
        assert box.state == "running"


def test_an_idle_sandbox_is_small() -> None:
    with ProcessSandbox.create() as box, ProcessSandbox.create() as other:  # a second one, so that shared pages count as such
        for one in (box, other):
            one.exec(["true"])
        outer = box._place.box.outer.pid  # type: ignore[attr-defined]
        assert sum(private_kb(pid) for pid in (outer, *box._place.processes())) < 7 << 10


# --- memory forks -------------------------------------------------------------------------------------------------------


def test_the_whole_memory_is_forked_and_shared_until_written(forkable: ProcessSandbox) -> None:
    forkable.python(
        "import threading\nlock = threading.Lock(); lock.acquire()\nsteps = (n for n in range(9)); next(steps)\nbig = bytearray(100 << 20)"
    )
    with boxes_of(forkable.fork())[0] as child:
        assert isinstance(child, ProcessSandbox)
        assert child.left_out == ()
        assert child.python("next(steps), lock.locked(), len(big) >> 20").stdout == "(1, True, 100)\n"
        assert child.python("next(steps)").stdout == "2\n"
        assert forkable.python("next(steps)").stdout == "1\n"
        assert child._interpreter is not None
        assert private_kb(child._interpreter._pid) < 20 << 10
        child.python("big[::4096] = bytes(len(big[::4096]))")
        assert private_kb(child._interpreter._pid) > 90 << 10
        child.python("open('own.txt', 'w').write('x'); import subprocess; subprocess.run('echo y > sub.txt', shell=True)")
        assert child.list() == ["own.txt", "sub.txt"]
        assert forkable.list() == []


def test_threads_and_programs_work_in_an_interpreter_that_can_be_forked(forkable: ProcessSandbox) -> None:
    thread = "import threading\nran = []\nt = threading.Thread(target=ran.append, args=(1,)); t.start(); t.join()\nran"
    program = (
        "import subprocess, os\na = os.system('ls -d /proc/self/fd')\nb = subprocess.run(['sh', '-c', 'ls -d /proc/self/fd; echo $PPID'])\n"
        "c = os.fork() or os._exit(3)\nos.wait()[1] >> 8"
    )
    forkable.python("x = 1")
    for box in (forkable, *boxes_of(forkable.fork())):
        assert box.python(thread).stdout == "[1]\n"
        assert box.python(program).stdout.split() == ["/proc/self/fd", "/proc/self/fd", "0", "3"]
        box.close()


def test_branches_have_ports_and_processes_of_their_own(forkable: ProcessSandbox) -> None:
    with boxes_of(forkable.fork())[0] as child:
        forkable.exec(["sh", "-c", "sleep 444 > /dev/null 2>&1 &"])
        assert "444" not in child.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout.replace("cat", "")
        child.exec(["sh", "-c", "kill -9 -1; killall5 -9"])
        assert "sleep 444" in forkable.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
        with forkable.serve(8080) as one, child.serve(8080) as two:
            for box, listener in ((forkable, one), (child, two)):
                connect = "import socket; s = socket.create_connection(('127.0.0.1', 8080), 10); s.sendall(b'hello')"
                box.python(connect)
                listener.settimeout(20)
                connection, _ = listener.accept()
                with connection:
                    assert connection.recv(10) == b"hello"
        with pytest.raises(OSError, match=r"refused|timed out"):
            socket.create_connection(("127.0.0.1", 8080), 1)


@pytest.mark.parametrize("generation", ["original", "copy"])
def test_an_interpreter_that_can_be_forked_holds_no_mount_rights(forkable: ProcessSandbox, generation: str) -> None:
    forkable.python("x = 1")
    box = forkable if generation == "original" else boxes_of(forkable.fork())[0]
    code = "\n".join(f"print({name!r}, end=' ')\n{trying(expression)}" for name, expression in SYSCALLS.items())
    done = box.python(code)
    assert len(done.stdout.splitlines()) == len(SYSCALLS), done.error
    for line in done.stdout.splitlines():
        assert " blocked " in line, line
    for path in ("/etc/passwd", "/proc/1/mem", "/proc/1/environ", "/proc/kcore"):
        assert "blocked" in box.python(trying(f"open({path!r}, 'rb').read(10)")).stdout, path
    for path in ("/x", "/usr/x", "/etc/x", "/dev/x"):
        assert "blocked" in box.python(trying(f"open({path!r}, 'w')")).stdout, path
    assert "blocked" in box.python(trying("os.setuid(0)")).stdout
    box.close()


def test_an_interpreter_can_signal_nobody_but_its_own_or_that_is_said(forkable: ProcessSandbox) -> None:
    said = any("can signal other branches" in note for note in forkable.capabilities().notes)
    assert said == (tuple(int(part) for part in platform.release().split(".")[:2]) < (6, 12))
    if said:
        return
    forkable.python("x = 1")
    children = boxes_of(forkable.fork(2))
    kill_all = "import os\nfor pid in range(2, 400):\n    try:\n        if pid != os.getpid(): os.kill(pid, 9)\n    except OSError: pass"
    assert children[0].python(kill_all).error == ""
    assert children[1].python("x").stdout == "1\n"
    assert forkable.python("x").stdout == "1\n"
    for box in (forkable, *children):
        alive(box)
        box.close()


def test_an_interpreter_that_refuses_to_be_forked_is_an_error_of_the_child_alone(forkable: ProcessSandbox) -> None:
    forkable.write("kept", b"x")
    forkable.python("import os\ndef refuse(): raise RuntimeError('no')\nos.fork = refuse")
    results = forkable.fork(2)
    assert isinstance(results[0], SandboxError)
    assert forkable.state == "running"
    assert forkable.read("kept") == b"x"
    assert forkable.python("6 * 7").stdout == "42\n"
    for result in results:
        if isinstance(result, Sandbox):
            result.close()


# --- what the machine lacks -----------------------------------------------------------------------------------------------


@pytest.fixture
def _fresh_probe() -> Iterator[None]:
    bubblewrap.available.cache_clear()
    bubblewrap.programs.cache_clear()
    yield
    bubblewrap.available.cache_clear()
    bubblewrap.programs.cache_clear()


@pytest.mark.usefixtures("_fresh_probe")
def test_what_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert available() == "bubblewrap (bwrap) is not installed. Fix: apt-get install -y bubblewrap"
    with pytest.raises(MissingDependencyError, match="apt-get install -y bubblewrap") as caught:
        ProcessSandbox.create()
    assert caught.value.fix == "apt-get install -y bubblewrap"


@pytest.mark.usefixtures("_fresh_probe")
def test_refused_user_namespaces_are_named(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    fake = folder / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    assert "No permissions to create new namespace" in available()
    assert "sysctl -w kernel.unprivileged_userns_clone=1" in available()
