"""How a sandboxed process is started: the bubblewrap command line, and a keeper thread that owns the children.

As root, bubblewrap alone would leave the kernel's user id at 0, so the privileges are dropped *before* it starts.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
import queue
import select
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from environments.errors import MissingDependencyError, SandboxError
from environments.sandbox.seccomp import sandbox_filter, server_filter

NOBODY = 65534
"""User and group that root's sandboxes run as."""

_INSTALL = "apt-get install -y bubblewrap"
_USERNS = "allow unprivileged user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"
START_S = 20.0
"""A start takes some 30 ms; this much patience is for a machine that is busy with other work."""


def _reachable(path: Path, *, executable: bool = False) -> bool:
    """True when user `nobody` (as root) or we ourselves can get at `path`."""
    if os.geteuid() != 0:
        return os.access(path, os.X_OK if executable else os.R_OK)
    path = path.resolve()
    return (
        path.exists()
        and all(p.stat().st_mode & 0o001 for p in path.parents)
        and bool(path.stat().st_mode & (0o001 if executable else 0o004))
    )


@cache
def sandbox_python() -> tuple[str, str | None]:
    """(interpreter, prefix to bind) for use inside sandboxes; the prefix is None when it lies in /usr.

    Our own base interpreter when the sandbox's user can reach it, else the system's.

    Raises:
        MissingDependencyError: neither is reachable.
    """
    prefix = Path(sys.base_prefix).resolve()
    own = prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if _reachable(prefix) and _reachable(own, executable=True):
        return str(own), None if prefix.is_relative_to("/usr") else str(prefix)
    system = Path("/usr/bin/python3")
    if system.exists() and _reachable(system, executable=True):
        return str(system), None
    raise MissingDependencyError(f"the sandbox's user cannot reach {prefix} and there is no /usr/bin/python3", "apt-get install -y python3")


def has_system(image: Path) -> bool:
    """Whether an image brings a /usr; one that only adds files (a list of requirements) is laid over the host's."""
    return (image / "usr").is_dir()


@cache
def image_python(image: Path) -> str:
    """Path inside of the interpreter of an image; of one without a /usr of its own, the host's.

    Raises:
        SandboxError: it has none, or the sandbox's user cannot reach it.
    """
    if not has_system(image):
        return sandbox_python()[0]
    for name in ("/usr/local/bin/python3", "/usr/bin/python3", "/opt/venv/bin/python3", "/opt/bin/python3"):
        path = image / name[1:]
        if path.is_symlink() or path.exists():
            if _reachable(image):
                return name
            raise SandboxError(f"the sandbox's user cannot reach the image {image}", f"chmod a+rx {image} and the folders above it")
    raise SandboxError(f"no python3 in the image {image}", "add /usr/bin/python3 to it; process 1 of a sandbox needs one")


@cache
def server_source(name: str) -> str:
    """Text of one of the programs that run inside; read once, so that nothing on disk is needed later."""
    return Path(__file__).with_name(name).read_text()


def root_arguments(image: Path | None = None) -> list[str]:
    """Read-only /usr with the usual links, and the interpreter's own prefix; of an image also /etc and /opt."""
    own = image is not None and has_system(image)
    root = image if image is not None and own else Path("/")
    arguments = ["--ro-bind", str(root / "usr"), "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        path = root / name
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), f"/{name}"]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), f"/{name}"]
    if image is not None:
        for name in ("etc", "opt"):
            if (image / name).is_dir():
                arguments += ["--ro-bind", str(image / name), f"/{name}"]
    if own:
        return arguments
    _, prefix = sandbox_python()
    return arguments + (["--ro-bind", prefix, prefix] if prefix else [])


def _launcher() -> list[str]:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise MissingDependencyError("bubblewrap (bwrap) is not installed", _INSTALL)
    if os.geteuid() != 0:
        return [bwrap]
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise MissingDependencyError("setpriv is not installed, and root must drop its privileges first", "apt-get install -y util-linux")
    return [setpriv, "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--inh-caps=-all", "--bounding-set=-all", bwrap]


_ISOLATION = [
    "--unshare-all",
    "--unshare-user",
    "--new-session",
    "--die-with-parent",
    "--as-pid-1",
    "--clearenv",
]
_STRICT = ["--disable-userns", "--cap-drop", "ALL"]
_SERVER = [argument for name in ("SYS_ADMIN", "SYS_CHROOT", "SYS_PTRACE", "NET_ADMIN") for argument in ("--cap-add", f"CAP_{name}")]
"""Capabilities over the sandbox's own namespaces for process 1 of a forkable sandbox, which gives them to nobody."""


