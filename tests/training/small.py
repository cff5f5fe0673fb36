"""Small models and tasks for training tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from environments.families import TOOLS
from environments.harness.xtml import Xtml
from environments.protocols import GenerateRequest
from training.model import Llama, ModelConfig
from training.tokenizer import XtmlTokenizer, element_tags

CONFIG = ModelConfig(
    vocab_size=48,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    rope_theta=1e4,
)


def model(seed: int = 0, config: ModelConfig = CONFIG, sharpen: float = 8.0) -> Llama:
    """A random model whose distributions are far from uniform."""
    made = Llama(config, seed=seed)
    with torch.no_grad():
        made.model.norm.weight.mul_(sharpen)
    return made


def prompts(count: int, seed: int = 0, longest: int = 20) -> list[list[int]]:
    """Random prefixes of several lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, longest, (count,), generator=generator).tolist()
    return [torch.randint(0, CONFIG.vocab_size, (n,), generator=generator).tolist() for n in lengths]


def request(
    name: str, prefix: Sequence[int], new: int = 12, seed: int = 0, temperature: float = 1.0, stop: frozenset[int] = frozenset()
) -> GenerateRequest:
    return GenerateRequest(name, list(prefix), new, stop, (seed, len(prefix)), temperature)


def codec() -> Xtml:
    """A codec over all tools, its tokenizer trained on a few lines."""
    texts = [
        "Set `width` to 113.",
        "get set submit search open run_tests",
        "def solve(n):\n    return 2 * n + 7",
        "error: the message is cut short",
    ] * 3
    return Xtml(XtmlTokenizer.train(texts, element_tags(TOOLS), 360))


def policy_for(codec_: Xtml, seed: int = 0, window: int = 256) -> Llama:
    """An untrained policy over a codec's vocabulary."""
    return Llama(CONFIG.model_copy(update={"vocab_size": codec_.tokenizer.vocab_size, "max_position_embeddings": window}), seed=seed)  # type: ignore[attr-defined]
