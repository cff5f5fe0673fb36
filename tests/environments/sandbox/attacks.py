"""What code in a sandbox must not achieve: one list of attacks, run on every backend. What they are after really exists, outside.

`ATTACKS` are functions of a sandbox and of what lies `Outside`; each returns when the attack failed and raises AssertionError
when it got through. `Attacks` runs them as tests; a backend plugs in as `conformance.py` says, with a subclass of both. They
need `python3` inside. Where the kernel under the code is not the host's (gVisor, a virtual machine) its interfaces may be
open; what counts there is that the host is untouched.
"""

from __future__ import annotations

import os
import platform
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from environments.errors import BadArgumentsError, SandboxError
from environments.sandbox.base import Backend, Sandbox, SandboxConfig
from environments.sandbox.seccomp import _TABLE

_COLUMN = 0 if platform.machine() == "x86_64" else 1


def _syscall(name: str, *arguments: str) -> str:
    number = _TABLE[name][_COLUMN]
    return f"sysc({number}, {', '.join(arguments)})" if arguments else f"sysc({number})"


PRELUDE = """
import ctypes, os, socket
def sysc(*arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(*arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
"""

SYSCALLS: dict[str, str] = {
    "mount": _syscall("mount", "b'x'", "b'/tmp'", "b'tmpfs'", "0", "None"),
    "umount": _syscall("umount2", "b'/usr'", "0"),
    "pivot_root": _syscall("pivot_root", "b'/'", "b'/'"),
    "chroot": _syscall("chroot", "b'/usr'"),
    "unshare a user namespace": _syscall("unshare", "0x10000000"),
    "unshare a mount namespace": _syscall("unshare", "0x20000"),
    "clone a user namespace": _syscall("clone", "0x10000000 | 17", "0", "0", "0", "0"),
    "clone3": _syscall("clone3", "None", "0"),
    "setns": _syscall("setns", "0", "0"),
    "ptrace": _syscall("ptrace", "0", "0", "0", "0"),
    "process_vm_readv": _syscall("process_vm_readv", "1", "None", "0", "None", "0", "0"),
    "bpf": _syscall("bpf", "0", "None", "0"),
    "perf_event_open": _syscall("perf_event_open", "None", "0", "0", "0", "0"),
    "userfaultfd": _syscall("userfaultfd", "0"),
    "io_uring": _syscall("io_uring_setup", "1", "ctypes.create_string_buffer(120)"),
    "keyctl": _syscall("keyctl", "0", "-3", "1"),
    "add_key": _syscall("add_key", "b'user'", "b'x'", "b'y'", "1", "-3"),
    "pidfd_getfd": _syscall("pidfd_getfd", "0", "0", "0"),
    "open_by_handle_at": _syscall("open_by_handle_at", "-100", "None", "0"),
    "kexec_load": _syscall("kexec_load", "0", "0", "None", "0"),
    "personality": _syscall("personality", "0x0040000"),
    "vsock": "socket.socket(40, 1, 0)",
    "netlink": "socket.socket(16, 3, 0)",
    "raw packets": "socket.socket(17, 3, 0)",
    "raw internet": "socket.socket(2, 3, 1)",
    "limits of process 1": "__import__('resource').prlimit(1, __import__('resource').RLIMIT_CPU, (0, 0))",
}
"""Kernel interfaces that must be refused in every sandbox."""


def trying(expression: str) -> str:
    """Text of an expression statement that reports how trying `expression` went; for `exec` in a sandbox's interpreter."""
    return (
        f"{PRELUDE}\ntry:\n    print('ALLOWED', repr({expression})[:200])\n"
        "except Exception as error:\n    print('blocked', type(error).__name__, error)\n"
    )


def solving(expression: str) -> str:
    """The same as the body of `solve`, for a code pool."""
    return (
        f"{PRELUDE}\ndef solve():\n    try:\n        return 'ALLOWED ' + repr({expression})[:200]\n"
        "    except Exception as error:\n        return 'blocked ' + type(error).__name__ + ' ' + str(error)\n"
    )


@dataclass(frozen=True)
class Outside:
    """What is there to be had: on the host, and in another sandbox."""

    secret: Path
    """A file that everybody on the host may read."""
    port: int
    """Of a TCP server on the host's loopback."""
    abstract: str
    """Name of a Unix socket in the abstract name space."""
    pid: int
    """A process of the host, of the same user."""
    other: Sandbox
    """Another sandbox with a file `own.txt` in every writable folder and a process `sleep 333`."""
    backend: Backend
    config: SandboxConfig


