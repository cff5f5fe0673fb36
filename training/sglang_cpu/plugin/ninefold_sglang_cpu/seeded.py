"""Keyed sampling: with a ``sampling_seed`` the token at a position depends on the seed and the position alone.

sglang has this as part of its deterministic mode, which a CPU cannot enter (it asks for GPU attention, and the hash that
turns seed and position into noise is a Triton kernel). The two pieces that matter are put in through sglang's own hooks:
requests keep their seeds, and the hash is plain PyTorch. A request without a seed gets a random one.

Shape suffixes: B requests, V vocabulary.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import torch

from ninefold_sglang_cpu import NAME

SEED_BITS = 62


def _shift_right(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift of an int64 seen as unsigned."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: torch.Tensor) -> torch.Tensor:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014); int64 products wrap around."""
    x = (x ^ _shift_right(x, 30)) * -0x40A7B892E31B1A47
    x = (x ^ _shift_right(x, 27)) * -0x6B2FB644ECCEEE15
    return x ^ _shift_right(x, 31)


def uniform_noise(seed_B: torch.Tensor, positions_B: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Uniform float64 numbers in (0, 1), a function of seed, position and token id alone; shape [B, V]."""
    row_B = _mix(_mix(seed_B.to(torch.int64)) + positions_B.to(torch.int64))
    bits_BV = _mix(row_B[:, None] + torch.arange(1, vocabulary + 1, device=seed_B.device) * -0x61C8864680B583EB)
    return (_shift_right(bits_BV, 11).to(torch.float64) + 0.5) / 2.0**53


def sample_with_seed(logprobs: torch.Tensor, seed: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Gumbel-max sampling with keyed noise, in the place of sglang's ``multinomial_with_seed``; returns [B, 1]."""
    noise_BV = uniform_noise(seed, positions, logprobs.shape[1])
    return (logprobs.to(torch.float64) - noise_BV.log().neg_().log_()).argmax(dim=1, keepdim=True)


def _keep_seeds(build: Any, cls: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
    info = build(cls, batch, *args, **kwargs)
    for request in batch.reqs:
        if request.sampling_params.sampling_seed is None:
            request.sampling_params.sampling_seed = secrets.randbits(SEED_BITS)
    info.sampling_seed = torch.tensor([request.sampling_params.sampling_seed for request in batch.reqs], dtype=torch.int64)
    return info


def register() -> None:
    """Entry point of the group ``sglang.srt.plugins``; does nothing under another platform."""
    if os.environ.get("SGLANG_PLATFORM") != NAME:
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register("sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch", _keep_seeds, HookType.AROUND)
    HookRegistry.register("sglang.srt.layers.sampler.multinomial_with_seed", sample_with_seed, HookType.REPLACE)
