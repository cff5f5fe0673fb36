"""`ProcessSandbox`: a private workspace with commands in it, from bubblewrap, seccomp and limits. Needs no privileges.

Inside: a read-only /usr, a workspace and a /tmp in memory, a loopback without a route, its own processes only, user `nobody`.
Nothing of the host's files or devices. A shared kernel stays a shared kernel: `capabilities()` says so.

`strict` mode has the full filter everywhere; a fork is a fresh box with the files and the variables that can be pickled.
In `forkable` mode the interpreter's memory itself is forked (copy-on-write), see `branch_server.py`.
"""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO

from environments.errors import BadArgumentsError, CaptureError, SandboxError
from environments.sandbox import archive, cells, cgroups, pageout
from environments.sandbox.base import (
    DEFAULT,
    Backend,
    Capabilities,
    ExecResult,
    OnOutput,
    PythonResult,
    Sandbox,
    SandboxConfig,
    Snapshot,
    Stream,
)
from environments.sandbox.bubblewrap import available, programs, require
from environments.sandbox.channel import ChannelError, Reply
from environments.sandbox.places import MIB, Branch, Place, Single, Tree, python_of, sum_mb, variables_of

_log = logging.getLogger(__name__)
_LANDLOCK_CREATE_RULESET = 444
_FILES_S = 120.0
"""How long packing or unpacking a workspace may take."""


@cache
def signals_are_scoped() -> bool:
    """Whether the kernel keeps an interpreter's signals to itself: Landlock's ABI 6, see landlock(7)."""
    return int(ctypes.CDLL(None).syscall(_LANDLOCK_CREATE_RULESET, None, 0, 1)) >= 6


def capabilities(config: SandboxConfig) -> Capabilities:
    """What a process sandbox of this configuration does on this machine."""
    in_sum, swaps = cgroups.usable(), pageout.usable()
    limits = f"memory is limited per process ({config.memory_mb} MiB) and by their number ({config.processes})"
    notes = [
        "shares the host's kernel: no protection against a kernel exploit",
        f"{limits}, and by a control group in sum ({sum_mb(config)} MiB, folders included)" if in_sum else f"{limits}, not in sum",
        "a paused sandbox uses no CPU; " + ("its memory goes to swap" if swaps else "its memory stays (no swap, or no right to use it)"),
    ]
    if config.mode == "strict":
        notes.append(
            "fork and snapshot copy the workspace's files and the variables that can be pickled; not processes, /tmp or open files"
        )
    else:
        notes += [
            "fork copies the workspace's files and the interpreter's memory; not its threads, child processes, other commands or /tmp",
            "what the interpreter has open at a fork (files, sockets) is shared with its copy, as after any fork(2)",
            "branches of one fork share their number of processes; inside the interpreter itself /proc/self does not exist",
            "an interpreter may enter namespaces that it is handed at a fork, and signal its own copies; mounting stays with process 1",
        ]
        if not signals_are_scoped():
            notes.append("code in an interpreter can signal other branches of its fork (Linux before 6.12 has no Landlock scope for that)")
    return Capabilities(
        backend="process",
        isolation="shared-kernel",
        mode=config.mode,
        services=True,
        pause="cpu+memory" if swaps else "cpu",
        fork="files" if config.mode == "strict" else "interpreter",
        snapshot="files",
        seccomp=True,
        memory_limit="sandbox" if in_sum else "process",
        images=True,
        notes=tuple(notes),
    )


