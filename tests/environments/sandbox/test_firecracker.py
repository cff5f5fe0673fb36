"""The Firecracker backend: the machines' life cycle with a guest of a few hundred bytes, the guest's agent as an ordinary
process, the contract's suite where a whole guest boots, and a whole sandbox under emulation, slowly.

The tests of the life cycle run in a jail where we are root, and without one.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.errors import BadArgumentsError, CaptureError, InputError, MissingDependencyError, SandboxError
from environments.sandbox.base import Backend, Sandbox, SandboxConfig
from environments.sandbox.firecracker import (
    FirecrackerBackend,
    FirecrackerSandbox,
    GuestConfig,
    Image,
    Machine,
    Programs,
    memory,
    reap_orphans,
)
from environments.sandbox.firecracker.channel import AgentLost, Channel
from environments.sandbox.firecracker.rootfs import build, cpio, lz4_legacy
from tests.environments.sandbox.attacks import Attacks
from tests.environments.sandbox.bare_guest import DIRTY_ADDRESS, PAGE, write_guest, write_hanging_guest
from tests.environments.sandbox.conformance import Conformance
from tests.environments.sandbox.firecracker_emulation import build_host, run_host

MIB = 1 << 20
HOW = "bash .ci/firecracker.sh .cache/bin"


def find_programs() -> Programs:
    """The binaries, or a skip that says what is missing."""
    programs = Programs.find()
    if programs is None:
        pytest.skip(f"there is no firecracker. Fix: {HOW}")
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        pytest.skip("/dev/kvm cannot be opened: run on a machine with KVM")
    return programs


@pytest.fixture(scope="module")
def guest(tmp_path_factory: pytest.TempPathFactory) -> GuestConfig:
    return GuestConfig(write_guest(tmp_path_factory.mktemp("guest") / "kernel"), memory_mb=128)


@pytest.fixture(params=["plain", "jailed"])
def programs(request: pytest.FixtureRequest) -> Programs:
    found = find_programs()
    if request.param == "plain":
        return Programs(found.firecracker)
    if found.jailer is None:
        pytest.skip("the jailer needs root, and its binary beside firecracker")
    return found


@pytest.fixture
def machine(programs: Programs, guest: GuestConfig) -> Iterator[Machine]:
    made = Machine.boot(programs, guest)
    assert made.vmm.line(20) == "R"
    yield made
    made.kill()


def ask(machine: Machine, command: str) -> int:
    """The number that the guest answers."""
    machine.vmm.send(command)
    return int(machine.vmm.line(20), 16)


def dirty(machine: Machine, letter: str) -> None:
    machine.vmm.send("d" + letter)
    assert machine.vmm.line(20) == "D"


def dirty_pages(path: Path) -> set[int]:
    """Numbers of the pages that a diff holds."""
    with path.open("rb") as file:
        return {page for start, end in memory.data_ranges(file.fileno()) for page in range(start // PAGE, -(-end // PAGE))}


@pytest.mark.firecracker
def test_a_diff_snapshot_carries_the_dirtied_memory_and_nothing_else(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "diff").mkdir()
    base = machine.snapshot(tmp_path / "base", "full")
    assert base.layers[0].stat().st_size == base.memory_mb * MIB
    machine.vmm.send("iii")
    dirty(machine, "b")  # 512 pages
    diff = machine.snapshot(tmp_path / "diff")
    assert diff.layers == (base.layers[0], tmp_path / "diff/memory")
    first = DIRTY_ADDRESS // PAGE
    pages = dirty_pages(diff.layers[1])
    assert pages >= set(range(first, first + 512))
    assert len(pages) <= 512 + 8, "beside them only the guest's counter and stack"
    with diff.layers[1].open("rb") as file:
        for page in range(512):
            assert int.from_bytes(os.pread(file.fileno(), 8, DIRTY_ADDRESS + page * PAGE), "little") == 3
    assert 512 * PAGE <= diff.written_bytes < 1.1 * 512 * PAGE + 65536
    assert ask(machine, "sb") == 3 * 512, "the guest runs on"


@pytest.mark.firecracker
def test_a_machine_goes_on_from_its_layers_after_the_vmm_was_killed(machine: Machine, programs: Programs, tmp_path: Path) -> None:
    images = []
    for number in range(3):
        machine.vmm.send("i")
        dirty(machine, "abc"[number])
        folder = tmp_path / str(number)
        folder.mkdir()
        images.append(machine.snapshot(folder))
    os.kill(machine.vmm.process.pid, signal.SIGKILL)
    with pytest.raises(SandboxError, match=r"gone|ended"):
        ask(machine, "g")
    # 1 in 256 pages, then 2 in 512, then 3 in 768: each capture holds its own state of them
    for number, image in enumerate(images, 1):
        again = Machine.load(programs, image)
        try:
            assert ask(again, "g") == number
            assert ask(again, "sc") == number * 256 * number
        finally:
            again.kill()


@pytest.mark.firecracker
def test_forks_diverge_and_share_what_they_do_not_write(machine: Machine) -> None:
    machine.vmm.send("i")
    dirty(machine, "h")  # 8 MiB
    children = machine.fork(3)
    try:
        for number, child in enumerate(children):
            assert isinstance(child, Machine), child
            child.vmm.send("i" * number)
        assert [ask(child, "g") for child in children if isinstance(child, Machine)] == [1, 2, 3]
        first, second = children[0], children[1]
        assert isinstance(first, Machine)
        assert isinstance(second, Machine)
        before = second.vmm.resident_bytes()
        dirty(second, "h")
        assert second.vmm.resident_bytes() - before > 7 * MIB, "what it writes is its own"
        assert (ask(machine, "sh"), ask(first, "sh"), ask(second, "sh")) == (2048, 2048, 2 * 2048)
        assert first.vmm.resident_bytes() < 4 * MIB, "what it only reads is shared"
        # A fork of a fork that outlives both.
        machine.kill()
        grandchildren = second.fork(1)
        second.kill()
        assert isinstance(grandchildren[0], Machine)
        assert (ask(grandchildren[0], "g"), ask(grandchildren[0], "sh")) == (2, 4096)
        grandchildren[0].kill()
    finally:
        for child in children:
            if isinstance(child, Machine):
                child.kill()


@pytest.mark.firecracker
def test_forks_one_after_the_other(machine: Machine) -> None:
    """The second goes over the first one's file where its child is gone, and must not where it lives."""
    kept: list[Machine] = []
    for turn in range(1, 6):
        machine.vmm.send("i")
        dirty(machine, "ab"[turn % 2])
        [child] = machine.fork(1)
        assert isinstance(child, Machine)
        assert [ask(child, command) for command in ("g", "sa", "sb")] == [ask(machine, command) for command in ("g", "sa", "sb")]
        assert ask(child, "g") == turn
        if turn in (2, 4):
            kept.append(child)
        else:
            child.kill()
    machine.kill()
    # turn 2 wrote 256 pages over the 512 of turn 1, turn 4 over those of turn 3
    assert [(ask(child, "g"), ask(child, "sa"), ask(child, "sb")) for child in kept] == [(2, 512, 768), (4, 1024, 1792)]
    for child in kept:
        child.kill()


