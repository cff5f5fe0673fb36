"""Runs untrusted functions: a pool of sandboxes, each a fork server that gives every call a fresh, doomed child.

What a call can reach: the standard library, its own arguments, nothing writable, no network, no other process. What it
gives back are *values*; whoever asked compares them out here. Expected outputs never enter a sandbox.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import struct
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from environments.errors import SandboxError
from environments.sandbox.bubblewrap import START_S, BoxProcess, readable, require, root_arguments, sandbox_python, server_source, start_box
from environments.sandbox.seccomp import pure_code_filter

_CALL = struct.Struct("<BxxxIddI")
_DONE = struct.Struct("<Bxxxidd")
_EXITED, _SIGNALLED, _CPU_OVER, _WALL_OVER, _ABORTED, _READY, _BROKEN = range(7)

_ANSWER_CAP = 4 << 20
_STDOUT_KEPT = 64 << 10
_STDOUT_CAP = 4 << 20
"""Bytes after which a call that keeps printing is ended."""
_WALL_FACTOR = 3.0
"""Wall seconds granted for each CPU second: a busy machine must not fail an honest function, a sleeping one must not stall the pool."""
_GRACE_S = 20.0
"""How long a sandbox may stay silent beyond the call's own limit before it counts as dead."""


@dataclass(frozen=True)
class CallResult:
    """What one call gave back."""

    outputs: list[Any] = field(default_factory=list)
    """Exactly one plain JSON value an input, in order; None where `errors` says why there is none."""
    errors: list[str] = field(default_factory=list)
    """One text an input; empty where the output counts."""
    error: str = ""
    """The first thing that went wrong, empty when nothing did. May be set beside complete outputs: it answered, then ended badly."""
    error_kind: str = ""
    """'syntax', 'exception', 'timeout', 'memory', 'protocol' (ended or wrote without a proper answer) or ''."""
    stdout: str = ""
    """What it printed, the first 64 KiB."""
    cpu_s: float = 0.0
    wall_s: float = 0.0


class _WorkerDied(Exception):
    """The sandbox itself is gone or silent."""


