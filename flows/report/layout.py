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
    leaves: dict[str, float] = {}
    for name in nx.dfs_postorder_nodes(tree, ""):
        # The square root keeps a bushy branch from squeezing the others into slivers.
        leaves[name] = max(1.0, sum(leaves[c] for c in tree.successors(name)) ** 0.9)
    angle: dict[str, float] = {}
    span: dict[str, tuple[float, float]] = {"": (-math.pi / 2, 1.5 * math.pi)}
    for name in nx.dfs_preorder_nodes(tree, ""):
        start, end = span[name]
        angle[name] = (start + end) / 2
        children = sorted(tree.successors(name))
        total = sum(leaves[c] for c in children)
        for child in children:
            width = (end - start) * leaves[child] / total
            span[child] = (start, start + width)
            start += width
    depth = max(level.values(), default=0)
    index = {n["node_id"]: i for i, n in enumerate(kept)}
    out = []
    for n in kept:
        name = n["node_id"]
        radius = (level[name] + 0.6) / (depth + 0.6)
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
                "x": round(radius * math.cos(angle[name]), 4),
                "y": round(radius * math.sin(angle[name]), 4),
            }
        )
    return {"nodes": out, "edges": [[index[a], index[b]] for a, b in pairs], "left_out": len(nodes) - len(kept)}
