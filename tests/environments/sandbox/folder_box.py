"""A real, minimal backend without isolation: a temporary folder and processes in it. For tests of what stands above backends."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from environments.errors import BadArgumentsError, CaptureError, MissingDependencyError, SandboxError, UnsupportedError
from environments.sandbox.base import DEFAULT, Backend, Capabilities, ExecResult, OnOutput, PythonResult, Sandbox, SandboxConfig, Snapshot


class FolderSandbox(Sandbox):
    def __init__(self, config: SandboxConfig) -> None:
        super().__init__(config)
        self.folder = Path(tempfile.mkdtemp(prefix="folder-box-"))
        (self.folder / "work").mkdir()
        # As a backend's own process would: in a session of its own, it outlives a parent that is killed.
        self._keeper = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        self._running: subprocess.Popen[bytes] | None = None
        self._parent_snapshot: str | None = None
        self._started()

    def _path(self, path: str) -> Path:
        if ".." in path.split("/"):
            raise BadArgumentsError(f"{path} may not contain '..'", "use a path in /workspace")
        return self.folder / "work" / path.removeprefix("/workspace").lstrip("/")

    def _exec(self, argv: Sequence[str], stdin: bytes, timeout_s: float, env: Mapping[str, str], on_output: OnOutput | None) -> ExecResult:
        if not argv:
            raise BadArgumentsError("the command is empty", "pass a program and its arguments")
        started = time.monotonic()
        self._running = process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.folder / "work",
            env={"PATH": os.environ["PATH"], **self.config.env, **env},
            start_new_session=True,
        )
        if self.state in ("killing", "closed"):  # closed while it started: `_close` did not see it
            os.killpg(process.pid, signal.SIGKILL)
        out = b""
        if on_output is not None:
            assert process.stdout is not None
            while data := os.read(process.stdout.fileno(), 65536):
                out += data
                on_output("stdout", data)
        try:
            rest, err = process.communicate(stdin if on_output is None else None, timeout=timeout_s)
            code: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            rest, err = process.communicate()
            code = None
        self._running = None
        if self.state in ("killing", "closed"):
            raise SandboxError(f"sandbox {self.sandbox_id} died", "create another")
        return ExecResult(code, (out + rest).decode(), err.decode(), time.monotonic() - started, timed_out=code is None)

    def _python(self, code: str, timeout_s: float) -> PythonResult:
        done = self._exec([sys.executable, "-c", code], b"", timeout_s, {}, None)
        return PythonResult(done.stdout, done.stderr, (b"\x89PNG one", b"\x89PNG two"), done.timed_out, done.wall_s)

    def _read(self, path: str) -> bytes:
        try:
            return self._path(path).read_bytes()
        except OSError as error:
            raise BadArgumentsError(f"{path}: {error.strerror}", "use a path in /workspace") from error

    def _write(self, path: str, data: bytes) -> None:
        self._path(path).parent.mkdir(parents=True, exist_ok=True)
        self._path(path).write_bytes(data)

    def _list(self, path: str) -> list[str]:
        return sorted(os.listdir(self._path(path)))

    def _pause(self) -> None:
        self._keeper.send_signal(signal.SIGSTOP)

    def _resume(self) -> None:
        self._keeper.send_signal(signal.SIGCONT)

    def _fork(self, count: int) -> list[Sandbox | SandboxError]:
        if (self.folder / "work/no-fork").exists():
            raise CaptureError("nothing could be captured", "", recoverable=False)
        children: list[Sandbox | SandboxError] = []
        for i in range(count):
            if i == 1 and (self.folder / "work/one-fails").exists():
                children.append(SandboxError("this child did not come up", "try again"))
                continue
            child = FolderSandbox(self.config)
            shutil.copytree(self.folder / "work", child.folder / "work", dirs_exist_ok=True)
            children.append(child)
        return children

    def _snapshot(self, directory: Path) -> Snapshot:
        if (self.folder / "work/no-snapshot").exists():
            raise CaptureError("the disk is tired", "", recoverable=True)
        shutil.copytree(self.folder / "work", directory)
        size = sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())
        parent, self._parent_snapshot = self._parent_snapshot, uuid.uuid4().hex
        chained = parent if (directory / "increments").exists() else None
        return Snapshot(self._parent_snapshot, "folder", "files", directory, size, self.config, chained, {"made": "by copying"})

    def _restore(self, snapshot: Snapshot) -> None:
        shutil.rmtree(self.folder / "work")
        shutil.copytree(snapshot.path, self.folder / "work")

    def _serve(self, port: int) -> socket.socket:
        return socket.create_server(("127.0.0.1", port))

    def _close(self) -> None:
        if (running := self._running) is not None:
            os.killpg(running.pid, signal.SIGKILL)
        self._keeper.kill()
        self._keeper.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def capabilities(self) -> Capabilities:
        return Capabilities("folder", "none", services=True, pause="cpu", fork="files", snapshot="files", notes=("one", "two"))


class FolderBackend(Backend):
    name = "folder"

    def __init__(self, reason: str = "") -> None:
        self.reason = reason

    def probe(self) -> str:
        return self.reason

    def create(self, config: SandboxConfig = DEFAULT, snapshot: Snapshot | None = None) -> FolderSandbox:
        if self.reason:
            raise MissingDependencyError(self.reason, "install it")
        if config.mode == "forkable":
            raise UnsupportedError("the folder backend has no forkable mode", "use strict")
        if config.env.get("BREAK"):
            raise RuntimeError("a backend's own bug")
        sandbox = FolderSandbox(config)
        if snapshot is not None:
            sandbox.restore(snapshot)
        return sandbox

    def capabilities(self, config: SandboxConfig = DEFAULT) -> Capabilities:
        return Capabilities("folder", "none", mode=config.mode)
