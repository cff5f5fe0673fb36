"""The chunked log-prob against its plain oracle. Not covered: GPU speed, a head with a bias."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ninefold_kernels.logprob import selected_logprob
from ninefold_kernels.reference import selected_logprob_reference


def _inputs(tokens: int, width: int, vocabulary: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden_TD = torch.randn(tokens, width, generator=generator, dtype=torch.float64).to(dtype)
    weight_VD = torch.randn(vocabulary, width, generator=generator, dtype=torch.float64).to(dtype)
    targets_T = torch.randint(vocabulary, (tokens,), generator=generator)
    return hidden_TD, weight_VD, targets_T


def test_reference_is_the_definition() -> None:
    # Two tokens, logits (0, ln 3): probabilities 1/4 and 3/4.
    hidden_TD = torch.tensor([[1.0]], dtype=torch.float64)
    weight_VD = torch.tensor([[0.0], [math.log(3)]], dtype=torch.float64)
    logprob_T, entropy_T = selected_logprob_reference(hidden_TD, weight_VD, torch.tensor([1]))
    assert logprob_T.item() == pytest.approx(math.log(3 / 4))
    assert entropy_T.item() == pytest.approx(-(math.log(1 / 4) / 4 + 3 * math.log(3 / 4) / 4))


@settings(deadline=None, max_examples=40)
@given(
    tokens=st.integers(0, 17),
    width=st.integers(1, 6),
    vocabulary=st.integers(1, 23),
    chunk=st.integers(1, 20),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
    seed=st.integers(0, 10_000),
)
def test_any_chunk_size_gives_the_oracles_values_and_gradients(
    tokens: int, width: int, vocabulary: int, chunk: int, temperature: float, seed: int
) -> None:
    hidden_TD, weight_VD, targets_T = _inputs(tokens, width, vocabulary, seed=seed)
    upstream = torch.randn(2, tokens, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    results = []
    for function, extra in ((selected_logprob, {"chunk": chunk}), (selected_logprob_reference, {})):
        hidden = hidden_TD.clone().requires_grad_()
        weight = weight_VD.clone().requires_grad_()
        logprob_T, entropy_T = function(hidden, weight, targets_T, temperature=temperature, **extra)
        (logprob_T @ upstream[0] + entropy_T @ upstream[1]).backward()
        results.append((logprob_T.detach(), entropy_T.detach(), hidden.grad, weight.grad))
    for ours, oracle in zip(*results, strict=True):
        torch.testing.assert_close(ours, oracle, rtol=1e-9, atol=1e-10)


def test_gradcheck() -> None:
    hidden_TD, weight_VD, targets_T = _inputs(5, 3, 7)
    hidden_TD.requires_grad_()
    weight_VD.requires_grad_()
    assert torch.autograd.gradcheck(lambda h, w: selected_logprob(h, w, targets_T, temperature=0.8, chunk=2), (hidden_TD, weight_VD))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.15)])
def test_lower_precision_stays_near_float64(dtype: torch.dtype, tolerance: float) -> None:
    hidden_TD, weight_VD, targets_T = _inputs(40, 32, 300, dtype)
    weight_VD /= 6
    logprob_T, entropy_T = selected_logprob(hidden_TD, weight_VD, targets_T, chunk=16)
    exact_logprob_T, exact_entropy_T = selected_logprob_reference(hidden_TD.double(), weight_VD.double(), targets_T)
    assert logprob_T.dtype == torch.float32
    assert (logprob_T.double() - exact_logprob_T).abs().max() < tolerance
    assert (entropy_T.double() - exact_entropy_T).abs().max() < tolerance


def test_only_the_wanted_gradient_is_computed() -> None:
    hidden_TD, weight_VD, targets_T = _inputs(6, 4, 9)
    hidden_TD.requires_grad_()
    selected_logprob(hidden_TD, weight_VD, targets_T, chunk=4)[0].sum().backward()
    assert hidden_TD.grad is not None
    assert hidden_TD.grad.abs().sum() > 0
    assert weight_VD.grad is None


class _LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):
    """Records the largest tensor that any operation under it returns, in elements."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self.largest = max(self.largest, result.numel())
        return result


@pytest.mark.parametrize(("function", "whole"), [(selected_logprob, False), (selected_logprob_reference, True)])
def test_the_full_logits_never_exist(function, whole: bool) -> None:  # type: ignore[no-untyped-def]
    tokens, width, vocabulary, chunk = 256, 8, 512, 16
    hidden_TD, weight_VD, targets_T = _inputs(tokens, width, vocabulary)
    hidden_TD.requires_grad_()
    weight_VD.requires_grad_()
    with _LargestTensor() as seen:
        logprob_T, entropy_T = function(hidden_TD, weight_VD, targets_T, **({} if whole else {"chunk": chunk}))
        (logprob_T.sum() + entropy_T.sum()).backward()
    # The control: the oracle does make the [T, V] matrix, so the probe would see it.
    assert (seen.largest >= tokens * vocabulary) is whole
    if not whole:
        assert seen.largest <= chunk * vocabulary


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_TD": torch.zeros(3, 5)}, "must share D"),
        ({"targets_T": torch.zeros(2, dtype=torch.long)}, r"shape \[3\], got \(2,\)"),
        ({"temperature": 0.0}, "got 0.0 and"),
        ({"chunk": 0}, "and 0"),
    ],
)
def test_bad_arguments_are_named(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {
        "hidden_TD": torch.zeros(3, 4),
        "weight_VD": torch.zeros(6, 4),
        "targets_T": torch.zeros(3, dtype=torch.long),
    }
    with pytest.raises(ValueError, match=message):
        selected_logprob(**{**good, **change})  # type: ignore[arg-type]
