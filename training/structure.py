"""A start with an induction circuit in it, so that copying names need not be discovered from nothing.

A policy of half a million parameters must learn to copy identifiers it never saw within a few CPU minutes. What it would
spend most of that time on is known: a head that looks at the previous token, and one that looks for an earlier occurrence of
the current token and reads what followed (Olsson et al., "In-context Learning and Induction Heads", 2022). Both are laid into
the first two layers as ordinary weights, which training is free to change; nothing about any task is put in. Everything else
starts with silent outputs (zero output projections), as is usual for small models.

Shapes: D width, E head width, F = E / 2 rotary frequencies.
"""

from __future__ import annotations

import math

import torch

from training.model import Llama

EMBEDDING_STD = 0.05
CONSTANT = 4.0
"""Weight of the direction that all embeddings share, against 1 for each other component: what position-only heads read."""
SHARPNESS = 40.0
"""Logit of the previous token: e^-10 is left for the one before it."""
MATCH = 20.0
"""Logit of a matching token. Tried once: the copying heads then put over .9 of their weight on the match in most positions."""
COPY_GAIN = 2.0
"""How loudly the token that followed is written, against the current token's own embedding."""
FAST, SLOW = 0.05, 2e-3
"""Rotary frequencies (radians a token): those that tell neighbours apart, and those that hardly turn within a context."""


@torch.no_grad()
def induction_start(model: Llama, seed: int) -> None:
    """Lay a previous-token head (layer 0) and induction heads (layer 1, one per key-value head) into fresh weights.

    Raises:
        ValueError: the model has under two layers, or its rotary base leaves no slow frequencies.
    """
    c = model.config
    width, head, groups = c.hidden_size, c.head_dim, c.num_attention_heads // c.num_key_value_heads
    frequency_F = 1.0 / c.rope_theta ** (torch.arange(0, head, 2) / head)
    fast, slow = (frequency_F > FAST).nonzero().flatten(), (frequency_F < SLOW).nonzero().flatten()
    if c.num_hidden_layers < 2 or len(fast) < 2 or len(slow) < 4 or width < 3 * head:
        raise ValueError("an induction start needs two layers, three head widths, and a rotary base near 1e6")
    generator = torch.Generator().manual_seed(seed)
    for layer in model.model.blocks:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    # Residual stream: component 0 is shared by all tokens, the last E components stay free for the previous token.
    content = slice(1, width - head)
    embedding = model.model.embed_tokens.weight
    embedding.normal_(generator=generator).mul_(EMBEDDING_STD)
    embedding[:, 0] = EMBEDDING_STD * CONSTANT
    embedding[:, width - head :] = 0
    norm_0 = math.sqrt(width / (width - head - 1 + CONSTANT**2))  # what RMSNorm makes of a component of size 1
    norm_1 = math.sqrt(width / (width - 1 + CONSTANT**2))
    look = torch.linalg.qr(torch.randn(width - head - 1, head, generator=generator))[0].T  # E x content

    first = model.model.blocks[0].self_attn
    query, key = torch.zeros(head), torch.zeros(head)
    query[fast] = math.sqrt(SHARPNESS * math.sqrt(head) / len(fast)) / (CONSTANT * norm_0)
    key[fast], key[fast + head // 2] = query[fast] * frequency_F[fast].cos(), query[fast] * frequency_F[fast].sin()
    for projection, column in ((first.q_proj.weight, query), (first.k_proj.weight, key)):
        projection[:head] = 0
        projection[:head, 0] = column
    first.v_proj.weight[:head] = 0
    first.v_proj.weight[:head, content] = look / norm_0
    first.o_proj.weight[width - head :, :head] = torch.eye(head) * EMBEDDING_STD

    second = model.model.blocks[1].self_attn
    dims = torch.cat([slow, slow + head // 2])
    copy = torch.linalg.qr(torch.randn(width - head - 1, c.num_key_value_heads * head, generator=generator))[0].T
    strength = math.sqrt(MATCH * math.sqrt(head) / len(dims)) / norm_1
    for h in range(c.num_key_value_heads):
        seen = torch.randperm(head, generator=generator)[: len(dims)]
        q_row, kv_row = h * groups * head, h * head
        second.q_proj.weight[q_row : q_row + head] = 0
        second.q_proj.weight[q_row + dims[:, None], torch.arange(1, width - head)[None]] = look[seen] * strength
        second.k_proj.weight[kv_row : kv_row + head] = 0
        second.k_proj.weight[kv_row + dims, width - head + seen] = strength
        second.v_proj.weight[kv_row : kv_row + head] = 0
        second.v_proj.weight[kv_row : kv_row + head, content] = copy[kv_row : kv_row + head] / norm_1
        second.o_proj.weight[:, q_row : q_row + head] = 0
        second.o_proj.weight[content, q_row : q_row + head] = copy[kv_row : kv_row + head].T * EMBEDDING_STD * COPY_GAIN
