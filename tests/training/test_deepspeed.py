"""ZeRO over two gloo ranks against one process on the whole batch. Not covered: NCCL, offload, bf16 accuracy."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from torch import Tensor

from environments.errors import ConfigError, InfrastructureError
from training.deepspeed import DataParallelContext, DataParallelSettings, run_data_parallel

STEPS = 5
LEARNING_RATE = 3e-3


def _model() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64
    )
    return LlamaForCausalLM(config)


def _batches() -> Tensor:
    """[steps, sequences, tokens]"""
    return torch.randint(96, (STEPS, 8, 24), generator=torch.Generator().manual_seed(1))


def _train_rank(directory: Path, context: DataParallelContext) -> None:
    model = _model()
    if context.rank:  # the ranks must start from rank 0's weights, whatever they brought
        torch.nn.init.normal_(next(model.parameters()))
    engine = context.wrap(model, torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE))
    losses = []
    for batch in _batches():
        mine = context.share(batch)
        losses.append(engine.loss_backward_step(engine(input_ids=mine, labels=mine).loss))
    engine.save_pretrained(directory)
    context.report((losses, engine.gradient_norm()))


def _train_single() -> tuple[list[float], dict[str, Tensor], float]:
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    losses = []
    norm = 0.0
    for batch in _batches():
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        norm = float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None]))
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict(), norm


@pytest.mark.deepspeed
@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_two_ranks_train_like_one_process_on_the_whole_batch(stage: int, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    single_losses, single_state, single_norm = _train_single()
    assert single_losses[-1] < single_losses[0]
    settings = DataParallelSettings(stage=stage)  # type: ignore[arg-type]
    losses, norm = run_data_parallel(functools.partial(_train_rank, tmp_path), 2, settings)
    assert losses == pytest.approx(single_losses, abs=1e-5)
    if stage:  # without ZeRO and without clipping DeepSpeed computes no norm
        assert norm == pytest.approx(single_norm, rel=1e-3)
    assert (tmp_path / "model.safetensors").exists()
    exported = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).state_dict()
    assert exported.keys() == single_state.keys()
    for name, tensor in single_state.items():
        torch.testing.assert_close(exported[name], tensor, atol=2e-4, rtol=1e-3)


def _fail_on_rank_one(context: DataParallelContext) -> None:
    if context.rank == 1:
        raise RuntimeError("rank one gives up")


@pytest.mark.deepspeed
@pytest.mark.slow
def test_a_failing_rank_is_named_and_ends_the_others() -> None:
    with pytest.raises(InfrastructureError, match=r"(?s)rank 1 of 2 failed.*rank one gives up"):
        run_data_parallel(_fail_on_rank_one, 2)


def test_shares_are_disjoint_and_complete() -> None:
    batch = torch.arange(12).reshape(6, 2)
    shares = [DataParallelContext(rank, 3, DataParallelSettings(), "").share(batch) for rank in range(3)]
    assert torch.equal(torch.cat(shares), batch)
    with pytest.raises(ConfigError, match="batch of 6 does not divide over 4"):
        DataParallelContext(0, 4, DataParallelSettings(), "").share(batch)


def test_no_ranks_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="got 0"):
        run_data_parallel(_fail_on_rank_one, 0)
