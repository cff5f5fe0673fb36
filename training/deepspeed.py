"""Data-parallel training under DeepSpeed ZeRO, started from plain Python.

`run_data_parallel` starts the ranks itself (no launcher), so that a training process or a Prefect task can use it. Each
rank calls the worker with a `DataParallelContext`, whose `wrap` puts a model and its optimizer under ZeRO:

- stage 0: every rank holds everything and gradients are averaged;
- stage 2: optimizer state and gradients are sharded over the ranks;
- stage 3: the parameters too.

Gradients are averaged over ranks. With equal shares of a batch and a loss that is a mean over its share, a step equals the
single-process step on the whole batch, up to the order of floating-point sums.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import ProcessExitedException, ProcessRaisedException, spawn

from environments.errors import ConfigError, InfrastructureError

ZeroStage = Literal[0, 2, 3]

_FAILURE = "first-failure.txt"
"""Beside the result: what the first failing rank has to say. Which rank the parent sees fail first is a matter of chance."""


@dataclass(frozen=True)
class DataParallelSettings:
    """How the ranks work together."""

    stage: ZeroStage = 2
    gradient_clipping: float = 0.0
    """Largest norm of the averaged gradient; 0 leaves it alone."""
    accumulation_steps: int = 1
    """Calls of `loss_backward_step` per optimizer step."""
    bf16: bool = False
    backend: Literal["gloo", "nccl"] = "gloo"
    timeout_s: float = 600.0
    """A rank that waits longer than this for the others fails."""


class DataParallelEngine:
    """A model under ZeRO on one rank. Call it like the model."""

    def __init__(self, engine: Any, stage: ZeroStage, rank: int) -> None:
        self._engine = engine
        self._stage = stage
        self._rank = rank

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward."""
        return self._engine(*args, **kwargs)

    @property
    def module(self) -> nn.Module:
        """The model itself; under stage 3 its parameters are empty outside a forward."""
        return self._engine.module

    def loss_backward_step(self, loss: Tensor) -> float:
        """Backward, and the optimizer step when enough micro-batches have accumulated; the loss averaged over the ranks."""
        self._engine.backward(loss)
        self._engine.step()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        return float(mean) / torch.distributed.get_world_size()

    def gradient_norm(self) -> float:
        """Norm of the averaged gradient of the last step, before clipping."""
        return float(self._engine.get_global_grad_norm() or 0.0)

    def state_dict(self) -> dict[str, Tensor]:
        """All weights on the CPU, on rank 0; empty on the others. Every rank must call it (stage 3 gathers)."""
        if self._stage < 3:
            return _copied(self.module.state_dict()) if self._rank == 0 else {}
        import deepspeed

        with deepspeed.zero.GatheredParameters(list(self.module.parameters()), modifier_rank=None):
            return _copied(self.module.state_dict()) if self._rank == 0 else {}

    def save_pretrained(self, directory: Path) -> None:
        """Write config and safetensors of a Hugging Face model from rank 0. Every rank must call it.

        Raises:
            ConfigError: the model has no `save_pretrained`.
        """
        save = getattr(self.module, "save_pretrained", None)
        if save is None:
            raise ConfigError(f"{type(self.module).__name__} is no Hugging Face model", "save `state_dict()` yourself")
        # transformers empties the mapping that it is given, so it gets one of its own.
        state = self.state_dict()
        if self._rank == 0:
            save(directory, state_dict=state)
        torch.distributed.barrier()


@dataclass(frozen=True)
class DataParallelContext:
    """What a worker knows about its place."""

    rank: int
    world: int
    settings: DataParallelSettings
    _result_path: str

    def share(self, batch: Tensor) -> Tensor:
        """This rank's equal share of a batch, cut along the first dimension.

        Raises:
            ConfigError: the batch does not divide evenly, so that means over shares would not average to the whole's mean.
        """
        if batch.shape[0] % self.world:
            raise ConfigError(f"a batch of {batch.shape[0]} does not divide over {self.world} ranks", f"use a multiple of {self.world}")
        return batch.chunk(self.world)[self.rank]

    def wrap(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> DataParallelEngine:
        """Put `model` and `optimizer` under ZeRO. The weights of rank 0 are the ones everybody starts with."""
        import deepspeed

        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": 1,  # only a label for its own counters: the worker makes the batches
            "gradient_accumulation_steps": self.settings.accumulation_steps,
            "gradient_clipping": self.settings.gradient_clipping,
            "zero_optimization": {"stage": self.settings.stage},
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": self.settings.bf16},
            "steps_per_print": 10**9,
        }
        engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
        return DataParallelEngine(engine, self.settings.stage, self.rank)

    def report(self, result: Any) -> None:
        """Hand a picklable result to the caller of `run_data_parallel`; rank 0's last one counts."""
        if self.rank == 0:
            Path(self._result_path).write_bytes(pickle.dumps(result))


def run_data_parallel(
    worker: Callable[[DataParallelContext], None], world: int, settings: DataParallelSettings = DataParallelSettings()
) -> Any:
    """Run `worker` on `world` ranks, each a fresh process, and wait for all of them (10 s go into imports).

    Args:
        worker: importable or picklable (``functools.partial`` over a module-level function carries arguments).
        world: number of ranks.
        settings: see `DataParallelSettings`.

    Returns:
        What rank 0 gave to `DataParallelContext.report`, else None.

    Raises:
        ConfigError: `world` below 1.
        InfrastructureError: a rank failed; the message holds its traceback. The other ranks are ended.
    """
    if world < 1:
        raise ConfigError(f"data-parallel training needs at least one rank, got {world}", "set world to 1 or more")
    with tempfile.TemporaryDirectory(prefix="ninefold-ranks-") as scratch:
        result = Path(scratch) / "result.pickle"
        try:
            spawn(_rank_main, (worker, world, _free_port(), settings, str(result)), nprocs=world, join=True)
        except (ProcessRaisedException, ProcessExitedException) as error:
            first = result.with_name(_FAILURE)
            text = first.read_text() if first.exists() else f"rank {error.error_index} of {world} failed:\n{error}"
            raise InfrastructureError(text, "see the rank's traceback") from error
        return pickle.loads(result.read_bytes()) if result.exists() else None


def _rank_main(
    rank: int, worker: Callable[[DataParallelContext], None], world: int, port: int, settings: DataParallelSettings, result_path: str
) -> None:
    _prepare_environment(rank, world, port, settings.backend)
    import datetime

    import deepspeed

    # Its shared-memory all-reduce is compiled on first use with a compiler that may not be there; gloo does the same work.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    deepspeed.init_distributed(settings.backend, timeout=datetime.timedelta(seconds=settings.timeout_s), verbose=False)
    try:
        worker(DataParallelContext(rank, world, settings, result_path))
        torch.distributed.barrier()
    except BaseException:
        # Written before this rank's connections close, so the ranks that fail for that reason come later and write nothing.
        with contextlib.suppress(FileExistsError), Path(result_path).with_name(_FAILURE).open("x") as file:
            file.write(f"rank {rank} of {world} failed:\n{traceback.format_exc()}")
        raise
    finally:
        torch.distributed.destroy_process_group()


def _prepare_environment(rank: int, world: int, port: int, backend: str) -> None:
    """What a launcher would set. DeepSpeed reads its part at import time, so this comes first."""
    values: Mapping[str, str] = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    os.environ.update(values)
    if backend == "gloo":
        os.environ["DS_ACCELERATOR"] = "cpu"
    defaults = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "DS_LOG_LEVEL": "warning", "GLOO_SOCKET_IFNAME": "lo"}
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
