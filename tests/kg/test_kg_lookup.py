from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.errors import MissingDependencyError
from environments.protocols import Evidence, Proposal
from kg.graph import ConceptGraph
from kg.lookup import NameIndex
from kg.merge import merge

WORDS = ("red", "blue", "green", "tree", "heap", "list", "graph")


def found(name: str, relation: str = "narrower") -> Proposal:
    return Proposal(name, relation, 0.8, (Evidence("d", f"a passage on {name}"),))


def grown(*names: str) -> tuple[ConceptGraph, dict[str, str]]:
    """A seed with these children, and ids by name."""
    graph = ConceptGraph()
    seed = graph.add_seed("computing")
    ids = {"computing": seed}
    for name in names:
        node = graph.propose(seed, found(name))
        assert node is not None
        ids[name] = node
    return graph, ids


def test_a_name_is_found_by_spelling_key_alias_and_words_in_that_order() -> None:
    graph, ids = grown("binary search tree", "search tree", "fast Fourier transform (FFT)")
    exact, key = graph.find_concepts("binary search tree")[0], graph.find_concepts("Binary-search trees")[0]
    assert (exact.node, exact.score, exact.how) == (ids["binary search tree"], 1.0, "exact")
    assert (key.node, key.name, key.score, key.how) == (ids["binary search tree"], "binary search tree", 0.99, "key")
    alias = graph.find_concepts("FFT")[0]
    assert (alias.node, alias.name, alias.how) == (ids["fast Fourier transform (FFT)"], "fast Fourier transform", "exact")
    others = graph.find_concepts("red-black search tree")
    assert {m.node for m in others[:2]} == {ids["search tree"], ids["binary search tree"]}
    assert all(m.score < 0.99 for m in others)


def test_a_concept_is_shown_once_and_no_more_than_asked_for() -> None:
    graph, ids = grown(*(f"{a} {b} tree" for a in ("red", "blue", "grey") for b in ("splay", "search", "radix")))
    graph.propose(ids["red splay tree"], found("red splay search tree", "equivalent"))
    matches = graph.find_concepts("red splay tree", limit=4)
    assert len(matches) == len({m.node for m in matches}) == 4
    assert matches[0].node == ids["red splay tree"]
    assert [m.score for m in matches] == sorted((m.score for m in matches), reverse=True)


def test_a_text_without_a_name_finds_nothing() -> None:
    graph, _ = grown("tree")
    assert graph.find_concepts("?!") == graph.find_concepts("") == []


def test_what_comes_after_a_look_up_is_found_by_the_next_and_a_merged_node_by_both_names() -> None:
    graph, ids = grown("automobile engine", "steam turbine")
    assert graph.find_concepts("gas turbine")[0].node == ids["steam turbine"]
    gas = graph.propose(ids["computing"], found("gas turbine"))
    assert graph.find_concepts("gas turbine")[0].node == gas
    kept = merge(graph, ids["automobile engine"], ids["steam turbine"], "for the test")
    assert {m.node for m in graph.find_concepts("steam turbine")} == {kept, gas}


def test_a_neighbourhood_names_all_sides() -> None:
    graph, ids = grown("tree", "graph", "heap")
    leaf = graph.propose(ids["tree"], found("binary tree"))
    assert leaf is not None
    graph.propose(ids["tree"], found("forests", "equivalent"))
    graph.propose(ids["tree"], found("heaps", "related"))
    graph.propose(ids["tree"], found("nothing known", "related"))
    around = graph.neighbourhood(ids["tree"])
    assert (around.name, around.aliases) == ("tree", ("forests",))
    assert (around.parents, around.children) == ((ids["computing"],), (leaf,))
    assert around.siblings == (ids["graph"], ids["heap"])
    assert around.related == (ids["heap"],)
    with pytest.raises(KeyError):
        graph.neighbourhood("nobody")


def test_meaning_finds_what_shares_no_word_and_nothing_far() -> None:
    pytest.importorskip("wordllama")
    graph, ids = grown("automobile", "symphony orchestra")
    matches = graph.find_concepts("car")
    assert [(m.node, m.how) for m in matches] == [(ids["automobile"], "meaning")]


def test_without_the_embedding_model_words_are_enough_and_it_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    def missing(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        raise MissingDependencyError("wordllama is not installed", "pip install wordllama")

    index = NameIndex(missing)
    index.follow({"red tree": 0, "blue heap": 1})
    assert index.by_meaning("red", 3) == index.by_meaning("red", 3) == []
    assert [entry for entry, _ in index.by_words("red bush", 3)] == [0]
    assert [r.message for r in caplog.records if "by their words alone" in r.message] == [caplog.records[0].message]
    assert len(caplog.records) == 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sets(st.sampled_from(WORDS), min_size=1, max_size=3), min_size=1, max_size=20), st.sampled_from(WORDS))
def test_the_words_find_exactly_names_that_share_them_and_the_same_name_best(sets: list[set[str]], word: str) -> None:
    names = list(dict.fromkeys(" ".join(sorted(s)) for s in sets))
    at_once, in_turns = NameIndex(None), NameIndex(None)
    at_once.follow(dict.fromkeys(names))
    for i in range(len(names)):
        in_turns.follow(dict.fromkeys(names[: i + 1]))
    for query in (word, *names):
        ranked = at_once.by_words(query, len(names))
        assert ranked == in_turns.by_words(query, len(names))
        assert all(set(query.split()) & set(names[entry].split()) for entry, _ in ranked)
        if query in names:
            assert names[ranked[0][0]] == query
            assert ranked[0][1] == pytest.approx(1.0)
