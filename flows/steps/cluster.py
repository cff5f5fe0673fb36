"""The Dask cluster that CPU shards run on: one of our own on this machine, or one at a configured address."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

from environments.errors import InfrastructureError
from flows.config import OrchestrationSection

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 20.0
_ADDRESS: ContextVar[str | None] = ContextVar("ninefold_dask_address", default=None)


@contextlib.contextmanager
def dask_cluster(config: OrchestrationSection, scratch: Path) -> Iterator[str]:
    """Address of a scheduler for the length of the block. A block within a block shares the outer one's cluster.

    Worker processes have one thread each: the domain code is Python, and its sandboxes count processes.

    Raises:
        InfrastructureError: no scheduler answers at the configured address, or the local one does not come up.
    """
    if (address := _ADDRESS.get()) is not None:
        yield address
        return
    with contextlib.ExitStack() as stack:
        address = config.dask_address or stack.enter_context(_local(config.dask_workers, scratch))
        if config.dask_address:
            _check(address)
        token = _ADDRESS.set(address)
        try:
            yield address
        finally:
            _ADDRESS.reset(token)


@contextlib.contextmanager
def _local(workers: int, scratch: Path) -> Iterator[str]:
    import dask
    from distributed import LocalCluster

    for name in ("distributed", "distributed.worker", "distributed.nanny", "distributed.scheduler", "distributed.core"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    settings = {
        "distributed.scheduler.allowed-failures": 3,
        "distributed.worker.memory.terminate": False,
        "distributed.nanny.pre-spawn-environ.OMP_NUM_THREADS": 1,
        "distributed.logging.distributed": "critical",
        # Child processes of a worker (sandboxes' fork servers) are reaped by their own supervisors.
        "distributed.worker.daemon": False,
    }
    with dask.config.set(settings):
        try:
            cluster = LocalCluster(  # type: ignore[no-untyped-call]
                n_workers=workers,
                threads_per_worker=1,
                processes=True,
                host="127.0.0.1",
                dashboard_address=None,
                local_directory=str(scratch),
                silence_logs=logging.CRITICAL,
            )
        except (OSError, TimeoutError, RuntimeError) as error:
            raise InfrastructureError(
                f"the local Dask cluster did not start: {error}", "lower orchestration.dask_workers, or free memory and ports"
            ) from error
        try:
            yield str(cluster.scheduler_address)
        finally:
            cluster.close(timeout=10)


def _check(address: str) -> None:
    from distributed import Client

    try:
        Client(address, timeout=CONNECT_TIMEOUT_S, set_as_default=False).close()  # type: ignore[no-untyped-call]
    except (OSError, TimeoutError, ValueError) as error:
        fix = "start it (`dask scheduler`), correct orchestration.dask_address, or remove that key to use this machine"
        raise InfrastructureError(f"no Dask scheduler answers at {address}", fix) from error
