"""`FirecrackerSandbox`: a microVM whose first process is our agent. Everything in it (processes, memory, files) is one memory image.

Follows AgentENV's public design (github.com/kvcache-ai/AgentENV) and Firecracker's docs on random numbers for clones: every
machine that starts from a shared image gets a clock, a name, entropy and a seed of its own before anything else runs in it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Base64Bytes, BaseModel, ConfigDict, ValidationError

from environments.errors import BadArgumentsError, CaptureError, SandboxError
from environments.sandbox.base import Capabilities, ExecResult, OnOutput, PythonResult, Sandbox, SandboxConfig, Snapshot, Stream
from environments.sandbox.firecracker.channel import AgentLost, Channel
from environments.sandbox.firecracker.machine import Machine, Sleeping
from environments.sandbox.firecracker.snapshots import read_manifest, write_manifest
from environments.sandbox.firecracker.vmm import Programs, fresh_path

AGENT_PORT = 1024
AGENT_VERSION = 1
_PNG = b"\x89PNG"
WAKE_S = 60.0
"""An agent that was up answers within milliseconds; under emulation, within seconds."""
_MIB = 1 << 20


def capabilities_of(config: SandboxConfig, *, jailed: bool) -> Capabilities:
    """What a Firecracker sandbox of this configuration does."""
    return Capabilities(
        backend="firecracker",
        isolation="virtual-machine",
        mode=config.mode,
        pause="cpu+memory",
        fork="full",
        snapshot="full",
        incremental_snapshot=True,
        services=True,
        memory_limit="sandbox",
        notes=(
            "no network device: the guest has its loopback alone, and the ports that `serve` answers",
            "commands run as nobody in a guest whose kernel is theirs to attack; the machine is the wall",
            "a paused sandbox is a memory file: its size is what the guest has touched",
            *(() if jailed else ("the VMM is not jailed: that needs root and the jailer beside firecracker",)),
        ),
    )


class FirecrackerSandbox(Sandbox):
    """Made by :class:`FirecrackerBackend`. `pause` writes what was dirtied and ends the machine; `resume` loads it again."""

    def __init__(self, config: SandboxConfig, programs: Programs) -> None:
        super().__init__(config)
        self._programs = programs
        self._machine: Machine | None = None
        self._asleep: Sleeping | None = None
        self._channel: Channel | None = None
        self._connected = False
        self._services: dict[int, Path] = {}
        """Sockets on which the host answers, by port."""

    # --- starting --------------------------------------------------------------------------------------------------------

    def start(self, machine: Machine) -> None:
        """Take over a machine that was just loaded: make it one of its own.

        Raises:
            SandboxError: its agent does not answer within the limit; the machine is killed.
        """
        self._machine = machine
        for port, path in self._services.items():
            machine.answer_on(port, path)
        self._channel = Channel(machine.vsock_path, AGENT_PORT, (self.config.read_mb + self.config.workspace_mb + 16) * _MIB)
        limits = {
            "memory_bytes": self.config.memory_mb * _MIB,
            "processes": self.config.processes,
            "workspace_bytes": self.config.workspace_mb * _MIB,
            "env": self.config.env,
        }
        # Clones of one image would otherwise draw the same random numbers (Firecracker, docs/snapshotting/random-for-clones).
        request = {"op": "wake", "time": time.time(), "name": self.sandbox_id, "seed": self.seed, "limits": limits}
        try:
            if self.state in ("killing", "closed"):
                raise SandboxError(f"sandbox {self.sandbox_id} was closed meanwhile", "create another")
            version = self._connect(request, secrets.token_bytes(64)).get("version")
            if version != AGENT_VERSION:
                raise SandboxError(f"the guest's agent has version {version}, not {AGENT_VERSION}", "build the root file system again")
        except SandboxError as error:
            said = machine.vmm.complaint()
            machine.kill()
            self.close()
            raise SandboxError(f"{error.message}; the machine said: {said or 'nothing'}", error.fix) from error

    # --- operations ------------------------------------------------------------------------------------------------------

    def _exec(self, argv: Sequence[str], stdin: bytes, timeout_s: float, env: Mapping[str, str], on_output: OnOutput | None) -> ExecResult:
        if not argv:
            raise BadArgumentsError("the command is empty", "pass a program and its arguments")
        cap = self.config.output_kb << 10
        output = {"stdout": bytearray(), "stderr": bytearray()}

        def frame(stream: str, data: bytes) -> None:
            name: Stream = "stderr" if stream == "stderr" else "stdout"
            output[name] += data
            _within(output[name], cap)
            if on_output is not None:
                on_output(name, data)

        request = {"op": "exec", "argv": list(argv), "env": dict(env), "timeout_s": timeout_s, "cap": cap}
        answer = self._ask(_Ended, request, stdin, timeout_s, frame)
        return ExecResult(
            exit_code=answer.exit_code,
            stdout=output["stdout"].decode(errors="replace"),
            stderr=output["stderr"].decode(errors="replace"),
            wall_s=answer.wall_s,
            timed_out=answer.timed_out,
            truncated=answer.truncated,
        )

    def _python(self, code: str, timeout_s: float) -> PythonResult:
        cap = self.config.output_kb << 10
        output, frame = _collector(cap)
        answer = self._ask(_Cell, {"op": "python", "timeout_s": timeout_s, "cap": cap}, code.encode(), timeout_s, frame)
        images = tuple(image for image in answer.images if image.startswith(_PNG))
        return PythonResult(output.decode(errors="replace"), answer.error, images, answer.timed_out, answer.wall_s)

    def _read(self, path: str) -> bytes:
        cap = self.config.read_mb * _MIB
        output, frame = _collector(cap)
        self._ask(_Done, {"op": "read", "path": path, "cap": cap}, b"", 60.0, frame)
        return bytes(output)

    def _write(self, path: str, data: bytes) -> None:
        self._ask(_Done, {"op": "write", "path": path}, data, 60.0)

    def _list(self, path: str) -> list[str]:
        return self._ask(_Names, {"op": "list", "path": path}).names

    # --- the life cycle -----------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        machine = self._up()
        self._drop()
        self._asleep = machine.sleep()
        self._machine = None

    def _resume(self) -> None:
        if self._asleep is None:
            raise SandboxError(f"sandbox {self.sandbox_id} has nothing to wake", "create another")
        machine = self._asleep.wake()
        self._asleep = None
        self.start(machine)

    def _fork(self, count: int) -> list[Sandbox | SandboxError]:
        machine = self._up()
        self._drop()
        children = machine.fork(count)
        with ThreadPoolExecutor(min(count, 8)) as pool:
            return list(pool.map(self._child, children))

    def _child(self, machine: Machine | SandboxError) -> Sandbox | SandboxError:
        if isinstance(machine, SandboxError):
            return machine
        sandbox = FirecrackerSandbox(self.config, self._programs)
        sandbox.seed = secrets.randbelow(2**31)
        try:
            sandbox.start(machine)
        except SandboxError as error:
            return error
        sandbox._started()
        return sandbox

    def _snapshot(self, directory: Path) -> Snapshot:
        machine = self._up()
        folder = directory.resolve() / uuid.uuid4().hex[:12]
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise CaptureError(f"{folder} cannot be created ({error.strerror})", "choose a folder that can be written") from error
        self._drop()
        try:
            image = machine.snapshot(folder, lasting=True)
            write_manifest(folder, image)
        except (SandboxError, OSError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, CaptureError):
                raise
            raise CaptureError(f"the snapshot could not be written: {error}", "free disk space, then try again") from error
        parent = image.layers[-2].parent.name if len(image.layers) > 1 else None
        return Snapshot(folder.name, "firecracker", "full", folder, image.written_bytes, self.config, parent)

    def _restore(self, snapshot: Snapshot) -> None:
        machine = Machine.load(self._programs, read_manifest(snapshot.path))
        old, self._machine = self._machine, None
        self._drop()
        if old is not None:
            old.kill()
        self.start(machine)

    def _serve(self, port: int) -> socket.socket:
        machine = self._up()
        listener = socket.socket(socket.AF_UNIX)
        path = fresh_path(".srv")
        try:
            self._ask(_Done, {"op": "serve", "port": port})
            listener.bind(str(path))
            path.chmod(0o666)  # the folder above is ours alone; a jailed VMM is another user
            listener.listen(64)
            machine.answer_on(port, path)
        except BaseException:
            listener.close()
            path.unlink(missing_ok=True)
            raise
        if port in self._services:
            self._services[port].unlink(missing_ok=True)
        self._services[port] = path
        return listener

    def _close(self) -> None:
        machine = self._machine
        if machine is not None:
            machine.kill()
        self._drop()
        if self._asleep is not None:
            self._asleep.discard()
        while self._services:
            self._services.popitem()[1].unlink(missing_ok=True)

    def capabilities(self) -> Capabilities:
        """See the base class."""
        return capabilities_of(self.config, jailed=self._programs.jailer is not None)

    def kill_machine(self) -> None:
        """End the VMM from outside, as a crash would."""
        os.kill(self._up().vmm.process.pid, signal.SIGKILL)

    def resident_bytes(self) -> int:
        """Memory that this sandbox has to itself on the host, bytes; 0 when paused."""
        return 0 if self._machine is None else self._machine.vmm.resident_bytes()

    # --- inside ------------------------------------------------------------------------------------------------------------

    def _up(self) -> Machine:
        if self._machine is None:
            raise SandboxError(f"sandbox {self.sandbox_id} has no machine", "create another")
        return self._machine

    def _drop(self) -> None:
        """A capture resets the guest's connections: the next request connects again."""
        self._connected = False
        if self._channel is not None:
            self._channel.drop()

    def _connect(self, request: dict[str, Any], body: bytes = b"") -> dict[str, Any]:
        """Ask over a new connection until there is an answer: the guest resets those that it gets before it notices a capture.

        Raises:
            AgentLost: there was none within WAKE_S.
        """
        machine, channel = self._up(), self._channel
        assert channel is not None
        deadline = time.monotonic() + WAKE_S
        while True:
            channel.wait(WAKE_S, machine.alive)
            try:
                answer = channel.ask(request, body)
            except AgentLost:
                if time.monotonic() > deadline or not machine.alive():
                    raise
                continue
            self._connected = True
            return answer

    def _ask(
        self, kind: type[Answer], request: dict[str, Any], body: bytes = b"", timeout_s: float = 10.0, on_frame: OnFrame | None = None
    ) -> Answer:
        machine, channel = self._up(), self._channel
        assert channel is not None
        try:
            if not self._connected:
                self._connect({"op": "ping"})
            return kind.model_validate(channel.ask(request, body, timeout_s, on_frame))
        except (AgentLost, ValidationError) as error:
            said = machine.vmm.complaint()[-300:] or "nothing"
            self.close()
            why = error.message if isinstance(error, AgentLost) else f"it answered garbage to {request['op']}"
            raise SandboxError(f"sandbox {self.sandbox_id} died: {why}; the machine said: {said}", "create another sandbox") from error


class _Done(BaseModel):
    """An answer of the guest's agent. Code that broke the guest's kernel may have written it: checked, never believed."""

    model_config = ConfigDict(frozen=True)


class _Names(_Done):
    names: list[str]


class _Ended(_Done):
    exit_code: int | None
    timed_out: bool
    truncated: bool
    wall_s: float


class _Cell(_Done):
    error: str
    images: list[Base64Bytes]
    timed_out: bool
    wall_s: float


Answer = TypeVar("Answer", bound=_Done)
OnFrame = Callable[[str, bytes], None]


def _within(data: bytearray, cap: int) -> None:
    if len(data) > cap:
        raise AgentLost(f"the guest's agent sent more than {cap} bytes", "create another sandbox")


def _collector(cap: int) -> tuple[bytearray, OnFrame]:
    data = bytearray()

    def frame(_: str, piece: bytes) -> None:
        data.extend(piece)
        _within(data, cap)

    return data, frame