@dataclass
class BoxProcess:
    """A started sandbox: bubblewrap's own process and, inside, process 1 with whom all others die."""

    outer: subprocess.Popen[bytes]
    inner_pid: int
    inner_pidfd: int
    owner_pid: int
    errors: int
    """Reads what bubblewrap complains about; the sandbox may still fail to come up after it has a process."""

    def complaint(self) -> str:
        """What bubblewrap said so far, for an error message."""
        return _read_until_eof(self.errors, 0.2).decode(errors="replace").strip()[-300:] if self.errors >= 0 else ""

    def alive(self) -> bool:
        """True while process 1 of the sandbox lives."""
        poller = select.poll()
        poller.register(self.inner_pidfd, select.POLLIN)
        return not poller.poll(0)

    def owns(self, pid: int) -> bool:
        """Whether a process of the host is in this sandbox (in its user namespace)."""
        try:
            return os.stat(f"/proc/{pid}/ns/user").st_ino == os.stat(f"/proc/{self.inner_pid}/ns/user").st_ino
        except OSError:
            return False

    def kill(self) -> None:
        """Kill the sandbox with everything in it and wait until it is gone. Only the process that started it may; else no effect."""
        if self.inner_pidfd < 0 or os.getpid() != self.owner_pid:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.inner_pidfd, signal.SIGKILL)
        poller = select.poll()
        poller.register(self.inner_pidfd, select.POLLIN)
        poller.poll(10_000)
        os.close(self.inner_pidfd)
        os.close(self.errors)
        self.inner_pidfd = self.errors = -1
        try:
            self.outer.wait(5)
        except subprocess.TimeoutExpired:
            self.outer.kill()
            self.outer.wait()

    def tree(self) -> list[int]:
        """Host process ids of everything in the sandbox, process 1 first."""
        parents: dict[int, list[int]] = {}
        for entry in os.listdir("/proc"):
            if entry.isdigit() and (fields := process_fields(int(entry))) is not None:
                parents.setdefault(int(fields[1]), []).append(int(entry))
        found = [self.inner_pid]
        for pid in found:
            found += parents.get(pid, [])
        return found


def process_fields(pid: int) -> list[str] | None:
    """What `/proc/<pid>/stat` says after the name: state, parent, ... None when the process is gone."""
    try:
        return Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


