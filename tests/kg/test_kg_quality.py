"""The benchmark's judging, on references small enough to count by hand."""

from __future__ import annotations

import gzip
from pathlib import Path

import networkx as nx
import pytest

from benchmarks.kg_quality import Reference, closure, cross_references, judged, leaks, recalled, topic_pairs
from benchmarks.references.cso import load_cso, top_topics
from benchmarks.references.hierarchy import Hierarchy
from benchmarks.references.texts import gcide
from benchmarks.references.wordnet import load_wordnet
from environments.errors import MissingDependencyError
from environments.protocols import Document


@pytest.fixture
def plants() -> Reference:
    dag = nx.DiGraph([("plant", "tree"), ("tree", "oak"), ("tree", "fruit tree"), ("animal", "dog")])
    names = {name: (name,) for name in dag} | {"cork oak": ("oak",)}
    branch = {"tree": "plant", "oak": "plant", "fruit tree": "plant", "dog": "animal"}
    return Reference("demo", Hierarchy(names, dag), ("plant", "animal"), branch.get, ("plant", "animal"), topical=False)


def test_edges_are_judged_over_the_closure_and_by_direction(plants: Reference) -> None:
    edges = [("plant", "oak"), ("oak", "tree"), ("animal", "oak"), ("plant", "unknown"), ("oak", "cork oak"), ("animal", "dog")]
    report = judged(edges, plants, frozenset({"plant"}))
    assert report == {"precision": 0.6667, "orientation": 0.5, "judged": 3, "related": 2}


def test_recall_counts_paths(plants: Reference) -> None:
    wanted = {("plant", "tree"), ("tree", "oak"), ("plant", "oak")}
    ways = topic_pairs(closure([("plants", "tree"), ("tree", "oaks")]), plants.hierarchy)
    assert recalled(ways, wanted) == 1.0
    assert recalled(topic_pairs([("plant", "tree")], plants.hierarchy), wanted) == 0.3333
    assert recalled(ways, set()) is None


def test_halves_are_fixed_and_share_nothing(plants: Reference) -> None:
    assert plants.half(True) == plants.half(True)
    assert plants.half(True) | plants.half(False) == {"plant", "animal"}
    assert not plants.half(True) & plants.half(False)


def test_cross_references_join_nodes_only() -> None:
    documents = [Document("1", "Oaks", "x", "d", "MIT", ("Trees", "acorn", "oak"))]
    assert cross_references(documents, {"oak", "tree"}) == {("oak", "tree")}


def test_a_relation_written_into_the_reader_is_found(plants: Reference, tmp_path: Path) -> None:
    hierarchy = Hierarchy({"fruit tree": ("fruit tree",), "apple tree": ("apple",)}, nx.DiGraph([("fruit tree", "apple")]))
    clean, leaky = tmp_path / "clean.py", tmp_path / "leaky.py"
    clean.write_text('WORDS = "fruit tree apple tree"\n')
    leaky.write_text('PAIRS = "fruit tree; apple tree"\n')
    assert leaks(hierarchy, [clean]) == []
    assert len(leaks(hierarchy, [clean, leaky])) == 1


def test_cso_merges_synonyms(tmp_path: Path) -> None:
    path = tmp_path / "cso.csv"
    path.write_text(
        '"computer science";klink:broaderGeneric;"internet"\n"internet";klink:broaderGeneric;"web pages"\n'
        '"web pages";klink:relatedEquivalent;"webpage"\n"webpage";rdfs:label;"webpage"\n'
    )
    cso = load_cso(path)
    assert top_topics(cso) == ["internet"]
    assert cso.same("web page", "webpage")
    assert cso.relates("internet", "webpage") == 1
    assert cso.relates("webpage", "computer science") == -1
    path.write_text('"a";klink:broaderGeneric;"b"\n')
    with pytest.raises(ValueError, match="no hierarchy"):
        load_cso(path)


def test_wordnet_is_read_by_sense(tmp_path: Path) -> None:
    (tmp_path / "data.noun").write_text(
        "  1 licence\n"
        "00000001 03 n 01 animal 0 000 | a\n"
        "00000002 05 n 02 dog 0 domestic_dog 0 001 @ 00000001 n 0000 | b\n"
        "00000003 18 n 01 dog 1 000 | c\n"
    )
    (tmp_path / "index.noun").write_text(
        "  1 licence\nanimal n 1 0 1 0 00000001\ndog n 2 1 @ 2 1 00000002 00000003\ndomestic_dog n 1 1 @ 1 0 00000002\n"
    )
    wordnet, file_of = load_wordnet(tmp_path)
    assert wordnet.relates("animal", "dogs") == 1
    assert wordnet.same("dog", "domestic dog")
    assert file_of == {"00000001": "Tops", "00000002": "animal", "00000003": "person"}


def test_the_dictionary_keeps_its_own_noun_senses_only(tmp_path: Path) -> None:
    entry = (
        b'Hammer \\Ham"mer\\ (h[a^]m"m[~e]r), n. [OE. hamer; akin to\n   D. hamer.]\n'
        b"   1. An instrument for driving {nails}.\n      [1913 Webster]\n\n            With busy hammers.  --Shak.\n\n"
        b"   2. A power tool.\n      [WordNet 1.5]\n\n"
        b'Hammer \\Ham"mer\\, v. t.\n   1. To beat with a hammer.\n'
    )
    (tmp_path / "gcide.dict.dz").write_bytes(gzip.compress(entry))
    digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    size = digits[len(entry) // 64] + digits[len(entry) % 64]
    (tmp_path / "gcide.index").write_text(f"Hammer\tA\t{size}\n")
    (document,) = gcide(tmp_path)
    assert document.title == "hammer"
    assert document.text == "hammer\n\nAn instrument for driving nails."
    with pytest.raises(MissingDependencyError, match="make setup-references"):
        list(gcide(tmp_path / "nowhere"))
