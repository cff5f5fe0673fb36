"""A continuous-batching engine of our own for Llama weights: one process, no server, exact log-probs.

Every trajectory owns a row of a dense key-value cache and keeps it between its turns, so that an observation costs one
prefill of the new tokens only; the K samples of a group prefill their common prompt once. Rows are keyed by policy
version: after a weight update a resumed prefix is computed again under the new weights (Kimi K3 report, section 5.3).

Shapes: S rows (running trajectories), T cached positions, L layers, K key-value heads, G query heads per key-value head,
E head width, D width, V vocabulary, N rows of one call, M new tokens of one call.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from environments.errors import EngineError
from environments.protocols import GenerateRequest, Generation, Load
from training.model import Llama, rotate


def uniforms(seeds: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """One uniform in [0, 1) per (trajectory seed, position): splitmix64 of both, independent of batching."""
    with np.errstate(over="ignore"):
        z = seeds.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + positions.astype(np.uint64) * np.uint64(0xD1342543DE82EF95)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            z = (z ^ (z >> np.uint64(shift))) * np.uint64(factor)
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) / float(1 << 53)


@dataclass
class _Row:
    """One trajectory's cache row and, while it generates, its request."""

    session: str
    version: int
    cached: list[int] = field(default_factory=list)
    request: GenerateRequest | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def pending(self) -> list[int]:
        """Tokens that are not in the cache yet."""
        assert self.request is not None
        return [*self.request.prefix[len(self.cached) :], *self.tokens[max(0, len(self.cached) - len(self.request.prefix)) :]]


PREFILL_SHARE = 8
"""Prefill when at least one row in so many waits for it. Chosen by reasoning, other values were not measured."""


