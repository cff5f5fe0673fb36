"""Padded batches of token sequences and their log-probs under a model.

Shapes: B sequences, T tokens, D width, V vocabulary, N selected tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ninefold_kernels.logprob import selected_logprob
from training.model import Llama


def pad(sequences: Sequence[Sequence[float]], dtype: torch.dtype, width: int | None = None) -> Tensor:
    """Right-pad with zeros to [B, T]."""
    width = width or max(len(s) for s in sequences)
    out = torch.zeros(len(sequences), width, dtype=dtype)
    for i, s in enumerate(sequences):
        out[i, : len(s)] = torch.tensor(s, dtype=dtype)
    return out


def micro_batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Indices grouped by similar length, each group at most `max_tokens` padded tokens (a longer one stands alone)."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[index] > max_tokens:
            yield group
            group = []
        group.append(index)
    if group:
        yield group


def sampled_logprobs(model: Llama, ids_BT: Tensor, mask_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Log-prob and entropy of every masked token given those before it, each [B, T]; zero elsewhere.

    Only masked positions go through the head, in chunks.
    """
    hidden_BTD = model.hidden(ids_BT)[:, :-1]
    chosen_BT = mask_BT[:, 1:] > 0
    logprob_N, entropy_N = selected_logprob(hidden_BTD[chosen_BT], model.head, ids_BT[:, 1:][chosen_BT])
    zeros_BT = torch.zeros(ids_BT.shape[0], ids_BT.shape[1] - 1)
    logprobs_BT = zeros_BT.masked_scatter(chosen_BT, logprob_N)
    entropy_BT = zeros_BT.masked_scatter(chosen_BT, entropy_N.detach())
    first = torch.zeros(ids_BT.shape[0], 1)
    return torch.cat([first, logprobs_BT], 1), torch.cat([first, entropy_BT], 1)
