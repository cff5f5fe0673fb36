"""Selected log-probabilities and entropies over a vocabulary, without ever holding the logits of all tokens.

A policy-gradient step needs one number per token from a row of V logits. Keeping the ``[T, V]`` matrix for autograd is
what fills the memory of such a step, so here tokens go through the head in chunks of C, forward keeps two numbers per
token, and backward computes each chunk's logits again. The gradient is the closed form, with p = softmax(logits):

    d logprob / d logit_v = 1[v = target] - p_v
    d entropy / d logit_v = -p_v (log p_v + entropy)

Shape suffixes: T tokens, C tokens of one chunk, D width of the hidden states, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

DEFAULT_CHUNK = 1024
"""Tokens per chunk: with a vocabulary of 128k that is 0.5 GB of float32 logits, with 1k it is 4 MB; larger gains no speed."""


def _accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Half precision is summed in float32; float32 and float64 stay themselves."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def _logits(hidden_CD: Tensor, weight_VD: Tensor, temperature: float) -> Tensor:
    logits_CV = (hidden_CD @ weight_VD.T).to(_accumulation_dtype(hidden_CD.dtype))
    return logits_CV if temperature == 1.0 else logits_CV / temperature


class _SelectedLogprob(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, temperature: float, chunk: int) -> tuple[Tensor, Tensor]:
        dtype = _accumulation_dtype(hidden_TD.dtype)
        tokens = hidden_TD.shape[0]
        logprob_T = torch.empty(tokens, dtype=dtype, device=hidden_TD.device)
        entropy_T = torch.empty_like(logprob_T)
        normaliser_T = torch.empty_like(logprob_T)
        for start in range(0, tokens, chunk):
            part = slice(start, start + chunk)
            logits_CV = _logits(hidden_TD[part], weight_VD, temperature)
            normaliser_C = torch.logsumexp(logits_CV, dim=-1)
            normaliser_T[part] = normaliser_C
            logprob_T[part] = logits_CV.gather(-1, targets_T[part, None]).squeeze(-1) - normaliser_C
            logits_CV -= normaliser_C[:, None]
            # A logit of -inf has probability 0 and adds 0, where exp(x) * x would say NaN.
            entropy_T[part] = -torch.where(logits_CV.isneginf(), 0.0, logits_CV.exp() * logits_CV).sum(-1)
        ctx.save_for_backward(hidden_TD, weight_VD, targets_T, normaliser_T, entropy_T)
        ctx.temperature = temperature
        ctx.chunk = chunk
        return logprob_T, entropy_T

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        grad_logprob_T, grad_entropy_T = grads
        hidden_TD, weight_VD, targets_T, normaliser_T, entropy_T = ctx.saved_tensors
        want_hidden, want_weight = ctx.needs_input_grad[:2]
        dtype = normaliser_T.dtype
        grad_hidden_TD = torch.empty_like(hidden_TD) if want_hidden else None
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=dtype) if want_weight else None
        for start in range(0, hidden_TD.shape[0], ctx.chunk):
            part = slice(start, start + ctx.chunk)
            logprobs_CV = _logits(hidden_TD[part], weight_VD, ctx.temperature)
            logprobs_CV -= normaliser_T[part, None]
            probs_CV = logprobs_CV.exp()
            surprise_CV = torch.where(logprobs_CV.isneginf(), 0.0, logprobs_CV).add_(entropy_T[part, None])
            grad_CV = -probs_CV * (grad_logprob_T[part, None] + grad_entropy_T[part, None] * surprise_CV)
            grad_CV.scatter_add_(-1, targets_T[part, None], grad_logprob_T[part, None])
            grad_CV /= ctx.temperature
            if grad_hidden_TD is not None:
                grad_hidden_TD[part] = grad_CV.to(weight_VD.dtype) @ weight_VD
            if grad_weight_VD is not None:
                grad_weight_VD += grad_CV.T @ hidden_TD[part].to(dtype)
        return grad_hidden_TD, None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype), None, None, None


def selected_logprob(
    hidden_TD: Tensor, weight_VD: Tensor, targets_T: Tensor, temperature: float = 1.0, chunk: int = DEFAULT_CHUNK
) -> tuple[Tensor, Tensor]:
    """Log-probability of the selected tokens and entropy of the distribution they come from, both in nats.

    Peak memory beyond the inputs is a few ``[chunk, V]`` matrices, in forward and in backward. Differentiable once, with
    respect to `hidden_TD` and `weight_VD`. The outputs are float32 for half-precision inputs, else of the inputs' type.

    Args:
        hidden_TD: last hidden states, flattened over batch and time.
        weight_VD: the output head's weight (no bias), of the same dtype.
        targets_T: selected token of each position, int64.
        temperature: logits are divided by it; the one used for sampling gives the log-probs of the sampler.
        chunk: tokens per chunk.

    Returns:
        ``(logprob_T, entropy_T)``.

    Raises:
        ValueError: shapes that do not fit, a temperature or chunk that is not positive.
    """
    if hidden_TD.ndim != 2 or weight_VD.ndim != 2 or hidden_TD.shape[1] != weight_VD.shape[1]:
        raise ValueError(f"hidden [T, D] and weight [V, D] must share D, got {tuple(hidden_TD.shape)} and {tuple(weight_VD.shape)}")
    if targets_T.shape != hidden_TD.shape[:1]:
        raise ValueError(f"targets must have shape [{hidden_TD.shape[0]}], got {tuple(targets_T.shape)}")
    if not temperature > 0 or chunk < 1:
        raise ValueError(f"temperature must be positive and chunk at least 1, got {temperature} and {chunk}")
    logprob_T, entropy_T = _SelectedLogprob.apply(hidden_TD, weight_VD, targets_T, temperature, chunk)
    return logprob_T, entropy_T
