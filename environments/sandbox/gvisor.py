"""`GVisorBackend`: sandboxes whose system calls are answered by gVisor's kernel in user space (gvisor.dev), not by the host's.

Checkpoints take everything: every process, its memory, open files, pipes and the files in memory. Process 1 inside
(`gvisor_agent.py`) does the work over a socket that survives them, so a command costs no start of `runsc`.
Works as root and unprivileged alike; see `gvisor_runsc.py`.
"""

from __future__ import annotations

import ast
import contextlib
import os
import shutil
import socket
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from environments.errors import BadArgumentsError, CaptureError, MissingDependencyError, SandboxError
from environments.sandbox.base import (
    DEFAULT,
    WORKSPACE,
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
from environments.sandbox.bubblewrap import BOOTSTRAP, NOBODY
from environments.sandbox.channel import Channel, ChannelError, Reply
from environments.sandbox.gvisor_area import area
from environments.sandbox.gvisor_bundle import hard_limit_gib, programs
from environments.sandbox.gvisor_link import Link
from environments.sandbox.gvisor_runsc import INSTALL, USERNS, Box, Platform, find_runsc, runsc_version, start
from environments.sandbox.gvisor_snapshots import restored, seal, verify
from environments.sandbox.seccomp import sandbox_filter

_START_S = 60.0
"""A start takes some 300 ms; this much patience is for a machine that is busy with other work."""
_GRACE_S = 30.0
"""How long the sandbox may stay silent beyond a request's own limit before it counts as dead."""
_BODY_CAP = 48 << 20
"""Of any answer but a file's: above all an interpreter's pictures."""
_MAX_IMAGES = 64
_PNG = b"\x89PNG\r\n\x1a\n"
_FORKS_AT_ONCE = 4


class _Listener(socket.socket):
    """A Unix socket that only this user can reach and that behaves like the TCP socket inside which it stands for."""

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        connection, _ = super().accept()
        return connection, ("127.0.0.1", 0)


def _settings(config: SandboxConfig, seed: int) -> dict[str, Any]:
    environment = {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": WORKSPACE,
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        **config.env,
        "NINEFOLD_SEED": str(seed),
    }
    return {
        "environment": environment,
        "bootstrap": BOOTSTRAP.format(fd=3),
        "start_s": _START_S,
        "filter": sandbox_filter(),
        "memory_mb": config.memory_mb,
        "processes": config.processes,
        "workspace_mb": config.workspace_mb,
    }


def _end(boxes: list[Box]) -> None:
    for box in boxes:
        box.kill()
        box.control.close()


class GVisorSandbox(Sandbox):
    """One sandbox; see `GVisorBackend` for the arguments."""

    def __init__(self, config: SandboxConfig, *, pause_to_disk: bool = False, platform: Platform = "systrap") -> None:
        super().__init__(config)
        self._pause_to_disk, self._platform = pause_to_disk, platform
        self._boxes: list[Box] = []  # one, or none while it is paused to disk; shared with the finalizer
        self._channel: Channel | None = None
        self._paused: Path | None = None
        self._services: dict[int, Path] = {}
        self._folders: list[Path] = []  # of checkpoints and sockets, outside of the boxes
        self._finalizer = weakref.finalize(self, _end, self._boxes)

    # --- coming up -----------------------------------------------------------------------------------------------------------

    def _boot(self) -> None:
        """Start empty."""
        self._raise(None, _settings(self.config, self.seed))
        self._started()

    def _boot_from(self, image: Path, *, changed: bool) -> None:
        """Start from a checkpoint in `image`; `changed` when it becomes another sandbox."""
        environment = {"NINEFOLD_SEED": str(self.seed)} if changed else {}
        self._raise(image, {"op": "identity", "seed": self.seed, "env": environment})
        for port in list(self._services):
            self._ask({"op": "serve", "port": port})
        if self._services:
            self._carry(self._boxes[0])

    def _raise(self, image: Path | None, first: dict[str, Any]) -> None:
        """Start a box, say the first thing to it and wait for its answer."""
        box = start(f"{self.sandbox_id}-{uuid.uuid4().hex[:6]}", self.config, self._platform, image)
        self._boxes.append(box)
        self._channel = Channel(box.control, f"sandbox {self.sandbox_id}")
        try:
            if image is None:
                self._channel.send_program(programs())
            self._channel.send(first)
            self._channel.checked(self._channel.receive(_START_S, _BODY_CAP))
            box.learn()
        except (SandboxError, BadArgumentsError, OSError, ValueError) as error:
            with contextlib.suppress(Exception):
                box.outer.wait(2)
            said = box.complaint()
            self._drop()
            fix = USERNS if "unshare" in said or "uid_map" in said or "user namespace" in said else "see `ninefold doctor`"
            raise SandboxError(f"a gVisor sandbox did not come up: {said or error}", fix) from error

    def _drop(self) -> None:
        while self._boxes:
            self._boxes.pop().kill()
        if self._channel is not None:
            self._channel.close()  # whoever still waits for an answer wakes up
            self._channel = None

    def _close(self) -> None:
        self._drop()
        for path in [*self._folders, *self._services.values()]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        self._folders.clear()

    # --- requests -------------------------------------------------------------------------------------------------------------

    def _exec(self, argv: Sequence[str], stdin: bytes, timeout_s: float, env: Mapping[str, str], on_output: OnOutput | None) -> ExecResult:
        cap = self.config.output_kb << 10
        kept = {"stdout": bytearray(), "stderr": bytearray()}
        raised: list[BaseException] = []

        def on_piece(stream: Stream, data: bytes) -> None:
            data = data[: cap - len(kept[stream])]
            kept[stream] += data
            if on_output is not None and not raised:
                try:
                    on_output(stream, data)
                except BaseException as error:  # noqa: BLE001 - raised again once the command has ended
                    raised.append(error)

        request = {"op": "exec", "argv": list(argv), "timeout_s": timeout_s, "env": dict(env), "cap": cap}
        answer = self._ask(request, stdin, timeout_s, on_piece).header
        if raised:
            raise raised[0]
        return ExecResult(
            exit_code=answer["exit_code"],
            stdout=kept["stdout"].decode(errors="replace"),
            stderr=kept["stderr"].decode(errors="replace"),
            wall_s=answer["wall_s"],
            timed_out=answer["timed_out"],
            truncated=answer["truncated"],
        )

    def _python(self, code: str, timeout_s: float) -> PythonResult:
        kept, cap = bytearray(), self.config.output_kb << 10
        reply = self._ask(
            {"op": "python", "code": code, "timeout_s": timeout_s, "cap": cap}, b"", timeout_s, lambda _, data: kept.extend(data)
        )
        answer, error = reply.header, ""
        images: tuple[bytes, ...] = ()
        if answer["ended"]:
            error = "the interpreter ended (it exited, was killed, or used more memory than it may); its variables are gone"
        elif answer["timed_out"]:
            error = f"the cell took longer than {timeout_s} s and was killed; the interpreter's variables are gone"
        else:
            error, images = _cell(reply.body[: answer["header"]], reply.body[answer["header"] :])
        dropped = f"\n[output beyond {self.config.output_kb} KiB was dropped]\n" if answer["truncated"] else ""
        return PythonResult(kept.decode(errors="replace") + dropped, error, images, answer["timed_out"], answer["wall_s"])

    def _read(self, path: str) -> bytes:
        return self._ask({"op": "read", "path": path, "cap": self.config.read_mb << 20}).body

    def _write(self, path: str, data: bytes) -> None:
        self._ask({"op": "write", "path": path}, data)

    def _list(self, path: str) -> list[str]:
        names = self._ask({"op": "list", "path": path}).body
        return [os.fsdecode(name) for name in names.split(b"\0")] if names else []

    def _ask(
        self,
        request: dict[str, Any],
        body: bytes = b"",
        timeout_s: float = 10.0,
        on_piece: Callable[[Stream, bytes], None] | None = None,
    ) -> Reply:
        channel = self._channel
        if channel is None:
            raise SandboxError(f"sandbox {self.sandbox_id} is closed", "create another")
        try:
            return channel.ask(
                request, body, timeout_s=timeout_s + _GRACE_S, cap=max(_BODY_CAP, self.config.read_mb << 20), on_piece=on_piece
            )
        except (BadArgumentsError, SandboxError) as error:
            if isinstance(error, ChannelError):
                self.close()
            raise
        except BaseException:
            self.close()  # interrupted in the middle of an answer: nothing that follows could be understood
            raise

    # --- pausing -----------------------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        if not self._pause_to_disk:
            if said := self._boxes[0].freeze():
                raise self._capture_error("pause", said)
            return
        folder = area().new_folder(f"paused-{uuid.uuid4().hex[:12]}")
        self._folders.append(folder)
        try:
            self._checkpoint(folder)
        except CaptureError:
            self._forget(folder)
            raise
        self._paused = folder
        self._drop()

    def _resume(self) -> None:
        if self._paused is None:
            if said := self._boxes[0].thaw():
                self.close()
                raise SandboxError(f"sandbox {self.sandbox_id} could not be resumed: {said}", "create another, or restore a snapshot")
            return
        self._boot_from(self._paused, changed=False)
        self._forget(self._paused)
        self._paused = None

    def _forget(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self._folders.remove(folder)

    # --- checkpoints ---------------------------------------------------------------------------------------------------------------

    def _checkpoint(self, folder: Path, *flags: str) -> None:
        said = self._boxes[0].run("checkpoint", *flags, "--compression", "none", "--image-path", "{folder}", folder=folder)
        if said:
            raise self._capture_error("checkpoint", said)

    def _capture_error(self, what: str, said: str) -> CaptureError:
        """Recoverable when it still answers."""
        recoverable = False
        if self._channel is not None:
            with contextlib.suppress(SandboxError, BadArgumentsError):
                self._channel.send({"op": "ping"})
                self._channel.receive(5.0, 0)
                recoverable = True
        fix = "free disk space, then try again" if recoverable else "create another, or restore a snapshot"
        return CaptureError(f"the {what} of sandbox {self.sandbox_id} failed: {said}", fix, recoverable)

    def _fork(self, count: int) -> list[Sandbox | SandboxError]:
        folder = area().new_folder(f"fork-{uuid.uuid4().hex[:12]}")
        try:
            self._checkpoint(folder, "--leave-running")
            with ThreadPoolExecutor(min(count, _FORKS_AT_ONCE)) as pool:
                return list(pool.map(lambda _: self._child(folder), range(count)))
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _child(self, folder: Path) -> Sandbox | SandboxError:
        child = GVisorSandbox(self.config.model_copy(update={"seed": None}), pause_to_disk=self._pause_to_disk, platform=self._platform)
        try:
            child._boot_from(folder, changed=True)
        except SandboxError as error:
            child.close()
            return error
        child._started()
        return child

    def _snapshot(self, directory: Path) -> Snapshot:
        snapshot_id = uuid.uuid4().hex[:12]
        part = directory / f".{snapshot_id}.tmp"
        try:
            directory.mkdir(parents=True, exist_ok=True)
            part.mkdir(mode=0o700)
            if os.geteuid() == 0:
                os.chown(part, NOBODY, NOBODY)
        except OSError as error:
            raise CaptureError(f"nothing can be written to {directory}: {error}", "choose another folder") from error
        try:
            self._checkpoint(part, "--leave-running")
            size = seal(part, snapshot_id, self.config)
            part.rename(directory / snapshot_id)
        except OSError as error:
            raise CaptureError(f"snapshot {snapshot_id} could not be written: {error}", "free disk space, then try again") from error
        finally:
            shutil.rmtree(part, ignore_errors=True)
        return Snapshot(snapshot_id, "gvisor", "full", directory / snapshot_id, size, self.config)

    def _restore(self, snapshot: Snapshot) -> None:
        verify(snapshot)
        config, self.config = self.config, restored(snapshot, self.config)
        self._drop()
        try:
            self._boot_from(snapshot.path, changed=True)
        except BaseException:
            self.config = config
            self.close()
            raise

    # --- services ---------------------------------------------------------------------------------------------------------------------

    def _serve(self, port: int) -> socket.socket:
        if not 0 < port < 65536:
            raise BadArgumentsError(f"port {port} is not one", "use 1 to 65535")
        self._ask({"op": "serve", "port": port})
        path = area().folder / f"{self.sandbox_id}-{port}"
        listener = _Listener(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(path))
            path.chmod(0o600)
            listener.listen(128)
        except OSError as error:
            listener.close()
            raise SandboxError(f"no socket can be made at {path}: {error}", "free disk space") from error
        first = not self._services
        self._services[port] = path
        if first:
            self._carry(self._boxes[0])
        return listener

    def _carry(self, box: Box) -> None:
        """Carry connections from the sandbox to the listeners, in a thread that ends with the box."""
        services = self._services

        def connect(port: int) -> socket.socket | None:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.setblocking(False)
            try:
                sock.connect(str(services[port]))
            except (OSError, KeyError):
                sock.close()
                return None
            return sock

        link = Link(box.services.dup(), connect)
        threading.Thread(target=link.run, name=f"sandbox-{self.sandbox_id}-services", daemon=True).start()

    def capabilities(self) -> Capabilities:
        return _capabilities(self.config, self._pause_to_disk, self._platform)


def _cell(header: bytes, body: bytes) -> tuple[str, tuple[bytes, ...]]:
    """What the interpreter answered; code inside may have forged it, so whatever is wrong becomes the cell's error."""
    try:
        value = ast.literal_eval(header.decode())
        error, sizes = value["error"], value["sizes"]
        if type(error) is not str or len(sizes) > _MAX_IMAGES or not all(type(size) is int and size >= 0 for size in sizes):
            raise ValueError("of the wrong form")
    except (ValueError, SyntaxError, KeyError, TypeError, MemoryError, RecursionError) as broken:
        return f"the interpreter's answer cannot be read ({broken}); code in it has written to its connection", ()
    starts = [sum(sizes[:number]) for number in range(len(sizes))]
    images = (body[at : at + size] for at, size in zip(starts, sizes, strict=True))
    return error, tuple(image for image in images if image.startswith(_PNG))


def _capabilities(config: SandboxConfig, pause_to_disk: bool, platform: Platform) -> Capabilities:
    return Capabilities(
        backend="gvisor",
        isolation="user-space-kernel",
        mode=config.mode,
        services=True,
        pause="cpu+memory" if pause_to_disk else "cpu",
        fork="full",
        snapshot="full",
        seccomp=True,
        memory_limit="sandbox",
        images=True,
        notes=(
            f"memory beyond {config.memory_mb} MiB is noticed within a second, and the largest process killed;"
            f" beyond {hard_limit_gib(config)} GiB in between, files included, the sandbox ends",
            "CPU time is not limited, only wall time",
            "an idle sandbox uses " + ("almost no CPU" if platform == "ptrace" else "a few hundredths of a core; a paused one none"),
            "connections to served ports break in a fork, a snapshot's copy and a pause to disk",
            "a forked process keeps a seed that it has read; the interpreter's `random` and numpy's global generator are seeded anew",
            "a snapshot is bound to the release of runsc that wrote it and to the machine's /usr or image",
        ),
    )


class GVisorBackend(Backend):
    """Sandboxes under gVisor.

    Args:
        pause_to_disk: pausing writes a checkpoint and frees the memory, instead of only stopping the processes.
        platform: how gVisor catches system calls: `systrap`, or `ptrace`, which costs twice as much a call but no CPU while idle.
    """

    name = "gvisor"

    def __init__(self, pause_to_disk: bool = False, platform: Platform = "systrap") -> None:
        self.pause_to_disk, self.platform = pause_to_disk, platform

    def probe(self) -> str:
        try:
            return _probe(find_runsc(), self.platform)
        except MissingDependencyError as error:
            return str(error)

    def create(self, config: SandboxConfig = DEFAULT, snapshot: Snapshot | None = None) -> GVisorSandbox:
        if reason := self.probe():
            message, _, fix = reason.partition(". Fix: ")
            raise MissingDependencyError(message, fix)
        if snapshot is None:
            sandbox = GVisorSandbox(config, pause_to_disk=self.pause_to_disk, platform=self.platform)
            sandbox._boot()
            return sandbox
        if snapshot.backend != self.name:
            raise SandboxError(
                f"snapshot {snapshot.snapshot_id} is of backend {snapshot.backend}, not {self.name}", "restore it where it was made"
            )
        verify(snapshot)
        sandbox = GVisorSandbox(restored(snapshot, config), pause_to_disk=self.pause_to_disk, platform=self.platform)
        sandbox._boot_from(snapshot.path, changed=True)
        sandbox._started()
        return sandbox

    def capabilities(self, config: SandboxConfig = DEFAULT) -> Capabilities:
        return _capabilities(config, self.pause_to_disk, self.platform)


@cache
def _probe(runsc: Path, platform: Platform) -> str:
    try:
        runsc_version(runsc)
        sandbox = GVisorSandbox(SandboxConfig(memory_mb=256, workspace_mb=1), platform=platform)
        try:
            sandbox._boot()
            done = sandbox.exec(["true"])
            return (
                "" if done.exit_code == 0 else f"a command in a gVisor sandbox ended with {done.exit_code}: {done.stderr}. Fix: {INSTALL}"
            )
        finally:
            sandbox.close()
    except (MissingDependencyError, SandboxError) as error:
        return str(error)
