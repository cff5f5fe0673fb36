"""Process 1 of a sandbox: runs commands and, with `file_server.py`, moves files. Runs inside, with the standard library only.

As process 1 it cannot be killed or stopped from within; not dumpable, its memory and file descriptors are out of reach
too. It reaps every orphan. One request at a time, as frames of `wire.py` on file descriptor 0; no request ends it.
Every start pays for each import: `signal`, `socket`, `json` and `subprocess` would cost more than all of this.
"""
# ruff: noqa: SIM105 - contextlib is a millisecond of every start

from __future__ import annotations

import _ctypes
import _socket
import gc
import os
import resource
import select
import time
from collections.abc import Callable, Sequence
from typing import Any

from environments.sandbox.file_server import FILE_OPERATIONS, WORKSPACE, Answer, Body, Refused
from environments.sandbox.wire import Closed, close_all, receive_frame, send_frame

PR_SET_DUMPABLE = 4
SIGINT, SIGKILL, SIGPIPE, SIGCONT, SIGSTOP, SIGXFSZ = 2, 9, 13, 18, 19, 25
TICKS = os.sysconf("SC_CLK_TCK")


class _Int(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "i"


class _Function(_ctypes.CFuncPtr):
    """What `ctypes` would make, without the five milliseconds that importing it takes."""

    _flags_ = 1  # FUNCFLAG_CDECL
    _restype_ = _Int


_c_library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]
c_prctl, c_signal = _Function(_ctypes.dlsym(_c_library, "prctl")), _Function(_ctypes.dlsym(_c_library, "signal"))


# --- processes ---------------------------------------------------------------------------------------------------------


def family(root: int, since: int) -> set[int]:
    """Living descendants of `root`, everything in its session, and orphans that started at or after `since` with theirs.

    `root` 0 is an interpreter that runs in the process tree above; `since` in clock ticks since boot, as /proc has it.
    Whoever leaves session and parent behind is still younger than the command that started it.
    """
    parents: dict[int, int] = {}
    chain = {root}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) > 1:
            try:
                with open(f"/proc/{entry}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                pid, parent = int(entry), int(fields[1])
                parents[pid] = parent
                if int(fields[3]) == root or (parent <= 1 and int(fields[19]) >= since):
                    chain.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in chain} - chain:
        chain |= more
    return chain & parents.keys()


def signal_all(pids: set[int], which: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, which)
        except ProcessLookupError:
            pass


def kill_family(root: int, since: int) -> None:
    """Stop the whole family first: killed one by one, orphans of other sessions would be lost from sight."""
    stopped: set[int] = set()
    for _ in range(50):
        if root:
            try:
                os.killpg(root, SIGSTOP)
            except (ProcessLookupError, PermissionError):
                pass
        fresh = family(root, since) - stopped
        if not fresh:
            break
        signal_all(fresh, SIGSTOP)
        stopped |= fresh
    else:
        stopped = {-1}  # it outruns us: everything in the sandbox goes, except this process
    signal_all(stopped, SIGKILL)
    deadline = time.monotonic() + 5.0
    while family(root, since) and time.monotonic() < deadline:
        time.sleep(0.002)
        reap(root)


