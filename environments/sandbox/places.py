"""Where a process sandbox lives: a box of its own (`Single`), or one branch of a box that interpreters fork in (`Branch`)."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from environments.errors import SandboxError
from environments.sandbox import cgroups
from environments.sandbox.base import WORKSPACE, SandboxConfig
from environments.sandbox.bubblewrap import (
    BOOTSTRAP,
    START_S,
    BoxProcess,
    has_system,
    image_python,
    process_fields,
    programs,
    root_arguments,
    sandbox_python,
    start_box,
)
from environments.sandbox.cells import Interpreter
from environments.sandbox.cgroups import Group
from environments.sandbox.channel import Channel, ChannelError
from environments.sandbox.seccomp import interpreter_filter, sandbox_filter
from environments.sandbox.wire import close_all

MIB = 1 << 20
_STOP_S = 5.0
HUGE_PAGES_INFO = "/sys/kernel/mm/transparent_hugepage"
"""Where glibc looks before it uses them, see `cells.HUGE_PAGES`."""


def python_of(config: SandboxConfig) -> str:
    """The interpreter inside."""
    return image_python(config.image) if config.image else sandbox_python()[0]


def variables_of(config: SandboxConfig) -> dict[str, str]:
    """What every command finds in its environment, before its own variables and the seed."""
    _, prefix = (python_of(config), None) if config.image and has_system(config.image) else sandbox_python()
    own = os.path.dirname(python_of(config))
    folders = [f"{prefix}/bin"] if prefix else []
    folders += [own] if own not in ("/usr/local/bin", "/usr/bin") else []
    path = ":".join([*folders, "/usr/local/bin", "/usr/bin", "/bin"])
    return {"PATH": path, "HOME": WORKSPACE, "LANG": "C.UTF-8", "TMPDIR": "/tmp", **config.env}


class Place(ABC):
    """Process 1 of a sandbox and everything around it."""

    channel: Channel
    root_of_interpreter: int | None = None
    """What the interpreter's children descend from, where that is not the interpreter itself."""

    @abstractmethod
    def owns(self, pid: int) -> bool:
        """Whether a process of the host is part of this sandbox."""

    @abstractmethod
    def start_interpreter(self, request: dict[str, Any], fds: Sequence[int]) -> int:
        """Start an interpreter; its process id as the one who started it numbers it."""

    def end_interpreter(self) -> None:  # noqa: B027 - most have nothing to add
        """Kill what is left of an interpreter after it and its descendants were killed."""

    @abstractmethod
    def freeze(self) -> None:
        """Stop every process, and return when none runs any more."""

    @abstractmethod
    def thaw(self) -> None:
        """Let them run again."""

    @abstractmethod
    def processes(self) -> list[int]:
        """The host's numbers of its processes, process 1 first."""

    @abstractmethod
    def close(self) -> None:
        """Kill everything. May be called again, and from any thread."""


@dataclass
class _Box:
    """A box whose process 1 answers."""

    process: BoxProcess
    channel: Channel
    group: Group | None

    def limit(self, config: SandboxConfig, branches: int) -> None:
        """The sum of memory and processes, where it can be limited."""
        if self.group is not None:
            self.group.limit(branches * sum_mb(config) * MIB, branches * (config.processes + 2) + 4)

    def close(self) -> None:
        self.channel.close()
        self.process.kill()
        if self.group is not None and os.getpid() == self.process.owner_pid:
            self.group.remove()


def sum_mb(config: SandboxConfig) -> int:
    """What a whole sandbox may use where that can be limited, MiB: its memory, full folders, and process 1."""
    return config.memory_mb + 3 * config.workspace_mb + 32


def _start(config: SandboxConfig, *, forkable: bool) -> _Box:
    """Start a box and wait for its first word."""
    python = python_of(config)
    program = programs(config.image)["branches" if forkable else "server"]
    arguments = [*root_arguments(config.image), "--proc", "/proc", "--dev", "/dev"]
    if config.image is None or not (config.image / "etc").is_dir():
        arguments += ["--dir", "/etc"]
    if forkable:
        arguments += ["--ro-bind-try", HUGE_PAGES_INFO, HUGE_PAGES_INFO]
    for path in (WORKSPACE, "/tmp", "/dev/shm"):
        # A branch mounts its own over these.
        arguments += ["--dir", path] if forkable else ["--size", str(config.workspace_mb * MIB), "--tmpfs", path]
    arguments += ["--chdir", WORKSPACE, "--remount-ro", "/dev", "--remount-ro", "/"]
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        command = [python, "-I", "-S", "-c", BOOTSTRAP.format(fd=0)]
        box = start_box(arguments, command, stdin=far.fileno(), stdout=subprocess.DEVNULL, forkable=forkable)
    except BaseException:
        near.close()
        raise
    finally:
        far.close()
    made = _Box(box, Channel(near, "the sandbox"), None)
    try:
        if cgroups.usable():
            made.group = Group()
            made.limit(config, 1)
            made.group.add(box.inner_pid)
        made.channel.send_program(program)
        made.channel.receive(START_S, 0)
    except (SandboxError, OSError) as error:
        said = box.complaint()
        made.close()
        raise SandboxError(f"a sandbox did not come up: {said or error}", "see `ninefold doctor`") from error
    return made


