"""Plain PyTorch oracles: the definitions, as short as they can be. Fast variants are tested against these.

Shape suffixes: T tokens, D width of the hidden states, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor


def selected_logprob_reference(hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probability of the selected tokens and entropy of the whole distribution, both in nats.

    Materialises the full ``[T, V]`` logits and computes in the inputs' own precision.

    Args:
        hidden_TD: last hidden states.
        weight_VD: the output head's weight (no bias).
        targets_T: selected token of each position, int64.
        temperature: logits are divided by it.

    Returns:
        ``(logprob_T, entropy_T)``.
    """
    logprobs_TV = torch.log_softmax(hidden_TD @ weight_VD.T / temperature, dim=-1)
    logprob_T = logprobs_TV.gather(-1, targets_T[:, None]).squeeze(-1)
    entropy_T = -(logprobs_TV.exp() * logprobs_TV).sum(-1)
    return logprob_T, entropy_T
