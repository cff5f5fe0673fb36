"""Where the concept graph's nodes are drawn: one sector a seed, one ring a level, so that branches read as wedges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx

MAX_NODES = 4000
"""About 1 MB of page and still smooth to pan; beyond it the deepest nodes are left out, and the page says so."""


def graph_payload(nodes: Sequence[Mapping[str, Any]], edges: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Nodes with x, y in [-1, 1] and edges as index pairs, ready for the page's JSON.

    A node hangs below its deepest parent, so that its ring is its level; other edges are drawn but do not place it.
    """
    kept = sorted(nodes, key=lambda n: (n["level"], n["node_id"]))[:MAX_NODES]
    level = {n["node_id"]: int(n["level"]) for n in kept}
    pairs = [(e["coarse_id"], e["fine_id"]) for e in edges if e["coarse_id"] in level and e["fine_id"] in level]
    parent: dict[str, str] = {}
    for coarse, fine in sorted(pairs):
        if level[coarse] < level[fine] and (fine not in parent or level[coarse] > level[parent[fine]]):
            parent[fine] = coarse
    tree = nx.DiGraph()
    tree.add_node("")  # stands above the seeds
    for n in kept:
        tree.add_edge(parent.get(n["node_id"], ""), n["node_id"])
    leaves: dict[str, int] = {}
    for name in nx.dfs_postorder_nodes(tree, ""):
        leaves[name] = max(1, sum(leaves[c] for c in tree.successors(name)))
    angle: dict[str, float] = {}
    span: dict[str, tuple[float, float]] = {"": (-math.pi / 2, 1.5 * math.pi)}
    for name in nx.dfs_preorder_nodes(tree, ""):
        start, end = span[name]
        angle[name] = (start + end) / 2
        children = sorted(tree.successors(name))
        # A power below 1 keeps a bushy branch from squeezing its neighbours into slivers.
        weights = [leaves[c] ** 0.75 for c in children]
        for child, weight in zip(children, weights, strict=True):
            width = (end - span[name][0]) * weight / sum(weights)
            span[child] = (start, start + width)
            start += width
    rings = _rings([level[n["node_id"]] for n in kept])
    index = {n["node_id"]: i for i, n in enumerate(kept)}
    at = {name: (rings[n] * math.cos(angle[name]), rings[n] * math.sin(angle[name])) for name, n in level.items()}
    left, right = min(x for x, _ in at.values()), max(x for x, _ in at.values())
    top, bottom = min(y for _, y in at.values()), max(y for _, y in at.values())
    out = []
    for n in kept:
        name = n["node_id"]
        x, y = at[name]
        out.append(
            {
                "n": str(n["name"])[:120],
                "a": ", ".join(map(str, n["aliases"][:4]))[:160],
                "d": n["domain"],
                "l": level[name],
                "b": n["branch"],
                "s": bool(n["seed"]),
                "t": bool(n["atomic"]),
                "r": str(n["reason"])[:200],
                "c": int(n["candidates"]),
                "p": int(n["published"]),
                "x": _fit(x, left, right),
                "y": _fit(y, top, bottom),
            }
        )
    return {"nodes": out, "edges": [[index[a], index[b]] for a, b in pairs], "left_out": len(nodes) - len(kept)}


def _fit(value: float, low: float, high: float) -> float:
    """From [low, high] to [-1, 1], so that the picture fills its box."""
    return round(2 * (value - low) / (high - low) - 1, 4) if high - low > 1e-9 else 0.0


def _rings(levels: Sequence[int]) -> dict[int, float]:
    """Radius of each level's ring: half by its number, half by the area its nodes need, so that full rings get room."""
    depth, total = max(levels, default=0), len(levels)
    rings, inside = {}, 0
    for ring in range(depth + 1):
        here = sum(n == ring for n in levels)
        even, by_area = (ring + 1) / (depth + 1), ((inside + here) / total) ** 0.5
        rings[ring] = (even + by_area) / 2
        inside += here
    return rings
