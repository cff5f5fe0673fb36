"""What every sandbox is: one life cycle and one set of operations, whatever isolates the code inside.

The life cycle (states, errors of capture, one result per forked child, a time-to-live that pauses) follows AgentENV's public
design (github.com/kvcache-ai/AgentENV); backends implement the underscored hooks and never fake a capability.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field

from environments.errors import CaptureError, SandboxError, UnsupportedError

_log = logging.getLogger(__name__)
WORKSPACE = "/workspace"
"""Where an agent's files are, in every backend."""

State = Literal["creating", "running", "pausing", "paused", "resuming", "snapshotting", "forking", "restoring", "killing", "closed"]
Mode = Literal["strict", "forkable"]
Stream = Literal["stdout", "stderr"]
OnOutput = Callable[[Stream, bytes], None]
"""Called with each piece of output as it arrives, in order within a stream."""


class SandboxConfig(BaseModel):
    """What a sandbox is made of and may use. A backend refuses what it cannot keep with UnsupportedError."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_mb: int = Field(default=512, ge=32, description="Memory, MiB: of each process (process backend) or of the whole box")
    processes: int = Field(default=64, ge=2, description="Processes and threads at a time")
    workspace_mb: int = Field(default=64, ge=1, description="Size of the workspace, MiB; as much again each for /tmp and /dev/shm")
    output_kb: int = Field(default=1024, ge=1, description="Kept of each of stdout and stderr, KiB; the rest is dropped")
    read_mb: int = Field(default=16, ge=1, description="Largest file that `read` returns, MiB")
    mode: Mode = Field(
        default="strict", description="strict: the full filter; forkable: an interpreter's memory can be forked in milliseconds"
    )
    env: dict[str, str] = Field(default_factory=dict, description="Variables of every command")
    image: Path | None = Field(default=None, description="Root folder of an image from environments.sandbox.images, mounted read-only")
    ttl_s: float | None = Field(default=None, gt=0, description="Seconds without a request after which the sandbox pauses; None: never")
    seed: int | None = Field(default=None, ge=0, description="Random seed given to the code inside as NINEFOLD_SEED; None draws one")


DEFAULT = SandboxConfig()


@dataclass(frozen=True)
class ExecResult:
    """Outcome of a command. `exit_code` is None when it was killed at its timeout."""

    exit_code: int | None
    stdout: str
    stderr: str
    wall_s: float
    timed_out: bool = False
    truncated: bool = False
    """Output beyond the sandbox's cap was dropped."""


@dataclass(frozen=True)
class PythonResult:
    """What one cell did in the sandbox's stateful interpreter."""

    stdout: str
    """Standard output and error in the order written, then the value of a last expression, as `repr`."""
    error: str = ""
    """The traceback; empty when the cell ran to its end."""
    images: tuple[bytes, ...] = ()
    """PNG files: open matplotlib figures and displayed images, in order."""
    timed_out: bool = False
    """The interpreter was killed at the timeout: its variables are gone."""
    wall_s: float = 0.0


@dataclass(frozen=True)
class Capabilities:
    """What a backend really does under the given configuration."""

    backend: str
    isolation: Literal["none", "shared-kernel", "user-space-kernel", "virtual-machine"]
    mode: Mode = "strict"
    isolated_network: bool = True
    services: bool = False
    """`serve` works: the host can answer on the sandbox's own loopback, its only route."""
    streaming: bool = True
    pause: Literal["none", "cpu", "cpu+memory"] = "none"
    fork: Literal["none", "files", "interpreter", "full"] = "none"
    """`files`: the workspace and the interpreter's picklable variables; `interpreter`: its whole memory; `full`: every process."""
    snapshot: Literal["none", "files", "full"] = "none"
    incremental_snapshot: bool = False
    seccomp: bool = False
    memory_limit: Literal["none", "process", "sandbox"] = "none"
    images: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """A durable copy of a sandbox in a folder of its own. Picklable; survives the process that made it."""

    snapshot_id: str
    backend: str
    kind: Literal["files", "full"]
    path: Path
    size_bytes: int
    """Written by this snapshot; an incremental one counts what it added."""
    config: SandboxConfig
    parent_id: str | None = None
    details: Mapping[str, str] = field(default_factory=dict)


