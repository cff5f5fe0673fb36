from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import networkx as nx
import pytest

from environments.errors import CorruptArtifactError, UnknownSeedError
from environments.search import Corpus, CorpusConfig, build_corpus
from kg import ConceptGraph, EmbeddedReader, GraphConfig, grow
from kg.equivalence import is_qualified

from .conftest import TableBrain

SEEDS = ("signal processing", "graph algorithms", "statistics")


def shape(graph: ConceptGraph) -> dict[str, Any]:
    """Everything but the times."""
    return {t: [{k: v for k, v in r.model_dump().items() if k != "created_at"} for r in rows] for t, rows in graph.to_rows("r").items()}


@pytest.fixture(scope="module")
def grown(science: Corpus) -> ConceptGraph:
    return grow(SEEDS, science, EmbeddedReader(), GraphConfig(max_nodes=120))


def test_a_real_graph_grows(science: Corpus, grown: ConceptGraph) -> None:
    assert len(grown) == 120
    assert nx.is_directed_acyclic_graph(grown.digraph)
    assert all(c.evidence for c in grown)
    for concept in grown:
        for passage in concept.evidence:
            document = science.open(passage.document_id)
            assert passage.quote
            assert (document.title, document.source, document.licence) == (passage.title, passage.source, passage.licence)
    functions = [c for c in grown if is_qualified(c.name)]
    assert len(functions) >= 50
    assert all(grown.levels()[c.concept_id] >= 2 for c in functions)
    read = [c for c in grown if c.agent]
    assert all(c.queries for c in read)
    assert sum(c.atomic for c in functions) == len([c for c in functions if c.agent])
    branches = {grown.branch_of(c.concept_id) for c in functions}
    assert len(branches) >= 8


def test_well_known_relations_are_found(grown: ConceptGraph) -> None:
    windows = grown.resolve("windows")
    assert windows is not None
    assert "signal processing" in {grown.concept(a).name for a in grown.ancestors(windows)}
    assert any(
        "graph" in grown.concept(c).name for s in grown.seeds() if grown.concept(s).name == "graph algorithms" for c in grown.children(s)
    )


@pytest.mark.parametrize("pool", [ThreadPoolExecutor, ProcessPoolExecutor])
def test_one_worker_and_many_give_the_same_graph(science: Corpus, grown: ConceptGraph, pool: type) -> None:
    with pool(2) as executor:
        other = grow(SEEDS, science, EmbeddedReader(), GraphConfig(max_nodes=120), executor)
    assert shape(other) == shape(grown)


def test_unknown_seed_is_named(science: Corpus) -> None:
    with pytest.raises(UnknownSeedError, match=r"'quantum zucchini husbandry' occurs nowhere.*Fix:"):
        grow(("statistics", "quantum zucchini husbandry"), science, EmbeddedReader())
    with pytest.raises(UnknownSeedError, match="the seed '  '"):
        grow(("  ",), science, EmbeddedReader())


def test_budgets_hold_and_what_they_cut_is_kept(tiny: Corpus) -> None:
    table = {"sorting": [("narrower", f"kind {i} sort", 0.5) for i in "abcdef"], "kind a sort": [("narrower", "kind a1 sort", 0.5)]}
    graph = grow(("sorting",), tiny, TableBrain(table), GraphConfig(max_nodes=4))
    assert len(graph) == 4
    assert {r.reason for r in graph.rejects} == {"budget: 4 nodes"}
    assert graph.concept(graph.seeds()[0]).reason.startswith("budget: ")
    graph = grow(("sorting",), tiny, TableBrain(table), GraphConfig(max_children=2))
    assert [graph.concept(c).name for c in graph.children(graph.seeds()[0])] == ["kind a sort", "kind b sort"]
    graph = grow(("sorting",), tiny, TableBrain(table), GraphConfig(max_level=1))
    assert max(graph.levels().values()) == 1
    assert any(r.reason == "budget: depth of 1" and r.name == "kind a1 sort" for r in graph.rejects)