@pytest.mark.firecracker
def test_a_sleeping_machine_has_no_process_and_wakes_where_it_was(machine: Machine, tmp_path: Path) -> None:
    for turn in range(1, 4):  # the first time from anonymous memory, then over the file it woke from
        machine.vmm.send("i")
        dirty(machine, "abc"[turn - 1])
        sleeping = machine.sleep()
        assert not machine.alive()
        machine = sleeping.wake()
        assert (ask(machine, "g"), ask(machine, "s" + "abc"[turn - 1])) == (turn, turn * 256 * turn)
    with pytest.raises(CaptureError):
        machine.snapshot(tmp_path / "nowhere")
    dirty(machine, "a")  # the next capture is full, beside a file that counts no more
    machine = machine.sleep().wake()
    assert (ask(machine, "g"), ask(machine, "sc")) == (3, 3 * 768)
    children = machine.fork(1)  # the child maps the file, so that the next sleep may not change it
    dirty(machine, "c")
    machine.vmm.send("i")
    assert ask(machine, "g") == 4, "what was typed has been read"
    woken = machine.sleep().wake()
    assert isinstance(children[0], Machine)
    assert (ask(woken, "g"), ask(children[0], "g")) == (4, 3)
    woken.kill()
    children[0].kill()


@pytest.mark.firecracker
def test_a_paused_machine_answers_only_after_it_was_resumed(machine: Machine) -> None:
    machine.pause()
    machine.vmm.send("ig")
    with pytest.raises(SandboxError, match="wrote nothing"):
        machine.vmm.line(0.3)
    machine.resume()
    assert int(machine.vmm.line(20), 16) == 1


