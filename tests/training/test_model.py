"""The policy's network: equal to transformers' Llama, whole on disk, and with an induction circuit when asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from environments.errors import CorruptArtifactError
from tests.training.small import CONFIG, model
from training.model import Llama, ModelConfig, checkpoint_id
from training.structure import induction_start


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_logits_equal_transformers_llama(kv_heads: int, tmp_path: Path) -> None:
    from transformers import LlamaForCausalLM

    ours = model(3, CONFIG.model_copy(update={"num_key_value_heads": kv_heads, "rope_theta": 1e6}))
    ours.save(tmp_path)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    ids = torch.randint(0, CONFIG.vocab_size, (3, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        difference = (ours(ids) - theirs(ids).logits).abs().max()
    assert float(difference) <= 1e-5
    assert theirs.config.tie_word_embeddings
    assert sum(p.numel() for p in theirs.parameters()) == sum(p.numel() for p in ours.parameters())


def test_later_tokens_and_padding_never_reach_earlier_ones() -> None:
    net = model()
    ids = torch.randint(0, CONFIG.vocab_size, (1, 20), generator=torch.Generator().manual_seed(1))
    changed = ids.clone()
    changed[0, 12:] = 0
    assert torch.allclose(net(ids)[0, :12], net(changed)[0, :12], atol=1e-6)
    assert not torch.allclose(net(ids)[0, 12:], net(changed)[0, 12:], atol=1e-3)


def test_a_saved_model_comes_back_bit_for_bit_and_is_named_by_its_weights(tmp_path: Path) -> None:
    net = model(1)
    identity = net.save(tmp_path / "a")
    again = Llama.load(tmp_path / "a")
    assert again.config == net.config
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), again.state_dict().values(), strict=True))
    assert again.save(tmp_path / "b") == identity == checkpoint_id(tmp_path / "b")
    assert model(2).save(tmp_path / "c") != identity


@pytest.mark.parametrize("damage", ["config gone", "weights gone", "weights cut", "config broken", "other shape"])
def test_a_broken_model_folder_is_corrupt(damage: str, tmp_path: Path) -> None:
    model().save(tmp_path)
    weights, config = tmp_path / "model.safetensors", tmp_path / "config.json"
    match damage:
        case "config gone":
            config.unlink()
        case "weights gone":
            weights.unlink()
        case "weights cut":
            weights.write_bytes(weights.read_bytes()[:-8])
        case "config broken":
            config.write_text("{")
        case "other shape":
            config.write_text(config.read_text().replace('"hidden_size": 32', '"hidden_size": 64'))
    with pytest.raises(CorruptArtifactError, match="not a whole checkpoint"):
        Llama.load(tmp_path)


def test_the_seed_decides_the_start() -> None:
    assert torch.equal(Llama(CONFIG, seed=5).head, Llama(CONFIG, seed=5).head)
    assert not torch.equal(Llama(CONFIG, seed=5).head, Llama(CONFIG, seed=6).head)


# --- the induction start ---

WIDE = ModelConfig(vocab_size=512, hidden_size=128, intermediate_size=320, num_hidden_layers=3, max_position_embeddings=256)


def _copy_accuracy(net: Llama, seed: int) -> float:
    """Share of tokens, in the second half of a random string written twice, that the argmax gets right."""
    half = torch.randint(1, WIDE.vocab_size, (8, 60), generator=torch.Generator().manual_seed(seed))
    ids = torch.cat([half, half], 1)
    with torch.no_grad():
        guess = net(ids).argmax(-1)
    return float((guess[:, 60:-1] == ids[:, 61:]).float().mean())


@pytest.mark.parametrize("seed", [0, 1])
def test_an_induction_start_copies_at_once_and_a_plain_one_does_not(seed: int) -> None:
    plain = Llama(WIDE, seed=seed)
    assert _copy_accuracy(plain, seed) < 0.05
    induction_start(plain, seed)
    assert _copy_accuracy(plain, seed) >= 0.4


def test_an_induction_start_knows_no_token_in_particular() -> None:
    """Without a repetition there is nothing to copy, and no token is preferred."""
    net = Llama(WIDE, seed=0)
    induction_start(net, 0)
    ids = torch.randperm(WIDE.vocab_size, generator=torch.Generator().manual_seed(0))[None, :200]
    with torch.no_grad():
        probabilities = net(ids).softmax(-1)[0]
    follows = probabilities[:-1].gather(1, ids[0, 1:, None])
    assert float(follows.mean()) < 0.02


def test_an_induction_start_names_what_it_cannot_work_with() -> None:
    with pytest.raises(ValueError, match="two layers"):
        induction_start(Llama(WIDE.model_copy(update={"num_hidden_layers": 1})), 0)
    with pytest.raises(ValueError, match="rotary base"):
        induction_start(Llama(WIDE.model_copy(update={"rope_theta": 10.0})), 0)