def test_a_later_growth_goes_on_from_the_frontier(tiny: Corpus) -> None:
    table = {"sorting": [("narrower", f"kind {i} sort", 0.5) for i in "abcdef"], "kind a sort": [("narrower", "kind a1 sort", 0.5)]}
    small = grow(("sorting",), tiny, TableBrain(table), GraphConfig(max_nodes=4))
    saved = ConceptGraph.from_rows(small.to_rows("r"))
    full = grow(("sorting",), tiny, TableBrain(table), GraphConfig(), graph=saved)
    assert {c.name for c in full} == {c.name for c in grow(("sorting",), tiny, TableBrain(table), GraphConfig())}
    assert full.frontier() == []
    before = shape(full)
    assert shape(grow(("sorting",), tiny, TableBrain({}), GraphConfig(), graph=full)) == before  # Nothing is open, so nobody is asked.


def test_every_saved_wave_is_whole_and_a_killed_growth_goes_on(science: Corpus, grown: ConceptGraph) -> None:
    saved: list[dict[str, Any]] = []

    class KilledError(Exception):
        pass

    def save(graph: ConceptGraph) -> None:
        saved.append(graph.to_rows("r"))
        if len(saved) == 2:
            raise KilledError

    with pytest.raises(KilledError):
        grow(SEEDS, science, EmbeddedReader(), GraphConfig(max_nodes=120), on_wave=save)
    graphs = [ConceptGraph.from_rows(rows) for rows in saved]
    assert [len(g) for g in graphs] == sorted(len(g) for g in graphs)
    resumed = grow(SEEDS, science, EmbeddedReader(), GraphConfig(max_nodes=120), graph=graphs[-1])
    assert len(resumed) == len(grown)
    assert {c.concept_id for c in graphs[-1]} <= {c.concept_id for c in resumed}


def test_a_failing_reader_costs_its_own_node(tiny: Corpus) -> None:
    table = {"sorting": [("narrower", "bad sort", 0.5), ("narrower", "good sort", 0.5)], "good sort": [("narrower", "best sort", 0.5)]}
    graph = grow(("sorting",), tiny, TableBrain(table, fails=["bad sort"]))
    bad = graph.concept(str(graph.resolve("bad sort")))
    assert bad.reason == "failed: RuntimeError: no sense in this page"
    assert not bad.atomic
    assert graph.resolve("best sort")
    again = grow(("sorting",), tiny, TableBrain({"bad sort": [("narrower", "worse sort", 0.5)]}), graph=graph)
    assert again.resolve("worse sort")


def test_contradictory_evidence_never_makes_a_cycle(tiny: Corpus) -> None:
    table = {
        "sorting": [("narrower", "x sort", 0.5)],
        "x sort": [("narrower", "y sort", 0.5), ("broader", "y sort", 0.5)],
        "y sort": [("narrower", "x sort", 0.55), ("equivalent", "sorting", 0.9)],
    }
    graph = grow(("sorting",), tiny, TableBrain(table))
    assert nx.is_directed_acyclic_graph(graph.digraph)
    assert {r.reason.split(":")[0] for r in graph.rejects} == {"cycle", "name"}


def test_a_corpus_that_breaks_stops_the_growth(science: Corpus) -> None:
    class Broken:
        content_hash = "x"

        def search(self, query: str, limit: int = 10) -> Any:
            raise CorruptArtifactError("corpus.sqlite does not read", "rebuild it")

        def open(self, document_id: str) -> Any:
            raise KeyError(document_id)

    with pytest.raises(CorruptArtifactError):
        grow(("statistics",), Broken(), EmbeddedReader())


@pytest.mark.slow
def test_the_laptop_seeds_give_200_nodes_without_cross_references(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The floor of every machine: installed packages only, no manuals, markup stripped."""
    config = CorpusConfig(foldoc=False, python_manual=False, linux_manual=False, embeddings=False, min_documents=10_000)
    corpus = build_corpus(tmp_path_factory.mktemp("kg") / "floor", config)
    graph = grow(GraphConfig().seeds, corpus.without_links(), EmbeddedReader(), GraphConfig(max_nodes=300))
    assert len(graph) >= 200
    assert all(c.evidence for c in graph)
    functions = [c for c in graph if is_qualified(c.name)]
    assert len({graph.branch_of(c.concept_id) for c in functions}) >= 12