@contextmanager
def outside(backend: Backend, config: SandboxConfig) -> Iterator[Outside]:
    """Put everything in place for the attacks."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        secret = folder / "verifier" / "expected.json"
        secret.parent.mkdir()
        secret.write_text("the expected answer")
        secret.chmod(0o644)
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        abstract = stack.enter_context(socket.socket(socket.AF_UNIX))
        abstract.bind(f"\0ninefold-{os.getpid()}")
        abstract.listen()
        sleeper = subprocess.Popen(["sleep", "600"])
        stack.callback(sleeper.wait)
        stack.callback(sleeper.kill)
        other = stack.enter_context(backend.create(config))
        other.exec(["sh", "-c", "for f in /tmp /dev/shm .; do echo own > $f/own.txt; done; sleep 333 > /dev/null 2>&1 &"])
        port = int(server.getsockname()[1])
        socket.create_connection(("127.0.0.1", port), 2).close()
        yield Outside(secret, port, f"ninefold-{os.getpid()}", sleeper.pid, other, backend, config)
        assert sleeper.poll() is None, "a process of the host was killed from inside"
        assert secret.read_text() == "the expected answer"
        assert other.exec(["cat", "own.txt", "/tmp/own.txt"]).stdout == "own\nown\n", "another sandbox was changed"


def attempt(box: Sandbox, expression: str, timeout_s: float = 20.0) -> str:
    """How trying a Python expression inside went: `ALLOWED ...` or `blocked ...`."""
    done = box.exec(["python3", "-I", "-S", "-c", trying(expression)], timeout_s=timeout_s)
    return done.stdout or f"blocked {done.exit_code} {done.stderr}"


def blocked(box: Sandbox, *expressions: str) -> None:
    """Assert that none of them succeeds inside."""
    for expression in expressions:
        said = attempt(box, expression)
        assert said.startswith("blocked"), f"{expression}: {said}"


def alive(box: Sandbox) -> None:
    """Assert that the sandbox is usable; the last dead of a bomb may still be in the way for a moment."""
    for _ in range(50):
        if box.exec(["echo", "alive"]).stdout == "alive\n":
            return
        time.sleep(0.1)
    raise AssertionError("the sandbox is no longer usable")


Attack = Callable[[Sandbox, Outside], None]
ATTACKS: list[Attack] = []


def attack(function: Attack) -> Attack:
    """Add to the list."""
    ATTACKS.append(function)
    return function


@attack
def kernel_interfaces(box: Sandbox, around: Outside) -> None:
    """mount, namespaces, ptrace, bpf, io_uring, userfaultfd, keyctl, vsock, netlink, ... by number."""
    mounts = Path("/proc/self/mounts").read_text()
    names = dict(SYSCALLS)
    code = "\n".join(f"print({name!r}, end=' ')\n{trying(expression)}" for name, expression in names.items())
    done = box.exec(["python3", "-I", "-S", "-c", code], timeout_s=60)
    lines = done.stdout.splitlines()
    if box.capabilities().isolation == "shared-kernel":
        assert len(lines) == len(names), done.stderr
        for name, line in zip(names, lines, strict=True):
            assert line.startswith(f"{name} blocked"), line
    assert Path("/proc/self/mounts").read_text() == mounts
    alive(box)


@attack
def a_second_system_call_interface(box: Sandbox, around: Outside) -> None:
    """The x32 numbers would slip past a list of x86_64 numbers."""
    if platform.machine() == "x86_64":
        code = "import ctypes, os; print(ctypes.CDLL(None).syscall(0x40000000 + 39), os.getpid())"
        done = box.exec(["python3", "-c", code])
        assert done.exit_code == -31 or done.stdout.startswith("-1 "), done


@attack
def privileges(box: Sandbox, around: Outside) -> None:
    """No capability, no way to gain one through a set-user-ID program."""
    if box.capabilities().isolation == "shared-kernel":
        status = dict(line.split(":\t", 1) for line in box.exec(["cat", "/proc/self/status"]).stdout.splitlines() if ":\t" in line)
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
        assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        assert box.exec(["sh", "-c", "su -c id root < /dev/null; sudo -n id; id -u"]).stdout.splitlines()[-1] != "0"
        blocked(box, "os.setuid(0)", "os.setgroups([0])", "os.setresuid(0, 0, 0)")


@attack
def set_user_id_files(box: Sandbox, around: Outside) -> None:
    """A set-user-ID file made inside helps nobody outside: it never appears there."""
    box.exec(["sh", "-c", "cp /bin/sh suid; chmod 6755 suid; ./suid -c 'id -u' > who"])
    marker = f"suid-{os.getpid()}"
    box.exec(["sh", "-c", f"cp /bin/sh /tmp/{marker}; chmod 6755 /tmp/{marker}"])
    assert not Path("/tmp", marker).exists()
    box.exec(["sh", "-c", f"rm -f suid who /tmp/{marker}"])


@attack
def the_network(box: Sandbox, around: Outside) -> None:
    """A loopback without a route; the host's services and Unix sockets are not on it."""
    if box.capabilities().isolated_network:
        blocked(
            box,
            "socket.create_connection(('192.0.2.1', 80), 2)",
            "socket.socket(2, 2).sendto(b'x', ('192.0.2.1', 53))",
            "socket.create_connection(('2001:db8::1', 80), 2)",
            "socket.getaddrinfo('example.com', 80)",
            f"socket.create_connection(('127.0.0.1', {around.port}), 2)",
            f"socket.socket(socket.AF_UNIX).connect(chr(0) + {around.abstract!r})",
        )


