from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.errors import CorruptArtifactError
from environments.protocols import Evidence, Proposal
from environments.tables import read_rows, write_rows
from kg import ConceptGraph, Passage
from kg.equivalence import name_key
from kg.rows import TABLES


def found(name: str, relation: str = "narrower", confidence: float = 0.5) -> Proposal:
    return Proposal(name, relation, confidence, (Evidence("d", f"quote for {name}"),))


def note(name: str) -> Passage:
    return Passage("d", "title", "demo", "MIT", f"quote for {name}")


def chain(*names: str) -> tuple[ConceptGraph, list[str]]:
    graph = ConceptGraph()
    ids = [graph.add_seed(names[0])]
    for name in names[1:]:
        node = graph.propose(ids[-1], found(name), [note(name)])
        assert node is not None
        ids.append(node)
    return graph, ids


NAMES = st.sampled_from(["alpha", "Alphas", "beta", "gamma (G)", "G", "delta", "x.y.Z", "x.y.z", "---", "epsilon", ""])
STEPS = st.lists(
    st.tuples(st.integers(0, 20), NAMES, st.sampled_from(["narrower", "broader", "equivalent", "related", "odd"]), st.floats(-0.5, 1.5)),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_whatever_is_proposed_the_graph_stays_sound(steps: list[tuple[int, str, str, float]]) -> None:
    graph = ConceptGraph()
    graph.add_seed("root")
    graph.add_seed("other seed")
    for index, name, relation, confidence in steps:
        nodes = [c.concept_id for c in graph]
        size, edges, rejects = len(graph), graph.digraph.number_of_edges(), len(graph.rejects)
        aliases = sum(len(c.aliases) for c in graph)
        result = graph.propose(nodes[index % len(nodes)], found(name, relation, confidence))
        if result is None:
            assert len(graph) == size
            assert graph.digraph.number_of_edges() <= edges
            assert graph.rejects
        elif relation == "equivalent":
            assert sum(len(c.aliases) for c in graph) >= aliases
        assert len(graph.rejects) >= rejects
        assert nx.is_directed_acyclic_graph(graph.digraph)
    keys = [name_key(n) for c in graph for n in (c.name, *c.aliases)]
    assert len(keys) == len(set(keys))
    reached = set(graph.seeds()).union(*(nx.descendants(graph.digraph, s) for s in graph.seeds()))
    assert reached == set(graph.digraph)
    assert all(not graph.parents(s) for s in graph.seeds())
    assert graph.branches() == {n: graph.branch_of(n) for n in graph.digraph}
    levels = graph.levels()
    assert all(levels[fine] > levels[coarse] for coarse, fine, _ in graph.edges())
    again = ConceptGraph.from_rows(graph.to_rows("r"))
    assert again.to_rows("r") == graph.to_rows("r")


def test_an_edge_runs_coarse_to_fine_whichever_end_was_found_first() -> None:
    graph, (root, trees) = chain("graphs", "trees")
    heap = graph.propose(root, found("heap"))
    assert heap
    assert graph.propose(heap, found("trees", "broader")) == trees
    assert graph.parents(heap) == [root, trees]
    assert graph.edge(trees, heap).relation == "broader"


def test_one_node_a_concept_with_its_aliases() -> None:
    graph, (root, fft) = chain("signals", "fast Fourier transform (FFT)")
    assert graph.resolve("Fast Fourier Transforms") == graph.resolve("FFT") == fft
    assert graph.concept(fft).aliases == ["FFT"]
    assert graph.propose(root, found("Fast Fourier transform")) == fft
    assert len(graph) == 2
    assert graph.propose(fft, found("signals", "equivalent")) == fft
    (claim,) = graph.relations(fft)
    assert (claim.name, claim.kind, graph.resolve("signals")) == ("signals", "equivalent", root)
    assert graph.rejects == []


def test_a_weak_edge_that_closes_a_cycle_is_rejected_with_the_reason() -> None:
    graph, (a, b, c) = chain("a concept", "b concept", "c concept")
    assert graph.propose(c, found("b concept", confidence=0.5)) is None
    assert graph.rejects[-1].reason == "cycle: 'b concept' already leads to 'c concept'"
    assert graph.propose(c, found("a concept", confidence=0.99)) is None
    assert graph.rejects[-1].reason.startswith("seed")
    assert graph.children(c) == []
    assert [graph.levels()[n] for n in (a, b, c)] == [0, 1, 2]


def test_a_cycle_is_resolved_by_better_evidence_when_nobody_is_orphaned() -> None:
    graph, (a, b, c) = chain("a concept", "b concept", "c concept")
    assert graph.propose(a, found("c concept", confidence=0.9)) == c
    assert graph.propose(c, found("b concept", confidence=0.9)) == b
    assert graph.parents(b) == [a, c]
    assert graph.parents(c) == [a]
    assert graph.rejects[-1].reason.startswith("cycle: replaced by better evidence")


@pytest.mark.parametrize(
    ("proposal", "reason"),
    [
        (found("new", "broader"), "reachability"),
        (found("new", "sideways"), "relation"),
        (found("new", confidence=1.5), "evidence"),
        (found("new", confidence=float("nan")), "evidence"),
        (Proposal("new", "narrower", 0.5, ()), "evidence"),
        (found("..."), "name"),
        (found("1234"), "name"),
        (found("w" * 101), "name"),
        (found("seeds"), "name"),
    ],
)
def test_what_does_not_enter_is_kept_with_its_reason(proposal: Proposal, reason: str) -> None:
    graph = ConceptGraph()
    seed = graph.add_seed("seed")
    assert graph.propose(seed, proposal) is None
    assert len(graph) == 1
    (reject,) = graph.rejects
    assert reject.reason.startswith(reason)
    assert reject.name == proposal.name


def test_branches_are_children_of_seeds_and_never_ambiguous() -> None:
    graph, (root, left, leaf) = chain("root", "left", "leaf")
    right = graph.propose(root, found("right"))
    assert right
    graph.propose(right, found("leaf"))
    assert graph.parents(leaf) == [left, right]
    assert [graph.branch_of(n) for n in (root, left, right, leaf)] == [root, left, right, left]
    assert graph.lineage(leaf) == [left, root]
    assert set(graph.ancestors(leaf)) == {left, right, root}
    assert graph.ancestors(leaf)[-1] == root
    assert graph.topological()[0] == root


def test_rows_survive_parquet(tmp_path: Path) -> None:
    graph, (root, trees, heap) = chain("graphs", "trees", "binary heap (BH)")
    graph.propose(heap, found("graphs"))
    graph.propose(heap, found("priority queue", "related"))
    graph.mark(trees, "reader", "read", ["trees"], atomic=False)
    graph.mark_failed(heap, "reader", "garbage")
    rows = graph.to_rows("run")
    for model in TABLES:
        rows[model.TABLE] = list(read_rows(write_rows(tmp_path / f"{model.TABLE}.parquet", model, rows[model.TABLE]), model))
    again = ConceptGraph.from_rows(rows)
    assert again.to_rows("run") == graph.to_rows("run")
    assert [(c.concept_id, c.name, c.evidence) for c in again] == [(c.concept_id, c.name, c.evidence) for c in graph]
    assert [r.name for r in again.relations(heap)] == ["priority queue"]
    assert again.resolve("BH") == heap
    assert again.frontier() == [root, heap]
    nodes = {r.node_id: r for r in rows["nodes"]}
    assert nodes[heap].level == 2
    assert nodes[heap].branch == trees
    assert [m.passage for m in rows["materials"]] == ["quote for trees", "quote for binary heap (BH)"]


@pytest.mark.parametrize("damage", ["edge", "cycle", "orphan", "name", "evidence"])
def test_rows_that_make_no_graph_are_refused(damage: str) -> None:
    graph, (_, trees, heap) = chain("graphs", "trees", "heap")
    rows = graph.to_rows("run")
    if damage == "edge":
        rows["edges"][0] = rows["edges"][0].model_copy(update={"fine_id": "nobody"})
    elif damage == "cycle":
        for table in ("edges", "edge_evidence"):
            rows[table].append(rows[table][0].model_copy(update={"coarse_id": heap, "fine_id": trees}))
    elif damage == "orphan":
        rows["edges"].pop()
    elif damage == "evidence":
        rows["edge_evidence"].pop()
    else:
        rows["nodes"][1] = rows["nodes"][1].model_copy(update={"name": "Graph"})
    with pytest.raises(CorruptArtifactError, match=r"the graph's rows.*Fix:"):
        ConceptGraph.from_rows(rows)


def test_every_quote_for_an_edge_and_every_relation_is_kept_with_its_finder() -> None:
    graph, (root, trees) = chain("graphs", "trees")
    graph.propose(root, Proposal("trees", "narrower", 0.9, (Evidence("d2", "other words"),)), agent="second", now="later")
    graph.propose(trees, Proposal("graph", "broader", 0.4, (Evidence("d2", "other words"),)), agent="third")
    edge = graph.edge(root, trees)
    assert [(s.document_id, s.agent) for s in edge.supports] == [("d", ""), ("d2", "second")]
    assert (edge.confidence, edge.document_ids) == (0.9, ["d", "d2"])
    assert graph.propose(trees, found("forest", "related")) == trees
    assert graph.propose(trees, Proposal("forests", "related", 0.8, (Evidence("d3", "q"),))) == trees
    (forest,) = graph.relations(trees)
    assert (forest.kind, forest.confidence, len(forest.supports)) == ("related", 0.8, 2)
    assert graph.resolve("forest") is None
    assert graph.rejects == []


def test_concepts_are_found_by_spelling_words_and_meaning() -> None:
    graph, (root, trees) = chain("graphs", "binary search tree (BST)")
    for name in ("red black tree", "matrix", "automobile", "car"):
        graph.propose(root, found(name))
    assert graph.find_concepts("BST")[0].how == "exact"
    first = graph.find_concepts("Binary Search Trees")[0]
    assert (first.node, first.how, first.score) == (trees, "key", 0.99)
    words = {m.name: m for m in graph.find_concepts("balanced search tree")}
    assert "binary search tree" in words
    assert "matrix" not in words
    assert {"car", "automobile"} <= {m.name for m in graph.find_concepts("vehicle")}
    assert graph.find_concepts("...") == []
    assert len(graph.find_concepts("tree", limit=1)) == 1
    later = graph.propose(root, found("balanced search tree"))
    assert graph.find_concepts("balanced search tree")[0].node == later


def test_neighbourhood_holds_what_stands_around_a_node() -> None:
    graph, (root, trees, heap) = chain("graphs", "trees", "heap")
    other = graph.propose(root, found("paths"))
    graph.propose(trees, found("path", "related"))
    around = graph.neighbourhood(trees)
    assert (around.parents, around.children, around.siblings, around.related) == ((root,), (heap,), (other,), (other,))
