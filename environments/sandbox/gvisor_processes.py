"""The processes of a gVisor sandbox as process 1 sees them: started, limited, watched and killed. Part of the program `gvisor_agent.py`.

Commands are started by a *spawner*, a child that has dropped its privileges for good: forking process 1 for each of them would
cost 20 ms more under gVisor.
"""

from __future__ import annotations

import _socket
import errno
import os
import resource
import struct
import time
from collections.abc import Callable
from typing import Any

from environments.sandbox.gvisor_link import forward
from environments.sandbox.wire import Closed, close_all, receive_exact, receive_frame, send_frame

INNER_WORKSPACE = "/workspace"
NOBODY = 65534
SIGKILL, SIGPIPE, SIGSTOP, SIGXFSZ = 9, 13, 19, 25

WATCH_S = 0.1
"""Between two looks at the memory while something runs."""
watched_at = 0.0
settings: dict[str, Any] = {}
"""From the host, before anything else."""


def pids() -> set[int]:
    return {int(name) for name in os.listdir("/proc") if name.isdigit()}


def parents() -> dict[int, int]:
    """Parent of each process that has not ended."""
    found = {}
    for pid in pids():
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if fields[0] not in (b"Z", b"X"):
            found[pid] = int(fields[1])
    return found


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def signal_all(targets: set[int], which: int) -> None:
    for pid in targets:
        try:  # noqa: SIM105 - contextlib would have to be imported
            os.kill(pid, which)
        except ProcessLookupError:
            pass


def kill_since(older: set[int], victims: tuple[int, ...] = ()) -> None:
    """Kill `victims` with their offspring, and everything that is not in `older` nor descends from a process in it.

    Whoever leaves its family (a new session, a parent that ended) is a child of process 1 then, which protects nobody.
    """
    own, marked = {1, spawner.pid, forwarder.pid}, set(victims)
    for _ in range(100):
        stopped: set[int] = set()
        for _ in range(50):
            table = parents()
            doomed = set()
            for pid in table.keys() - own:
                line = [pid]
                while (above := table.get(line[-1], 1)) not in own and above not in line:
                    line.append(above)
                if not marked.isdisjoint(line) or older.isdisjoint(line):
                    doomed.add(pid)
            if not doomed - stopped:
                break
            signal_all(doomed - stopped, SIGSTOP)  # killed one by one, a bomb would outrun us
            stopped |= doomed
        if not stopped:
            return
        signal_all(stopped, SIGKILL)
        time.sleep(0.002)
        reap()


def anonymous_kib() -> int:
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(b"AnonPages:"):
                return int(line.split()[1])
    return 0


def watch_memory() -> None:
    """Kill the largest process while the whole sandbox uses more than it may. Looks every `WATCH_S` at most, however often it is called."""
    global watched_at
    if time.monotonic() - watched_at < WATCH_S:
        return
    watched_at = time.monotonic()
    while anonymous_kib() > settings["memory_mb"] << 10:
        largest, size = 0, -1
        for pid in pids() - {1, spawner.pid, forwarder.pid}:
            try:
                with open(f"/proc/{pid}/statm", "rb") as file:
                    pages = int(file.read().split()[1])
            except (OSError, ValueError, IndexError):
                continue
            if pages > size:
                largest, size = pid, pages
        if size < 256:  # nobody to blame: what is left is ours, or already dying
            return
        signal_all({largest}, SIGKILL)
        time.sleep(0.01)
        reap()


def look_every_ms(idle_pid: int) -> int:
    """How often to look at the memory between requests: never when nothing runs but our own processes."""
    others = pids() - {1, spawner.pid, forwarder.pid}
    return 250 if others - {idle_pid} else 1000 if others else -1


