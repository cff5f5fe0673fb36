"""Sets of nodes: related as their shape says, usable, and the same for one seed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kg import Concept, ConceptGraph, Edge
from kg.concept import Support
from tasks.node_sets import SHAPES, Shape, interleaved, node_set


def tree() -> ConceptGraph:
    """seed -> b0, b1 -> three leaves each, and a leaf below the first."""
    made = ConceptGraph()
    made.restore_node(Concept("seed", "the seed", seed=True))
    edges = [("seed", b) for b in ("b0", "b1")] + [(b, f"{b}n{i}") for b in ("b0", "b1") for i in range(3)] + [("b0n0", "b0n0x")]
    for coarse, fine in edges:
        made.restore_node(Concept(fine, f"concept {fine}"))
        made.restore_edges([(coarse, fine, Edge("narrower", 1.0, [Support("d", "a quote", "narrower", 1.0, "test")]))])
    return made


TREE = tree()
NODES = sorted(c.concept_id for c in TREE)


@given(st.sampled_from(NODES), st.sampled_from(SHAPES), st.sets(st.sampled_from(NODES)), st.integers(2, 5), st.integers(0, 99))
def test_a_set_is_usable_related_and_depends_on_the_seed_alone(node: str, shape: Shape, usable: set[str], size: int, seed: int) -> None:
    found = node_set(TREE, node, shape, usable, size, random.Random(seed))
    assert found == node_set(TREE, node, shape, sorted(usable, reverse=True), size, random.Random(seed))
    if not found:
        return
    assert found[0] == node
    assert set(found) <= usable
    assert len(set(found)) == len(found) <= size
    others = found[1:]
    assert bool(others) == (shape != "single")
    for other in others:
        assert shape != "siblings" or set(TREE.parents(other)) & set(TREE.parents(node))
        assert shape != "chain" or other in TREE.ancestors(node)
        assert shape != "cross" or TREE.branch_of(other) != TREE.branch_of(node)


@pytest.mark.parametrize(
    ("node", "shape", "expected"),
    [
        ("b0n0x", "chain", ("b0n0x", "b0n0", "b0")),
        ("seed", "chain", ()),
        ("b0n0x", "siblings", ()),
        ("b0n1", "siblings", ("b0n0", "b0n1", "b0n2")),
    ],
)
def test_what_the_graph_has_around_a_node(node: str, shape: Shape, expected: tuple[str, ...]) -> None:
    found = node_set(TREE, node, shape, NODES, 3, random.Random(0))
    assert (found if shape == "chain" else tuple(sorted(found))) == expected


def test_documents_of_every_node_come_before_the_second_of_any() -> None:
    assert interleaved([["a", "b", "c"], ["d"], ["a", "e"]], 4) == ("a", "d", "b", "e")
    assert interleaved([], 3) == ()
