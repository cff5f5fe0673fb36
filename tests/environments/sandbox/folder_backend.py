"""A sandbox of the simplest kind, for tests of what serves sandboxes: bubblewrap around each command, files in a folder, no Python cells."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from environments.errors import BadArgumentsError, CaptureError, SandboxError
from environments.sandbox.base import (
    DEFAULT,
    WORKSPACE,
    Backend,
    Capabilities,
    ExecResult,
    OnOutput,
    Sandbox,
    SandboxConfig,
    Snapshot,
    Stream,
)

_MARK = "FOLDER_BOX"


class FolderSandbox(Sandbox):
    def __init__(self, config: SandboxConfig, files: Path | None = None) -> None:
        super().__init__(config)
        self.folder = Path(tempfile.mkdtemp(prefix="folder-sandbox-"))
        self.files = self.folder / "workspace"
        if files is None:
            self.files.mkdir()
        else:
            shutil.copytree(files, self.files, symlinks=True)
        (self.folder / "tmp").mkdir()
        self._started()

    def capabilities(self) -> Capabilities:
        return FolderBackend().capabilities(self.config)

    def _processes(self) -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"{_MARK}={self.sandbox_id}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def _signal(self, which: signal.Signals) -> None:
        for _ in range(5):
            for pid in self._processes():
                try:
                    os.kill(pid, which)
                except ProcessLookupError:
                    continue

    def _exec(self, argv: Sequence[str], stdin: bytes, timeout_s: float, env: Mapping[str, str], on_output: OnOutput | None) -> ExecResult:
        if not argv or any("\0" in word for word in argv):
            raise BadArgumentsError("no command")
        box = ["bwrap", "--unshare-net", "--proc", "/proc", "--dev", "/dev", "--chdir", WORKSPACE, "--bind", str(self.files), WORKSPACE]
        for path in ("/usr", "/bin", "/lib", "/lib64", "/etc"):
            if Path(path).exists():
                box += ["--ro-bind", path, path]
        variables = {"PATH": "/usr/bin:/bin", "NINEFOLD_SEED": str(self.seed), **self.config.env, **env, _MARK: self.sandbox_id}
        started = time.monotonic()
        process = subprocess.Popen(
            [*box, "--bind", str(self.folder / "tmp"), "/tmp", "/bin/sh", "-c", 'exec "$@"', "sh", *argv],
            env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        kept: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        cap, errors = self.config.output_kb << 10, list[BaseException]()

        def read(name: Stream, stream: IO[bytes]) -> None:
            while chunk := os.read(stream.fileno(), 1 << 16):
                kept[name] += chunk
                try:
                    if on_output is not None and not errors:
                        on_output(name, chunk)
                except BaseException as error:  # noqa: BLE001 - handed on to the caller
                    errors.append(error)

        def feed(stream: IO[bytes]) -> None:
            try:
                stream.write(stdin)
                stream.close()
            except OSError:
                pass

        assert process.stdin and process.stdout and process.stderr
        threads = [
            threading.Thread(target=read, args=("stdout", process.stdout), daemon=True),
            threading.Thread(target=read, args=("stderr", process.stderr), daemon=True),
            threading.Thread(target=feed, args=(process.stdin,), daemon=True),
        ]
        for thread in threads:
            thread.start()
        timed_out = False
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            self._signal(signal.SIGKILL)
            process.wait()
        for thread in threads[:2]:
            thread.join(1.0)
        if errors:
            raise errors[0]
        if self.state in ("killing", "closed"):
            raise SandboxError(f"sandbox {self.sandbox_id} died", "create another")
        code = process.returncode
        return ExecResult(
            exit_code=None
            if timed_out
            else code - 256
            if code > 128 and code != 127 and code > 192
            else 128 - code
            if code > 128
            else code,
            stdout=bytes(kept["stdout"][:cap]).decode(errors="replace"),
            stderr=bytes(kept["stderr"][:cap]).decode(errors="replace"),
            wall_s=time.monotonic() - started,
            timed_out=timed_out,
            truncated=any(len(data) > cap for data in kept.values()),
        )

    def _path(self, path: str) -> Path:
        if path.startswith("/") and path != WORKSPACE and not path.startswith(WORKSPACE + "/"):
            raise BadArgumentsError(f"{path} is outside")
        here = self.files
        for part in path.removeprefix(WORKSPACE).split("/"):
            here = here / part
            if part == ".." or here.is_symlink():
                raise BadArgumentsError(f"{path} leaves the workspace or is a link")
        return here

    def _read(self, path: str) -> bytes:
        here = self._path(path)
        if not here.is_file() or here.stat().st_size > self.config.read_mb << 20:
            raise BadArgumentsError(f"{path} is no file, or too big")
        return here.read_bytes()

    def _write(self, path: str, data: bytes) -> None:
        here = self._path(path)
        if here.is_dir() or len(data) > self.config.workspace_mb << 20:
            raise BadArgumentsError(f"{path} is a folder, or too big")
        here.parent.mkdir(parents=True, exist_ok=True)
        here.write_bytes(data)

    def _list(self, path: str) -> list[str]:
        here = self._path(path)
        if not here.is_dir():
            raise BadArgumentsError(f"{path} is no folder")
        return sorted(os.listdir(here))

    def _pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def _resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _fork(self, count: int) -> list[Sandbox | SandboxError]:
        if not self.files.exists():
            raise CaptureError("the files are gone", recoverable=False)
        config = self.config.model_copy(update={"seed": random.randrange(2**31)})
        return [FolderSandbox(config.model_copy(update={"seed": random.randrange(2**31)}), self.files) for _ in range(count)]

    def _snapshot(self, directory: Path) -> Snapshot:
        shutil.copytree(self.files, directory, symlinks=True)
        return Snapshot(self.sandbox_id, "folder", "files", directory, 1, self.config)

    def _restore(self, snapshot: Snapshot) -> None:
        shutil.rmtree(self.files)
        shutil.copytree(snapshot.path, self.files, symlinks=True)

    def _close(self) -> None:
        self._signal(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


class FolderBackend(Backend):
    name = "folder"

    def probe(self) -> str:
        return "" if shutil.which("bwrap") else "bubblewrap is not installed"

    def create(self, config: SandboxConfig = DEFAULT, snapshot: Snapshot | None = None) -> FolderSandbox:
        return FolderSandbox(config, snapshot.path if snapshot else None)

    def capabilities(self, config: SandboxConfig = DEFAULT) -> Capabilities:
        return Capabilities(backend="folder", isolation="shared-kernel", mode=config.mode, pause="cpu", fork="files", snapshot="files")
