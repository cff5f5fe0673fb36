"""Cold start: one recipe for all domains, supervised on verified demonstrations.

Also counted, at a small weight, are the tokens of prompts and tool results: names that recur there teach a policy that
starts from nothing to copy, long before the demonstrations alone would.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from training.batches import pad
from training.config import SftConfig
from training.deepspeed import DataParallelContext, DataParallelSettings, run_data_parallel
from training.model import Llama
from training.optim import MuonAdamW, warmup_decay

Example = tuple[list[int], list[int]]
"""Tokens and loss mask: 1 imitated, 0 context."""

SORT_WINDOW = 512
"""Examples sorted by length together: large enough to pad little, small enough to mix domains."""


@dataclass(frozen=True)
class Progress:
    """What a step reports."""

    step: int
    tokens: int
    loss: float
    seconds: float


def batches(examples: Sequence[Example], batch_tokens: int, seed: int, rank: int = 0, world: int = 1) -> Iterator[list[Example]]:
    """Endless batches of at most `batch_tokens` padded tokens, shuffled anew each epoch; ranks take turns."""
    rng = random.Random(seed)
    count = 0
    while True:
        order = list(range(len(examples)))
        rng.shuffle(order)
        for begin in range(0, len(order), SORT_WINDOW):
            window = sorted(order[begin : begin + SORT_WINDOW], key=lambda i: len(examples[i][0]))
            groups: list[list[int]] = [[]]
            for i in window:
                if groups[-1] and (len(groups[-1]) + 1) * len(examples[i][0]) > batch_tokens:
                    groups.append([])
                groups[-1].append(i)
            rng.shuffle(groups)
            for group in groups:
                if count % world == rank:
                    yield [examples[i] for i in group]
                count += 1


def loss_of(model: Llama, batch: Sequence[Example], context_weight: float) -> tuple[Tensor, float]:
    """Mean cross-entropy of demonstrated tokens plus `context_weight` times that of the context's; and the first part alone."""
    ids_BT = pad([tokens for tokens, _ in batch], torch.long)
    kind_BT = pad([[m + 1 for m in mask] for _, mask in batch], torch.long)[:, 1:]  # 0 padding, 1 context, 2 imitated
    hidden_BTD = model.hidden(ids_BT)[:, :-1]
    targets_BT = ids_BT[:, 1:]

    def mean(kind: int) -> Tensor:
        chosen_BT = kind_BT == kind
        return F.cross_entropy(hidden_BTD[chosen_BT] @ model.head.T, targets_BT[chosen_BT])

    demonstrated = mean(2)
    loss = demonstrated + context_weight * mean(1) if context_weight else demonstrated
    return loss, float(demonstrated.detach())


class LossModule(torch.nn.Module):
    """The loss as a forward pass, so that a data-parallel engine can wrap it."""

    def __init__(self, model: Llama, context_weight: float) -> None:
        super().__init__()
        self.llama = model
        self.context_weight = context_weight

    def forward(self, batch: Sequence[Example]) -> tuple[Tensor, float]:
        return loss_of(self.llama, batch, self.context_weight)


def steps_of(config: SftConfig) -> int:
    """Optimizer steps that the token budget allows."""
    return max(1, config.tokens // config.batch_tokens)


def train(model: Llama, examples: Sequence[Example], config: SftConfig, seed: int, report: Callable[[Progress], None]) -> None:
    """Train in this process, in place."""
    optimizer = MuonAdamW(model, config.matrix_lr, config.other_lr)
    module, total, started, seen = LossModule(model, config.context_weight), steps_of(config), time.monotonic(), 0
    for step, batch in zip(range(total), batches(examples, config.batch_tokens, seed), strict=False):
        optimizer.scale(warmup_decay(step, total, config.warmup_steps))
        loss, demonstrated = module(batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seen += len(batch) * max(len(tokens) for tokens, _ in batch)
        report(Progress(step, seen, demonstrated, time.monotonic() - started))


def _rank(
    context: DataParallelContext, start: str, examples_path: str, config: SftConfig, seed: int, metrics_path: str, total: int
) -> None:
    """One rank of `train_data_parallel`; rank 0 writes metrics and hands the weights back."""
    from training.metrics import Metrics

    model = Llama.load(Path(start))
    examples: list[Example] = torch.load(examples_path, weights_only=True)
    optimizer = MuonAdamW(model, config.matrix_lr, config.other_lr)
    engine = context.wrap(LossModule(model, config.context_weight), optimizer)
    metrics = Metrics(Path(metrics_path), total) if context.rank == 0 else None
    share = config.batch_tokens // context.world
    started, seen = time.monotonic(), 0
    for step, batch in zip(range(total), batches(examples, share, seed, context.rank, context.world), strict=False):
        optimizer.scale(warmup_decay(step, total, config.warmup_steps))
        loss, demonstrated = engine(batch)
        engine.loss_backward_step(loss)
        seen += context.world * len(batch) * max(len(tokens) for tokens, _ in batch)
        if metrics is not None and step % 5 == 0:
            metrics.write(step, loss=demonstrated, tokens=seen, seconds=time.monotonic() - started)
    state = engine.state_dict()
    context.report({k.removeprefix("llama."): v for k, v in state.items()})


def train_data_parallel(model: Llama, examples: Sequence[Example], config: SftConfig, seed: int, scratch: Path) -> None:
    """Train on `config.workers` DeepSpeed ranks (gloo, stage 0: Muon needs whole matrices), then load the result in place.

    Ranks take turns with batches of similar size; their gradients are averaged, so a step weighs ranks, not tokens, equally.
    """
    examples_path = scratch / "examples.pt"
    torch.save([(list(tokens), list(mask)) for tokens, mask in examples], examples_path)
    start = scratch / "start"
    model.save(start)
    worker = partial(
        _rank,
        start=str(start),
        examples_path=str(examples_path),
        config=config,
        seed=seed,
        metrics_path=str(scratch),
        total=steps_of(config),
    )
    model.load_state_dict(run_data_parallel(worker, config.workers, DataParallelSettings(stage=0, gradient_clipping=1.0)))
    examples_path.unlink()
