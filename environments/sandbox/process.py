"""`ProcessSandbox`: a private workspace with commands in it, from bubblewrap, seccomp and limits. Needs no privileges.

Inside: a read-only /usr, a workspace and a /tmp in memory, a loopback without a route, its own processes only, user `nobody`.
Nothing of the host's files or devices. A shared kernel stays a shared kernel: `capabilities()` says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import threading
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field

from environments.errors import BadArgumentsError, SandboxError
from environments.sandbox.base import Capabilities, ExecResult
from environments.sandbox.bubblewrap import (
    START_S,
    BoxProcess,
    process_fields,
    readable,
    require,
    root_arguments,
    sandbox_python,
    server_source,
    start_box,
)

_FRAME = struct.Struct(">II")
_WORKSPACE = "/workspace"
_GRACE_S = 20.0
"""How long the sandbox may stay silent beyond a request's own limit before it counts as dead."""
_MIB = 1 << 20


class SandboxConfig(BaseModel):
    """Limits of one sandbox."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_mb: int = Field(default=512, ge=32, description="Address space of each process, MiB")
    processes: int = Field(default=64, ge=2, description="Processes and threads at a time")
    workspace_mb: int = Field(default=64, ge=1, description="Size of the workspace, MiB; as much again each for /tmp and /dev/shm")
    output_kb: int = Field(default=1024, ge=1, description="Kept of each of stdout and stderr, KiB; the rest is dropped")
    read_mb: int = Field(default=16, ge=1, description="Largest file that `read` returns, MiB")


def _kill(box: BoxProcess, fds: list[int]) -> None:
    box.kill()
    while fds:
        os.close(fds.pop())


class ProcessSandbox:
    """One sandbox. Create it with `create`, use it as a context manager or `close` it; thread-safe, one request at a time.

    A command that outlives its timeout is killed with its session and descendants. What a command leaves running in the
    background stays until `close`.
    """

    def __init__(self, config: SandboxConfig, box: BoxProcess, requests: int, answers: int) -> None:
        self.config = config
        self.sandbox_id = uuid.uuid4().hex[:12]
        self.state = "running"
        self._box = box
        self._requests, self._answers = requests, answers
        self._lock = threading.RLock()
        self._fds = [requests, answers]
        self._finalizer = weakref.finalize(self, _kill, box, self._fds)

    @classmethod
    def create(cls, config: SandboxConfig | None = None) -> ProcessSandbox:
        """Start a sandbox with an empty workspace.

        Raises:
            MissingDependencyError: sandboxes do not work on this machine; the fix is the exact command.
            SandboxError: this one could not be started.
        """
        require()
        config = config or SandboxConfig()
        python, prefix = sandbox_python()
        size = str(config.workspace_mb * _MIB)
        arguments = [*root_arguments(), "--proc", "/proc", "--dev", "/dev", "--dir", "/etc"]
        for path in ("/workspace", "/tmp", "/dev/shm"):
            arguments += ["--size", size, "--tmpfs", path]
        variables = {
            "PATH": (f"{prefix}/bin:" if prefix else "") + "/usr/local/bin:/usr/bin:/bin",
            "HOME": _WORKSPACE,
            "LANG": "C.UTF-8",
            "TMPDIR": "/tmp",
        }
        for name, value in variables.items():
            arguments += ["--setenv", name, value]
        arguments += ["--chdir", _WORKSPACE, "--remount-ro", "/dev", "--remount-ro", "/"]
        source = server_source("exec_server.py")
        theirs_in, requests = os.pipe()
        answers, theirs_out = os.pipe()
        try:
            box = start_box(arguments, [python, "-I", "-S", "-c", source], stdin=theirs_in, stdout=theirs_out)
        except BaseException:
            os.close(requests)
            os.close(answers)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        sandbox = cls(config, box, requests, answers)
        try:
            sandbox._receive(START_S)
        except (SandboxError, OSError) as error:
            said = box.complaint()
            sandbox.close()
            raise SandboxError(f"a sandbox did not come up: {said or error}", "see `ninefold doctor`") from error
        return sandbox

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- requests --------------------------------------------------------------------------------------------------

    def exec(self, argv: Sequence[str], *, stdin: str = "", timeout_s: float = 10.0, env: Mapping[str, str] | None = None) -> ExecResult:
        """Run a command in the workspace. A command that does not exist ends with 127, one killed at its timeout with None.

        Raises:
            BadArgumentsError: the command cannot be started at all (empty, or a NUL in it).
            SandboxError: the sandbox is closed, paused or dead.
        """
        if not argv:
            raise BadArgumentsError("the command is empty", "pass a program and its arguments")
        limits = {"memory": self.config.memory_mb * _MIB, "processes": self.config.processes, "file": self.config.workspace_mb * _MIB}
        request = {
            "op": "exec",
            "argv": list(argv),
            "timeout_s": timeout_s,
            "env": dict(env or {}),
            "cap": self.config.output_kb << 10,
            "limits": limits,
        }
        answer, body = self._ask(request, stdin.encode(), timeout_s)
        stdout, stderr = body[: answer["stdout"]], body[answer["stdout"] :]
        return ExecResult(
            exit_code=answer["exit_code"],
            stdout=stdout.decode(errors="replace"),
            stderr=stderr.decode(errors="replace"),
            wall_s=answer["wall_s"],
            timed_out=answer["timed_out"],
            truncated=answer["truncated"],
        )

    def read(self, path: str) -> bytes:
        """A regular file of the workspace. Links are not followed; a path that leaves the workspace raises BadArgumentsError."""
        return self._ask({"op": "read", "path": path, "cap": self.config.read_mb * _MIB})[1]

    def write(self, path: str, data: bytes) -> None:
        """Write a file of the workspace, with its folders. Same rules as `read`; a full workspace raises BadArgumentsError."""
        self._ask({"op": "write", "path": path}, data)

    def list(self, path: str = ".") -> list[str]:
        """Names in a folder of the workspace, sorted."""
        return [str(name) for name in self._ask({"op": "list", "path": path})[0]["names"]]

    # --- life cycle ------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """Stop every process in the sandbox; it then uses no CPU."""
        with self._lock:
            self._need("running")
            for _ in range(100):  # a process stops only when it is next scheduled, and may fork until then
                self._signal_tree(signal.SIGSTOP)
                if all(_stopped(pid) for pid in self._box.tree()):
                    break
                time.sleep(0.01)
            self.state = "paused"

    def resume(self) -> None:
        """Let everything run again."""
        with self._lock:
            self._need("paused")
            self._signal_tree(signal.SIGCONT)
            self.state = "running"

    def snapshot(self) -> bytes:
        """The workspace's files as a tar archive (pipes, sockets and devices are left out). Processes are not part of it."""
        return self._ask({"op": "pack"}, timeout_s=60.0)[1]

    def restore(self, snapshot: bytes) -> None:
        """Make the workspace what `snapshot` holds; files that are not in it go away."""
        self._ask({"op": "unpack"}, snapshot, timeout_s=60.0)

    def fork(self, count: int = 1) -> Sequence[ProcessSandbox | Exception]:
        """`count` new sandboxes with a copy of the files; one result each, a sandbox or the error that prevented it."""
        archive = self.snapshot()
        return [self._child(archive) for _ in range(count)]

    def _child(self, archive: bytes) -> ProcessSandbox | Exception:
        child = None
        try:
            child = ProcessSandbox.create(self.config)
            child.restore(archive)
        except SandboxError as error:
            if child is not None:
                child.close()
            return error
        return child

    def close(self) -> None:
        """Kill everything in the sandbox and forget its files. May be called again."""
        # Not under the lock: closing must be able to end a request that hangs in another thread.
        self.state = "closed"
        self._finalizer()

    def capabilities(self) -> Capabilities:
        """What this backend really does."""
        return Capabilities(
            backend="process",
            isolation="shared-kernel",
            pause="cpu",
            fork="files",
            snapshot="files",
            seccomp=True,
            memory_limit="process",
            notes=(
                "shares the host's kernel: no protection against a kernel exploit",
                f"memory is limited per process ({self.config.memory_mb} MiB) and by their number ({self.config.processes}), not in sum",
                "fork and snapshot copy the workspace's files, not processes, /tmp or memory",
                "a paused sandbox uses no CPU but keeps its memory",
            ),
        )

    # --- inside ----------------------------------------------------------------------------------------------------

    def _need(self, state: str) -> None:
        if self.state != state:
            fix = {"paused": "resume it", "running": "pause it first"}.get(self.state, "create another")
            raise SandboxError(f"sandbox {self.sandbox_id} is {self.state}, not {state}", fix)

    def _signal_tree(self, which: signal.Signals) -> None:
        done: set[int] = set()
        for _ in range(20):  # a process that was just forking appears in the next round
            fresh = [pid for pid in self._box.tree() if pid not in done]
            if not fresh:
                return
            for pid in fresh:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, which)
                done.add(pid)

    def _ask(self, request: dict[str, Any], body: bytes = b"", timeout_s: float = 10.0) -> tuple[dict[str, Any], bytes]:
        with self._lock:
            self._need("running")
            header = json.dumps(request).encode()
            try:
                self._send(_FRAME.pack(len(header), len(body)) + header + body)
                answer, data = self._receive(timeout_s + _GRACE_S)
            except (OSError, ValueError) as error:
                self.close()
                raise SandboxError(f"sandbox {self.sandbox_id} died ({error})", "create another") from error
            except SandboxError:
                self.close()
                raise
        if "refused" in answer:
            raise BadArgumentsError(str(answer["refused"]), f"use a path in {_WORKSPACE}")
        if "failed" in answer:
            raise SandboxError(
                f"sandbox {self.sandbox_id} could not do it: {answer['failed']}", "create another, or give it a larger workspace"
            )
        return answer, data

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._requests, view) :]

    def _receive(self, timeout_s: float) -> tuple[dict[str, Any], bytes]:
        deadline = time.monotonic() + timeout_s
        header_size, body_size = _FRAME.unpack(self._read(_FRAME.size, deadline))
        if header_size > _MIB or body_size > (self.config.workspace_mb + self.config.read_mb + 16) * 2 * _MIB:
            raise SandboxError(f"sandbox {self.sandbox_id} answered garbage", "create another")
        header = json.loads(self._read(header_size, deadline))
        return header, self._read(body_size, deadline)

    def _read(self, size: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            if not readable(self._answers, deadline - time.monotonic()):
                raise SandboxError(f"sandbox {self.sandbox_id} fell silent", "create another")
            chunk = os.read(self._answers, min(size - len(data), _MIB))
            if not chunk:
                raise SandboxError(f"sandbox {self.sandbox_id} died", "create another")
            data += chunk
        return bytes(data)


def _stopped(pid: int) -> bool:
    """Whether a process uses no CPU: stopped, ended, or gone."""
    fields = process_fields(pid)
    return fields is None or fields[0] in "TtZX"
