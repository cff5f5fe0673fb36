"""Isolation, tested as attacks on a process sandbox. What they must not reach is really there, outside."""

from __future__ import annotations

import os
import platform
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.errors import BadArgumentsError, SandboxError
from environments.sandbox import ProcessSandbox, SandboxConfig
from tests.environments.sandbox.attacks import SYSCALLS, trying

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def box() -> Iterator[ProcessSandbox]:
    with ProcessSandbox.create(SandboxConfig(workspace_mb=16, memory_mb=256, processes=32)) as made:
        yield made


def python(box: ProcessSandbox, expression: str) -> str:
    done = box.exec(["python3", "-I", "-S", "-c", trying(expression)])
    return done.stdout or done.stderr


@pytest.mark.parametrize("name", SYSCALLS)
def test_kernel_interfaces_are_refused(box: ProcessSandbox, name: str) -> None:
    assert python(box, SYSCALLS[name]).startswith("blocked")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 has a second system call interface")
def test_the_x32_interface_kills(box: ProcessSandbox) -> None:
    assert box.exec(["python3", "-c", "import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39)"]).exit_code == -31


def test_privileges_are_gone(box: ProcessSandbox) -> None:
    status = dict(line.split(":\t", 1) for line in box.exec(["cat", "/proc/self/status"]).stdout.splitlines() if ":\t" in line)
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    uid = int(Path(f"/proc/{box._box.inner_pid}/status").read_text().split("Uid:\t")[1].split()[0])
    assert uid == (65534 if os.geteuid() == 0 else os.geteuid())


def test_set_user_id_programs_gain_nothing(box: ProcessSandbox) -> None:
    assert box.exec(["sh", "-c", "su -c id root < /dev/null; sudo -n id; mount; id -u"]).stdout.splitlines()[-1] != "0"


def test_the_network_is_a_loopback_without_a_route(box: ProcessSandbox) -> None:
    assert python(box, "socket.if_nameindex()").startswith(("ALLOWED [(1, 'lo')]", "blocked"))
    assert python(box, "socket.create_connection(('192.0.2.1', 80), 2)").startswith("blocked")
    assert python(box, "socket.socket(2, 2).connect(('192.0.2.1', 53))").startswith("blocked")
    assert python(box, "socket.getaddrinfo('example.com', 80)").startswith("blocked")


def test_services_of_the_host_are_out_of_reach(box: ProcessSandbox) -> None:
    with socket.socket() as server, socket.socket(socket.AF_UNIX) as abstract:
        server.bind(("127.0.0.1", 0))
        server.listen()
        name = f"ninefold-test-{os.getpid()}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        socket.create_connection(server.getsockname(), 2).close()
        assert python(box, f"socket.create_connection({server.getsockname()!r}, 2)").startswith("blocked")
        assert python(box, f"socket.socket(socket.AF_UNIX).connect(chr(0) + {name!r})").startswith("blocked")


def test_files_of_the_host_are_out_of_reach(box: ProcessSandbox, tmp_path: Path) -> None:
    secret = tmp_path / "vault" / "payload.json"
    secret.parent.mkdir()
    secret.write_text("expected")
    secret.chmod(0o644)
    for path in (str(secret), "/etc/passwd", "/etc/shadow", "/proc/1/environ", "/proc/1/mem", "/proc/kcore", "/proc/self/root/etc/passwd"):
        assert python(box, f"open({path!r}, 'rb').read(10)").startswith("blocked"), path
    for path in (
        "/root",
        "/home",
        "/var",
        "/mnt",
        "/srv",
        "/boot",
        "/sys",
        str(Path.cwd()),
        "/proc/1/fd",
        "/proc/1/cwd",
        "/proc/1/root",
    ):
        assert python(box, f"os.listdir({path!r})").startswith("blocked"), path


