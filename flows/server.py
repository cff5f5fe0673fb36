"""A Prefect server of our own on loopback, for as long as a run or `ninefold serve` lasts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx

from environments.errors import InfrastructureError, PortBusyError
from flows.steps.supervise import die_with_parent, stop_group
from flows.workspace import Workspace, write_json

HOST = "127.0.0.1"
START_TIMEOUT_S = 240.0
"""A first start writes the database: 12 s on two idle cores, 45 s on busy ones."""
STOP_GRACE_S = 8.0
FLUSH_TIMEOUT_S = 5.0

QUIET = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_CLI_PROMPT": "false",
}
"""Nothing leaves the machine."""


def prefect_env(home: Path, url: str | None = None) -> dict[str, str]:
    """Environment of every process that speaks Prefect: quiet, with its home in the workspace."""
    env = {**QUIET, "PREFECT_HOME": str(home), "PREFECT_LOCAL_STORAGE_PATH": str(home / "storage")}
    if url is not None:
        env["PREFECT_API_URL"] = url
    return env


def free_port(host: str = HOST) -> int:
    """A port nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def check_port(port: int, host: str = HOST) -> None:
    """Raise PortBusyError when something listens there, or when the port may not be bound."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise PortBusyError(
                f"port {port} on {host} cannot be used ({error})", f"choose another one: --port {free_port(host)}"
            ) from error


def healthy(url: str, timeout_s: float = 2.0) -> bool:
    """True when a Prefect API answers at `url` (which ends in /api)."""
    try:
        return httpx.get(f"{url}/health", timeout=timeout_s, trust_env=False).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False


@contextlib.contextmanager
def prefect_server(workspace: Workspace, port: int | None = None, shared: bool = False) -> Iterator[str]:
    """Start a server; yields the API's URL and stops the server at the end, whatever ends the block.

    Args:
        shared: let later commands on the workspace find and use it.

    Raises:
        PortBusyError: `port` is taken.
        InfrastructureError: the server ended or did not answer in time; its last lines are in the message.
    """
    if port is not None:
        check_port(port)
    chosen = port or free_port()
    home = workspace.prefect_home
    home.mkdir(parents=True, exist_ok=True)
    log_file = home / "server.log"
    url = f"http://{HOST}:{chosen}/api"
    env = {**os.environ, **prefect_env(home, url), "PREFECT_UI_API_URL": url, "PREFECT_SERVER_LOGGING_LEVEL": "WARNING"}
    argv = [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(chosen)]
    with log_file.open("ab") as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True, preexec_fn=die_with_parent
        )
    state = home / "server.json"
    try:
        _await(process, url, log_file)
        if shared:
            write_json(state, {"url": url, "pid": process.pid})
        yield url
    finally:
        if shared:
            state.unlink(missing_ok=True)
        stop_group(process, STOP_GRACE_S)


def running_server(workspace: Workspace) -> str | None:
    """URL of a server that runs on this workspace already (`ninefold serve`), if it answers."""
    try:
        url = str(json.loads((workspace.prefect_home / "server.json").read_text())["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return url if re.fullmatch(r"http://[\w.:-]+/api", url) and healthy(url) else None


@contextlib.contextmanager
def api(workspace: Workspace, env: Mapping[str, str] | None = None) -> Iterator[str]:
    """The Prefect API a command uses: `PREFECT_API_URL` when set, else the workspace's running server, else one of our own.

    Sets the process's environment; import Prefect only inside the block.
    """
    given = (env if env is not None else os.environ).get("PREFECT_API_URL") or running_server(workspace)
    with contextlib.ExitStack() as stack:
        url = given or stack.enter_context(prefect_server(workspace))
        home = os.environ.get("PREFECT_HOME") if given and "PREFECT_HOME" in os.environ else str(workspace.prefect_home)
        if given and not healthy(given, timeout_s=10.0):
            raise InfrastructureError(
                f"no Prefect API answers at PREFECT_API_URL={given}", "start that server, or unset PREFECT_API_URL to use one of our own"
            )
        os.environ.update(prefect_env(Path(home or workspace.prefect_home), url))
        try:
            yield url
        finally:
            _flush()


def _flush() -> None:
    """Send what Prefect still holds in this process before its server goes."""
    if "prefect" not in sys.modules:
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        with contextlib.suppress(Exception):
            worker.drain_all(timeout=FLUSH_TIMEOUT_S)


def _await(process: subprocess.Popen[bytes], url: str, log_file: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        if healthy(url):
            return
        time.sleep(0.25)
    words = log_file.read_text(errors="replace")[-800:].strip()
    raise InfrastructureError(
        f"the Prefect server did not start on {url}: {words or 'no output'}", f"see {log_file}; `ninefold doctor` checks the installation"
    )


def terminate_on_sigterm() -> None:
    """Turn SIGTERM into SystemExit, so that `finally` blocks stop what we started."""
    signal.signal(signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum))