@attack
def files_of_the_host(box: Sandbox, around: Outside) -> None:
    """Nothing of the host but read-only programs and libraries; no way through /proc."""
    paths = (
        str(around.secret),
        f"/proc/self/root{around.secret}",
        f"/proc/1/root{around.secret}",
        f"/proc/1/cwd/..{around.secret}",
        "/proc/kcore",
    )
    blocked(box, *(f"open({path!r}, 'rb').read(10)" for path in paths))
    blocked(box, f"os.listdir({str(around.secret.parent)!r})", f"os.listdir({str(Path.cwd())!r})")
    if box.capabilities().isolation == "shared-kernel":
        blocked(box, *(f"open({path!r}, 'rb').read(10)" for path in ("/etc/shadow", "/proc/1/environ", "/proc/1/mem")))
        blocked(box, *(f"os.listdir({path!r})" for path in ("/root", "/home", "/mnt", "/proc/1/fd", "/proc/1/cwd", "/proc/1/root")))


@attack
def reading_the_verifier(box: Sandbox, around: Outside) -> None:
    """A verifier's file is not found by its name, its content or as an open descriptor."""
    found = box.exec(
        ["sh", "-c", "find / -xdev -name expected.json 2> /dev/null; find /proc -name fd -maxdepth 2 -exec ls -l {} + 2> /dev/null"]
    )
    assert "expected.json" not in found.stdout
    assert "verifier" not in found.stdout
    descriptors = attempt(
        box,
        "[os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if int(n) > 2 and os.path.exists(f'/proc/self/fd/{n}')]",
    )
    assert "ALLOWED []" in descriptors, descriptors


@attack
def writing_outside_the_workspace(box: Sandbox, around: Outside) -> None:
    """Only the workspace, /tmp and /dev/shm can be written, and they are not the host's."""
    if box.capabilities().isolation == "shared-kernel":
        paths = ("/x", "/usr/x", "/usr/local/x", "/etc/x", "/dev/x", "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/bin/x")
        blocked(box, *(f"open({path!r}, 'w')" for path in paths))
    name = f"ninefold-{os.getpid()}"
    for folder in ("/tmp", "/dev/shm", "/workspace"):
        assert attempt(box, f"open('{folder}/{name}', 'w')").startswith("ALLOWED"), folder
        assert not Path(folder, name).exists(), folder


@attack
def devices(box: Sandbox, around: Outside) -> None:
    """No disk, no memory device, no way to make one."""
    if box.capabilities().isolation == "shared-kernel":
        harmless = "console core fd full null ptmx pts random shm stderr stdin stdout tty urandom zero"
        assert set(box.exec(["ls", "/dev"]).stdout.split()) <= set(harmless.split())
        blocked(box, "os.mknod('/tmp/disk', 0o060666, os.makedev(254, 0))", "os.mknod('/tmp/mem', 0o020666, os.makedev(1, 1))")
    blocked(box, "open('/dev/kvm', 'rb')", "open('/dev/mem', 'rb').read(1)")


@attack
def processes_of_the_host(box: Sandbox, around: Outside) -> None:
    """They cannot be seen, signalled or traced."""
    if box.capabilities().isolation == "shared-kernel":
        blocked(box, f"os.kill({around.pid}, 0)", f"open('/proc/{around.pid}/cmdline').read()")
    cmdlines = box.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
    assert "sleep 600" not in cmdlines
    assert "pytest" not in cmdlines
    box.exec(["sh", "-c", "kill -9 -1"])
    alive(box)