class _Worker:
    """One live sandbox with its pipes. Not thread-safe: the pool lends it to one caller at a time."""

    def __init__(self) -> None:
        self.owner_pid = os.getpid()
        python, _ = sandbox_python()
        source = server_source("fork_server.py")
        control_in, self.control = os.pipe()
        self.done, control_out = os.pipe()
        payload_in, self.payload = os.pipe()
        self.answer, answer_out = os.pipe()
        self.output, output_out = os.pipe()
        theirs = (control_in, control_out, payload_in, answer_out, output_out)
        self._ours: tuple[int, ...] = (self.control, self.done, self.payload, self.answer, self.output)
        self._box: BoxProcess | None = None
        command = [python, "-S", "-s", "-c", source, str(payload_in), str(answer_out), str(output_out), pure_code_filter().hex()]
        # Fixed hash seed: a function that walks over a set must give the same answer in every sandbox.
        arguments = [
            *root_arguments(),
            "--setenv",
            "PYTHONHASHSEED",
            "0",
            "--setenv",
            "LANG",
            "C.UTF-8",
            "--chdir",
            "/",
            "--remount-ro",
            "/",
        ]
        try:
            self._box = start_box(arguments, command, stdin=control_in, stdout=control_out, pass_fds=(payload_in, answer_out, output_out))
        except BaseException:
            self.kill()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        for fd in (self.payload, self.answer, self.output):
            os.set_blocking(fd, False)
        try:
            if self._read_done(START_S)[0] != _READY:
                raise _WorkerDied("it did not start")
        except _WorkerDied as error:
            said = self._box.complaint()
            self.kill()
            raise SandboxError(f"a code sandbox did not come up: {said or error}", "see `ninefold doctor`") from error

    def kill(self) -> None:
        """Kill the sandbox and close its pipes; in a forked copy of the owner only the pipes are closed."""
        if self._box is not None:
            self._box.kill()
        for fd in self._ours:
            os.close(fd)
        self._ours = ()

    def _read_done(self, timeout_s: float) -> tuple[int, int, float, float]:
        record = b""
        while len(record) < _DONE.size:
            if not readable(self.done, timeout_s):
                raise _WorkerDied("it fell silent")
            chunk = os.read(self.done, _DONE.size - len(record))
            if not chunk:
                raise _WorkerDied("it ended")
            record += chunk
        return _DONE.unpack(record)

    def call(self, payload: bytes, cpu_s: float, memory_mb: int) -> tuple[tuple[int, int, float, float], bytes, bytes, str]:
        """One call: the sandbox's record, the raw answer, the raw output, and what overflowed ('' for nothing)."""
        wall_s = cpu_s * _WALL_FACTOR
        answer, output, overflow = bytearray(), bytearray(), ""
        printed = 0
        view = memoryview(payload)
        deadline = time.monotonic() + wall_s + _GRACE_S
        try:
            os.write(self.control, _CALL.pack(1, len(payload), cpu_s, wall_s, memory_mb))
            poller = select.poll()
            for fd in (self.done, self.answer, self.output):
                poller.register(fd, select.POLLIN)
            poller.register(self.payload, select.POLLOUT)
            finished = False
            while not finished:
                if time.monotonic() > deadline:
                    raise _WorkerDied("it fell silent")
                for fd, event in poller.poll(1000):
                    if fd == self.done:
                        finished = True
                    elif fd == self.payload:
                        view = view[os.write(fd, view) :] if event & select.POLLOUT else view[:0]
                        if not view:
                            poller.unregister(fd)
                    elif fd == self.answer:
                        answer += _drain(fd)
                    else:
                        chunk = _drain(fd)
                        printed += len(chunk)
                        output += chunk[: _STDOUT_KEPT - len(output)]
                if not overflow and not finished and (len(answer) > _ANSWER_CAP or printed > _STDOUT_CAP):
                    overflow = "its answer" if len(answer) > _ANSWER_CAP else "its output"
                    os.write(self.control, _CALL.pack(2, 0, 0.0, 0.0, 0))
            record = self._read_done(_GRACE_S)
        except OSError as error:
            raise _WorkerDied(str(error)) from error
        if view:
            raise _WorkerDied("it did not read the request")
        # Everything in the sandbox but its process 1 is dead: what lies in the pipes now is all there will ever be.
        while chunk := _drain(self.answer):
            answer += chunk
            if len(answer) > _ANSWER_CAP:
                overflow, answer = "its answer", answer[:_ANSWER_CAP]
        while chunk := _drain(self.output):
            output += chunk[: _STDOUT_KEPT - len(output)]
        return record, bytes(answer), bytes(output), overflow


def _drain(fd: int) -> bytes:
    try:
        return os.read(fd, 1 << 18)
    except BlockingIOError:
        return b""


def _kill_all(workers: set[_Worker]) -> None:
    for worker in list(workers):
        worker.kill()
    workers.clear()


