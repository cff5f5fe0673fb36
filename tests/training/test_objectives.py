"""The objective against a loop in float64, and what must not change with micro-batches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.errors import NonFiniteRewardError
from tests.training.small import CONFIG, model, prompts
from training import trainer
from training.batches import micro_batches, pad, sampled_logprobs
from training.objectives import K25Config, group_advantages, k25, reverse_kl_reward
from training.trainer import Trajectory, per_sequence

LOOSE = K25Config(-0.4, 0.6, 0.1)


def brute_force(new: Any, old: Any, advantages: Any, mask: Any, tokens: int, config: K25Config) -> tuple[float, list[list[float]], int]:
    """(loss, gradient by token, tokens outside), spelled out."""
    loss, gradient, outside = 0.0, [[0.0] * len(row) for row in new], 0
    for b, row in enumerate(new):
        for t, value in enumerate(row):
            if not mask[b][t]:
                continue
            ratio = value - old[b][t]
            inside = config.log_ratio_low <= ratio <= config.log_ratio_high
            outside += not inside
            if inside:
                loss += -math.exp(ratio) * advantages[b][t]
                gradient[b][t] += -math.exp(ratio) * advantages[b][t]
            loss += config.log_ratio_penalty * ratio**2
            gradient[b][t] += 2 * config.log_ratio_penalty * ratio
    return loss / tokens, [[g / tokens for g in row] for row in gradient], outside


def _case(seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    new = torch.randn(4, 7, generator=generator, dtype=torch.float64) - 2
    old = new + torch.randn(4, 7, generator=generator, dtype=torch.float64)
    advantages = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    return new, old, advantages, (torch.rand(4, 7, generator=generator) > 0.3).double()


@pytest.mark.parametrize("seed", range(5))
def test_k25_equals_a_loop_in_float64(seed: int) -> None:
    new, old, advantages, mask = _case(seed)
    tokens = int(mask.sum()) + 3
    new.requires_grad_()
    loss, metrics = k25(new, old, advantages, mask, tokens, LOOSE)
    loss.backward()
    expected, gradient, outside = brute_force(new.tolist(), old.tolist(), advantages.tolist(), mask.tolist(), tokens, LOOSE)
    assert float(loss.detach()) == pytest.approx(expected, abs=1e-12)
    assert torch.allclose(new.grad, torch.tensor(gradient, dtype=torch.float64), atol=1e-12)
    assert metrics["masked_tokens"] == outside > 0
    assert metrics["tokens"] == float(mask.sum())


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("log_ratio", [-3.0, 3.0, -500.0, 500.0])
def test_outside_the_interval_no_policy_gradient_passes_whatever_the_sign(advantage: float, log_ratio: float) -> None:
    old = torch.zeros(1, 1, dtype=torch.float64)
    for penalty, expected in ((0.0, 0.0), (0.1, 0.2 * log_ratio)):
        new = torch.full((1, 1), log_ratio, dtype=torch.float64, requires_grad=True)
        loss, _ = k25(new, old, torch.full((1, 1), advantage, dtype=torch.float64), torch.ones(1, 1), 1, K25Config(-1.0, 1.0, penalty))
        loss.backward()
        assert float(new.grad) == pytest.approx(expected)
        assert math.isfinite(float(loss))


def test_inside_the_interval_a_good_token_is_pushed_up_and_a_bad_one_down() -> None:
    for advantage in (2.0, -2.0):
        new = torch.zeros(1, 1, requires_grad=True)
        k25(new, torch.zeros(1, 1), torch.full((1, 1), advantage), torch.ones(1, 1), 1, K25Config())[0].backward()
        assert float(new.grad) == pytest.approx(-advantage)


def test_tokens_that_were_not_sampled_count_for_nothing_not_even_as_nan() -> None:
    new, old, advantages, mask = _case(0)
    spoiled = torch.where(mask > 0, old, torch.full_like(old, -1e30))
    new.requires_grad_()
    first, _ = k25(new, old, advantages, mask, 10, LOOSE)
    second, _ = k25(new, spoiled, advantages, mask, 10, LOOSE)
    assert float(first) == float(second)
    second.backward()
    assert torch.isfinite(new.grad).all()
    assert (new.grad[mask == 0] == 0).all()


@pytest.mark.parametrize("bounds", [(0.0, 1.0), (-1.0, 0.0), (0.5, 1.0), (1.0, -1.0)])
def test_bounds_that_do_not_enclose_zero_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="must enclose 0"):
        K25Config(*bounds)


# --- micro-batches ---


def _batch(count: int = 9) -> tuple[list[Trajectory], list[float]]:
    generator = torch.Generator().manual_seed(1)
    batch = []
    for tokens in prompts(count, seed=1, longest=40):
        tokens = [*tokens, 1, 2]
        mask = [0] + [int(x) for x in torch.randint(0, 2, (len(tokens) - 1,), generator=generator)]
        old = [-3.0 + float(x) for x in torch.randn(len(tokens), generator=generator)]
        batch.append(Trajectory(tokens, [o * m for o, m in zip(old, mask, strict=True)], mask))
    return batch, torch.randn(count, generator=generator).tolist()


def _gradient(batch: list[Trajectory], advantages: list[float], groups: list[list[int]]) -> list[torch.Tensor]:
    net = model(sharpen=2.0)
    tokens = sum(sum(t.mask) for t in batch)
    for indices in groups:
        part = [batch[i] for i in indices]
        ids, mask = pad([t.tokens for t in part], torch.long), pad([t.mask for t in part], torch.float32)
        logprobs, _ = sampled_logprobs(net, ids, mask)
        wanted = per_sequence(advantages)(indices, logprobs.detach(), mask)
        k25(logprobs, pad([t.logprobs for t in part], torch.float32), wanted, mask, tokens, K25Config(-2, 2, 0.1))[0].backward()
    return [p.grad for p in net.parameters()]


def test_the_gradient_does_not_depend_on_micro_batches() -> None:
    batch, advantages = _batch()
    whole = _gradient(batch, advantages, [list(range(len(batch)))])
    for groups in ([[i] for i in range(len(batch))], [[8, 0, 3], [1, 2], [4, 5, 6, 7]]):
        for a, b in zip(whole, _gradient(batch, advantages, groups), strict=True):
            assert torch.allclose(a, b, atol=2e-6, rtol=1e-4)


def test_a_step_is_the_same_in_small_and_large_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, advantages = _batch()
    found = []
    for size in (10_000, 60, 1):
        monkeypatch.setattr(trainer, "MICRO_TOKENS", size)
        net = model(sharpen=2.0)
        report = trainer.step(net, torch.optim.SGD(net.parameters(), lr=0.1), batch, per_sequence(advantages), K25Config(-2, 2, 0.1), 1.0)
        found.append((report, net.head.detach().clone()))
    for report, head in found[1:]:
        assert report == pytest.approx(found[0][0], rel=1e-3)
        assert torch.allclose(head, found[0][1], atol=1e-6)
    assert found[0][0]["tokens"] == sum(sum(t.mask) for t in batch)


def test_a_batch_without_a_gradient_takes_no_step() -> None:
    batch, _ = _batch(3)
    net = model()
    with torch.no_grad():
        exact = []
        for t in batch:
            logprobs, _ = sampled_logprobs(net, torch.tensor([t.tokens]), torch.tensor([t.mask]).float())
            exact.append(Trajectory(t.tokens, logprobs[0].tolist(), t.mask))
    before = net.head.detach().clone()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1, weight_decay=0.1)
    report = trainer.step(net, optimizer, exact, per_sequence([0.0] * 3), K25Config(log_ratio_penalty=0.0), 1.0)
    assert report["skipped"] == 1.0
    assert torch.equal(net.head, before)


def test_a_step_on_fresh_samples_raises_what_was_rewarded() -> None:
    net = model(sharpen=2.0)
    tokens, mask = [1, 2, 3, 4, 5, 6], [0, 0, 0, 1, 1, 1]

    def logprob() -> torch.Tensor:
        return sampled_logprobs(net, torch.tensor([tokens]), torch.tensor([mask]).float())[0][0]

    old = logprob().detach()
    trainer.step(
        net, torch.optim.SGD(net.parameters(), lr=0.05), [Trajectory(tokens, old.tolist(), mask)], per_sequence([1.0]), K25Config(), 1.0
    )
    assert float(logprob().sum()) > float(old.sum())


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 60), max_size=30), st.integers(1, 200))
def test_micro_batches_hold_every_index_once_and_keep_to_their_size(lengths: list[int], size: int) -> None:
    groups = list(micro_batches(lengths, size))
    assert sorted(i for g in groups for i in g) == list(range(len(lengths)))
    assert all(len(g) == 1 or len(g) * max(lengths[i] for i in g) <= size for g in groups)


def test_sampled_logprobs_are_those_of_the_logits_and_zero_elsewhere() -> None:
    net = model()
    ids = torch.randint(0, CONFIG.vocab_size, (2, 9), generator=torch.Generator().manual_seed(2))
    mask = torch.tensor([[0, 1, 0, 1, 1, 0, 0, 0, 1], [0, 0, 0, 0, 0, 0, 0, 1, 1]]).float()
    logprobs, entropy = sampled_logprobs(net, ids, mask)
    full = torch.log_softmax(net(ids)[:, :-1].double(), -1)
    expected = full.gather(2, ids[:, 1:, None])[..., 0] * mask[:, 1:]
    assert torch.allclose(logprobs[:, 1:].double(), expected, atol=1e-5)
    assert torch.allclose(entropy[:, 1:].double(), -(full.exp() * full).sum(-1) * mask[:, 1:], atol=1e-5)
    assert (logprobs[:, 0] == 0).all()


# --- advantages ---


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(-1, 1), st.integers(0, 4)), max_size=40))
def test_group_advantages_sum_to_zero_in_every_group(pairs: list[tuple[float, int]]) -> None:
    rewards, groups = [r for r, _ in pairs], [g for _, g in pairs]
    found = group_advantages(rewards, groups)
    assert len(found) == len(rewards)
    for group in set(groups):
        mine = [(a, r) for a, r, g in zip(found, rewards, groups, strict=True) if g == group]
        assert sum(a for a, _ in mine) == pytest.approx(0.0, abs=1e-9)
        assert all(a - mine[0][0] == pytest.approx(r - mine[0][1], abs=1e-9) for a, r in mine)  # no division


def test_a_group_that_agrees_teaches_nothing() -> None:
    assert group_advantages([1.0, 1.0, 0.0, 0.0, -1.0], [0, 0, 1, 1, 2]) == [0.0] * 5
    assert group_advantages([1.0, 0.0, 0.0, -1.0], [7, 7, 7, 7]) == [1.0, 0.0, 0.0, -1.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(NonFiniteRewardError, match="reward of group 3"):
        group_advantages([1.0, bad], [3, 3])


def test_the_distillation_reward_is_the_clipped_log_ratio_of_sampled_tokens() -> None:
    teacher = torch.tensor([[-1.0, -0.5, -9.0, -1.0]])
    student = torch.tensor([[-2.0, -0.7, -1.0, -50.0]], requires_grad=True)
    found = reverse_kl_reward(teacher, student, torch.tensor([[1.0, 1.0, 1.0, 0.0]]), clip=5.0)
    assert found.tolist() == [[1.0, pytest.approx(0.2), -5.0, 0.0]]
    assert not found.requires_grad
    assert reverse_kl_reward(-student.detach() * 0, student, torch.ones(1, 4), clip=3.0).max() == 3.0


def test_a_trajectory_without_sampled_tokens_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, advantages = _batch(3)
    empty = Trajectory([1, 2, 3], [0.0] * 3, [0] * 3)
    found = []
    for extra in ([], [empty]):
        for size in (1, 10_000):
            monkeypatch.setattr(trainer, "MICRO_TOKENS", size)
            net = model(sharpen=2.0)
            values = advantages + [0.5] * len(extra)
            trainer.step(net, torch.optim.SGD(net.parameters(), lr=0.1), [*batch, *extra], per_sequence(values), K25Config(-2, 2, 0.1), 1.0)
            found.append(net.head.detach())
    assert all(torch.allclose(head, found[0], atol=1e-6) for head in found[1:])
