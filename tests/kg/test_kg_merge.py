from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from environments.errors import InputError
from environments.protocols import Evidence, Proposal
from kg import ConceptGraph, Passage
from kg.concept import Redirect
from kg.equivalence import name_key
from kg.merge import Sense, merge, merge_claims, split


def found(name: str, relation: str = "narrower", confidence: float = 0.5, document: str = "d") -> Proposal:
    return Proposal(name, relation, confidence, (Evidence(document, f"{document} on {name}"),))


def grown(graph: ConceptGraph, edges: list[tuple[str, str]]) -> dict[str, str]:
    """Ids by name of a graph with these edges, coarse first."""
    ids = {edges[0][0]: graph.add_seed(edges[0][0])}
    for coarse, fine in edges:
        node = graph.propose(ids[coarse], found(fine), [Passage("d", "t", "demo", "MIT", f"about {fine} below {coarse}")])
        assert node is not None
        ids[fine] = node
    return ids


def test_a_merge_keeps_names_edges_evidence_and_the_old_id() -> None:
    graph = ConceptGraph()
    ids = grown(
        graph, [("root", "car"), ("root", "automobile"), ("automobile", "sports car"), ("root", "vehicle"), ("vehicle", "automobile")]
    )
    graph.propose(ids["automobile"], found("road", "related"))
    kept = merge(graph, ids["car"], ids["automobile"], "same thing", "tester", "now")
    assert kept == ids["car"]
    assert graph.resolve("automobiles") == graph.current(ids["automobile"]) == kept
    assert graph.concept(kept).aliases == ["automobile"]
    assert set(graph.parents(kept)) == {ids["root"], ids["vehicle"]}
    assert graph.children(kept) == [ids["sports car"]]
    assert [r.name for r in graph.relations(kept)] == ["road"]
    assert {p.quote for p in graph.concept(kept).evidence} >= {"about automobile below root", "about car below root"}
    redirect = graph.redirects[ids["automobile"]]
    assert (redirect.targets, redirect.kind, redirect.name, redirect.agent) == ((kept,), "merge", "automobile", "tester")
    assert graph.rejects == []


def test_redirects_of_redirects_lead_to_what_is_there() -> None:
    graph = ConceptGraph()
    ids = grown(graph, [("root", "a one"), ("root", "b one"), ("root", "c one")])
    merge(graph, ids["b one"], ids["c one"], "")
    merge(graph, ids["a one"], ids["b one"], "")
    assert {graph.current(ids[n]) for n in ("a one", "b one", "c one")} == {ids["a one"]}


def test_an_end_of_a_long_path_is_merged_with_the_other_and_nobody_is_orphaned() -> None:
    for order in (("a one", "c one"), ("c one", "a one")):
        graph = ConceptGraph()
        ids = grown(graph, [("root", "a one"), ("a one", "b one"), ("b one", "c one"), ("c one", "d one")])
        kept = merge(graph, ids[order[0]], ids[order[1]], "")
        assert graph.resolve("a one") == graph.resolve("c one") == kept
        assert set(nx.descendants(graph.digraph, ids["root"])) == {kept, ids["b one"], ids["d one"]}
        assert nx.is_directed_acyclic_graph(graph.digraph)
        assert any(r.reason.startswith("cycle: after a merge") for r in graph.rejects)


def test_a_seed_stays_a_seed() -> None:
    graph = ConceptGraph()
    ids = grown(graph, [("root", "a one"), ("a one", "b one")])
    assert merge(graph, ids["b one"], ids["root"], "") == ids["root"]
    assert graph.concept(ids["root"]).seed
    assert graph.parents(ids["root"]) == []
    assert any(r.reason.startswith("seed") for r in graph.rejects)


def test_claims_merge_when_enough_documents_make_them() -> None:
    graph = ConceptGraph()
    ids = grown(graph, [("root", "car"), ("root", "automobile"), ("root", "bus"), ("root", "coach")])
    graph.propose(ids["car"], found("automobile", "equivalent", document="one"))
    graph.propose(ids["bus"], found("coach", "equivalent", document="one"))
    graph.propose(ids["bus"], found("coach", "equivalent", document="one"))
    assert merge_claims(graph) == []
    graph.propose(ids["automobile"], found("cars", "equivalent", document="two"))
    assert merge_claims(graph, "tester") == [(ids["automobile"], ids["car"])]
    assert "one, two" in graph.redirects[ids["automobile"]].reason
    assert graph.relations(ids["car"]) == []
    assert [r.kind for r in graph.relations(ids["bus"])] == ["equivalent"]


def test_a_split_divides_what_the_node_had() -> None:
    graph = ConceptGraph()
    ids = grown(
        graph, [("root", "biology"), ("root", "computing"), ("biology", "tree"), ("computing", "tree"), ("tree", "oak"), ("tree", "heap")]
    )
    old = ids["tree"]
    quotes = {p.quote: p.sha256 for p in graph.concept(old).evidence}
    plant, data = split(
        graph,
        old,
        [
            Sense("tree (plant)", (ids["biology"],)),
            Sense("tree data structure", (ids["computing"],), (ids["heap"],), (quotes["about tree below computing"],)),
        ],
        "two senses",
    )
    assert graph.current(old) == graph.resolve("tree") == plant
    assert graph.redirects[old].targets == (plant, data)
    assert (graph.children(plant), graph.children(data)) == ([ids["oak"]], [ids["heap"]])
    assert [p.quote for p in graph.concept(data).evidence] == ["about tree below computing"]
    assert [p.quote for p in graph.concept(plant).evidence] == ["about tree below biology"]
    again = ConceptGraph.from_rows(graph.to_rows("r"))
    assert again.redirects == {old: Redirect((plant, data), "split", "tree", "two senses", run="r")}