class CodePool:
    """`workers` sandboxes, started on first use; calls from any number of threads share them.

    Survives a fork (the child starts sandboxes of its own) and pickling (the copy is an empty pool of the same size).
    Use as a context manager, or call `close()`.
    """

    def __init__(self, workers: int = 1) -> None:
        if workers < 1:
            raise ValueError(f"workers={workers} must be at least 1")
        self.workers = workers
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._live: set[_Worker] = set()
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(self.workers):
            self._idle.put(None)
        self.calls = 0
        self._finalizer = weakref.finalize(self, _kill_all, self._live)

    def __reduce__(self) -> tuple[type[CodePool], tuple[int]]:
        return CodePool, (self.workers,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all sandboxes. A later call starts new ones."""
        if self._pid != os.getpid():
            return
        with self._lock:
            _kill_all(self._live)

    def call(self, source: str, entry: str, inputs: Sequence[Sequence[Any]], timeout_s: float = 1.0, memory_mb: int = 256) -> CallResult:
        """Execute `source`, then `entry(*arguments)` for each of `inputs`, in one fresh child without any state from before.

        Args:
            timeout_s: CPU seconds for the whole call; three times as much wall time.
            memory_mb: address space, interpreter included (it needs about 40).

        Raises:
            SandboxError: the sandbox died twice over this call.
            MissingDependencyError: sandboxes do not work on this machine.
        """
        if self._pid != os.getpid():
            self._finalizer.detach()
            _kill_all(self._live)
            self._start()
        payload = json.dumps({"source": source, "entry": entry, "inputs": [list(arguments) for arguments in inputs]}).encode()
        died = ""
        for _ in range(2):
            worker = self._idle.get()
            try:
                if worker is None or worker not in self._live:
                    worker = None
                    worker = self._spawn()
                record, answer, output, overflow = worker.call(payload, timeout_s, memory_mb)
                self.calls += 1
                if record[0] == _BROKEN:
                    raise _WorkerDied("its filter could not be installed")
            except _WorkerDied as error:
                died = str(error)
                self._retire(worker)
                worker = None
            except BaseException:
                self._retire(worker)
                worker = None
                raise
            else:
                return _result(len(inputs), record, answer, output, overflow)
            finally:
                self._idle.put(worker)
        raise SandboxError(f"a code sandbox died twice over one call ({died})", "see `ninefold doctor`")

    def _spawn(self) -> _Worker:
        require()
        worker = _Worker()
        with self._lock:
            self._live.add(worker)
        return worker

    def _retire(self, worker: _Worker | None) -> None:
        if worker is not None:
            with self._lock:
                if worker in self._live:
                    self._live.discard(worker)
                    worker.kill()


class RememberingPool(CodePool):
    """Passes each distinct call on to `pool` once and answers repetitions from memory.

    For judging *one* submission against several payloads; never for asking whether a submission answers the same again.
    """

    def __init__(self, pool: CodePool) -> None:
        super().__init__(pool.workers)
        self._pool = pool
        self._known: dict[str, CallResult] = {}

    def call(self, source: str, entry: str, inputs: Sequence[Sequence[Any]], timeout_s: float = 1.0, memory_mb: int = 256) -> CallResult:
        """As `CodePool.call`."""
        key = json.dumps([source, entry, inputs, timeout_s, memory_mb])
        if key not in self._known:
            self._known[key] = self._pool.call(source, entry, inputs, timeout_s, memory_mb)
        return self._known[key]


def _result(count: int, record: tuple[int, int, float, float], answer: bytes, output: bytes, overflow: str) -> CallResult:
    """Turn the raw answer into values. Whatever is not exactly the agreed lines, in order, is a 'protocol' error."""
    status, code, cpu_s, wall_s = record
    outputs: list[Any] = []
    errors: list[str] = []
    first, kind, ended = "", "", False
    lines = answer.split(b"\n")
    partial = lines.pop()
    try:
        for line in lines:
            item = json.loads(line.decode("ascii"))
            if type(item) is not dict or ended or len(outputs) > count:
                raise ValueError("unexpected line")
            if item == {"end": True}:
                if len(outputs) != count:
                    raise ValueError("ended early")
                ended = True
            elif item.keys() == {"v"}:
                outputs.append(item["v"])
                errors.append("")
            elif item.keys() == {"e", "k"} and isinstance(item["e"], str) and item["k"] in ("exception", "memory"):
                outputs.append(None)
                errors.append(item["e"] or "error")
                first, kind = (first, kind) if first else (errors[-1], item["k"])
            elif item.keys() == {"fatal", "k"} and isinstance(item["fatal"], str) and item["k"] in ("syntax", "exception", "memory"):
                if outputs:
                    raise ValueError("unexpected line")
                first, kind, ended = item["fatal"] or "error", item["k"], True
            else:
                raise ValueError("unexpected line")
        if len(outputs) > count or (ended and partial):
            raise ValueError("too many lines")
    except (ValueError, RecursionError):
        outputs, errors, first, kind, ended = [], [], "wrote something that is not an answer", "protocol", True
    if overflow:
        outputs, errors, first, kind = [], [], f"{overflow} was too large", "protocol"
    elif status in (_CPU_OVER, _WALL_OVER):
        first, kind = (
            f"ran out of {'CPU' if status == _CPU_OVER else 'wall'} time after {cpu_s if status == _CPU_OVER else wall_s:.2f} s",
            "timeout",
        )
    elif not ended and status == _SIGNALLED:
        name = signal.Signals(code).name if code in signal.valid_signals() else str(code)
        first, kind = f"was killed by {name}", "memory" if code == signal.SIGKILL else "timeout" if code == signal.SIGXCPU else "exception"
    elif not ended:
        first, kind = f"ended with exit code {code} before it had answered", "protocol"
    missing = count - len(outputs)
    outputs += [None] * missing
    errors += [first] * missing
    return CallResult(outputs, errors, first, kind, output.decode(errors="replace"), cpu_s, wall_s)
