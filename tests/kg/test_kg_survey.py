from __future__ import annotations

import pickle

import networkx as nx
import pytest

from environments.protocols import Document
from environments.search import Corpus
from environments.search.build import write_corpus
from kg import ConceptGraph, GraphConfig, grow
from kg.concept_reader import ConceptReader, Weights
from kg.survey import Survey, is_entry, occurrences, sentence_with, sentences, subsumes, survey_corpus, tokens

from .conftest import PLAIN

ENTRIES = (
    ("robotics", "<robotics> The field of robots. Robots are machines that move."),
    ("search tree", "<data> A tree in which keys are ordered. A search tree is searched from its root."),
    ("binary search tree", "<data> A search tree with two children a node. Each node of a binary search tree holds a key."),
    ("red-black tree", "<data> A kind of binary search tree that keeps its balance. A tree of two colours."),
    ("trie", "<data> A search tree over strings. A tree, in short; a trie is also called a prefix tree."),
    ("support vector machine", "<learning> A support vector machine (SVM) is a classifier. Classifiers such as perceptrons are linear."),
    ("classifier", "<learning> A classifier tells classes apart."),
    ("tree", "<data> A graph without cycles. A tree has a root; a database of trees, or data-base, keeps many."),
)


def entries() -> list[Document]:
    return [Document(f"e{i}", title, f"{title}\n\n{text}", "demo", "MIT") for i, (title, text) in enumerate(ENTRIES)]


@pytest.fixture(scope="module")
def surveyed() -> Survey:
    return survey_corpus(entries())


def kinds(survey: Survey, coarse: str, fine: str) -> set[str]:
    return {f.kind for f in survey.finer.get(coarse, {}).get(fine, [])}


def test_a_survey_adds_up_what_documents_say(surveyed: Survey) -> None:
    assert kinds(surveyed, "search tree", "binary search tree") == {"genus", "head"}
    assert kinds(surveyed, "binary search tree", "red black tree") == {"genus"}
    assert kinds(surveyed, "search tree", "trie") == {"genus"}
    assert kinds(surveyed, "classifier", "perceptron") == {"examples"}
    assert kinds(surveyed, "data", "trie") == {"tag"}
    assert surveyed.documents["tree"] == 5
    assert not kinds(surveyed, "trie", "search tree")
    assert not any(coarse in fine for coarse, fine in surveyed.finer.items())


def test_an_abbreviation_is_an_alias_of_its_only_long_form(surveyed: Survey) -> None:
    assert surveyed.key("SVM") == surveyed.key("Support Vector Machines") == "support vector machine"
    two = [
        Document(str(i), f"page {i}", f"x\n\nThe {long} (PC) is here.", "demo", "MIT")
        for i, long in enumerate(("personal computer", "program counter"))
    ]
    assert survey_corpus(two).key("PC") == "pc"


def test_an_order_of_words_makes_no_entry_of_code_and_pages() -> None:
    assert all(is_entry(d) for d in entries())
    assert not is_entry(Document("a", "scipy.optimize.bisect", "bisect(f, a)\n\nFind a root.", "scipy", "BSD"))
    assert not is_entry(Document("b", "How to sort a long list of things", "How to sort a long list of things\n\nText.", "manual", "MIT"))
    assert not is_entry(Document("c", "sorting", "module sorting\n\nText.", "demo", "MIT"))


def test_sentences_leave_code_out() -> None:
    assert list(sentences("A first sentence. A second one.\n\n>>> print('x y z')\n\nAnother line here.")) == [
        "A first sentence.",
        "A second one.",
        "Another line here.",
    ]


def test_occurrences_count_documents_by_whole_names() -> None:
    found = occurrences(entries(), ["search tree", "tree", "arch"])
    assert found["search tree"] == {1, 2, 3, 4}
    assert "arch" not in found
    assert tokens("The Trees' optimisation") == ["the", "tree", "optimization"]


def test_subsumption_puts_the_commoner_name_above() -> None:
    pairs = {(a, b) for a, b, _ in subsumes({"tree": {1, 2, 3, 4}, "trie": {2, 3}, "heap": {4, 9}, "rare": {1}})}
    assert pairs == {("tree", "trie")}
    assert list(subsumes({"a": {1, 2}, "b": {1, 2}})) == []


def test_a_quoted_sentence_holds_the_name() -> None:
    assert sentence_with(entries()[4], "prefix tree") == "A tree, in short; a trie is also called a prefix tree."
    assert sentence_with(entries()[4], "heap") == "trie"


# --- the reader ---


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return write_corpus(tmp_path_factory.mktemp("survey") / "corpus", entries(), PLAIN)


def test_the_reader_proposes_kinds_with_the_passage_that_says_so(surveyed: Survey, corpus: Corpus) -> None:
    reading = ConceptReader(surveyed, topical=False).read("search trees", (), corpus)
    found = {p.name: p for p in reading.proposals}
    assert set(found) == {"binary search tree", "trie"}
    assert found["trie"].evidence[0].document_id == "e4"
    assert "search tree over strings" in found["trie"].evidence[0].quote
    assert found["binary search tree"].confidence > found["trie"].confidence  # Two kinds of evidence against one.
    assert not reading.atomic
    assert ConceptReader(surveyed, topical=False).read("red-black tree", ("search tree",), corpus).atomic


def test_topics_belong_to_a_field_only_where_topics_are_asked_for(surveyed: Survey, corpus: Corpus) -> None:
    weights = Weights(domain=2.0)
    topics = {p.name for p in ConceptReader(surveyed, (), weights, topical=True).read("data", (), corpus).proposals}
    assert {"trie", "tree", "search tree"} <= topics
    assert not ConceptReader(surveyed, (), weights, topical=False).read("data", (), corpus).proposals


def test_nothing_weak_is_proposed(surveyed: Survey, corpus: Corpus) -> None:
    assert ConceptReader(surveyed, (), Weights(least=0.99), topical=False).read("search tree", (), corpus).atomic


def test_the_reader_grows_a_dag_with_evidence_and_travels(surveyed: Survey, corpus: Corpus) -> None:
    reader = ConceptReader(surveyed, ("tree", "classifier"), topical=False)
    graph: ConceptGraph = grow(("tree", "classifier"), corpus, pickle.loads(pickle.dumps(reader)), GraphConfig(max_nodes=30))
    assert nx.is_directed_acyclic_graph(graph.digraph)
    assert {graph.concept(a).name for a in graph.ancestors(str(graph.resolve("red-black tree")))} == {
        "tree",
        "search tree",
        "binary search tree",
    }
    assert all(c.evidence for c in graph)
    machine = graph.resolve("SVM")
    assert machine is None or graph.concept(machine).name == "support vector machine"