@pytest.mark.parametrize(
    ("senses", "message"),
    [
        (["plant"], "senses make no split"),
        (["plant", "plants"], "share a name"),
        (["root", "plant"], "another node's"),
    ],
)
def test_a_split_that_makes_no_sense_is_refused_and_changes_nothing(senses: list[str], message: str) -> None:
    graph = ConceptGraph()
    ids = grown(graph, [("root", "tree"), ("tree", "oak")])
    before = graph.to_rows("r")
    with pytest.raises(InputError, match=message):
        split(graph, ids["tree"], [Sense(s, (ids["root"],)) for s in senses], "")
    with pytest.raises(InputError, match="has no parent"):
        split(graph, ids["tree"], [Sense("x tree", ()), Sense("y tree", (ids["root"],))], "")
    with pytest.raises(InputError, match="not of the node"):
        split(graph, ids["tree"], [Sense("x tree", (ids["oak"],)), Sense("y tree", (ids["root"],))], "")
    with pytest.raises(InputError, match="a seed"):
        split(graph, ids["root"], [], "")
    with pytest.raises(InputError, match="merge"):
        merge(graph, ids["tree"], "nobody", "")
    with pytest.raises(InputError, match="itself"):
        merge(graph, ids["tree"], ids["tree"], "")
    assert graph.to_rows("r") == before


class Growth(RuleBasedStateMachine):
    """Whatever is proposed, merged, split, saved and loaded, the graph stays sound and nothing is lost."""

    @initialize()
    def seeds(self) -> None:
        self.graph = ConceptGraph()
        self.given = {self.graph.add_seed("root seed"), self.graph.add_seed("other seed")}
        self.quotes: set[tuple[str, str]] = set()
        self.splits = 0

    def node(self, number: int) -> str:
        nodes = list(self.graph.digraph)
        return str(nodes[number % len(nodes)])

    @rule(
        at=st.integers(0, 50),
        name=st.sampled_from([f"{a} {b}" for a in ("red", "blue", "grey") for b in ("tree", "heaps", "lists")]),
        relation=st.sampled_from(["narrower", "narrower", "broader", "equivalent", "related"]),
        confidence=st.floats(0.1, 1.0),
        document=st.sampled_from(["one", "two"]),
    )
    def propose(self, at: int, name: str, relation: str, confidence: float, document: str) -> None:
        node, before = self.node(at), len(self.graph.rejects)
        result = self.graph.propose(node, found(name, relation, confidence, document))
        rejects = [(r.concept_id, r.name, r.relation) for r in self.graph.rejects]
        assert result is not None or len(self.graph.rejects) > before or (node, name, relation) in rejects

    @rule(one=st.integers(0, 50), other=st.integers(0, 50))
    def merge(self, one: int, other: int) -> None:
        if self.node(one) != self.node(other):
            size, names = len(self.graph), set(self.graph._names)
            merge(self.graph, self.node(one), self.node(other), "because")
            assert len(self.graph) == size - 1
            assert set(self.graph._names) == names

    @rule(at=st.integers(0, 50))
    def split(self, at: int) -> None:
        node = self.node(at)
        parents, children = self.graph.parents(node), self.graph.children(node)
        if parents:
            self.splits += 1
            senses = [
                Sense(self.graph.concept(node).name, tuple(parents)),
                Sense(f"sense {self.splits}", (parents[-1],), tuple(children[:1])),
            ]
            new = split(self.graph, node, senses, "because")
            assert self.graph.current(node) == new[0]

    @rule()
    def merge_claims(self) -> None:
        merge_claims(self.graph)

    @rule()
    def save_and_load(self) -> None:
        rows = self.graph.to_rows("r")
        self.graph = ConceptGraph.from_rows(rows)
        assert self.graph.to_rows("r") == rows

    @invariant()
    def sound(self) -> None:
        graph = self.graph
        self.given |= set(graph.digraph)
        assert nx.is_directed_acyclic_graph(graph.digraph)
        order = {node: i for i, node in enumerate(graph.topological())}
        assert all(order[a] < order[b] for a, b in graph.digraph.edges)
        assert all(graph._order.position(a) < graph._order.position(b) for a, b in graph.digraph.edges)
        names = [name_key(n) for c in graph for n in (c.name, *c.aliases)]
        assert len(names) == len(set(names))
        assert {n: graph._names[n] for n in names} == graph._names
        assert all(graph.resolve(c.name) == c.concept_id for c in graph)
        seeds = graph.seeds()
        assert set(seeds).union(*(nx.descendants(graph.digraph, s) for s in seeds)) == set(graph.digraph)
        assert all(not graph.parents(s) for s in seeds)
        assert all(t in graph for r in graph.redirects.values() for t in r.targets)
        assert all(graph.current(node) in graph for node in self.given)
        assert all(e.supports and e.confidence >= max(s.confidence for s in e.supports) - 1e-9 for _, _, e in graph.edges())


TestGrowth = Growth.TestCase
TestGrowth.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
