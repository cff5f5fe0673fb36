"""`ninefold serve`: Prefect's server, two work pools, their workers and our deployments, on loopback, with one command."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from environments.errors import ConfigError, InfrastructureError
from flows.server import STOP_GRACE_S, prefect_env, prefect_server, terminate_on_sigterm
from flows.steps.supervise import die_with_parent, stop_group
from flows.workspace import Workspace

log = logging.getLogger(__name__)

CHECKOUT = Path(__file__).resolve().parent.parent
COMMAND_TIMEOUT_S = 180.0
POLL_S = 0.5


@dataclass(frozen=True)
class Pool:
    """A work pool; `limit` is how many of its flow runs go at the same time."""

    name: str
    limit: int


POOLS = (Pool("cpu", 2), Pool("gpu", 1))
"""Two data flows fit beside each other; training has the machine's accelerator (or its cores) to itself."""


def plan_lines(port: int) -> list[str]:
    """What `serve` would start, for a dry run. Raises ConfigError without prefect.yaml."""
    return [
        f"would start a Prefect server on http://127.0.0.1:{port}",
        *(f"would create work pool {pool.name} (at most {pool.limit} runs at a time) and start a worker for it" for pool in POOLS),
        f"would deploy {deployment_file()}",
    ]


def deployment_file() -> Path:
    """The checkout's prefect.yaml. Raises ConfigError when the package is installed without one."""
    path = CHECKOUT / "prefect.yaml"
    if not path.is_file():
        raise ConfigError(f"{path} does not exist", "run `ninefold serve` from an installation of the checkout (pip install -e .)")
    return path


@contextlib.contextmanager
def service(port: int, workspace: Workspace | None = None, announce: Callable[[str], None] = log.info) -> Iterator[str]:
    """Everything `serve` starts, for the length of the block; yields the UI's address.

    Raises:
        PortBusyError: the port is taken.
        InfrastructureError: server, pool, deployment or worker did not come up.
    """
    workspace = workspace or Workspace()
    deployment_file()
    with contextlib.ExitStack() as stack:
        url = stack.enter_context(prefect_server(workspace, port, shared=True))
        ui = url.removesuffix("/api")
        env = {
            **os.environ,
            **prefect_env(workspace.prefect_home, url),
            "NINEFOLD_HOME": str(workspace.root),
            "NINEFOLD_CHECKOUT": str(CHECKOUT),
            "PREFECT_WORKER_QUERY_SECONDS": "3",
            "PREFECT_LOGGING_EXTRA_LOGGERS": "flows,kg,tasks,environments",
        }
        announce(f"server: {ui}")
        for pool in POOLS:
            _create_pool(pool, url)
        workers = [stack.enter_context(_worker(pool, env, workspace)) for pool in POOLS]
        _prefect(["deploy", "--all", "--prefect-file", str(deployment_file())], env)
        stopped = threading.Event()
        stack.callback(stopped.set)
        threading.Thread(target=_watch, args=(workers, stopped), daemon=True).start()
        announce(f"pools and workers: {', '.join(pool.name for pool in POOLS)}")
        yield ui


def serve_forever(port: int, announce: Callable[[str], None]) -> None:
    """Serve until Ctrl-C or SIGTERM, then stop everything. Raises as `service`."""
    terminate_on_sigterm()
    interrupted = threading.Event()  # a KeyboardInterrupt alone is lost when it hits a callback or a finalizer

    def interrupt(_signum: int, _frame: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    with service(port, announce=announce) as ui:
        announce(f"UI: {ui}/dashboard  (Ctrl-C stops everything)")
        interrupted.wait()
        raise KeyboardInterrupt


def _create_pool(pool: Pool, url: str) -> None:
    """Create or update a process pool. By HTTP, since each `prefect` command costs seconds of imports."""
    limit = {"concurrency_limit": pool.limit}
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as client:
        answer = client.post("/work_pools/", json={"name": pool.name, "type": "process", **limit})
        if answer.status_code == httpx.codes.CONFLICT:  # it is there from an earlier start
            answer = client.patch(f"/work_pools/{pool.name}", json=limit)
        if answer.is_error:
            raise InfrastructureError(f"work pool {pool.name} was not created: {answer.text[:300]}", "see data/prefect/server.log")


def _prefect(arguments: list[str], env: dict[str, str]) -> None:
    """One Prefect command, to its end. Raises InfrastructureError with its last lines."""
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
        cwd=CHECKOUT,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        raise InfrastructureError(
            f"`prefect {' '.join(arguments)}` failed: {(done.stdout + done.stderr)[-800:].strip()}",
            "see the server's log in data/prefect/server.log",
        )


@contextlib.contextmanager
def _worker(pool: Pool, env: dict[str, str], workspace: Workspace) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "prefect", "worker", "start", "--pool", pool.name, "--name", f"{pool.name}-worker"]
    with (workspace.prefect_home / f"worker-{pool.name}.log").open("ab") as output:
        process = subprocess.Popen(
            argv,
            cwd=CHECKOUT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
    try:
        yield process
    finally:
        stop_group(process, STOP_GRACE_S)


def _watch(workers: list[subprocess.Popen[bytes]], stopped: threading.Event) -> None:
    """Say so when a worker ends by itself: its runs would wait for ever."""
    while not stopped.wait(POLL_S):
        for worker in workers:
            if worker.poll() is not None:
                log.error("a worker ended with code %s; its pool's runs wait until `ninefold serve` is started again", worker.returncode)
                return
