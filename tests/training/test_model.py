"""The policy's network: equal to transformers' Llama, whole on disk, and with an induction circuit when asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from environments.errors import CorruptArtifactError
from tests.training.small import CONFIG, model
from training.config import PolicyConfig
from training.model import Llama, ModelConfig, checkpoint_id, rotate
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


@pytest.mark.parametrize(("layers", "trained"), [(1, {"model.layers.1."}), (2, {"model."}), (9, {"model."})])
def test_only_the_last_layers_are_trained(layers: int, trained: set[str]) -> None:
    net = model()
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    optimizer = torch.optim.SGD(net.train_last(layers), lr=0.1)
    ids = torch.randint(0, CONFIG.vocab_size, (2, 20), generator=torch.Generator().manual_seed(1))
    net(ids).logsumexp(-1).sum().backward()
    optimizer.step()
    changed = {n for n, p in net.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {n for n in before if n.startswith(tuple(trained))}


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

POLICY = PolicyConfig()
WIDE = ModelConfig(
    vocab_size=512,
    hidden_size=POLICY.hidden_size,
    intermediate_size=POLICY.intermediate_size,
    num_hidden_layers=POLICY.layers,
    num_attention_heads=POLICY.heads,
    num_key_value_heads=POLICY.kv_heads,
    max_position_embeddings=POLICY.window,
)
COMMA, EQUALS = 1, 2


def _start(seed: int, **changes: float) -> Llama:
    net = Llama(WIDE.model_copy(update=changes), seed=seed)
    induction_start(net, seed)
    return net


@torch.no_grad()
def _attention(net: Llama, layer: int, ids_BT: torch.Tensor) -> torch.Tensor:
    """Attention weights [B, H, T, T] of one layer, written out."""
    t = ids_BT.shape[1]
    cos, sin = net.cos[:t], net.sin[:t]
    x = net.model.embed_tokens(ids_BT)
    for block in net.model.blocks[:layer]:
        x = block(x, cos, sin)
    block = net.model.blocks[layer]
    x, c = block.input_layernorm(x), net.config
    q = rotate(block.self_attn.q_proj(x).unflatten(-1, (c.num_attention_heads, c.head_dim)).transpose(1, 2), cos, sin)
    k = rotate(block.self_attn.k_proj(x).unflatten(-1, (c.num_key_value_heads, c.head_dim)).transpose(1, 2), cos, sin)
    logits: torch.Tensor = q @ k.repeat_interleave(c.num_attention_heads // c.num_key_value_heads, 1).mT / c.head_dim**0.5
    return logits.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -torch.inf).softmax(-1)


def _distinct(count: int, seed: int) -> torch.Tensor:
    """Token ids, all different, none of them `,` or `=`."""
    return torch.randperm(WIDE.vocab_size - 3, generator=torch.Generator().manual_seed(seed))[:count] + 3


def _copy_accuracy(net: Llama, seed: int) -> float:
    """Share of tokens, in the second half of a random string written twice, that the argmax gets right."""
    half = torch.randint(1, WIDE.vocab_size, (8, 60), generator=torch.Generator().manual_seed(seed))
    ids = torch.cat([half, half], 1)
    with torch.no_grad():
        guess = net(ids).argmax(-1)
    return float((guess[:, 60:-1] == ids[:, 61:]).float().mean())


@pytest.mark.parametrize("seed", [0, 1])
def test_an_induction_start_copies_at_once_and_a_plain_one_does_not(seed: int) -> None:
    assert _copy_accuracy(Llama(WIDE, seed=seed), seed) < 0.05
    assert _copy_accuracy(_start(seed), seed) >= 0.4


@pytest.mark.parametrize("back", [1, 2])
def test_the_first_layer_looks_one_and_two_tokens_back(back: int) -> None:
    weight = _attention(_start(1), 0, _distinct(200, seed=back)[None])[0, back - 1].diagonal(-back)
    assert float(weight.mean()) > 0.95
    assert float(weight.median()) > 0.9


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_two_heads_read_what_followed_the_current_token(seed: int) -> None:
    """In a string of distinct tokens written twice, position 60 + i must look at 1 + i."""
    half = _distinct(60, seed)
    weight = _attention(_start(seed), 1, torch.cat([half, half])[None])[0, :2]
    assert float(weight[:, 60:-1].diagonal(1, 1, 2).mean()) > 0.6


@pytest.mark.parametrize("seed", range(6))
def test_one_head_reads_the_value_of_a_name_at_the_equals_sign_after_it(seed: int) -> None:
    """`name = value ,` for thirty names, then the names again in another order: at each later `=` only the name tells values apart."""
    found = []
    for string in range(5):
        names, values = _distinct(60, 100 * seed + string).view(2, 30)
        order = torch.randperm(30, generator=torch.Generator().manual_seed(string))
        commas, equals = torch.full_like(names, COMMA), torch.full_like(names, EQUALS)
        stated = torch.stack([names, equals, values, commas], 1).flatten()
        asked = torch.stack([names[order], equals, commas], 1).flatten()  # no value given away
        at, value_at = len(stated) + 1 + 3 * torch.arange(30), 2 + 4 * order
        weight = _attention(_start(seed), 1, torch.cat([stated, asked])[None])[0, :3, at]
        found.append(weight.gather(2, value_at.expand(3, -1)[..., None])[..., 0])
    right = torch.cat(found, 1)
    assert float(right[2].mean()) > 0.85
    assert float(right[2].median()) > 0.9
    assert float(right[:2].mean()) < 0.1  # heads one token wide see thirty equals signs alike


def test_an_induction_start_knows_no_token_in_particular() -> None:
    """Without a repetition there is nothing to copy, and no token is preferred."""
    net = _start(0)
    ids = torch.randperm(WIDE.vocab_size, generator=torch.Generator().manual_seed(0))[None, :200]
    with torch.no_grad():
        probabilities = net(ids).softmax(-1)[0]
    follows = probabilities[:-1].gather(1, ids[0, 1:, None])
    assert float(follows.mean()) < 0.02


def test_an_induction_start_is_decided_by_its_seed() -> None:
    assert all(torch.equal(a, b) for a, b in zip(_start(3).parameters(), _start(3).parameters(), strict=True))
    assert not torch.equal(_start(3).head, _start(4).head)


@pytest.mark.parametrize(
    ("changes", "numbers"),
    [
        ({"num_hidden_layers": 1}, r"1, 4, 4 and 1e\+06"),
        ({"num_key_value_heads": 2}, r"3, 2, 4 and 1e\+06"),
        ({"num_attention_heads": 3, "num_key_value_heads": 3, "hidden_size": 96}, r"3, 3, 3 and 1e\+06"),
        ({"rope_theta": 10.0}, "3, 4, 4 and 10$"),
    ],
)
def test_an_induction_start_names_what_it_cannot_work_with(changes: dict[str, float], numbers: str) -> None:
    with pytest.raises(ValueError, match=f"three key-value heads.*the model has {numbers}"):
        _start(0, **changes)
