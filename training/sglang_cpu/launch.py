"""Start, watch and end the server process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from environments.errors import EngineError, MissingDependencyError, PortBusyError

PYTHON_VARIABLE = "NINEFOLD_SGLANG_PYTHON"
SETUP_COMMAND = "make setup-sglang"

# Ask the kernel to end the server when its parent dies, however it dies; the request survives the exec. sglang's own
# children do the same towards the server.
_EXEC_BOUND_TO_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"


@dataclass
class SglangServer:
    """A running server: its address, its process (a group leader) and where it logs."""

    url: str
    process: subprocess.Popen[bytes]
    log_path: Path

    def kill(self, grace_s: float = 2.0) -> None:
        """End the whole process group: SIGTERM, then SIGKILL after `grace_s` seconds. Safe to call twice."""
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            try:
                self.process.wait(wait_s)
            except subprocess.TimeoutExpired:
                continue
        self.process.wait(10.0)

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the log."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:]) if self.log_path.exists() else ""


def server_python() -> Path:
    """The interpreter that has sglang.

    Raises:
        MissingDependencyError: there is none.
    """
    if chosen := os.environ.get(PYTHON_VARIABLE):
        candidates = [Path(chosen)]
    else:
        candidates = [root / ".venv-sglang" / "bin" / "python" for root in (Path(__file__).resolve().parents[2], Path.cwd())]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    raise MissingDependencyError(f"no sglang environment at {candidates[0]}", f"{SETUP_COMMAND}, or set {PYTHON_VARIABLE}")


def _claim_port(host: str, port: int | None) -> int:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port or 0))
        except OSError as error:
            raise PortBusyError(f"port {port} on {host} is taken", "choose another port, or leave it out for a free one") from error
        return int(probe.getsockname()[1])


def _arguments(python: Path, model_path: Path, host: str, port: int, max_running: int, max_total_tokens: int) -> list[str]:
    return [
        str(python),
        "-c",
        _EXEC_BOUND_TO_PARENT,
        "-P",  # the working directory must not lend its folder names to imports
        "-m",
        "sglang.launch_server",
        "--device=cpu",
        "--dtype=float32",
        f"--model-path={model_path}",
        f"--host={host}",
        f"--port={port}",
        "--weight-version=0",
        "--sampling-backend=pytorch",
        "--mem-fraction-static=0.3",
        f"--max-total-tokens={max_total_tokens}",
        f"--max-running-requests={max_running}",
        "--skip-server-warmup",
        "--sleep-on-idle",
    ]


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return kept | {
        "SGLANG_PLATFORM": "ninefold_cpu",
        "OMP_NUM_THREADS": kept.get("OMP_NUM_THREADS", "1"),
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "NO_PROXY": "127.0.0.1,localhost",
    }


@contextmanager
def launch(
    model_path: Path,
    port: int | None = None,
    *,
    log_path: Path | None = None,
    max_running: int = 32,
    max_total_tokens: int = 16_384,
    timeout_s: float = 240.0,
) -> Iterator[SglangServer]:
    """Serve a Hugging Face model directory on loopback until the block ends (16 s to ready on an idle machine).

    Args:
        model_path: directory with config, safetensors and tokenizer.
        port: a free one when None.
        log_path: a temporary file when None.
        max_running: requests in one batch.
        max_total_tokens: slots of the KV cache.
        timeout_s: how long the server may take until it is healthy.

    Raises:
        MissingDependencyError: sglang is not installed.
        PortBusyError: the port is taken.
        EngineError: the server ended or stayed unhealthy; the message holds the end of its log.
    """
    python = server_python()
    host = "127.0.0.1"
    port = _claim_port(host, port)
    with tempfile.TemporaryDirectory(prefix="ninefold-sglang-") as scratch:
        log_path = log_path or Path(scratch) / "server.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                _arguments(python, model_path, host, port, max_running, max_total_tokens),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
        server = SglangServer(f"http://{host}:{port}", process, log_path)
        try:
            _wait_until_healthy(server, timeout_s)
            yield server
        finally:
            server.kill()


def _wait_until_healthy(server: SglangServer, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if (code := server.process.poll()) is not None:
            raise EngineError(f"the sglang server ended with code {code} before it was ready:\n{server.log_tail()}", SETUP_COMMAND)
        try:
            # The health check generates a token, so a good answer means that the model really runs.
            if httpx.get(f"{server.url}/health", timeout=20.0, trust_env=False).status_code == httpx.codes.OK:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.25)
    raise EngineError(f"the sglang server was not ready after {timeout_s:g} s:\n{server.log_tail()}", "raise timeout_s, or look at its log")
