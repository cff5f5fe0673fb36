"""One optimizer step over a batch of trajectories, blind to where advantages come from.

Shapes: B sequences of a micro-batch, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from training.batches import micro_batches, pad, sampled_logprobs
from training.model import Llama
from training.objectives import K25Config, k25

MICRO_TOKENS = 3072
"""Padded tokens of a micro-batch: its activations stay near the cache of a laptop core."""


@dataclass(frozen=True)
class Trajectory:
    """What the trainer needs of a trajectory: exact tokens, the log-probs recorded when they were sampled, and the mask."""

    tokens: Sequence[int]
    logprobs: Sequence[float]
    mask: Sequence[int]


Advantages = Callable[[list[int], Tensor, Tensor], Tensor]
"""(indices of the micro-batch, current log-probs [B, T], mask [B, T]) -> advantages [B, T]."""


def per_sequence(advantages: Sequence[float]) -> Advantages:
    """One advantage for all sampled tokens of a sequence."""

    def spread(indices: list[int], logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
        return torch.tensor([advantages[i] for i in indices])[:, None] * mask_BT

    return spread


def step(
    model: Llama,
    optimizer: torch.optim.Optimizer,
    batch: Sequence[Trajectory],
    advantages: Advantages,
    objective: K25Config,
    max_grad_norm: float,
) -> dict[str, float]:
    """Accumulate gradients over micro-batches, clip, and step.

    The loss is normalised by the sampled tokens of the whole batch. A batch whose gradient is zero takes no step (a
    momentum optimizer would move anyway); metrics say so in `skipped`.

    Returns:
        Means over sampled tokens: `loss`, `entropy`, `abs_log_ratio`, `masked_share`; `grad_norm`, `skipped`, `tokens`.
    """
    tokens = sum(sum(s.mask) for s in batch)
    optimizer.zero_grad()
    totals = {"loss": 0.0, "entropy": 0.0, "abs_log_ratio": 0.0, "masked_tokens": 0.0}
    for indices in micro_batches([len(s.tokens) for s in batch], MICRO_TOKENS):
        part = [batch[i] for i in indices]
        ids_BT = pad([s.tokens for s in part], torch.long)
        mask_BT = pad([s.mask for s in part], torch.float32)
        old_BT = pad([s.logprobs for s in part], torch.float32)
        logprobs_BT, entropy_BT = sampled_logprobs(model, ids_BT, mask_BT)
        loss, metrics = k25(logprobs_BT, old_BT, advantages(indices, logprobs_BT.detach(), mask_BT), mask_BT, tokens, objective)
        loss.backward()
        totals["loss"] += float(loss.detach())
        totals["entropy"] += float((entropy_BT * mask_BT).sum()) / max(tokens, 1)
        totals["abs_log_ratio"] += metrics["abs_log_ratio"] / max(tokens, 1)
        totals["masked_tokens"] += metrics["masked_tokens"]
    grad_norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm))
    skipped = not grad_norm > 1e-8
    if not skipped:
        optimizer.step()
    optimizer.zero_grad()
    return {
        "loss": totals["loss"],
        "entropy": totals["entropy"],
        "abs_log_ratio": totals["abs_log_ratio"],
        "masked_share": totals["masked_tokens"] / max(tokens, 1),
        "grad_norm": grad_norm,
        "skipped": float(skipped),
        "tokens": float(tokens),
    }
