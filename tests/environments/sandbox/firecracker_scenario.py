"""A whole sandbox's life, step by step, with assertions. `test_firecracker.py` runs it as a program under emulation.

Not a test module: where a guest takes a minute to boot, the contract's suite with its fifty sandboxes would take hours.
It prints a line a step, and `scenario: passed` at its end.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from environments.errors import BadArgumentsError, SandboxError
from environments.sandbox.base import Sandbox, SandboxConfig
from environments.sandbox.firecracker import FirecrackerBackend, FirecrackerSandbox

_started = time.monotonic()
SLOW_S = 600.0
"""Limit of every command: nothing here is about speed."""


def say(what: str) -> None:
    print(f"scenario: {time.monotonic() - _started:.0f} s: {what}", flush=True)


def output(box: Sandbox, script: str) -> str:
    done = box.exec(["sh", "-c", script], timeout_s=SLOW_S)
    assert done.exit_code == 0, done
    return done.stdout.strip()


def cell(box: Sandbox, code: str) -> str:
    done = box.python(code, SLOW_S)
    assert not done.error, done
    return done.stdout.strip()


def commands(box: Sandbox) -> None:
    assert output(box, "id -un; pwd; echo $WORD $NINEFOLD_SEED") == f"nobody\n/workspace\nhello {box.seed}"
    assert abs(int(output(box, "date +%s")) - time.time()) < 60, "the clock was set"
    pieces: list[tuple[str, bytes]] = []
    done = box.exec(["sh", "-c", "cat; echo no >&2; exit 3"], stdin="in", timeout_s=SLOW_S, on_output=lambda *piece: pieces.append(piece))
    assert (done.exit_code, done.stdout, done.stderr) == (3, "in", "no\n")
    assert sorted(pieces) == [("stderr", b"no\n"), ("stdout", b"in")]
    assert box.exec(["no-such-program"], timeout_s=SLOW_S).exit_code == 127
    late = box.exec(["sh", "-c", "(while :; do echo x >> late; done) & setsid sleep 1000 & sleep 1000"], timeout_s=2.0)
    assert (late.exit_code, late.timed_out) == (None, True)
    assert output(box, "wc -c < late > a; sleep 0.2; wc -c < late | cmp - a && rm late a; grep -l sleep /proc/[0-9]*/comm | wc -l") == "0"
    # What the code inside may not do, as it is nobody in a guest whose files are root's.
    for forbidden in ("echo x > /usr/x", "mount -t tmpfs x /mnt", "kill -9 1", "cat /dev/vsock", "echo x > /sys/fs/cgroup/box/pids.max"):
        assert box.exec(["sh", "-c", forbidden], timeout_s=SLOW_S).exit_code != 0, forbidden
    assert output(box, "cat /proc/net/dev | grep -c :") == "1", "only the loopback"
    bomb = box.exec(["python3", "-c", "x = bytearray(1 << 30)"], timeout_s=SLOW_S)
    assert bomb.exit_code != 0, "beyond the box's memory"
    say("commands")


def files(box: Sandbox) -> None:
    data = bytes(range(256)) * 4000
    box.write("a/b.bin", data)
    assert (box.read("/workspace/a/b.bin"), box.list(), box.list("a")) == (data, ["a"], ["b.bin"])
    output(box, "ln -s /etc/passwd link; mkfifo pipe; echo more >> a/b.bin")
    for path in ("link", "pipe", "../x", "/etc/passwd", "a"):
        try:
            box.read(path)
        except BadArgumentsError:
            continue
        raise AssertionError(f"{path} was read")
    say("files")


def pausing(box: FirecrackerSandbox) -> None:
    assert cell(box, "x = [1, 2]\nprint('one')\nlen(x)") == "one\n2"
    assert "ZeroDivisionError" in box.python("1 / 0", SLOW_S).error
    box.exec(["sh", "-c", "(while :; do date +%s%N > now; sleep 0.1; done) > /dev/null 2>&1 &"], timeout_s=SLOW_S)
    assert box.resident_bytes() > 0
    for _ in range(2):
        box.pause()
        assert box.resident_bytes() == 0, "a paused sandbox has no process"
        box.resume()
        assert cell(box, "x") == "[1, 2]"
        assert output(box, "a=$(cat now); until [ -s now ] && [ $(cat now) != $a ]; do sleep 0.1; done; echo on") == "on"
    say("pausing")


def services(box: FirecrackerSandbox) -> None:
    code = "import socket; s = socket.create_connection(('127.0.0.1', 8123)); s.sendall(b'ping'); print(s.makefile('rb').read())"
    with box.serve(8123) as listener:
        for _ in range(2):
            with ThreadPoolExecutor(1) as pool:
                asked = pool.submit(output, box, f'python3 -ISc "{code}"')
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(b"got " + connection.recv(100))
                assert asked.result() == "b'got ping'"
            box.pause()  # the route lasts
            box.resume()
    refused = box.exec(["python3", "-ISc", code], timeout_s=SLOW_S)
    assert refused.stdout in ("", "b''\n"), "nobody answers any more"
    say("services")


def forking(box: FirecrackerSandbox) -> None:
    children = box.fork(2)
    boxes = [box, *(child for child in children if isinstance(child, FirecrackerSandbox))]
    assert len(boxes) == 3, children
    say("forked")
    for number, one in enumerate(boxes):
        cell(one, f"x.append({number})")
        one.write("mine", str(number).encode())
    assert [cell(one, "x") for one in boxes] == [f"[1, 2, {number}]" for number in range(3)]
    assert [one.read("mine") for one in boxes] == [b"0", b"1", b"2"]
    assert [cell(one, "import os; os.environ['NINEFOLD_SEED']") for one in boxes] == [repr(str(one.seed)) for one in boxes]
    for name, what in (
        ("seeds", {one.seed for one in boxes}),
        ("ids", {output(one, "cat /proc/sys/kernel/hostname") for one in boxes}),
        ("the interpreters' random numbers", {cell(one, "import random; random.random()") for one in boxes}),
        ("the kernels' random numbers", {output(one, "head -c 16 /dev/urandom | od -An -tx1") for one in boxes}),
    ):
        assert len(what) == 3, f"{name} of forks are the same: {what}"
    for one in boxes[1:]:
        one.close()
    assert cell(box, "x") == "[1, 2, 0]"
    say("forking")


def snapshots(backend: FirecrackerBackend, box: FirecrackerSandbox, folder: Path) -> None:
    box.write("state", b"first")
    first = box.snapshot(folder)
    box.write("state", b"second")
    cell(box, "x = 'second'")
    second = pickle.loads(pickle.dumps(box.snapshot(folder)))
    assert (first.parent_id, second.parent_id) == (None, first.snapshot_id)
    assert second.size_bytes < first.size_bytes / 2, "only what was dirtied"
    say(f"snapshots of {first.size_bytes >> 20} and {second.size_bytes >> 20} MiB")
    box.kill_machine()
    with suppress(SandboxError):
        box.exec(["true"], timeout_s=SLOW_S)
    assert box.state == "closed"
    with backend.create(snapshot=second) as other:
        assert (other.read("state"), cell(other, "x")) == (b"second", "'second'")
        other.restore(first)
        assert (other.read("state"), cell(other, "x")) == (b"first", "[1, 2, 0]")
    say("restored")
    memory = second.path / "memory"
    with memory.open("r+b") as file:
        file.seek(memory.stat().st_size // 2)
        file.write(b"damage")
    said = ""
    try:
        backend.create(snapshot=second).close()
    except SandboxError as error:
        said = error.message
    assert "digest" in said, "the damage was not noticed"


def main() -> None:
    backend = FirecrackerBackend()
    assert backend.probe() == "", backend.probe()
    say("probed")
    box = backend.create(SandboxConfig(memory_mb=256, workspace_mb=64, env={"WORD": "hello"}))
    assert isinstance(box, FirecrackerSandbox)
    say("created")
    with tempfile.TemporaryDirectory() as folder, box:
        commands(box)
        files(box)
        pausing(box)
        services(box)
        forking(box)
        snapshots(backend, box, Path(folder))
    left = [process for process in Path("/proc").glob("[0-9]*/comm") if process.read_text() == "firecracker\n"]
    assert left == [], "processes were left"
    print("scenario: passed", flush=True)


if __name__ == "__main__":
    sys.path.insert(0, os.getcwd())
    main()