class EmbeddedEngine:
    """Implements `environments.protocols.Engine`; `add` / `step` / `release` let a runner batch continuously.

    A request whose `request_id` still owns a row reuses the cached prefix that agrees with it.
    """

    def __init__(self, model: Llama, rows: int = 64, version: int = 0) -> None:
        self.config = model.config
        self.version = version
        self.capacity = rows
        self._rows: list[_Row] = []  # row i of the cache belongs to self._rows[i]
        self._queue: deque[GenerateRequest] = deque()
        self._dead = False
        self._aborted: set[str] = set()
        self._finished_early: list[Generation] = []
        c = self.config
        self._cos, self._sin = model.cos, model.sin
        self._group = c.num_attention_heads // c.num_key_value_heads
        shape = (c.num_hidden_layers, rows, c.num_key_value_heads, c.max_position_embeddings, c.head_dim)
        self._keys, self._values = torch.zeros(shape), torch.zeros(shape)
        self._set_weights(model)

    # --- weights ---

    def _set_weights(self, model: Llama) -> None:
        self._model = model
        self._layers = []
        for layer in model.model.blocks:
            a, m = layer.self_attn, layer.mlp
            self._layers.append(
                (
                    layer.input_layernorm.weight.detach(),
                    torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]).detach(),
                    a.o_proj.weight.detach(),
                    layer.post_attention_layernorm.weight.detach(),
                    torch.cat([m.gate_proj.weight, m.up_proj.weight]).detach(),
                    m.down_proj.weight.detach(),
                )
            )

    def update_weights(self, state: Mapping[str, Any], version: int) -> None:
        """Load a state dict; running requests go on under the new weights, their prefixes computed again."""
        self._model.load_state_dict(dict(state))
        self.refresh(version)

    def refresh(self, version: int) -> None:
        """The model's weights changed in place: pack them again and count a new version."""
        self._set_weights(self._model)
        self.version = version
        for row in self._rows:
            row.version, row.cached = version, []

    # --- requests ---

    def add(self, request: GenerateRequest) -> None:
        """Queue one request, or continue its trajectory's row.

        Raises:
            EngineError: the prefix leaves no room within the model's window, or the engine is closed.
        """
        self._check_open()
        if not request.prefix:
            raise EngineError("a request without a prefix", "pass at least one token")
        if len(request.prefix) >= self.config.max_position_embeddings:
            raise EngineError(
                f"a prefix of {len(request.prefix)} tokens does not fit the window of {self.config.max_position_embeddings}",
                "raise max_position_embeddings or shorten observations",
            )
        for row in self._rows:
            if row.session == request.request_id:
                self._start(row, request)
                return
        self._queue.append(request)

    def _start(self, row: _Row, request: GenerateRequest) -> None:
        agree = 0
        if row.version == self.version:
            limit = min(len(row.cached), len(request.prefix) - 1)
            agree = next((i for i in range(limit) if row.cached[i] != request.prefix[i]), limit)
        row.cached = row.cached[:agree]
        row.version = self.version
        row.request, row.tokens, row.logprobs, row.versions = request, [], [], []

    def release(self, session: str) -> None:
        """Free the row of a finished trajectory."""
        for index, row in enumerate(self._rows):
            if row.session == session:
                last = len(self._rows) - 1
                if index != last:  # keep the used rows contiguous: the last one moves into the gap
                    length = len(self._rows[last].cached)
                    self._keys[:, index, :, :length] = self._keys[:, last, :, :length]
                    self._values[:, index, :, :length] = self._values[:, last, :, :length]
                    self._rows[index] = self._rows[last]
                self._rows.pop()
                return

    def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """Stop requests; the next `step` returns what they have."""
        wanted = None if request_ids is None else set(request_ids)
        self._aborted |= {r.session for r in self._rows if r.request and (wanted is None or r.session in wanted)}
        dropped = [q for q in self._queue if wanted is None or q.request_id in wanted]
        self._queue = deque(q for q in self._queue if q not in dropped)
        self._finished_early += [Generation(q.request_id, [], [], [], "abort") for q in dropped]

    def load(self) -> Load:
        running = sum(r.request is not None for r in self._rows)
        return Load(running=running, queued=len(self._queue), kv_use=len(self._rows) / self.capacity)

    def close(self) -> None:
        """Refuse all further work."""
        self._dead = True

    def _check_open(self) -> None:
        if self._dead:
            raise EngineError("the embedded engine is closed", "make a new one")

    # --- the model step ---

    def _extend(self, rows: list[int], tokens_NM: Tensor, starts_N: Tensor, lengths_N: Tensor, active_N: Tensor | None = None) -> Tensor:
        """Append up to M tokens to the given cache rows, inactive ones excepted; logits [N, V] after each row's last one."""
        c = self.config
        n, m = tokens_NM.shape
        total = int((starts_N + lengths_N).max())
        index = torch.tensor(rows)
        whole = rows == list(range(n))  # views instead of copies
        positions_NM = starts_N[:, None] + torch.arange(m)
        real_NM = torch.arange(m) < lengths_N[:, None]
        if active_N is not None:
            real_NM = real_NM & active_N[:, None]
        everything = bool(real_NM.all())
        turn_NM = positions_NM.clamp(max=c.max_position_embeddings - 1)
        cos, sin = self._cos[turn_NM][:, :, None], self._sin[turn_NM][:, :, None]
        # A key may be seen by queries at or after it; rows of padding see garbage that nobody reads.
        mask = torch.where(torch.arange(total) <= positions_NM[:, :, None], 0.0, float("-inf"))[:, None, None]  # N 1 1 M T
        q_width, kv_width = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
        x = F.embedding(tokens_NM, self._model.head)
        if everything:
            write_row, write_position = index[:, None].expand(n, m).reshape(-1), positions_NM.reshape(-1)
        else:
            write_row, write_position = index[:, None].expand(n, m)[real_NM], positions_NM[real_NM]
        for depth, (norm1, w_qkv, w_o, norm2, w_gate_up, w_down) in enumerate(self._layers):
            q, k, v = F.linear(F.rms_norm(x, (c.hidden_size,), norm1, c.rms_norm_eps), w_qkv).split([q_width, kv_width, kv_width], dim=-1)
            q = rotate(q.view(n, m, c.num_attention_heads, c.head_dim), cos, sin)
            k = rotate(k.view(n, m, c.num_key_value_heads, c.head_dim), cos, sin)
            v = v.view(n, m, c.num_key_value_heads, c.head_dim)
            if everything:
                new_k, new_v = k.reshape(n * m, c.num_key_value_heads, c.head_dim), v.reshape(n * m, c.num_key_value_heads, c.head_dim)
            else:
                new_k, new_v = k[real_NM], v[real_NM]
            self._keys[depth][write_row, :, write_position] = new_k
            self._values[depth][write_row, :, write_position] = new_v
            keys = self._keys[depth][:n, :, :total] if whole else self._keys[depth][index, :, :total]
            values = self._values[depth][:n, :, :total] if whole else self._values[depth][index, :, :total]
            q = q.view(n, m, c.num_key_value_heads, self._group, c.head_dim).permute(0, 2, 3, 1, 4)  # N K G M E
            q = q.reshape(n, c.num_key_value_heads, self._group * m, c.head_dim)
            scores = torch.matmul(q, keys.transpose(-1, -2)).view(n, c.num_key_value_heads, self._group, m, total)
            weights = torch.softmax(scores * c.head_dim**-0.5 + mask, dim=-1).view(n, c.num_key_value_heads, self._group * m, total)
            y = (
                torch.matmul(weights, values)
                .view(n, c.num_key_value_heads, self._group, m, c.head_dim)
                .permute(0, 3, 1, 2, 4)
                .reshape(n, m, q_width)
            )
            x = x + F.linear(y, w_o)
            gate, up = F.linear(F.rms_norm(x, (c.hidden_size,), norm2, c.rms_norm_eps), w_gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, w_down)
        last = x[torch.arange(n), lengths_N - 1]
        return F.linear(F.rms_norm(last, (c.hidden_size,), self._model.model.norm.weight, c.rms_norm_eps), self._model.head)

    def _prefill(self, indices: list[int]) -> Tensor:
        """Bring several rows up to date; equal fresh prompts are computed once and copied."""
        first: dict[tuple[int, ...], int] = {}
        owner = []
        for i in indices:
            row = self._rows[i]
            key = tuple(row.pending()) if not row.cached else (-1, i)
            owner.append(first.setdefault(key, i))
        unique = list(dict.fromkeys(owner))
        feeds = [self._rows[i].pending() for i in unique]
        lengths = torch.tensor([len(f) for f in feeds])
        tokens = torch.zeros(len(unique), int(lengths.max()), dtype=torch.long)
        for j, f in enumerate(feeds):
            tokens[j, : len(f)] = torch.tensor(f)
        starts = torch.tensor([len(self._rows[i].cached) for i in unique])
        logits = self._extend(unique, tokens, starts, lengths)
        for i, f in zip(unique, feeds, strict=True):
            self._rows[i].cached += f
        for i, source in zip(indices, owner, strict=True):
            if i != source:
                length = len(self._rows[source].cached)
                self._keys[:, i, :, :length] = self._keys[:, source, :, :length]
                self._values[:, i, :, :length] = self._values[:, source, :, :length]
                self._rows[i].cached = list(self._rows[source].cached)
        return logits[torch.tensor([unique.index(o) for o in owner])]

    def _decode(self, indices: list[int]) -> None:
        """One token for each of `indices`. Rows between them ride along unheard, so that the cache is read in place."""
        count = max(indices) + 1
        rows = self._rows[:count]
        active = torch.zeros(count, dtype=torch.bool)
        active[indices] = True
        feeds = [rows[i].pending()[0] if active[i] else 0 for i in range(count)]
        starts = torch.tensor([len(r.cached) for r in rows])
        logits = self._extend(list(range(count)), torch.tensor(feeds)[:, None], starts, torch.ones_like(starts), active)
        for i in indices:
            rows[i].cached.append(feeds[i])
        self._sample(indices, logits[indices])

    def _sample(self, indices: list[int], logits_NV: Tensor) -> None:
        rows = [self._rows[i] for i in indices]
        requests = [r.request for r in rows]
        temperatures = torch.tensor([q.temperature for q in requests if q])[:, None]
        logprobs = torch.log_softmax(logits_NV / temperatures.clamp(min=1e-6), dim=-1)
        seeds = np.array([q.key[0] for q in requests if q], dtype=np.uint64)
        positions = np.array([q.key[1] + len(r.tokens) for q, r in zip(requests, rows, strict=True) if q], dtype=np.uint64)
        cumulative = logprobs.double().exp().cumsum(-1)
        points = torch.from_numpy(uniforms(seeds, positions))[:, None] * cumulative[:, -1:]
        chosen = torch.searchsorted(cumulative, points, right=True).clamp(max=logits_NV.shape[1] - 1)
        greedy = logits_NV.argmax(-1, keepdim=True)
        chosen = torch.where(temperatures > 1e-6, chosen, greedy)
        values = logprobs.gather(1, chosen)[:, 0].tolist()
        for row, token, value in zip(rows, chosen[:, 0].tolist(), values, strict=True):
            row.tokens.append(token)
            row.logprobs.append(value)
            row.versions.append(self.version)

    @torch.no_grad()
    def step(self) -> list[Generation]:
        """One round: admit, prefill, decode one token for every running row. Returns what finished.

        Raises:
            EngineError: the engine is closed.
        """
        self._check_open()
        while self._queue and len(self._rows) < self.capacity:
            queued = self._queue.popleft()
            row = _Row(session=queued.request_id, version=self.version)
            self._rows.append(row)
            self._start(row, queued)
        running = [i for i, r in enumerate(self._rows) if r.request is not None]
        lengths = {i: len(self._rows[i].pending()) for i in running}
        prefill = sorted((i for i in running if lengths[i] > 1), key=lambda i: lengths[i])
        decode = [i for i in running if lengths[i] == 1]
        # A prefill costs about as much as a decoded token for everybody, so short queues wait for company while others decode.
        if decode and len(prefill) < max(1, len(decode) // PREFILL_SHARE):
            prefill = []
        for begin in range(0, len(prefill), 16):  # similar lengths together, so that little is padded
            part = prefill[begin : begin + 16]
            self._sample(part, self._prefill(part))
        if decode:
            self._decode(decode)
        stepped = [*prefill, *decode]
        finished, self._finished_early = self._finished_early, []
        for i in stepped:
            row = self._rows[i]
            request = row.request
            assert request is not None
            full = len(request.prefix) + len(row.tokens) >= self.config.max_position_embeddings
            stop = row.tokens[-1] in request.stop_tokens
            if stop or full or len(row.tokens) >= request.max_new_tokens or row.session in self._aborted:
                reason = "stop" if stop else "abort" if row.session in self._aborted else "length"
                finished.append(Generation(request.request_id, row.tokens, row.logprobs, row.versions, reason))
                row.request = None
        self._aborted = set()
        return finished

    # --- the blocking interface ---

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        """Generate for all requests, in their order, and free their rows.

        Raises:
            EngineError: two requests share an id, a prefix does not fit, or the engine is closed.
        """
        wanted = {request.request_id for request in requests}
        if len(wanted) < len(requests):
            raise EngineError("two requests of one call share a request_id", "give each its own")
        for request in requests:
            self.add(request)
        done: dict[str, Generation] = {}
        while wanted - done.keys():
            for generation in self.step():
                done[generation.request_id] = generation
                self.release(generation.request_id)
        return [done[r.request_id] for r in requests]

    @torch.no_grad()
    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each token given those before it; the first scores 0.0.

        Raises:
            EngineError: a sequence is empty or longer than the window, or the engine is closed.
        """
        self._check_open()
        scores: list[list[float]] = []
        for sequence in sequences:
            if not 0 < len(sequence) <= self.config.max_position_embeddings:
                raise EngineError(f"cannot score a sequence of {len(sequence)} tokens", f"pass 1 to {self.config.max_position_embeddings}")
            ids = torch.tensor([list(sequence)])
            logprobs = torch.log_softmax(self._model(ids)[0, :-1], dim=-1)
            scores.append([0.0, *logprobs.gather(1, ids[0, 1:, None])[:, 0].tolist()])
        return scores
