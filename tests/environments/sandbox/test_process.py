"""The process sandbox: commands, files, pausing, snapshots, forks, and honest limits."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.errors import BadArgumentsError, MissingDependencyError, SandboxError
from environments.sandbox import ProcessSandbox, SandboxConfig, available, bubblewrap

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def box() -> Iterator[ProcessSandbox]:
    with ProcessSandbox.create() as made:
        yield made


def test_commands(box: ProcessSandbox) -> None:
    done = box.exec(["sh", "-c", "cat; echo $WORD >&2; exit 3"], stdin="in", env={"WORD": "err"})
    assert (done.exit_code, done.stdout, done.stderr, done.timed_out, done.truncated) == (3, "in", "err\n", False, False)
    assert box.exec(["sh", "-c", "kill -9 $$"]).exit_code == -9
    missing = box.exec(["no-such-program"])
    assert (missing.exit_code, missing.stderr) == (127, "no-such-program: No such file or directory\n")
    assert box.exec(["python3", "-c", "print(6 * 7)"]).stdout == "42\n"
    assert box.exec(["pwd"]).stdout == "/workspace\n"
    with pytest.raises(BadArgumentsError, match="empty"):
        box.exec([])
    with pytest.raises(BadArgumentsError, match="cannot be started"):
        box.exec(["echo", "a\0b"])


def test_large_standard_input_and_output(box: ProcessSandbox) -> None:
    text = "0123456789" * 60_000
    assert box.exec(["cat"], stdin=text).stdout == text
    assert box.exec(["true"], stdin=text).exit_code == 0


def test_a_command_is_killed_at_its_timeout_with_what_it_started(box: ProcessSandbox) -> None:
    started = time.monotonic()
    done = box.exec(["sh", "-c", "sleep 77.7 & setsid sleep 77.7 & echo early; sleep 77.7"], timeout_s=0.5)
    assert (done.exit_code, done.timed_out, done.stdout) == (None, True, "early\n")
    assert time.monotonic() - started < 10
    assert "77.7" not in box.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline"]).stdout.replace("\0", " ").replace("cat /proc", "")


def test_a_background_command_stays_until_the_end(box: ProcessSandbox) -> None:
    box.exec(["sh", "-c", "(sleep 0.2; echo later > later.txt) &"])
    for _ in range(100):
        if "later.txt" in box.list():
            break
        time.sleep(0.05)
    assert box.read("later.txt") == b"later\n"


def test_files(box: ProcessSandbox) -> None:
    data = bytes(range(256)) * 1000
    box.write("a/b/c.bin", data)
    assert box.read("a/b/c.bin") == data
    assert box.read("/workspace/a/b/c.bin") == data
    assert (box.list("a"), box.list("a/b")) == (["b"], ["c.bin"])
    box.write("a/b/c.bin", b"short")
    assert box.read("a/b/c.bin") == b"short"
    for path in ("nothing", "a", "a/b/c.bin/d"):
        with pytest.raises(BadArgumentsError):
            box.read(path)
    with pytest.raises(BadArgumentsError, match="folder"):
        box.write(".", b"x")


def test_a_file_that_is_too_large_is_refused(box: ProcessSandbox) -> None:
    with ProcessSandbox.create(SandboxConfig(read_mb=1, workspace_mb=8)) as small:
        small.exec(["dd", "if=/dev/zero", "of=big", "bs=1M", "count=2"])
        with pytest.raises(BadArgumentsError, match="2097152 bytes"):
            small.read("big")


def test_pause_stops_everything_and_resume_goes_on(box: ProcessSandbox) -> None:
    box.exec(["sh", "-c", "while :; do echo x >> ticks; sleep 0.01; done &"])
    time.sleep(0.2)
    box.pause()
    assert box.state == "paused"
    pids = box._box.tree()
    assert len(pids) >= 2
    states = {Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] for pid in pids}
    assert states <= {"T", "Z"}
    with pytest.raises(SandboxError, match="paused"):
        box.exec(["true"])
    with pytest.raises(SandboxError, match="is paused"):
        box.pause()
    ticks_before = _cpu_ticks(pids)
    time.sleep(0.3)
    assert _cpu_ticks(pids) == ticks_before
    box.resume()
    before = len(box.read("ticks"))
    time.sleep(0.3)
    assert len(box.read("ticks")) > before
    with pytest.raises(SandboxError, match="is running"):
        box.resume()


def _cpu_ticks(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total


def test_snapshot_restore_and_fork_copy_the_files() -> None:
    with ProcessSandbox.create() as box:
        box.write("kept/a.txt", b"one")
        box.exec(["sh", "-c", "chmod 755 kept/a.txt; ln -s a.txt kept/link; mkfifo pipe"])
        archive = box.snapshot()
        box.write("kept/a.txt", b"two")
        box.write("new.txt", b"x")
        children = box.fork(2)
        box.restore(archive)
        assert (box.read("kept/a.txt"), box.list()) == (b"one", ["kept"])
        assert box.exec(["sh", "-c", "readlink kept/link; stat -c %a kept/a.txt"]).stdout == "a.txt\n755\n"
        boxes = [child for child in children if isinstance(child, ProcessSandbox)]
        assert len({box.sandbox_id, *(b.sandbox_id for b in boxes)}) == 3
        boxes[0].write("kept/a.txt", b"three")
        assert [b.read("kept/a.txt") for b in boxes] == [b"three", b"two"]
        for child in boxes:
            child.close()
        with pytest.raises(SandboxError, match="could not do it"):
            box.restore(b"not an archive")
        assert box.exec(["echo", "alive"]).stdout == "alive\n"


def test_a_hostile_archive_stays_inside() -> None:
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name in ("../../escaped", "/usr/escaped", "inside"):
            item = tarfile.TarInfo(name)
            item.size = 1
            archive.addfile(item, io.BytesIO(b"x"))
    with ProcessSandbox.create() as box:
        try:
            box.restore(buffer.getvalue())
        except SandboxError as error:
            assert "could not do it" in str(error)  # noqa: PT017 - either way is fine, as long as nothing is outside
        assert not Path("/escaped").exists()
        assert not Path("/usr/escaped").exists()
        assert box.exec(["echo", "alive"]).stdout == "alive\n"


def test_a_closed_or_killed_sandbox_says_so() -> None:
    box = ProcessSandbox.create()
    box.close()
    box.close()
    with pytest.raises(SandboxError, match="closed"):
        box.exec(["true"])
    box = ProcessSandbox.create()
    os.kill(box._box.inner_pid, 9)
    with pytest.raises(SandboxError, match="died"):
        box.exec(["true"])
    assert box.state == "closed"


def test_capabilities_are_honest(box: ProcessSandbox) -> None:
    can = box.capabilities()
    assert (can.backend, can.fork, can.snapshot, can.pause, can.seccomp, can.isolated_network) == (
        "process",
        "files",
        "files",
        True,
        True,
        True,
    )
    assert any("per process" in note for note in can.notes)
    assert any("kernel" in note for note in can.notes)


def test_what_is_missing_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available() == ""
    monkeypatch.setenv("PATH", "/nowhere")
    bubblewrap.available.cache_clear()
    try:
        assert available() == "bubblewrap (bwrap) is not installed. Fix: apt-get install -y bubblewrap"
        with pytest.raises(MissingDependencyError, match="apt-get install -y bubblewrap") as caught:
            ProcessSandbox.create()
        assert caught.value.fix == "apt-get install -y bubblewrap"
    finally:
        bubblewrap.available.cache_clear()


def test_refused_user_namespaces_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory() as folder:  # where user nobody can reach it
        Path(folder).chmod(0o755)
        fake = Path(folder, "bwrap")
        fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
        fake.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        bubblewrap.available.cache_clear()
        try:
            assert "No permissions to create new namespace" in available()
            assert "sysctl -w kernel.unprivileged_userns_clone=1" in available()
        finally:
            bubblewrap.available.cache_clear()
