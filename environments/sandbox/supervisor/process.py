"""A supervisor in a process of its own, started by whoever owns the run."""

from __future__ import annotations

import base64
import json
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from environments.errors import SandboxError
from environments.sandbox.base import Backend
from environments.sandbox.supervisor.admission import SupervisorLimits
from environments.sandbox.supervisor.client import SupervisorBackend
from environments.sandbox.supervisor.server import Supervisor

_START_S = 60.0
_STOP_S = 60.0


@dataclass
class SupervisorProcess:
    """A started supervisor. It stops on `stop`, and when the process that started it ends in whatever way."""

    address: Path
    process: subprocess.Popen[bytes]

    def backend(self) -> SupervisorBackend:
        """Its sandboxes."""
        return SupervisorBackend(self.address)

    def stop(self) -> None:
        """Close every sandbox and end the process. May be called again."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def start_supervisor(root: Path, backend: Backend, limits: SupervisorLimits | None = None) -> SupervisorProcess:
    """Start a supervisor of `backend` on `root` and wait until it listens.

    Raises:
        SandboxError: it did not come up; the message says why.
    """
    state = {
        "root": str(Path(root).absolute()),
        "backend": base64.b64encode(pickle.dumps(backend)).decode(),
        "limits": (limits or SupervisorLimits()).model_dump(),
    }
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "environments.sandbox.supervisor"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        start_new_session=True,  # a Ctrl-C in the terminal is for its clients, which release what they hold
    )
    assert process.stdin is not None
    assert process.stdout is not None
    started = SupervisorProcess(Path(root).absolute() / "supervisor.sock", process)
    poller = select.poll()
    poller.register(process.stdout, select.POLLIN)
    try:
        process.stdin.write(json.dumps(state).encode() + b"\n")
        process.stdin.flush()
        said = process.stdout.readline().decode().strip() if poller.poll(int(_START_S * 1000)) else f"no answer within {_START_S:g} s"
    except OSError as error:
        said = str(error)
    if said != "ready":
        process.kill()
        started.stop()
        raise SandboxError(f"the supervisor did not come up: {said or 'it ended'}", "see what it wrote on standard error")
    return started


def main() -> None:
    """Serve until standard input ends, which it does with the process that started this one, or SIGTERM comes."""
    line = sys.stdin.buffer.readline()
    state = json.loads(line)
    said = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a backend prints is no answer
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a few for every sandbox and every client
    try:
        # From the process that started us, over a pipe that nobody else has.
        backend = pickle.loads(base64.b64decode(state["backend"]))
        supervisor = Supervisor(Path(state["root"]), backend, SupervisorLimits(**state["limits"]), own_process=True).start()
    except Exception as error:  # the starter raises it
        said.write(f"{type(error).__name__}: {error}\n".replace("\n", " ") + "\n")
        said.flush()
        raise SystemExit(1) from error
    tempfile.tempdir = os.environ["TMPDIR"] = str(supervisor.instance / "tmp")
    over = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: over.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    said.write("ready\n")
    said.flush()

    def watch() -> None:
        while os.read(0, 4096):
            pass
        over.set()

    threading.Thread(target=watch, daemon=True).start()
    over.wait()
    supervisor.stop()
