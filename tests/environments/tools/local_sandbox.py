"""A sandbox that isolates nothing: a folder, real processes, a real interpreter. For tests of what is built on the contract.

`/workspace`, `/tmp/.` and served ports in commands and code stand for folders and ports of its own.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from environments.errors import BadArgumentsError, SandboxError
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
)

_INTERPRETER = """
import ast, base64, contextlib, io, json, sys, traceback
space, images = {"__name__": "__main__"}, []
def show(value):
    if hasattr(value, "_repr_png_") and value._repr_png_() is not None:
        images.append(value._repr_png_())
    print(repr(value))
for line in sys.stdin:
    out, error = io.StringIO(), ""
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            tree = ast.parse(json.loads(line))
            last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
            exec(compile(tree, "<cell>", "exec"), space)
            if last is not None:
                value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), space)
                if value is not None:
                    show(value)
        except BaseException:
            error = traceback.format_exc()
    answer = {"stdout": out.getvalue(), "error": error, "images": [base64.b64encode(i).decode() for i in images]}
    images.clear()
    print(json.dumps(answer), file=sys.__stdout__, flush=True)
"""


class LocalSandbox(Sandbox):
    """`dead` makes every operation fail as a broken machine does."""

    def __init__(self, config: SandboxConfig = DEFAULT) -> None:
        super().__init__(config)
        self.root = Path(tempfile.mkdtemp(prefix="local-sandbox-"))
        for name in ("workspace", "tmp"):
            (self.root / name).mkdir()
        self.dead = False
        self._ports: dict[int, int] = {}
        self._interpreter: subprocess.Popen[str] | None = None
        self._started()

    def capabilities(self) -> Capabilities:
        return Capabilities(backend="local", isolation="none", isolated_network=False, services=True)

    def _inside(self, text: str) -> str:
        for port, real in self._ports.items():
            text = text.replace(str(port), str(real))
        return text.replace("/workspace", f"{self.root}/workspace").replace("/tmp/.", f"{self.root}/tmp/.")

    def _outside(self, text: str) -> str:
        return text.replace(f"{self.root}/workspace", "/workspace").replace(f"{self.root}/tmp", "/tmp")

    def _variables(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.root), "TMPDIR": str(self.root / "tmp"), "LOCAL_SANDBOX": str(self.root)}

    def _processes(self) -> list[int]:
        """Whatever it started that still runs, in whatever session."""
        mark = f"LOCAL_SANDBOX={self.root}".encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in entry.read_bytes().split(b"\0"):
                    found.append(int(entry.parent.name))
        return found

    def _living(self) -> None:
        if self.dead:
            raise SandboxError(f"sandbox {self.sandbox_id} died", "create another")

    def _path(self, path: str) -> Path:
        if ".." in path.split("/") or (path.startswith("/") and not (path + "/").startswith("/workspace/")):
            raise BadArgumentsError(f"{path} is outside /workspace", "use a path in /workspace")
        return self.root / "workspace" / path.removeprefix("/workspace").lstrip("/")

    def _exec(self, argv: Sequence[str], stdin: bytes, timeout_s: float, env: Mapping[str, str], on_output: OnOutput | None) -> ExecResult:
        self._living()
        process = subprocess.Popen(
            [self._inside(word) for word in argv],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self.root / "workspace",
            env=self._variables() | env,
            start_new_session=True,
        )
        timed_out = False
        try:
            out, err = process.communicate(stdin, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        return ExecResult(
            None if timed_out else process.returncode, self._outside(out.decode()), self._outside(err.decode()), 0.0, timed_out
        )

    def _python(self, code: str, timeout_s: float) -> PythonResult:
        self._living()
        if self._interpreter is None or self._interpreter.poll() is not None:
            self._interpreter = subprocess.Popen(
                [sys.executable, "-u", "-c", _INTERPRETER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=self.root / "workspace",
                env=self._variables(),
                start_new_session=True,
            )
        process = self._interpreter
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(self._inside(code)) + "\n")
        process.stdin.flush()
        deadline = time.monotonic() + timeout_s
        if not select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]:
            process.kill()
            process.wait()
            return PythonResult("", timed_out=True)
        line = process.stdout.readline()
        if not line:
            process.wait()
            return PythonResult("", error="the interpreter ended")
        answer = json.loads(line)
        return PythonResult(answer["stdout"], self._outside(answer["error"]), tuple(base64.b64decode(i) for i in answer["images"]))

    def _read(self, path: str) -> bytes:
        self._living()
        try:
            return self._path(path).read_bytes()
        except OSError as error:
            raise BadArgumentsError(f"{path}: {error.strerror}", "use a path in /workspace") from error

    def _write(self, path: str, data: bytes) -> None:
        self._living()
        where = self._path(path)
        try:
            where.parent.mkdir(parents=True, exist_ok=True)
            where.write_bytes(data)
        except OSError as error:
            raise BadArgumentsError(f"{path}: {error.strerror}", "use a path in /workspace") from error

    def _list(self, path: str) -> list[str]:
        self._living()
        try:
            return sorted(os.listdir(self._path(path)))
        except OSError as error:
            raise BadArgumentsError(f"{path}: {error.strerror}", "use a path in /workspace") from error

    def _serve(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", 0))
        self._ports[port] = listener.getsockname()[1]
        return listener

    def _close(self) -> None:
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._interpreter is not None:
            self._interpreter.wait()
            for stream in (self._interpreter.stdin, self._interpreter.stdout):
                assert stream is not None
                stream.close()
        shutil.rmtree(self.root, ignore_errors=True)


class LocalBackend(Backend):
    """Remembers what it made."""

    name = "local"

    def __init__(self) -> None:
        self.made: list[LocalSandbox] = []

    def probe(self) -> str:
        return ""

    def create(self, config: SandboxConfig = DEFAULT, snapshot: Snapshot | None = None) -> LocalSandbox:
        self.made.append(LocalSandbox(config))
        return self.made[-1]

    def capabilities(self, config: SandboxConfig = DEFAULT) -> Capabilities:
        return Capabilities(backend="local", isolation="none", isolated_network=False, services=True)