def test_nothing_but_the_workspace_and_tmp_can_be_written(box: ProcessSandbox) -> None:
    for path in ("/x", "/usr/x", "/usr/local/x", "/etc/x", "/dev/x", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/bin/x"):
        assert python(box, f"open({path!r}, 'w')").startswith("blocked"), path
    for path in ("/tmp/x", "/workspace/x", "/dev/shm/x"):
        assert python(box, f"open({path!r}, 'w')").startswith("ALLOWED"), path
    assert not Path("/tmp/x").exists()


def test_devices_are_out_of_reach(box: ProcessSandbox) -> None:
    names = set(box.exec(["ls", "/dev"]).stdout.split())
    assert names <= {
        "console",
        "core",
        "fd",
        "full",
        "null",
        "ptmx",
        "pts",
        "random",
        "shm",
        "stderr",
        "stdin",
        "stdout",
        "tty",
        "urandom",
        "zero",
    }
    assert python(box, "os.mknod('/tmp/disk', 0o060666, os.makedev(254, 0))").startswith("blocked")
    assert python(box, "os.mknod('/tmp/mem', 0o020666, os.makedev(1, 1))").startswith("blocked")


def test_processes_of_the_host_are_out_of_reach(box: ProcessSandbox) -> None:
    pids = python(box, "[p for p in os.listdir('/proc') if p.isdigit()]")
    assert pids.startswith("ALLOWED ['1', ")
    assert len(pids.split(",")) <= 4
    assert python(box, f"os.kill({os.getpid()}, 0)").startswith("blocked ProcessLookupError")
    assert python(box, "os.kill(os.getppid(), 0) or os.getppid()").startswith(("ALLOWED 1", "ALLOWED 0"))


def test_process_1_survives_whatever_is_sent_to_it(box: ProcessSandbox) -> None:
    box.exec(["sh", "-c", "for s in $(seq 1 64); do kill -$s 1; done; kill -STOP 1; kill -9 -1"])
    assert box.exec(["echo", "alive"]).stdout == "alive\n"


def test_the_environment_of_the_host_is_not_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    with ProcessSandbox.create() as fresh:
        said = fresh.exec(["sh", "-c", "env; cat /proc/self/environ /proc/1/environ"]).stdout
    assert "hunter2" not in said
    assert "PATH=" in said


def test_sandboxes_do_not_see_each_other(box: ProcessSandbox) -> None:
    with ProcessSandbox.create() as other:
        other.write("own.txt", b"x")
        other.exec(["sh", "-c", "echo y > /tmp/own.txt; echo z > /dev/shm/own.txt; sleep 333 &"])
        assert "own.txt" not in box.exec(["ls", "/tmp", "/dev/shm", "/workspace"]).stdout
        assert "333" not in box.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout


def test_a_fork_bomb_stays_in_its_box_and_the_box_stays_usable(box: ProcessSandbox) -> None:
    done = box.exec(["sh", "-c", "bomb() { bomb | bomb & }; bomb; sleep 20"], timeout_s=1.5)
    assert done.timed_out or "fork" in done.stderr
    assert len(box._box.tree()) <= 40
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    assert box.exec(["python3", "-c", bomb], timeout_s=1.5).timed_out
    assert box.exec(["echo", "alive"]).stdout == "alive\n"
    for _ in range(100):  # the last dead are reaped by process 1 between requests
        if len(box._box.tree()) <= 3:
            break
        time.sleep(0.1)
        box.exec(["true"])
    assert len(box._box.tree()) <= 3


def test_a_memory_bomb_hits_its_limit(box: ProcessSandbox) -> None:
    done = box.exec(["python3", "-c", "x = bytearray(400 << 20)"])
    assert done.exit_code == 1
    assert "MemoryError" in done.stderr
    assert box.exec(["python3", "-c", "x = bytearray(100 << 20); print('fits')"]).stdout == "fits\n"


def test_a_disk_filler_hits_its_limit(box: ProcessSandbox) -> None:
    for folder in ("/workspace", "/tmp", "/dev/shm"):
        done = box.exec(
            ["sh", "-c", f"for i in 1 2 3 4; do head -c 8M /dev/zero > {folder}/fill$i; done; du -sm {folder} | cut -f1; rm {folder}/fill*"]
        )
        assert int(done.stdout) <= 17, folder
        assert "No space left" in done.stderr, folder
    box.exec(["sh", "-c", "head -c 30M /dev/zero > fill"])
    with pytest.raises(BadArgumentsError, match="No space left"):
        box.write("more", b"x" * 100_000)
    box.exec(["rm", "-f", "fill", "more"])
    assert box.exec(["echo", "alive"]).stdout == "alive\n"


def test_an_output_flood_is_cut(box: ProcessSandbox) -> None:
    done = box.exec(["yes"], timeout_s=1)
    assert (done.timed_out, done.truncated) == (True, True)
    assert len(done.stdout) == 1 << 20
    assert not box.exec(["echo", "x"]).truncated


def test_links_do_not_lead_out_of_the_workspace(box: ProcessSandbox) -> None:
    box.exec(
        [
            "sh",
            "-c",
            "ln -s /usr/bin/env file; ln -s /usr folder; ln -s /tmp out; ln -s /proc/1/environ env; echo in > /tmp/in; mkfifo pipe",
        ]
    )
    for path in (
        "file",
        "folder/bin/env",
        "out/in",
        "env",
        "pipe",
        "/dev/stdin",
        "/etc/passwd",
        "/workspace/../tmp/in",
        "../tmp/in",
        "out",
    ):
        with pytest.raises(BadArgumentsError):
            box.read(path)
    for path in ("file", "out/planted", "../tmp/planted", "/tmp/planted", "pipe", "a\0b"):
        with pytest.raises(BadArgumentsError):
            box.write(path, b"planted")
    assert "planted" not in box.exec(["ls", "/tmp"]).stdout
    for path in ("folder", "out", "..", "/"):
        with pytest.raises(BadArgumentsError):
            box.list(path)
    assert "cannot" in box.exec(["sh", "-c", "ln /usr/bin/env hard 2>&1 || echo cannot"]).stdout


def test_swapping_a_folder_for_a_link_while_reading_gains_nothing(box: ProcessSandbox) -> None:
    swap = (
        "import os\nos.makedirs('real', exist_ok=True); open('real/in', 'w').write('mine')\n"
        "while True:\n    try:\n        os.rename('real', 'aside'); os.symlink('/tmp', 'real')\n"
        "        os.unlink('real'); os.rename('aside', 'real')\n"
        "    except OSError: pass\n"
    )
    box.exec(["sh", "-c", "echo outside > /tmp/in"])
    box.write("swap.py", swap.encode())
    box.exec(["sh", "-c", "python3 swap.py & echo $! > pid"])
    seen = set()
    for _ in range(200):
        try:
            seen.add(box.read("real/in"))
        except BadArgumentsError:
            seen.add(b"refused")
    box.exec(["sh", "-c", "kill -9 $(cat pid)"])
    assert b"outside\n" not in seen
    assert seen <= {b"mine", b"refused"}


def test_nothing_survives_the_end() -> None:
    marker = f"31{os.getpid()}.5"
    box = ProcessSandbox.create()
    box.exec(["sh", "-c", f"trap '' TERM HUP INT; (setsid sh -c 'trap \"\" TERM; sleep {marker}' &) ; nohup sleep {marker} &"])
    time.sleep(0.1)
    assert _running(marker)
    box.close()
    assert not _running(marker)


def test_a_hanging_request_ends_when_the_sandbox_is_closed() -> None:
    import threading

    box = ProcessSandbox.create()
    errors: list[Exception] = []

    def hang() -> None:
        try:
            box.exec(["sleep", "60"], timeout_s=60)
        except SandboxError as error:
            errors.append(error)

    thread = threading.Thread(target=hang)
    thread.start()
    time.sleep(0.3)
    box.close()
    thread.join(10)
    assert not thread.is_alive()
    assert len(errors) == 1


def _running(marker: str) -> bool:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if marker.encode() in Path("/proc", entry, "cmdline").read_bytes():
                    return True
            except OSError:
                continue
    return False