class _Keeper:
    """One thread a process that starts every sandbox.

    `--die-with-parent` fires when the *thread* that started the child ends, not the process; a pool thread may end at any time.
    """

    def __init__(self) -> None:
        self._pid = -1
        self._lock = threading.Lock()
        self._queue: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], queue.SimpleQueue[object]]] = queue.SimpleQueue()

    def _serve(self, jobs: queue.SimpleQueue[tuple[Callable[[], subprocess.Popen[bytes]], queue.SimpleQueue[object]]]) -> None:
        while True:
            start, answer = jobs.get()
            try:
                answer.put(start())
            except Exception as error:  # noqa: BLE001 - handed to the caller, who raises it
                answer.put(error)

    def start(self, start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
        if self._pid != os.getpid():  # first use in this process, perhaps after a fork that copied a lock in any state
            self._lock, self._queue, self._pid = threading.Lock(), queue.SimpleQueue(), os.getpid()
            threading.Thread(target=self._serve, args=(self._queue,), name="sandbox-keeper", daemon=True).start()
        answer: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._queue.put((start, answer))
        result = answer.get()
        if isinstance(result, BaseException):
            raise result
        assert isinstance(result, subprocess.Popen)
        return result


_keeper = _Keeper()


def start_box(
    arguments: Sequence[str], command: Sequence[str], *, stdin: int, stdout: int, pass_fds: Sequence[int] = (), forkable: bool = False
) -> BoxProcess:
    """Start `command` as process 1 of a new sandbox with bubblewrap's further `arguments`.

    Args:
        forkable: process 1 may make namespaces and mount, and must confine whatever it starts.

    Raises:
        MissingDependencyError: bubblewrap or setpriv is missing.
        SandboxError: bubblewrap could not build the sandbox; the message carries what it said.
    """
    launcher = _launcher()
    filter_read, filter_write = os.pipe()
    info_read, info_write = os.pipe()
    error_read, error_write = os.pipe()
    try:
        os.write(filter_write, server_filter() if forkable else sandbox_filter())  # some hundred instructions: far below a pipe's capacity
        os.close(filter_write)
        argv = [
            *launcher,
            *_ISOLATION,
            *(_SERVER if forkable else _STRICT),
            "--seccomp",
            str(filter_read),
            "--info-fd",
            str(info_write),
            *arguments,
            "--",
            *command,
        ]
        fds = (filter_read, info_write, *pass_fds)
        outer = _keeper.start(
            lambda: subprocess.Popen(
                argv, stdin=stdin, stdout=stdout, stderr=error_write, env={}, cwd="/", pass_fds=fds, start_new_session=True
            )
        )
    except OSError as error:
        os.close(info_read)
        os.close(error_read)
        raise SandboxError(f"bubblewrap did not start ({error})", "see `ninefold doctor`") from error
    finally:
        for fd in (filter_read, info_write, error_write):
            os.close(fd)
    try:
        text = _read_until_eof(info_read, START_S)
        inner_pid = int(json.loads(text)["child-pid"])
        return BoxProcess(outer, inner_pid, os.pidfd_open(inner_pid), os.getpid(), os.dup(error_read))
    except (ValueError, KeyError, OSError) as error:
        outer.kill()
        outer.wait()
        said = _read_until_eof(error_read, 0.5).decode(errors="replace").strip()
        raise SandboxError(f"bubblewrap could not build the sandbox: {said[-300:] or error}", _USERNS) from error
    finally:
        os.close(info_read)
        os.close(error_read)


def readable(fd: int, timeout_s: float) -> bool:
    """Wait until `fd` can be read (or is at its end); False after `timeout_s`. Unlike select(2), for descriptors of any number."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(max(0, int(timeout_s * 1000))))


def _read_until_eof(fd: int, timeout_s: float) -> bytes:
    chunks = []
    while readable(fd, timeout_s) and (chunk := os.read(fd, 65536)):
        chunks.append(chunk)
    return b"".join(chunks)


PROGRAMS = {
    "server": (("wire.py", "file_server.py", "exec_server.py"), "main()"),
    "branches": (("wire.py", "file_server.py", "exec_server.py", "branch_server.py"), "branch_main()"),
    "interpreter": (("wire.py", "interpreter.py"), "main()"),
}
"""What runs inside: files that make up one program, and its start."""
_COMPILER = """
import marshal, sys
texts = eval(sys.stdin.buffer.read().decode())
compiled = {name: marshal.dumps(compile(text, name, "exec", dont_inherit=True)) for name, text in texts.items()}
sys.stdout.buffer.write(repr(compiled).encode())
"""
BOOTSTRAP = """
import sys
sys.path[:] = [path for path in sys.path if path]
import marshal, os
def take(size):
    data = b""
    while len(data) < size:
        chunk = os.read({fd}, size - len(data))
        if not chunk: os._exit(0)
        data += chunk
    return data
exec(marshal.loads(take(int.from_bytes(take(4), "big"))))
"""
"""Started with `python3 -c`: reads its program, compiled, from a descriptor. Compiling it at every start would double the time of one."""


def _program_text(name: str) -> str:
    files, start = PROGRAMS[name]
    lines = [line for file in files for line in server_source(file).splitlines()]
    kept = [line for line in lines if not line.startswith(("from __future__", "from environments."))]
    return "\n".join(["from __future__ import annotations", *kept, start])


@cache
def programs(image: Path | None = None) -> dict[str, bytes]:
    """The programs that run inside, compiled by the interpreter that will run them: in a sandbox, once a process.

    Raises:
        MissingDependencyError: bubblewrap, setpriv or an interpreter is missing.
        SandboxError: a sandbox could not be started.
    """
    python = image_python(image) if image else sandbox_python()[0]
    texts = repr({name: _program_text(name) for name in PROGRAMS}).encode()
    waiting, go = os.pipe()
    done, result = os.pipe()
    box = None
    try:
        arguments = [*root_arguments(image), "--proc", "/proc", "--dev", "/dev"]
        box = start_box(arguments, [python, "-I", "-S", "-c", _COMPILER], stdin=waiting, stdout=result)
        os.close(result)
        os.close(waiting)
        result = waiting = -1
        with os.fdopen(go, "wb") as file:
            go = -1
            with contextlib.suppress(BrokenPipeError):
                file.write(texts)
        data = _read_until_eof(done, START_S)
        if not data:
            raise SandboxError(f"bubblewrap could not build the sandbox: {box.complaint() or 'it ended without an answer'}", _USERNS)
        compiled = ast.literal_eval(data.decode())
    finally:
        for fd in (waiting, go, done, result):
            if fd >= 0:
                os.close(fd)
        if box is not None:
            box.kill()
    return {str(name): bytes(code) for name, code in compiled.items()}


@cache
def available() -> str:
    """Empty when sandboxes work on this machine, else the reason with the exact fix; found by starting one."""
    try:
        programs()
    except (MissingDependencyError, SandboxError) as error:
        return str(error)
    return ""


def require() -> None:
    """Raises MissingDependencyError, with the exact command that fixes it, when sandboxes do not work here."""
    if reason := available():
        message, _, fix = reason.partition(". Fix: ")
        raise MissingDependencyError(message, fix or _INSTALL)