@attack
def process_1(box: Sandbox, around: Outside) -> None:
    """Whatever is sent to it, it stays."""
    box.exec(["sh", "-c", "for s in $(seq 1 64); do kill -$s 1; done; kill -STOP 1; kill -9 -1"])
    if box.capabilities().isolation == "shared-kernel":
        blocked(box, "open('/proc/1/mem', 'r+b')", "os.readlink('/proc/1/fd/0')", "__import__('resource').prlimit(1, 7, (0, 0))")
    alive(box)


@attack
def other_sandboxes(box: Sandbox, around: Outside) -> None:
    """Neither their files nor their processes."""
    box.exec(["rm", "-f", "own.txt"])
    assert "own.txt" not in box.exec(["ls", "/tmp", "/dev/shm", "/workspace"]).stdout
    cmdlines = box.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
    assert "sleep 333" not in cmdlines
    assert "sleep 333" in around.other.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]).stdout
    queues = "ctypes.CDLL(None).mq_open(b'/ninefold', 0o102, 0o666, None)"
    attempt(box, queues)
    assert "ALLOWED -1" in attempt(around.other, "ctypes.CDLL(None).mq_open(b'/ninefold', 2)")


@attack
def the_environment_of_the_host(box: Sandbox, around: Outside) -> None:
    """A key in the environment of the host's process does not come along."""
    os.environ["NINEFOLD_TEST_SECRET"] = "hunter2"
    try:
        with around.backend.create(around.config) as fresh:
            said = fresh.exec(["sh", "-c", "env; cat /proc/self/environ /proc/1/environ"]).stdout
    finally:
        del os.environ["NINEFOLD_TEST_SECRET"]
    assert "PATH=" in said
    assert "hunter2" not in said


@attack
def a_fork_bomb(box: Sandbox, around: Outside) -> None:
    """It stays in its box, ends at the timeout, and the box stays usable."""
    box.exec(["sh", "-c", "bomb() { bomb | bomb & }; bomb; sleep 20"], timeout_s=1.0)
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass\n"
    assert box.exec(["python3", "-c", bomb], timeout_s=1.0).timed_out
    alive(box)


@attack
def a_memory_bomb(box: Sandbox, around: Outside) -> None:
    """It hits its limit; the sandbox stays usable."""
    done = box.exec(["python3", "-c", f"x = bytearray({2 * around.config.memory_mb} << 20); print(len(x))"], timeout_s=60)
    assert done.exit_code not in (0, None)
    hidden = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nfds = []\nblock = bytes(1 << 20)\n"
        "for n in range(64):\n    fd = libc.memfd_create(b'x', 0)\n    fds.append(fd)\n"
        "    for _ in range(16): os.write(fd, block)\nprint('hidden')\n"
    )
    if box.capabilities().memory_limit == "process":
        assert "hidden" not in box.exec(["python3", "-c", hidden], timeout_s=60).stdout, "memory files escape a limit on each process"
    alive(box)


@attack
def a_disk_filler(box: Sandbox, around: Outside) -> None:
    """Every writable folder is full at its size."""
    size = around.config.workspace_mb
    for folder in ("/workspace", "/tmp", "/dev/shm"):
        fill = f"for i in 1 2 3 4 5 6; do head -c {size // 3 + 1}M /dev/zero > {folder}/fill$i; done"
        fill += f"; du -sm {folder} | cut -f1; rm {folder}/fill*"
        done = box.exec(["sh", "-c", fill], timeout_s=60)
        assert int(done.stdout) <= size + 1, folder
        assert "No space left" in done.stderr, folder
    box.exec(["sh", "-c", f"for i in 1 2 3 4; do head -c {size // 3 + 1}M /dev/zero > fill$i; done"], timeout_s=60)
    with pytest.raises(BadArgumentsError):
        box.write("more", b"x" * 100_000)
    box.exec(["sh", "-c", "rm -f fill* more"])
    alive(box)


@attack
def an_output_flood(box: Sandbox, around: Outside) -> None:
    """It is cut at the cap and ends at the timeout."""
    done = box.exec(["yes"], timeout_s=1)
    assert (done.timed_out, done.truncated) == (True, True)
    assert len(done.stdout) == around.config.output_kb << 10
    assert not box.exec(["echo", "x"]).truncated