class ProcessSandbox(Sandbox):
    """One sandbox. A command that outlives its timeout is killed with its session and descendants; what a command leaves running
    in the background stays until `close`."""

    def __init__(self, config: SandboxConfig, place: Place) -> None:
        super().__init__(config)
        self.left_out: tuple[str, ...] = ()
        """Variables that could not be carried over from the sandbox or snapshot that this one was made from."""
        self._place = place
        self._interpreter: cells.Interpreter | None = None
        self._finalizer = weakref.finalize(self, place.close)

    @classmethod
    def create(cls, config: SandboxConfig = DEFAULT) -> ProcessSandbox:
        """Start a sandbox with an empty workspace; errors as `Backend.create`."""
        require()
        sandbox = cls(config, Single(config) if config.mode == "strict" else Tree.first_branch(config))
        sandbox._started()
        return sandbox

    def capabilities(self) -> Capabilities:
        return capabilities(self.config)

    # --- commands and files -----------------------------------------------------------------------------------------------

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        return {**variables_of(self.config), "NINEFOLD_SEED": str(self.seed), **more}

    def _limits(self) -> dict[str, int]:
        # The size of the folders keeps files small; process 1, under the same limits, must be able to pack all of them.
        oom = int(cgroups.usable())
        return {"memory": self.config.memory_mb * MIB, "processes": self.config.processes, "file": self._archive_cap(), "oom": oom}

    def _exec(self, argv: Sequence[str], stdin: bytes, timeout_s: float, env: Mapping[str, str], on_output: OnOutput | None) -> ExecResult:
        if not argv:
            raise BadArgumentsError("the command is empty", "pass a program and its arguments")
        variables = self._environment(env)
        if any("\0" in text for text in (*argv, *variables, *variables.values())) or any("=" in name or not name for name in variables):
            raise BadArgumentsError("the command cannot be started: a NUL in it, or a '=' in a variable's name", "leave them out")
        request = {
            "op": "exec",
            "argv": list(argv),
            "timeout_s": timeout_s,
            "env": variables,
            "cap": self.config.output_kb << 10,
            "limits": self._limits(),
            "alone": self.config.mode == "strict",
            "stream": on_output is not None,
        }
        pieces: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        failures: list[BaseException] = []

        def on_piece(stream: Stream, data: bytes) -> None:
            pieces[stream] += data
            if on_output is not None and not failures:
                try:
                    on_output(stream, data)
                except BaseException as error:  # noqa: BLE001 - the command's answer must be read before the caller gets it
                    failures.append(error)

        reply = self._ask(request, stdin, timeout_s=timeout_s, cap=2 * request["cap"] + MIB, on_piece=on_piece)  # type: ignore[operator]
        if failures:
            raise failures[0]
        answer, size = reply.header, int(reply.header["stdout"])
        return ExecResult(
            exit_code=answer["exit_code"],
            stdout=(bytes(pieces["stdout"]) + reply.body[:size]).decode(errors="replace"),
            stderr=(bytes(pieces["stderr"]) + reply.body[size:]).decode(errors="replace"),
            wall_s=answer["wall_s"],
            timed_out=answer["timed_out"],
            truncated=answer["truncated"],
        )

    def _read(self, path: str) -> bytes:
        return self._ask({"op": "read", "path": path, "cap": self.config.read_mb * MIB}, cap=self.config.read_mb * MIB).body

    def _write(self, path: str, data: bytes) -> None:
        self._ask({"op": "write", "path": path}, data)

    def _list(self, path: str) -> list[str]:
        names = self._ask({"op": "list", "path": path}, cap=64 * MIB).body
        return [os.fsdecode(name) for name in names.split(b"\0")] if names else []

    def _serve(self, port: int) -> socket.socket:
        return socket.socket(fileno=self._ask({"op": "serve", "port": port}).fds[0])

    def _ask(
        self,
        request: dict[str, object],
        body: bytes = b"",
        fds: Sequence[int] = (),
        *,
        timeout_s: float = 10.0,
        cap: int = MIB,
        on_piece: Callable[[Stream, bytes], None] | None = None,
    ) -> Reply:
        try:
            return self._place.channel.ask(request, body, fds, timeout_s=timeout_s, cap=cap, on_piece=on_piece)
        except ChannelError as error:
            raise self._died(error) from error

    def _died(self, error: Exception) -> SandboxError:
        """Close a sandbox that no longer answers."""
        closed = self.state in ("killing", "closed")
        self.close()
        return SandboxError(f"sandbox {self.sandbox_id} {'was closed' if closed else f'died ({error})'}", "create another")

    # --- the interpreter ----------------------------------------------------------------------------------------------------

    def _interpreting(self) -> cells.Interpreter:
        """The interpreter, started when there is none."""
        if self._interpreter is None or not self._interpreter.alive():
            self._end_interpreter()
            with cells.Wires() as wires:
                made = cells.Interpreter(wires, self.sandbox_id, self.config.output_kb << 10)
                env = self._environment({})
                if self.config.mode == "forkable":
                    env = {**cells.HUGE_PAGES, **env}
                request: dict[str, object] = {
                    "argv": cells.command(python_of(self.config), forkable=self.config.mode == "forkable"),
                    "env": env,
                    "limits": self._limits(),
                }
                request["alone"] = self.config.mode == "strict"
                try:
                    pid = self._place.start_interpreter(request, wires.far_fds)
                except ChannelError as error:
                    made.close()
                    raise self._died(error) from error
                except BaseException:
                    made.close()
                    raise
            try:
                made.start(pid, programs(self.config.image)["interpreter"], self._place.owns)
            except BaseException:
                made.close()
                raise
            self._interpreter = made
        return self._interpreter

    def _end_interpreter(self) -> None:
        """Kill the interpreter with everything that it started."""
        ended, self._interpreter = self._interpreter, None
        if ended is not None:
            ended.stop()
            root = ended.inner_pid if self._place.root_of_interpreter is None else self._place.root_of_interpreter
            try:
                self._ask({"op": "kill", "root": root, "since": ended.since})
                self._place.end_interpreter()
            finally:
                ended.close()

    def _python(self, code: str, timeout_s: float) -> PythonResult:
        interpreter = self._interpreting()
        try:
            result = interpreter.cell(code, timeout_s)
        except ChannelError as error:
            if self.state in ("killing", "closed"):
                raise self._died(error) from error
            self._end_interpreter()
            return PythonResult("", f"the interpreter ended ({error.message}); its variables are gone")
        if result is None:
            self._end_interpreter()
            return PythonResult("", f"killed after {timeout_s} s; the interpreter's variables are gone", timed_out=True, wall_s=timeout_s)
        return result

    # --- life cycle -------------------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        try:
            self._place.freeze()
            if pageout.usable():
                for pid in self._place.processes():
                    pageout.page_out(pid)
        except ChannelError as error:
            raise CaptureError(str(self._died(error)), "create another", recoverable=False) from error
        except (BadArgumentsError, SandboxError) as error:
            self._place.thaw()
            raise CaptureError(f"sandbox {self.sandbox_id} could not be paused: {error.message}", "try again") from error

    def _resume(self) -> None:
        try:
            self._place.thaw()
        except ChannelError as error:
            raise self._died(error) from error

    def _close(self) -> None:
        # Not under the lock: closing must be able to end a request that hangs in another thread.
        self._finalizer()
        if self._interpreter is not None:
            self._interpreter.close()

    def _pack(self, fd: int) -> None:
        """Write the files as a tar archive."""
        self._ask({"op": "pack", "cap": self._archive_cap()}, fds=[fd], timeout_s=_FILES_S)

    def _archive_cap(self) -> int:
        return (2 * self.config.workspace_mb + 16) * MIB

    def _variables(self, sink: BinaryIO) -> tuple[str, ...]:
        """Write the interpreter's variables, if it runs; the names of those that cannot be carried."""
        if self._interpreter is None or not self._interpreter.alive():
            return ()
        try:
            left_out = self._interpreter.dump(sink, (self.config.memory_mb + 16) * MIB)
        except ChannelError as error:
            raise SandboxError(f"sandbox {self.sandbox_id}: its variables cannot be read ({error.message})", "run python again") from error
        if left_out:
            _log.warning("sandbox %s: variables that cannot be pickled are left out: %s", self.sandbox_id, ", ".join(left_out))
        return left_out

    def _captured(self, error: Exception) -> CaptureError:
        """The error of a capture; recoverable when this sandbox still answers."""
        return CaptureError(
            f"sandbox {self.sandbox_id} could not be captured: {error}", recoverable=self.state not in ("killing", "closed")
        )

    def _snapshot(self, directory: Path) -> Snapshot:
        def fill(folder: Path) -> dict[str, str]:
            with (folder / archive.FILES).open("wb") as file:
                self._pack(file.fileno())
            with (folder / archive.VARIABLES).open("wb") as file:
                return {"left_out": ",".join(self._variables(file))}

        try:
            return archive.write(directory, "process", self.config, fill)
        except (OSError, SandboxError, BadArgumentsError) as error:
            raise self._captured(error) from error

    def _restore(self, snapshot: Snapshot) -> None:
        archive.verify(snapshot)
        self._fill(snapshot)

    def _fill(self, snapshot: Snapshot) -> None:
        self._end_interpreter()
        with (snapshot.path / archive.FILES).open("rb") as files, (snapshot.path / archive.VARIABLES).open("rb") as variables:
            self._receive(files.fileno(), variables)
        self.left_out = tuple(name for name in snapshot.details.get("left_out", "").split(",") if name)

    def _receive(self, files: int, variables: BinaryIO, *, clear: bool = True) -> None:
        """Become what an archive and a pickle hold."""
        if clear:
            self._ask({"op": "clear"}, timeout_s=_FILES_S)
        self._ask({"op": "unpack"}, fds=[files], timeout_s=_FILES_S)
        if os.fstat(variables.fileno()).st_size:
            try:
                self._interpreting().load(variables)
            except ChannelError as error:
                raise SandboxError(
                    f"sandbox {self.sandbox_id}: its variables cannot be loaded ({error.message})", "create another"
                ) from error

    def _fork(self, count: int) -> list[Sandbox | SandboxError]:
        if isinstance(self._place, Branch):
            place = self._place
            return [self._attempt(partial(self._branch_off, place)) for _ in range(count)]
        files, variables = os.memfd_create("ninefold-files"), os.memfd_create("ninefold-variables")
        try:
            with os.fdopen(os.dup(variables), "wb") as sink:
                self._pack(files)
                left_out = self._variables(sink)
            return [self._attempt(partial(self._copy, files, variables, left_out)) for _ in range(count)]
        except (OSError, SandboxError, BadArgumentsError) as error:
            raise self._captured(error) from error
        finally:
            os.close(files)
            os.close(variables)

    def _attempt(self, make: Callable[[], ProcessSandbox]) -> Sandbox | SandboxError:
        """One child, or the error that prevented it; raises CaptureError when this sandbox is gone."""
        try:
            return make()
        except SandboxError as error:
            if self.state in ("killing", "closed"):
                raise self._captured(error) from error
            return error

    def _child_config(self) -> SandboxConfig:
        return self.config.model_copy(update={"seed": None})

    def _copy(self, files: int, variables: int, left_out: tuple[str, ...]) -> ProcessSandbox:
        """A fresh box with the files and the variables."""
        child = ProcessSandbox.create(self._child_config())
        try:
            # Opened anew for each child: a duplicate would share the position in the file.
            with open(f"/proc/self/fd/{files}", "rb") as archive_file, open(f"/proc/self/fd/{variables}", "rb") as source:
                child._receive(archive_file.fileno(), source, clear=False)
            child.left_out = left_out
        except BaseException:
            child.close()
            raise
        return child

    def _branch_off(self, place: Branch) -> ProcessSandbox:
        """A branch with the files and, when an interpreter runs, a fork of it."""
        try:
            branch = place.tree.branch()
        except ChannelError as error:
            raise self._died(error) from error
        child = ProcessSandbox(self._child_config(), branch)
        reader, writer = os.pipe()
        try:
            place.channel.send({"op": "pack", "cap": self._archive_cap()}, fds=[writer])
        except ChannelError as error:
            child.close()
            os.close(reader)
            raise self._died(error) from error
        finally:
            os.close(writer)
        try:
            branch.channel.send({"op": "unpack"}, fds=[reader])
            self._fork_interpreter(place, child, branch)
            branch.channel.checked(branch.channel.receive(_FILES_S, 0))
        except BaseException:
            child.close()
            raise
        finally:
            os.close(reader)  # with the child gone this ends the packing as well
            try:
                packed = place.channel.receive(_FILES_S, 0)
            except ChannelError as error:
                child.close()
                raise self._died(error) from error
        try:
            place.channel.checked(packed)
        except (SandboxError, BadArgumentsError) as error:
            child.close()
            raise SandboxError(f"a copy of sandbox {self.sandbox_id} failed: {error}", "make the workspace smaller") from error
        child._started()
        return child

    def _fork_interpreter(self, place: Branch, child: ProcessSandbox, branch: Branch) -> None:
        """Fork a running interpreter into the child's branch. One that does not do as it is told is killed."""
        if self._interpreter is None or not self._interpreter.alive():
            return
        with cells.Wires() as wires:
            child._interpreter = cells.Interpreter(wires, child.sandbox_id, self.config.output_kb << 10)
            try:
                pid = place.fork_interpreter(self._interpreter, branch, child.seed, wires.far_fds)
            except ChannelError as error:
                self._end_interpreter()
                raise SandboxError(
                    f"the interpreter of sandbox {self.sandbox_id} cannot be forked ({error.message})", "run python again"
                ) from error
        child._interpreter.start(pid, None, place.owns)


class ProcessBackend(Backend):
    """Process sandboxes: unprivileged, on any Linux with bubblewrap and user namespaces."""

    name = "process"

    def probe(self) -> str:
        return available()

    def create(self, config: SandboxConfig = DEFAULT, snapshot: Snapshot | None = None) -> ProcessSandbox:
        if snapshot is None:
            return ProcessSandbox.create(config)
        if snapshot.backend != self.name:
            raise SandboxError(
                f"snapshot {snapshot.snapshot_id} is of backend {snapshot.backend}, not process", "restore it where it was made"
            )
        archive.verify(snapshot)
        sandbox = ProcessSandbox.create(config)
        try:
            sandbox._fill(snapshot)
        except BaseException:
            sandbox.close()
            raise
        return sandbox

    def capabilities(self, config: SandboxConfig = DEFAULT) -> Capabilities:
        return capabilities(config)
