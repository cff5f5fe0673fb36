"""A start with an induction circuit in it, so that copying names need not be discovered from nothing.

A policy of half a million parameters must learn to copy identifiers it never saw within a few CPU minutes. What it would
spend most of that time on is known: a head that looks at the previous token, and one that looks for an earlier occurrence of
the current token and reads what followed (Olsson et al., "In-context Learning and Induction Heads", 2022). Both are laid into
the first two layers as ordinary weights, which training is free to change; nothing about any task is put in. So is the same
circuit one token wider: what stood two places after an earlier occurrence of the previous token, whatever is between. Everything else
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
"""Logit of the token looked back at; its neighbours get about 5.6 less at a head width of 32."""
MATCH = 20.0
"""Logit of a matching token. Tried once: the copying heads then put over .9 of their weight on the match in most positions."""
COPY_GAIN = 2.0
"""How loudly the token that followed is written, against the current token's own embedding."""
FAST, SLOW = 0.05, 2e-3
"""Rotary frequencies (radians a token): those that tell neighbours apart, and those that hardly turn within a context."""


@torch.no_grad()
def induction_start(model: Llama, seed: int) -> None:
    """Lay two looking-back heads (layer 0) and three copying heads (layer 1) into fresh weights, one a key-value head.

    Raises:
        ValueError: the model has under two layers or three key-value heads, or its rotary base leaves no slow frequencies.
    """
    c = model.config
    width, head, groups = c.hidden_size, c.head_dim, c.num_attention_heads // c.num_key_value_heads
    frequency_F = 1.0 / c.rope_theta ** (torch.arange(0, head, 2) / head)
    fast, slow = (frequency_F > FAST).nonzero().flatten(), (frequency_F < SLOW).nonzero().flatten()
    dims = torch.cat([slow, slow + head // 2])
    size = width - head - len(dims) - 1
    if c.num_hidden_layers < 2 or c.num_key_value_heads < 3 or len(fast) < 2 or len(slow) < 4 or size < 2 * head:
        raise ValueError(
            "an induction start needs two layers, three key-value heads, a width of four heads, and a rotary base near 1e6;"
            f" the model has {c.num_hidden_layers}, {c.num_key_value_heads}, {width / head:g} and {c.rope_theta:g}"
        )
    generator = torch.Generator().manual_seed(seed)
    for layer in model.model.blocks:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    # Residual stream: component 0 is shared by all tokens; then what tells tokens apart; then room for the two tokens before.
    content = torch.arange(1, 1 + size)
    before = (torch.arange(1 + size, 1 + size + head), torch.arange(1 + size + head, width))
    embedding = model.model.embed_tokens.weight
    embedding.normal_(generator=generator)
    # Of one length each: after the norm, the shared component must say nothing about which token it is.
    embedding[:, content] *= EMBEDDING_STD * math.sqrt(size) / embedding[:, content].norm(dim=1, keepdim=True)
    embedding[:, 0] = EMBEDDING_STD * CONSTANT
    embedding[:, 1 + size :] = 0
    norm_0 = math.sqrt(width / (size + CONSTANT**2))  # what RMSNorm makes of a component of size 1
    norm_1 = math.sqrt(width / (width - 1 + CONSTANT**2))
    look = torch.linalg.qr(torch.randn(size, head, generator=generator))[0].T  # E x content

    first = model.model.blocks[0].self_attn
    for back, room in enumerate(before, start=1):
        query, key = torch.zeros(head), torch.zeros(head)
        query[fast] = math.sqrt(SHARPNESS * math.sqrt(head) / len(fast)) / (CONSTANT * norm_0)
        turn_F = back * frequency_F[fast]
        key[fast], key[fast + head // 2] = query[fast] * turn_F.cos(), query[fast] * turn_F.sin()
        q_row, kv_row = (back - 1) * groups * head, (back - 1) * head
        for projection, row, column in ((first.q_proj.weight, q_row, query), (first.k_proj.weight, kv_row, key)):
            projection[row : row + head] = 0
            projection[row : row + head, 0] = column
        first.v_proj.weight[kv_row : kv_row + head] = 0
        first.v_proj.weight[kv_row : kv_row + len(room), content[0] : content[-1] + 1] = look[: len(room)] / norm_0
        first.o_proj.weight[room[:, None], torch.arange(q_row, q_row + len(room))] = torch.eye(len(room)) * EMBEDDING_STD

    second = model.model.blocks[1].self_attn
    copy = torch.linalg.qr(torch.randn(size, 2 * head, generator=generator))[0].T
    strength = math.sqrt(MATCH * math.sqrt(head) / len(dims)) / norm_1
    for h in range(3):
        q_row, kv_row = h * groups * head, h * head
        second.q_proj.weight[q_row : q_row + head] = 0
        second.k_proj.weight[kv_row : kv_row + head] = 0
        if h < 2:  # the current token against the one before each position, in two random views
            seen = torch.randperm(head, generator=generator)[: len(dims)]
            second.q_proj.weight[q_row + dims[:, None], content] = look[seen] * strength
            second.k_proj.weight[kv_row + dims, before[0][seen]] = strength
        else:  # the previous token against the one two before each position
            second.q_proj.weight[q_row + dims, before[0][: len(dims)]] = strength
            second.k_proj.weight[kv_row + dims, before[1]] = strength
        written = copy[h % 2 * head : h % 2 * head + head]
        second.v_proj.weight[kv_row : kv_row + head] = 0
        second.v_proj.weight[kv_row : kv_row + head, content[0] : content[-1] + 1] = written / norm_1
        second.o_proj.weight[:, q_row : q_row + head] = 0
        second.o_proj.weight[content[0] : content[-1] + 1, q_row : q_row + head] = written.T * EMBEDDING_STD * COPY_GAIN