@attack
def links_out_of_the_workspace(box: Sandbox, around: Outside) -> None:
    """Symbolic and hard links, pipes, and devices are not followed by the host's reads and writes."""
    links = "ln -s /usr/bin/env file; ln -s /usr folder; ln -s /tmp out; ln -s /proc/1/environ env; echo in > /tmp/in; mkfifo pipe"
    box.exec(["sh", "-c", f"mkdir -p links; cd links; {links}; ln -s {around.secret} secret; ln -s {around.secret.parent} vault"])
    for path in ("file", "folder/bin/env", "out/in", "env", "pipe", "secret", "vault/expected.json", "out"):
        with pytest.raises(BadArgumentsError):
            box.read(f"links/{path}")
    for path in ("/dev/stdin", "/etc/passwd", "/workspace/../tmp/in", "../tmp/in"):
        with pytest.raises(BadArgumentsError):
            box.read(path)
    for path in (
        "links/file",
        "links/out/planted",
        "../tmp/planted",
        "/tmp/planted",
        "links/pipe",
        "links/secret",
        "links/vault/planted",
        "a\0b",
    ):
        with pytest.raises(BadArgumentsError):
            box.write(path, b"planted")
    assert "planted" not in box.exec(["ls", "/tmp"]).stdout
    for path in ("links/folder", "links/out", "links/vault", "..", "/"):
        with pytest.raises(BadArgumentsError):
            box.list(path)
    assert "cannot" in box.exec(["sh", "-c", f"ln {around.secret} hard 2>&1 || echo cannot"]).stdout
    box.exec(["rm", "-rf", "links"])


@attack
def swapping_a_folder_for_a_link(box: Sandbox, around: Outside) -> None:
    """The race between looking at a path and opening it."""
    swap = (
        "import os\nos.makedirs('real', exist_ok=True); open('real/in', 'w').write('mine')\n"
        "while True:\n    try:\n        os.rename('real', 'aside'); os.symlink('/tmp', 'real')\n"
        "        os.unlink('real'); os.rename('aside', 'real')\n    except OSError: pass\n"
    )
    box.exec(["sh", "-c", "echo outside > /tmp/in"])
    box.write("swap.py", swap.encode())
    box.exec(["sh", "-c", "python3 swap.py > /dev/null 2>&1 & echo $! > pid"])
    seen = set()
    for _ in range(100):
        try:
            seen.add(box.read("real/in"))
        except BadArgumentsError:
            seen.add(b"refused")
    box.exec(["sh", "-c", "kill -9 $(cat pid)"])
    assert seen <= {b"mine", b"refused", b""}, seen


@attack
def surviving_a_kill(box: Sandbox, around: Outside) -> None:
    """Ignored signals, own sessions and orphans: everything ends with the timeout, and with the sandbox."""
    stubborn = (
        "trap '' TERM HUP INT; (setsid sh -c 'trap \"\" TERM; while :; do echo x >> beat; sleep 0.05; done' &); nohup sleep 60 & sleep 60"
    )
    assert box.exec(["sh", "-c", stubborn], timeout_s=1.0).timed_out
    before = len(box.read("beat"))
    time.sleep(0.5)
    assert len(box.read("beat")) == before, "a process outlived the timeout"
    marker = f"31{os.getpid()}.5"
    with around.backend.create(around.config) as doomed:
        doomed.exec(
            ["sh", "-c", f"(setsid sh -c 'trap \"\" TERM; sleep {marker}' > /dev/null 2>&1 &); nohup sleep {marker} > /dev/null 2>&1 &"]
        )
    assert not host_runs(marker), "a process outlived its sandbox"


def host_runs(marker: str) -> bool:
    """Whether a process of the host has `marker` in its command line."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if marker.encode() in Path("/proc", entry, "cmdline").read_bytes():
                    return True
            except OSError:
                continue
    return False


class Attacks:
    """The list as tests; see `conformance.py` for how a backend plugs in."""

    config: ClassVar[SandboxConfig] = SandboxConfig(memory_mb=512, workspace_mb=16, processes=48)

    @pytest.fixture(scope="class")
    @classmethod
    def around(cls, backend: Backend) -> Iterator[Outside]:
        with outside(backend, cls.config) as made:
            yield made

    @pytest.fixture(scope="class")
    @classmethod
    def victim(cls, backend: Backend) -> Iterator[Sandbox]:
        with backend.create(cls.config) as made:
            yield made

    @pytest.mark.parametrize("attack", ATTACKS, ids=lambda function: function.__name__)
    def test_attack(self, attack: Attack, victim: Sandbox, around: Outside) -> None:
        assert victim.state == "running", "an earlier attack broke the sandbox"
        attack(victim, around)


def run_all(backend: Backend, config: SandboxConfig) -> dict[str, str]:
    """Every attack without pytest, for a process that cannot run it; name to '' or what got through."""
    said: dict[str, str] = {}
    with outside(backend, config) as around, backend.create(config) as box:
        for function in ATTACKS:
            try:
                function(box, around)
                said[function.__name__] = ""
            except (AssertionError, SandboxError, BadArgumentsError) as error:
                said[function.__name__] = f"{type(error).__name__}: {error}"
    return said