@pytest.mark.firecracker
def test_a_capture_that_fails_leaves_the_machine_running(machine: Machine, tmp_path: Path) -> None:
    machine.vmm.send("i")
    with pytest.raises(CaptureError) as caught:
        machine.snapshot(tmp_path / "nowhere")
    assert caught.value.recoverable
    assert ask(machine, "g") == 1
    # The dirty pages of the failed capture are in no file: the next one holds everything.
    (tmp_path / "next").mkdir()
    image = machine.snapshot(tmp_path / "next")
    assert len(image.layers) == 1
    assert len(dirty_pages(image.layers[0])) == image.memory_mb * MIB // PAGE
    os.kill(machine.vmm.process.pid, signal.SIGKILL)
    machine.vmm.process.wait()
    with pytest.raises(CaptureError) as caught:
        machine.snapshot(tmp_path / "next")
    assert not caught.value.recoverable


@pytest.mark.firecracker
def test_missing_and_damaged_files_are_typed_errors(machine: Machine, programs: Programs, guest: GuestConfig, tmp_path: Path) -> None:
    image = machine.snapshot(tmp_path)
    cut, garbage = tmp_path / "cut", tmp_path / "garbage"
    cut.write_bytes(b"x" * MIB)
    garbage.write_bytes(os.urandom(4096))
    missing = tmp_path / "missing"
    for layers, state, what in (
        ((missing,), image.state, "missing"),
        ((cut,), image.state, "1048576 bytes"),
        ((*image.layers, missing), image.state, "missing"),
        (image.layers, garbage, "refuses|answer"),
        (image.layers, missing, "missing"),
    ):
        with pytest.raises(SandboxError, match=what):
            Machine.load(programs, Image(state, layers, image.memory_mb))
    with pytest.raises(SandboxError, match="missing"):
        Machine.boot(programs, GuestConfig(missing))
    with pytest.raises(SandboxError, match="refuses"):
        Machine.boot(programs, GuestConfig(garbage))


@pytest.mark.firecracker
def test_a_kernel_that_does_not_boot_and_one_that_dies(machine: Machine, programs: Programs, tmp_path: Path) -> None:
    hanging = Machine.boot(programs, GuestConfig(write_hanging_guest(tmp_path / "hanging")))
    try:
        with pytest.raises(SandboxError, match=r"wrote nothing on its console within 0\.5 s"):
            hanging.vmm.line(0.5)
    finally:
        hanging.kill()
    machine.vmm.send("x")
    with pytest.raises(SandboxError, match="ended with"):
        machine.vmm.line(20)
    with pytest.raises(SandboxError, match="does not answer"):
        machine.pause()