class Single(Place):
    """A box of its own, under the strict filter from its first instruction."""

    def __init__(self, config: SandboxConfig) -> None:
        self._box = _start(config, forkable=False)
        self.box, self.channel = self._box.process, self._box.channel
        self._lock = threading.Lock()

    def owns(self, pid: int) -> bool:
        return self.box.owns(pid)

    def start_interpreter(self, request: dict[str, Any], fds: Sequence[int]) -> int:
        return int(self.channel.ask({"op": "interpreter", **request}, fds=fds).header["pid"])

    def freeze(self) -> None:
        self.channel.ask({"op": "stop"})
        signal.pidfd_send_signal(self.box.inner_pidfd, signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_S
        while (fields := process_fields(self.box.inner_pid)) is not None and fields[0] not in "TtZX" and time.monotonic() < deadline:
            time.sleep(0.0005)

    def thaw(self) -> None:
        signal.pidfd_send_signal(self.box.inner_pidfd, signal.SIGCONT)
        self.channel.ask({"op": "continue"})

    def processes(self) -> list[int]:
        return self.box.tree()

    def close(self) -> None:
        with self._lock:
            self._box.close()


class Tree:
    """A box whose branches share it, and end it with the last of them. Thread-safe."""

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config
        self._box = _start(config, forkable=True)
        self.box, self._channel = self._box.process, self._box.channel
        self._lock = threading.RLock()
        self._branches: dict[int, Branch] = {}

    @classmethod
    def first_branch(cls, config: SandboxConfig) -> Branch:
        """The first branch of a new tree."""
        tree = cls(config)
        try:
            return tree.branch()
        except BaseException:
            tree._box.close()
            raise

    def ask(self, request: dict[str, Any], fds: Sequence[int] = (), timeout_s: float = 20.0) -> tuple[dict[str, Any], list[int]]:
        """One request to the branch server."""
        with self._lock:
            reply = self._channel.ask(request, fds=fds, timeout_s=timeout_s)
            return reply.header, reply.fds

    def branch(self) -> Branch:
        """A new, empty branch."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with self._lock:
                self._box.limit(self.config, len(self._branches) + 1)
                size = self.config.workspace_mb * MIB
                _, fds = self.ask({"op": "branch", "size": size, "strict": sandbox_filter()}, [far.fileno()])
                made = Branch(self, Channel(near, "the sandbox"), fds)
                self._branches[made.number] = made
        except BaseException:
            near.close()
            raise
        finally:
            far.close()
        try:
            made.channel.receive(START_S, 0)
        except ChannelError:
            made.close()
            raise
        return made

    def signal(self, number: int, which: signal.Signals, *, beside: bool = False) -> None:
        """Signal every process of a branch, or only those `beside` it, and whatever belongs to no branch at all."""
        with self._lock:
            request = {"op": "signal", "branch": number, "known": list(self._branches), "signal": int(which), "beside": beside}
            self.ask(request)

    def leave(self, branch: Branch) -> None:
        """End a branch; with the last one the box."""
        with self._lock:
            if self._branches.pop(branch.number, None) is None:
                return
            if self._branches:
                with contextlib.suppress(SandboxError, OSError):
                    self.signal(branch.number, signal.SIGKILL)
            else:
                self._box.close()


class Branch(Place):
    """One branch of a tree: its own process 1, workspace, network and process ids."""

    root_of_interpreter = 0  # it runs outside of the branch's process ids, where its children have no parent

    def __init__(self, tree: Tree, channel: Channel, fds: list[int]) -> None:
        self.tree, self.channel = tree, channel
        self._pidfd, self._mnt, self._net, self._ipc, self._pids = fds
        self.number = os.fstat(self._mnt).st_ino
        """Of its mount namespace; what its processes are known by."""
        self._lock = threading.Lock()
        self._closed = False

    @property
    def namespaces(self) -> tuple[int, int, int, int]:
        """Mount, network, ipc, pid."""
        return self._mnt, self._net, self._ipc, self._pids

    def owns(self, pid: int) -> bool:
        return self.tree.box.owns(pid)

    def start_interpreter(self, request: dict[str, Any], fds: Sequence[int]) -> int:
        full = {"op": "interpreter", "filter": interpreter_filter(), **request}
        return int(self.tree.ask(full, [*fds, *self.namespaces])[0]["pid"])

    def fork_interpreter(self, interpreter: Interpreter, child: Branch, seed: int, wires: tuple[int, int]) -> int:
        """Fork a running interpreter of this branch into another one."""
        request: dict[str, object] = {"seed": seed, "workspace": WORKSPACE}
        return interpreter.fork(request, [*wires, *child.namespaces])

    def end_interpreter(self) -> None:
        self.tree.signal(self.number, signal.SIGKILL, beside=True)

    def freeze(self) -> None:
        self.tree.signal(self.number, signal.SIGSTOP)

    def thaw(self) -> None:
        self.tree.signal(self.number, signal.SIGCONT)

    def processes(self) -> list[int]:
        found = []
        for pid in self.tree.box.tree():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{pid}/ns/mnt").st_ino == self.number:
                    found.append(pid)
        return found

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.channel.close()
            if os.getpid() != self.tree.box.owner_pid:
                return
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            self.tree.leave(self)
            poller = select.poll()
            poller.register(self._pidfd, select.POLLIN)
            poller.poll(10_000)
            close_all([self._pidfd, *self.namespaces])