def do_kill(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    kill_family(request["root"], request["since"])
    return {}, b"", []


def do_stop(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    """Stop everything but this process. One that is just forking appears in the next round; told is not yet stopped."""
    for _ in range(200):
        try:
            os.kill(-1, SIGSTOP)
        except ProcessLookupError:
            return {}, b"", []
        states = set()
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) > 1:
                try:
                    with open(f"/proc/{entry}/stat") as file:
                        states.add(file.read().rpartition(")")[2].split()[0])
                except OSError:
                    continue
        if states <= set("TtZXD"):  # D: told, and waits in the kernel; the parent of a stopped vfork(2) does for as long as that is
            return {}, b"", []
        time.sleep(0.002)
    raise Refused("its processes do not stop")


def do_continue(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    try:
        os.kill(-1, SIGCONT)
    except ProcessLookupError:
        pass
    return {}, b"", []


statuses: dict[int, int] = {}


def reap(keep: int = -1) -> None:
    """Collect every dead child; the status of `keep` is remembered."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == keep:
            statuses[pid] = status


def confine(limits: dict[str, int]) -> None:
    """Put limits on this process, hard and soft."""
    for kind, name in ((resource.RLIMIT_AS, "memory"), (resource.RLIMIT_NPROC, "processes"), (resource.RLIMIT_FSIZE, "file")):
        resource.setrlimit(kind, (limits[name], limits[name]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))


def oom_first(pid: str) -> None:
    """Under memory pressure in the sandbox the kernel takes this process before process 1."""
    try:
        fd = os.open(f"/proc/{pid}/oom_score_adj", os.O_WRONLY)
        os.write(fd, b"1000")
        os.close(fd)
    except OSError:  # it has ended already
        pass


def beyond(fd: int) -> int:
    """A duplicate above the numbers that a program starts with; it, like those on the way there, is closed by the exec."""
    while fd < 8:
        fd = os.dup(fd)
    return os.dup(fd)


def spawn(
    argv: list[str], env: dict[str, str], limits: dict[str, int], stdio: Sequence[int], prepare: Callable[[], None] | None = None
) -> int:
    """Start a program in a session of its own with `stdio` as its first descriptors; its process id.

    Raises:
        OSError: it cannot be executed.
    """
    report_read, report_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.close(report_read)
            moved = [beyond(fd) for fd in (report_write, *stdio)]
            for number, fd in enumerate(moved[1:]):
                os.dup2(fd, number)
            report_write = moved[0]
            if prepare is not None:
                prepare()
            confine(limits)
            for number in (SIGPIPE, SIGXFSZ):  # Python ignores them, and that would be inherited
                c_signal(number, None)
            if limits.get("oom"):
                oom_first("self")
            os.chdir(WORKSPACE)
            os.execvpe(argv[0], argv, env)
        except OSError as error:
            os.write(report_write, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(report_write)
    report = os.read(report_read, 16)  # ends empty when the program has taken over
    os.close(report_read)
    if report:
        reap()
        raise OSError(int(report), os.strerror(int(report)))
    return pid


fast_limits: dict[str, int] = {}
"""Limits that this process has put on itself, for all that it starts."""
spared: set[int] = set()
"""Interpreters."""


def start(argv: list[str], env: dict[str, str], limits: dict[str, int], stdio: Sequence[int], *, alone: bool) -> int:
    """As `spawn`, and three times as fast where this sandbox shares its limits with no other: they are then inherited.

    vfork(2) leaves no moment to put limits on the child alone. What that costs: a sandbox full of processes cannot start
    another, so whatever runs in the background has to go then, the interpreter last.
    """
    if not alone:
        return spawn(argv, env, limits, stdio)
    if not fast_limits:
        fast_limits.update(limits)
        confine(limits)
    os.environ["PATH"] = env.get("PATH", os.defpath)
    actions = [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(stdio)]
    for attempt in range(3):
        try:
            pid = os.posix_spawnp(argv[0], argv, env, file_actions=actions, setsid=True, setsigdef=(SIGPIPE, SIGXFSZ))
            break
        except BlockingIOError:
            make_room(set() if attempt else family(next(iter(spared), -1), 1 << 62))
    else:
        raise OSError(11, "no room for another process")
    if limits.get("oom"):
        oom_first(str(pid))
    return pid


def make_room(keep: set[int]) -> None:
    """Kill everything but `keep`."""
    for _ in range(50):
        others = {int(entry) for entry in os.listdir("/proc") if entry.isdigit()} - keep - {1}
        if not others:
            return
        signal_all(others, SIGKILL)
        reap()
        time.sleep(0.002)


def do_interpreter(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    """Start the stateful interpreter: its control socket and its output are the descriptors that came along."""
    null = os.open("/dev/null", os.O_RDONLY)
    try:
        stdio = (null, fds[1], fds[1], fds[0])
        pid = start(request["argv"], request["env"], request["limits"], stdio, alone=request["alone"])
        spared.clear()
        spared.add(pid)
        return {"pid": pid}, b"", []
    except OSError as error:
        raise Refused(f"{request['argv'][0]}: {error.strerror}") from error
    finally:
        os.close(null)


def do_serve(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    """A listening socket on this sandbox's loopback, for the host to accept from."""
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM, 0)
    try:
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", request["port"]))
        sock.listen(128)
        return {}, b"", [sock.detach()]
    except (OSError, OverflowError) as error:
        sock.close()
        raise Refused(f"port {request['port']}: {error}") from error


# --- commands ----------------------------------------------------------------------------------------------------------


class Command:
    """A running command with its pipes."""

    def __init__(self, request: dict[str, Any], body: Body, sock: _socket.socket) -> None:
        self.started, self.started_boot = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
        self.request, self.view, self.sock = request, memoryview(body), sock
        self.cap, self.stream = request["cap"], request["stream"]
        self.kept: dict[int, bytearray] = {}
        self.sizes: dict[int, int] = {}
        self.truncated = False
        stdin_read, stdin_write = os.pipe() if body else (os.open("/dev/null", os.O_RDONLY), -1)
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        self.stdin, self.stdout, self.stderr = stdin_write, out_read, err_read
        try:
            stdio = (stdin_read, out_write, err_write)
            self.pid = start(request["argv"], request["env"], request["limits"], stdio, alone=request["alone"])
            self.pidfd = os.pidfd_open(self.pid)
        except BaseException:
            close_all([out_read, err_read, *([stdin_write] if body else [])])
            raise
        finally:
            close_all([stdin_read, out_write, err_write])
        for fd in (out_read, err_read):
            os.set_blocking(fd, False)
            self.kept[fd], self.sizes[fd] = bytearray(), 0

    def take(self, fd: int) -> bool:
        """Read once and keep or send it; False when there is nothing (more) to read."""
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        room = self.cap - self.sizes[fd]
        self.truncated = self.truncated or len(chunk) > room
        kept = chunk[: max(0, room)]
        self.sizes[fd] += len(kept)
        if kept and self.stream:
            send_frame(self.sock, {"piece": "stdout" if fd == self.stdout else "stderr"}, kept)
        else:
            self.kept[fd] += kept
        return bool(chunk)

    def feed(self) -> bool:
        """Write once to its standard input; False, and closed, when that is done."""
        try:
            self.view = self.view[os.write(self.stdin, self.view[: 1 << 16]) :]
        except BlockingIOError:
            return True
        except OSError:
            self.view = self.view[:0]
        if not self.view:
            os.close(self.stdin)
            self.stdin = -1
        return bool(self.view)

    def run(self) -> bool:
        """Until it ends or its time is up; True when it was killed for that."""
        poller = select.poll()
        for fd in (self.stdout, self.stderr, self.pidfd):
            poller.register(fd, select.POLLIN)
        if self.stdin >= 0:
            os.set_blocking(self.stdin, False)
            poller.register(self.stdin, select.POLLOUT)
        while True:
            left = self.request["timeout_s"] - (time.monotonic() - self.started)
            if left <= 0:
                kill_family(self.pid, int(self.started_boot * TICKS))
                return True
            finished = False
            for fd, _ in poller.poll(left * 1000 + 1):
                if fd == self.pidfd:
                    finished = True
                elif fd == self.stdin:
                    if not self.feed():
                        poller.unregister(fd)
                elif not self.take(fd):
                    poller.unregister(fd)
            if finished:
                return False

    def end(self, timed_out: bool) -> Answer:
        """Collect what it had written and how it ended; a background child that holds the pipe may go on for ever."""
        if timed_out:
            dead = select.poll()
            dead.register(self.pidfd, select.POLLIN)
            dead.poll(5_000)
        for fd in (self.stdout, self.stderr):
            for _ in range(64):
                if not self.take(fd):
                    break
        reap(self.pid)
        status = statuses.pop(self.pid, 0)
        close_all([self.pidfd, self.stdout, self.stderr, *([self.stdin] if self.stdin >= 0 else [])])
        stdout, stderr = self.kept[self.stdout], self.kept[self.stderr]
        header = {
            "exit_code": None if timed_out else os.waitstatus_to_exitcode(status),
            "timed_out": timed_out,
            "truncated": self.truncated,
            "wall_s": time.monotonic() - self.started,
            "stdout": len(stdout),
        }
        return header, bytes(stdout + stderr), []


def do_exec(request: dict[str, Any], body: Body, sock: _socket.socket) -> Answer:
    try:
        command = Command(request, body, sock)
    except OSError as error:
        said = f"{request['argv'][0]}: {error.strerror}\n".encode()
        return {"exit_code": 127, "timed_out": False, "truncated": False, "wall_s": 0.0, "stdout": 0}, said, []
    return command.end(command.run())


OPERATIONS: dict[str, Callable[[dict[str, Any], Body, list[int]], Answer]] = {
    **FILE_OPERATIONS,
    "kill": do_kill,
    "stop": do_stop,
    "continue": do_continue,
    "interpreter": do_interpreter,
    "serve": do_serve,
}


def answer(sock: _socket.socket, request: dict[str, Any], body: Body, fds: list[int]) -> None:
    """Do one request and answer it, whatever comes of it."""
    files: list[int] = []
    try:
        if request["op"] == "exec":
            header, data, files = do_exec(request, body, sock)
        else:
            header, data, files = OPERATIONS[request["op"]](request, body, fds)
    except Refused as error:
        header, data = {"refused": str(error)}, b""
    except Closed:
        raise
    except Exception as error:  # noqa: BLE001 - a broken archive or a full workspace is an answer, not the end of the sandbox
        header, data = {"failed": f"{type(error).__name__}: {error}"}, b""
    close_all(fds)
    send_frame(sock, header, data, files)
    close_all(files)


def serve(sock: _socket.socket) -> None:
    """Answer requests until the host is gone; then everything in the sandbox ends with this process."""
    try:
        send_frame(sock, {})
        while True:
            request, body, fds = receive_frame(sock)
            reap()
            answer(sock, request, body, fds)
    except (Closed, OSError):
        os._exit(0)


def settle(control: int) -> _socket.socket:
    """Become process 1: out of reach, without inherited files; the host's socket is a duplicate that no command inherits."""
    c_prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    sock = _socket.socket(fileno=os.dup(control))
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    c_signal(SIGINT, None)  # Python has a handler for it; the kernel shields process 1 only from signals without one
    gc.disable()
    return sock


def main() -> None:
    serve(settle(0))