@pytest.mark.firecracker
def test_nothing_is_left(programs: Programs, guest: GuestConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine that is killed or collected; and of an owner that was killed, after the next sweep."""
    gc.collect()  # of earlier tests
    before = set(os.listdir("/proc/self/fd"))
    one = Machine.boot(programs, guest)
    files = set(one.vmm.folder.parent.iterdir()) - {one.vmm.folder}
    [two] = one.fork(1)
    assert isinstance(two, Machine)
    folders = [one.vmm.folder, two.vmm.folder]
    pid = two.vmm.process.pid
    one.kill()
    del two
    assert not any(folder.exists() for folder in folders)
    assert not Path("/proc", str(pid)).exists()
    assert set(folders[0].parent.iterdir()) == files
    assert set(os.listdir("/proc/self/fd")) == before
    monkeypatch.setenv("NINEFOLD_FC_RUNS", str(tmp_path))
    code = (
        "import sys, time; from pathlib import Path; from environments.sandbox.firecracker import *\n"
        f"m = Machine.boot(Programs(Path({str(programs.firecracker)!r})), GuestConfig(Path({str(guest.kernel)!r})))\n"
        "print(m.vmm.process.pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert reap_orphans() == 0, "its owner lives"
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert reap_orphans() == 1
    assert list(tmp_path.iterdir()) == []
    assert not Path("/proc", str(pid), "root").exists() or Path("/proc", str(pid), "stat").read_text().split()[2] == "Z"


@pytest.mark.firecracker
def test_the_jailed_vmm_has_no_privileges() -> None:
    programs = find_programs()
    if programs.jailer is None:
        pytest.skip("the jailer needs root, and its binary beside firecracker")
    machines = [Machine(programs, 128) for _ in range(2)]
    try:
        statuses = [Path("/proc", str(made.vmm.process.pid), "status").read_text() for made in machines]
        uids = {next(line for line in status.splitlines() if line.startswith("Uid:")) for status in statuses}
        assert len(uids) == 2, "every VMM is a user of its own"
        assert not any(line.split()[1] == "0" for line in uids)
        roots = [os.readlink(f"/proc/{made.vmm.process.pid}/root") for made in machines]
        assert all(os.listdir(f"/proc/{made.vmm.process.pid}/root/") != os.listdir("/") for made in machines), roots
    finally:
        for made in machines:
            made.kill()


# --- memory files ---------------------------------------------------------------------------------------------------------


def test_layers_amount_to_the_memory_they_were_written_from(tmp_path: Path) -> None:
    """Against plain bytes, with writes at random places."""
    size, plain, layers = 4 * MIB, bytearray(4 * MIB), []
    for number in range(4):
        layer = tmp_path / f"layer{number}"
        with layer.open("wb") as file:
            file.truncate(size)
            for _ in range(5):
                at = int.from_bytes(os.urandom(2), "little") % (size // PAGE) * PAGE
                data = os.urandom(PAGE)
                plain[at : at + PAGE] = data
                os.pwrite(file.fileno(), data, at)
        layers.append(layer)
    memory.flatten(layers, tmp_path / "flat", size)
    assert (tmp_path / "flat").read_bytes() == plain
    assert memory.allocated_bytes(tmp_path / "flat") <= 20 * PAGE
    dense = tmp_path / "dense"
    dense.write_bytes(plain)
    assert memory.digest(dense) == memory.digest(tmp_path / "flat"), "holes do not count"
    plain[size // 2] ^= 1
    dense.write_bytes(plain)
    assert memory.digest(dense) != memory.digest(tmp_path / "flat")


def test_lz4_and_cpio(tmp_path: Path) -> None:
    # literals "abcd", a match of 8 four bytes back (overlapping), then literals "xyz" that end the block (lz4 block format)
    block = b"\x44abcd\x04\x00" + b"\x30xyz"
    assert lz4_legacy(len(block).to_bytes(4, "little") + block) == b"abcdabcdabcdxyz"
    long = b"\xf0" + bytes([255, 20]) + bytes(range(256)) + b"z" * 34
    assert lz4_legacy(len(long).to_bytes(4, "little") + long) == bytes(range(256)) + b"z" * 34
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_bytes(b"12345")
    (tmp_path / "l").symlink_to("d/f")
    archive = b"".join(cpio(tmp_path))
    names = subprocess.run(
        [sys.executable, "-c", "import sys; d = sys.stdin.buffer.read(); print(d.count(b'070701'))"], input=archive, stdout=subprocess.PIPE
    )
    assert names.stdout == b"4\n"
    assert len(archive) % 4 == 0
    assert b"d/f\0" in archive


# --- the agent, as an ordinary process -------------------------------------------------------------------------------------


@pytest.fixture
def agent(tmp_path: Path, repo_root: Path) -> Iterator[Channel]:
    (tmp_path / "workspace").mkdir()
    code = "import sys; from environments.sandbox.firecracker.guest.agent import main; main(*sys.argv[1:])"
    arguments = [str(tmp_path / "socket"), str(tmp_path / "workspace")]
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=repo_root)
    channel = Channel(tmp_path / "socket", None, MIB)
    channel.wait(20, lambda: process.poll() is None)
    channel.ask({"op": "wake", "seed": 7, "limits": {"env": {"A": "b"}, "workspace_bytes": MIB}}, bytes(64))
    yield channel
    channel.drop()
    process.kill()
    process.wait()


def collect(channel: Channel, request: dict[str, object], body: bytes = b"") -> tuple[dict[str, object], list[tuple[str, bytes]]]:
    pieces: list[tuple[str, bytes]] = []
    answer = channel.ask(
        {"env": {}, "timeout_s": 20.0, "cap": MIB, **request}, body, 20.0, lambda stream, data: pieces.append((stream, data))
    )
    return answer, pieces


def test_the_agent_runs_commands(agent: Channel) -> None:
    answer, pieces = collect(
        agent, {"op": "exec", "argv": ["sh", "-c", "cat; echo $A$NINEFOLD_SEED >&2; sleep 0.3; echo late; exit 3"]}, b"in\n"
    )
    assert answer["exit_code"] == 3
    assert [data for stream, data in pieces if stream == "stdout"] == [b"in\n", b"late\n"]
    assert [data for stream, data in pieces if stream == "stderr"] == [b"b7\n"]
    answer, _ = collect(agent, {"op": "exec", "argv": ["sh", "-c", "sleep 60 & sleep 60"], "timeout_s": 0.3})
    assert (answer["exit_code"], answer["timed_out"]) == (None, True)
    answer, pieces = collect(agent, {"op": "exec", "argv": ["head", "-c", "5000", "/dev/zero"], "cap": 100})
    assert (answer["truncated"], sum(len(data) for _, data in pieces)) == (True, 100)
    with pytest.raises(BadArgumentsError, match="cannot be started"):
        collect(agent, {"op": "exec", "argv": ["echo", "a\0b"]})


def test_the_agent_keeps_an_interpreter(agent: Channel) -> None:
    assert collect(agent, {"op": "python"}, b"x = 20\nprint('hello')\nx + 1")[1] == [("stdout", b"hello\n21\n")]
    answer, _ = collect(agent, {"op": "python"}, b"def f(): return 1 / 0\nf()")
    assert str(answer["error"]).count("<cell>") == 2
    assert "ZeroDivisionError" in str(answer["error"])
    agent.ask({"op": "wake", "seed": 8}, bytes(64))
    draw = collect(
        agent, {"op": "python"}, b"import os, random; os.environ['NINEFOLD_SEED'], random.Random(8).random() == random.random()"
    )[1]
    assert draw == [("stdout", b"('8', True)\n")]
    answer, _ = collect(agent, {"op": "python", "timeout_s": 0.5}, b"while True: pass")
    assert answer["timed_out"]
    assert "NameError" in str(collect(agent, {"op": "python"}, b"x")[0]["error"])


def test_the_agent_kills_what_nobody_waits_for(agent: Channel) -> None:
    class Enough(Exception):
        pass

    def stop(stream: str, data: bytes) -> None:
        raise Enough

    exec_request = {"op": "exec", "argv": ["sh", "-c", "echo x; sleep 1000"], "env": {}, "timeout_s": 1000.0, "cap": MIB}
    with pytest.raises(Enough):
        agent.ask(exec_request, on_frame=stop)
    assert collect(agent, {"op": "exec", "argv": ["echo", "next"]})[1] == [("stdout", b"next\n")]


def test_the_agent_takes_a_new_connection_for_the_old_one(agent: Channel) -> None:
    agent.ask({"op": "write", "path": "a/b"}, b"123")
    other = Channel(agent.path, None, MIB)
    assert other.ask({"op": "list", "path": "a"})["names"] == ["b"]
    with pytest.raises(AgentLost):
        agent.ask({"op": "list", "path": "a"})
    assert agent.ask({"op": "list", "path": "a"})["names"] == ["b"], "it connects again"
    for path in ("../x", "/etc/passwd", "a"):
        with pytest.raises(BadArgumentsError):
            agent.ask({"op": "read", "path": path, "cap": MIB})
    other.drop()


# --- the whole sandbox ---------------------------------------------------------------------------------------------------


def test_the_probe_names_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NINEFOLD_FIRECRACKER", str(tmp_path / "none"))
    backend = FirecrackerBackend()
    assert "Fix: " in backend.probe()
    with pytest.raises(MissingDependencyError, match="Fix: "):
        backend.create()


@pytest.mark.firecracker
def test_the_probe_refuses_a_machine_on_which_no_guest_boots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find_programs()
    monkeypatch.setenv("NINEFOLD_FC_BOOT_S", "0.5")
    backend = FirecrackerBackend(write_hanging_guest(tmp_path / "kernel"), write_hanging_guest(tmp_path / "rootfs"))
    assert "does not boot" in backend.probe()
    with pytest.raises(MissingDependencyError, match="does not boot"):
        backend.create()


class TestFirecracker(Conformance, Attacks):
    """The contract and the attacks, where a whole guest boots."""

    config = SandboxConfig(memory_mb=256, workspace_mb=16, processes=48)

    def destroy(self, box: Sandbox) -> None:
        assert isinstance(box, FirecrackerSandbox)
        box.kill_machine()

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls) -> Backend:
        backend = FirecrackerBackend()
        if reason := backend.probe():
            pytest.skip(reason)
        return backend


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_whole_sandbox_lives_its_life_under_emulation(tmp_path: Path, repo_root: Path) -> None:
    """The real sandbox with Debian's kernel and our agent in it, in Firecracker, in an emulated machine. Takes 5 to 7 minutes."""
    if not os.environ.get("NINEFOLD_EMULATION"):
        pytest.skip("emulates a whole machine for minutes. Run: make test-emulation")
    programs = Programs.find()
    if programs is None:
        pytest.skip(f"there is no firecracker. Fix: {HOW}")
    for program, package in (("qemu-system-x86_64", "qemu-system-x86"), ("apt-get", "apt"), ("dpkg-deb", "dpkg")):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed. Fix: apt-get install -y --no-install-recommends {package}")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the emulated machine has Debian 12's Python 3.11, and would need our packages for it")
    try:
        kernel, rootfs = build(tmp_path / "guest")
        host = build_host(tmp_path, repo_root, programs, kernel, rootfs, ["-m", "tests.environments.sandbox.firecracker_scenario"])
    except InputError as error:
        pytest.skip(f"Debian's packages cannot be had: {error}")
    said = run_host(host, kernel, 3500)
    print(said)
    assert "scenario: passed" in said