class Sandbox(ABC):
    """A box for agents' code. Thread-safe, one operation at a time; a context manager that closes itself.

    Every operation but `close` first resumes a sandbox that its time-to-live has paused; one that was paused on request
    refuses with SandboxError instead.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config
        self.sandbox_id = uuid.uuid4().hex[:12]
        self.seed = random.SystemRandom().randrange(2**31) if config.seed is None else config.seed
        self.state: State = "creating"
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None
        self._used_at = time.monotonic()
        self._expired = False

    # --- what a backend implements; all run under the lock, in the state that the caller names --------------------------

    @abstractmethod
    def _exec(
        self, argv: Sequence[str], stdin: bytes, timeout_s: float, env: Mapping[str, str], on_output: OnOutput | None
    ) -> ExecResult: ...
    @abstractmethod
    def _read(self, path: str) -> bytes: ...
    @abstractmethod
    def _write(self, path: str, data: bytes) -> None: ...
    @abstractmethod
    def _list(self, path: str) -> list[str]: ...
    @abstractmethod
    def _close(self) -> None:
        """Kill everything inside and free everything outside. Idempotent; may run while another thread is in an operation."""

    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this sandbox really does."""

    def _python(self, code: str, timeout_s: float) -> PythonResult:
        raise self._unsupported("python")

    def _pause(self) -> None:
        raise self._unsupported("pause")

    def _resume(self) -> None:
        raise self._unsupported("resume")

    def _fork(self, count: int) -> list[Sandbox | SandboxError]:
        raise self._unsupported("fork")

    def _snapshot(self, directory: Path) -> Snapshot:
        raise self._unsupported("snapshot")

    def _restore(self, snapshot: Snapshot) -> None:
        raise self._unsupported("restore")

    def _serve(self, port: int) -> socket.socket:
        raise self._unsupported("serve")

    # --- operations ------------------------------------------------------------------------------------------------------

    def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: str = "",
        timeout_s: float = 10.0,
        env: Mapping[str, str] | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecResult:
        """Run a command in the workspace to its end or its timeout, at which it is killed with everything it started.

        Args:
            on_output: gets output while the command runs; the result holds it as well.

        Raises:
            BadArgumentsError: the command cannot be one (empty, a NUL inside).
            SandboxError: the sandbox is not running, or died.
        """
        with self._during("running"):
            return self._exec(argv, stdin.encode(), timeout_s, env or {}, on_output)

    def python(self, code: str, timeout_s: float = 30.0) -> PythonResult:
        """Run a cell in the sandbox's interpreter; variables persist from cell to cell. Errors of the code are results."""
        with self._during("running"):
            return self._python(code, timeout_s)

    def read(self, path: str) -> bytes:
        """A regular file of the workspace. Links are not followed; a path that leaves the workspace raises BadArgumentsError."""
        with self._during("running"):
            return self._read(path)

    def write(self, path: str, data: bytes) -> None:
        """Write a file of the workspace, with its folders. Same rules as `read`; a full workspace raises BadArgumentsError."""
        with self._during("running"):
            self._write(path, data)

    def list(self, path: str = ".") -> list[str]:
        """Names in a folder of the workspace, sorted."""
        with self._during("running"):
            return self._list(path)

    def pause(self) -> None:
        """Stop everything inside: no CPU, and no memory where `capabilities().pause` says so."""
        with self._during("pausing", after="paused"):
            self._pause()

    def resume(self) -> None:
        """Let everything run again."""
        with self._during("resuming", start="paused"):
            self._resume()

    def fork(self, count: int = 1) -> Sequence[Sandbox | SandboxError]:
        """`count` copies; one result each, a sandbox or the error that prevented it. The original runs on.

        Each child has an id and a random seed of its own.

        Raises:
            CaptureError: nothing could be captured; `recoverable` says whether the original still runs.
        """
        if count < 1:
            raise ValueError(f"count={count} must be at least 1")
        with self._during("forking"):
            return self._fork(count)

    def snapshot(self, directory: Path) -> Snapshot:
        """Write a durable copy below `directory`, which is created. The sandbox runs on.

        Raises:
            CaptureError: it could not be written; `recoverable` says whether the sandbox still runs.
        """
        with self._during("snapshotting"):
            return self._snapshot(directory)

    def restore(self, snapshot: Snapshot) -> None:
        """Become what the snapshot holds; whatever is not in it goes away. A new sandbox from one: `backend.create(snapshot=...)`."""
        if snapshot.backend != self.capabilities().backend:
            raise SandboxError(
                f"snapshot {snapshot.snapshot_id} is of backend {snapshot.backend}, not {self.capabilities().backend}",
                "restore it where it was made",
            )
        with self._during("restoring"):
            self._restore(snapshot)

    def serve(self, port: int) -> socket.socket:
        """A listening TCP socket on 127.0.0.1:`port` *inside* the sandbox, for the host to accept connections from.

        This is the sandbox's only route: a model gateway, a tool service or an allow-list proxy answers on it.
        """
        with self._during("running"):
            return self._serve(port)

    def close(self) -> None:
        """Kill everything inside and forget it. May be called again, and while another operation hangs."""
        if self.state == "closed":
            return
        self.state = "killing"
        if self._timer is not None:
            self._timer.cancel()
        self._close()
        self.state = "closed"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the life cycle -----------------------------------------------------------------------------------------------------

    def _started(self) -> None:
        """A backend calls this when the sandbox is up."""
        self.state = "running"
        self._touch()

    @contextmanager
    def _during(self, state: State, *, start: State = "running", after: State = "running") -> Iterator[None]:
        with self._lock:
            if self._expired and self.state == "paused" and start == "running":
                self._resume()
                self.state, self._expired = "running", False
            if self.state != start:
                fix = {"paused": "resume it", "running": "pause it first"}.get(self.state, "create another")
                raise SandboxError(f"sandbox {self.sandbox_id} is {self.state}, not {start}", fix)
            self.state = state
            try:
                yield
            except CaptureError as error:
                self._settle(start if error.recoverable else "closed")
                if not error.recoverable:
                    self._close()
                raise
            except BaseException:
                self._settle(start)
                raise
            self._settle(after)
            self._touch()

    def _settle(self, state: State) -> None:
        """Leave an operation, unless it closed the sandbox."""
        if self.state not in ("killing", "closed"):
            self.state = state

    def _touch(self) -> None:
        self._used_at = time.monotonic()
        if self.config.ttl_s is not None and self._timer is None:
            self._arm(self.config.ttl_s)

    def _arm(self, delay_s: float) -> None:
        self._timer = threading.Timer(delay_s, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _expire(self) -> None:
        assert self.config.ttl_s is not None
        with self._lock:
            self._timer = None
            if self.state != "running":
                return
            left = self._used_at + self.config.ttl_s - time.monotonic()
            if left > 0:
                self._arm(left)
                return
            self.state = "pausing"
            try:
                self._pause()
            except SandboxError as error:
                _log.warning("sandbox %s could not pause at the end of its time to live: %s", self.sandbox_id, error)
                self._settle("running")
                return
            self._settle("paused")
            self._expired = True

    def _unsupported(self, operation: str) -> UnsupportedError:
        return UnsupportedError(
            f"the {self.capabilities().backend} backend cannot {operation}", "ask capabilities() first, or use another backend"
        )


class Backend(ABC):
    """A way to make sandboxes. Picklable: a worker process makes its own."""

    name: str

    @abstractmethod
    def probe(self) -> str:
        """Empty when sandboxes of this kind work on this machine, else the reason with the exact fix. Found by starting one; cached."""

    @abstractmethod
    def create(self, config: SandboxConfig = DEFAULT, snapshot: Snapshot | None = None) -> Sandbox:
        """A running sandbox, empty or as `snapshot` holds it.

        Raises:
            MissingDependencyError: they do not work on this machine; the fix is the exact command.
            UnsupportedError: the configuration asks for what this backend cannot do.
            SandboxError: this one could not be started.
        """

    @abstractmethod
    def capabilities(self, config: SandboxConfig = DEFAULT) -> Capabilities:
        """What a sandbox of this configuration would do."""
