"""Supervised batches: every example once an epoch, ranks without overlap, and a loss that counts what it says."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from tests.training.small import CONFIG, model
from training import sft
from training.config import SftConfig
from training.sft import Example, batches, loss_of, steps_of


def examples(count: int = 40) -> list[Example]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for i in range(count):
        length = int(torch.randint(4, 30, (1,), generator=generator))
        tokens = [i % CONFIG.vocab_size, *torch.randint(0, CONFIG.vocab_size, (length,), generator=generator).tolist()]
        made.append((tokens, [0, 0] + [1] * (length - 1)))
    return made


def test_an_epoch_holds_every_example_once_and_batches_keep_to_their_size() -> None:
    data = examples()
    seen: list[Example] = []
    for batch in batches(data, 100, seed=1):
        assert len(batch) == 1 or len(batch) * max(len(t) for t, _ in batch) <= 100
        seen += batch
        if len(seen) == len(data):
            break
    assert sorted(seen) == sorted(data)


def test_ranks_take_turns_with_the_same_order() -> None:
    data = examples()
    whole = list(islice(batches(data, 100, seed=1), 20))
    halves = [list(islice(batches(data, 100, seed=1, rank=r, world=2), 10)) for r in (0, 1)]
    assert [b for pair in zip(*halves, strict=True) for b in pair] == whole
    assert list(islice(batches(data, 100, seed=2), 20)) != whole


@pytest.mark.parametrize("weight", [0.0, 0.3])
def test_the_loss_counts_demonstrated_tokens_and_the_context_at_its_weight(weight: float) -> None:
    net = model()
    batch = examples(3)
    loss, demonstrated = loss_of(net, batch, weight)
    sums = {0: [0.0, 0], 1: [0.0, 0]}
    for tokens, mask in batch:
        logprobs = torch.log_softmax(net(torch.tensor([tokens]))[0].double(), -1)
        for t in range(1, len(tokens)):
            sums[mask[t]][0] -= float(logprobs[t - 1, tokens[t]].detach())
            sums[mask[t]][1] += 1
    means = {kind: total / count for kind, (total, count) in sums.items()}
    assert demonstrated == pytest.approx(means[1], rel=1e-4)
    assert float(loss.detach()) == pytest.approx(means[1] + weight * means[0], rel=1e-4)


def test_training_lowers_the_loss_and_reports_each_step() -> None:
    net, told = model(sharpen=1.0), []
    config = SftConfig(trainer="plain", tokens=8000, batch_tokens=400, warmup_steps=2)
    sft.train(net, examples(), config, seed=0, report=told.append)
    assert [p.step for p in told] == list(range(steps_of(config))) == list(range(20))
    assert told[-1].loss < told[0].loss
    assert [p.tokens for p in told] == sorted(p.tokens for p in told)
    again = model(sharpen=1.0)
    sft.train(again, examples(), config, seed=0, report=lambda _: None)
    assert torch.equal(again.head, net.head)
