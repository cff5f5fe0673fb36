from __future__ import annotations

import itertools

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kg.order import CycleFoundError, TopologicalOrder


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=60))
def test_order_stays_valid_and_refuses_exactly_the_cycles(pairs: list[tuple[int, int]]) -> None:
    graph: nx.DiGraph = nx.DiGraph()
    order = TopologicalOrder(graph)
    for i in range(12):
        graph.add_node(str(i))
        order.add_node(str(i))
    for a, b in ((str(x), str(y)) for x, y in pairs):
        closes = a == b or nx.has_path(graph, b, a)
        if closes:
            with pytest.raises(CycleFoundError) as caught:
                order.insert(a, b)
            path = caught.value.path
            assert (path[0], path[-1]) == (b, a)
            assert all(graph.has_edge(u, v) for u, v in itertools.pairwise(path))
        else:
            order.insert(a, b)
            graph.add_edge(a, b)
        assert all(order.position(u) < order.position(v) for u, v in graph.edges)
        assert sorted(order.sorted()) == sorted(graph)


def test_order_of_an_existing_graph() -> None:
    graph: nx.DiGraph = nx.DiGraph([("a", "b"), ("b", "c")])
    order = TopologicalOrder(graph)
    assert order.sorted() == ["a", "b", "c"]
    with pytest.raises(CycleFoundError):
        order.insert("c", "a")
    assert order.sorted() == ["a", "b", "c"]
