"""A small Llama in plain PyTorch whose weights load in transformers and sglang as `LlamaForCausalLM`.

Shapes: B batch, T tokens, V vocabulary, D width, H heads, K key-value heads, E head width.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from pydantic import Field
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from environments.errors import CorruptArtifactError
from environments.task import Frozen


class ModelConfig(Frozen):
    """Architecture, in Hugging Face's names where they exist."""

    vocab_size: int = 1024
    hidden_size: int = 128
    intermediate_size: int = 320
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    max_position_embeddings: int = Field(default=768, description="Longest sequence, tokens")
    rope_theta: float = 1e6
    rms_norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.num_attention_heads

    def hugging_face(self) -> dict[str, object]:
        """The `config.json` of an equal `LlamaForCausalLM`."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "torch_dtype": "float32",
            "tie_word_embeddings": True,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "head_dim": self.head_dim,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},
            **self.model_dump(),
        }


def rope_tables(config: ModelConfig) -> tuple[Tensor, Tensor]:
    """cos and sin, each [T, E], in the half-rotation layout of Hugging Face's Llama."""
    inverse = 1.0 / config.rope_theta ** (torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim)
    angles = torch.outer(torch.arange(config.max_position_embeddings, dtype=torch.float64), inverse)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos().float(), angles.sin().float()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding of x [..., E] by tables that broadcast to it."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        self.q_proj = nn.Linear(c.hidden_size, self.heads * self.width, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, self.kv_heads * self.width, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, self.kv_heads * self.width, bias=False)
        self.o_proj = nn.Linear(self.heads * self.width, c.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = rotate(self.q_proj(x).view(b, t, self.heads, self.width).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(x).view(b, t, self.kv_heads, self.width).transpose(1, 2), cos, sin)
        v = self.v_proj(x).view(b, t, self.kv_heads, self.width).transpose(1, 2)
        group = self.heads // self.kv_heads
        y = F.scaled_dot_product_attention(q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.up_proj = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.down_proj = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.self_attn = Attention(c)
        self.post_attention_layernorm = nn.RMSNorm(c.hidden_size, eps=c.rms_norm_eps)
        self.mlp = Mlp(c)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, c: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.num_hidden_layers))
        self.norm = nn.RMSNorm(c.hidden_size, eps=c.rms_norm_eps)

    @property
    def blocks(self) -> list[Layer]:
        """The layers under their own type; `ModuleList` only promises modules."""
        return [cast(Layer, layer) for layer in self.layers]


class Llama(nn.Module):
    """Causal language model with tied embeddings. Right padding needs no mask: later tokens never reach earlier ones."""

    cos: Tensor
    sin: Tensor

    def __init__(self, config: ModelConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        self.model = Body(config)
        cos, sin = rope_tables(config)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                residual = name.endswith(("o_proj.weight", "down_proj.weight"))
                std = 0.02 if "embed" in name else p.shape[1] ** -0.5 / (2 * config.num_hidden_layers if residual else 1) ** 0.5
                nn.init.normal_(p, std=std, generator=generator)

    def hidden(self, ids_BT: Tensor) -> Tensor:
        """Final hidden states [B, T, D]."""
        x = self.model.embed_tokens(ids_BT)
        cos, sin = self.cos[: ids_BT.shape[1]], self.sin[: ids_BT.shape[1]]
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        return self.model.norm(x)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """Logits [B, T, V]."""
        return F.linear(self.hidden(ids_BT), self.model.embed_tokens.weight)

    @property
    def head(self) -> Tensor:
        """Output head [V, D] (tied)."""
        return self.model.embed_tokens.weight

    def train_last(self, layers: int) -> list[nn.Parameter]:
        """Freeze all but the last `layers` layers and return what is left to train; with as many as there are, nothing is frozen."""
        blocks = self.model.blocks
        for p in self.parameters():
            p.requires_grad_(layers >= len(blocks))
        for block in blocks[max(0, len(blocks) - layers) :]:
            block.requires_grad_(True)
        return [p for p in self.parameters() if p.requires_grad]

    def save(self, directory: Path) -> str:
        """Write `config.json` and `model.safetensors`; returns the checkpoint id."""
        directory.mkdir(parents=True, exist_ok=True)
        save_file(
            {k: v.detach().contiguous() for k, v in self.state_dict().items()}, directory / "model.safetensors", metadata={"format": "pt"}
        )
        (directory / "config.json").write_text(json.dumps(self.config.hugging_face(), indent=1))
        return checkpoint_id(directory)

    @classmethod
    def load(cls, directory: Path) -> Llama:
        """Read a checkpoint folder back.

        Raises:
            CorruptArtifactError: files are missing, cut short, or of another shape.
        """
        try:
            raw = json.loads((directory / "config.json").read_text())
            model = cls(ModelConfig(**{k: v for k, v in raw.items() if k in ModelConfig.model_fields}))
            model.load_state_dict(load_file(directory / "model.safetensors"))
        except Exception as error:  # safetensors and torch raise many kinds
            raise CorruptArtifactError(
                f"{directory} is not a whole checkpoint ({type(error).__name__})", "delete the folder and resume the stage"
            ) from error
        return model


def checkpoint_id(directory: Path) -> str:
    """sha256 of the weights file (16 hex characters)."""
    return hashlib.sha256((directory / "model.safetensors").read_bytes()).hexdigest()[:16]