def drop_privileges() -> None:
    """For ever, and limits and a filter for whatever is started from here on."""
    import ctypes

    for name, value in (
        # None on the address space: memory is limited in sum, by watching it, and threads reserve much that they never use.
        (resource.RLIMIT_FSIZE, settings["workspace_mb"] << 20),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, settings["processes"]),
    ):
        resource.setrlimit(name, (value, value))
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    libc = ctypes.CDLL(None, use_errno=True)
    code = ctypes.create_string_buffer(settings["filter"], len(settings["filter"]))
    # struct sock_fprog: the number of 8-byte instructions, then a pointer to them
    program = ctypes.create_string_buffer(struct.pack("@HP", len(settings["filter"]) // 8, ctypes.addressof(code)))
    for arguments in ((4, 0, 0, 0, 0), (38, 1, 0, 0, 0), (22, 2, ctypes.addressof(program), 0, 0)):  # DUMPABLE, NO_NEW_PRIVS, SECCOMP
        if libc.prctl(*(ctypes.c_ulong(argument) for argument in arguments)):
            os._exit(70)


class Child:
    """A process of our own that is forked from here; it starts again when somebody has killed it."""

    def __init__(self, main: Callable[[_socket.socket], None]) -> None:
        self.main = main
        self.pid = 0
        self.link: _socket.socket | None = None

    def start(self) -> _socket.socket:
        self.stop()
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                keep = theirs.fileno()
                os.closerange(3, keep)  # above all the ends of pipes that a command waits to see closed
                os.closerange(keep + 1, 1024)
                self.main(theirs)
            finally:
                os._exit(71)
        theirs.close()
        self.link = ours
        return ours

    def stop(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None
        if self.pid > 0:
            signal_all({self.pid}, SIGKILL)
            try:  # noqa: SIM105 - contextlib would have to be imported
                os.waitpid(self.pid, 0)  # until then it holds the ports that its successor is to listen on
            except ChildProcessError:
                pass
        self.pid = 0


def spawner_main(link: _socket.socket) -> None:
    """Start what the agent asks for; one at a time is waited for."""
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.chdir(INNER_WORKSPACE)
    drop_privileges()
    while True:
        request, _, fds = receive_frame(link)
        argv, env = request["argv"], request["env"]
        pid, code = 0, errno.ENOENT
        for path in candidates(argv[0], env):
            try:
                actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(fds)]
                pid = os.posix_spawn(path, argv, env, file_actions=actions, setsid=True, setsigdef=[SIGPIPE, SIGXFSZ])
                break
            except OSError as error:
                code = error.errno or errno.EINVAL
                if code not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                    break
        close_all(fds)
        link.send(struct.pack("ii", pid, 0 if pid else code))
        if pid and request["wait"]:
            link.send(struct.pack("i", os.waitpid(pid, 0)[1]))
        reap()


def candidates(name: str, env: dict[str, str]) -> list[str]:
    if "/" in name:
        return [name]
    found = [f"{folder or '.'}/{name}" for folder in env.get("PATH", "/usr/bin:/bin").split(":")]
    # Trying each with the kernel would cost a process each.
    return [path for path in found if os.access(path, os.X_OK) and not os.path.isdir(path)]


spawner = Child(spawner_main)
forwarder = Child(lambda control: forward(1, control))
"""Carries connections; root, like this process, so that code inside cannot touch it."""


def spawn(argv: list[str], env: dict[str, str], fds: tuple[int, ...], wait: bool) -> int:
    """Process id of a new process.

    Raises:
        OSError: it cannot be started.
    """
    for attempt in range(2):
        link = spawner.link if spawner.link is not None and attempt == 0 else spawner.start()
        try:
            send_frame(link, {"argv": argv, "env": env, "wait": wait}, fds=fds)
            pid, code = struct.unpack("ii", receive_exact(link, 8))
            break
        except (Closed, OSError):
            spawner.stop()  # killed by code inside, which has its user
    else:
        raise OSError(errno.EAGAIN, "the sandbox has no process to spare")
    if code:
        raise OSError(code, os.strerror(code))
    return int(pid)
