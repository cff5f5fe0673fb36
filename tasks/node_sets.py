"""Which nodes one task is written for: a node alone, or a node with others that the graph relates it to."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from itertools import chain, zip_longest
from typing import Literal, get_args

from kg import ConceptGraph

Shape = Literal["single", "siblings", "chain", "cross"]
"""A node alone; with children of its parents; with the ancestors above it; with a node of another branch."""
SHAPES: tuple[Shape, ...] = get_args(Shape)


def node_set(graph: ConceptGraph, node: str, shape: Shape, usable: Collection[str], size: int, rng: random.Random) -> tuple[str, ...]:
    """The node and those drawn to it, all of them usable; empty when the graph has no such set around the node.

    Args:
        usable: nodes that may be drawn.
        size: nodes of siblings and chains at most; a cross-branch set is a pair.
    """
    if node not in usable:
        return ()
    if shape == "single":
        return (node,)
    if shape == "chain":
        others = [above for above in graph.lineage(node) if above in usable][: size - 1]
    elif shape == "siblings":
        around = sorted({child for parent in graph.parents(node) for child in graph.children(parent) if child in usable} - {node})
        others = rng.sample(around, min(size - 1, len(around)))
    else:
        branch = graph.branch_of(node)
        elsewhere = sorted(other for other in usable if graph.branch_of(other) != branch)
        others = rng.sample(elsewhere, min(1, len(elsewhere)))
    return (node, *others) if others else ()


def interleaved(lists: Sequence[Sequence[str]], limit: int) -> tuple[str, ...]:
    """At most `limit` different members, the first of every list before the second of any."""
    members = (member for member in chain.from_iterable(zip_longest(*lists)) if member is not None)
    return tuple(dict.fromkeys(members))[:limit]
