from __future__ import annotations

import os
import pickle
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.errors import CorruptArtifactError, DiskFullError, EmptyCorpusError, InputError
from environments.protocols import Document, SearchSource
from environments.search import Corpus, CorpusConfig, build_corpus
from environments.search import build as build_module
from environments.search.build import gather, write_corpus
from environments.search.embedding import embed
from environments.search.index import DATABASE, EMBEDDINGS, MANIFEST, documents_hash, snippet, title_key

from .conftest import SMALL

PLAIN = CorpusConfig(packages=(), foldoc=False, python_manual=False, linux_manual=False, embeddings=False)


def small_documents() -> list[Document]:
    return [
        Document(f"id{i}", f"pkg.name{i}", f"name{i}(a=1)\n\nThis document number {i} speaks of apples.", "pkg", "MIT") for i in range(5)
    ]


def test_a_title_finds_its_document_first(corpus: Corpus) -> None:
    for query in ("networkx.dijkstra_path", "networkx dijkstra path", "NetworkX.Dijkstra_Path"):
        assert corpus.search(query)[0].title == "networkx.dijkstra_path"


def test_relevant_documents_come_before_others(corpus: Corpus) -> None:
    titles = [hit.title for hit in corpus.search("minimum spanning tree", 10)]
    assert len(titles) == len(set(titles)) == 10
    assert sum("spanning" in title for title in titles) >= 4
    assert any("minimum_spanning" in title for title in titles[:5])
    scores = [hit.score for hit in corpus.search("minimum spanning tree", 10)]
    assert scores == sorted(scores, reverse=True)


def test_open_iterate_and_missing_document(corpus: Corpus) -> None:
    hit = corpus.search("toolz.partition")[0]
    document = corpus.open(hit.document_id)
    assert document.text.startswith("partition(") or document.text.startswith("module ")
    everything = list(corpus.documents())
    assert len(everything) == len(corpus) > 1000
    assert sum(corpus.sources().values()) == len(corpus)
    assert [d.document_id for d in everything] == sorted(d.document_id for d in everything)
    assert documents_hash(reversed(everything)) == corpus.content_hash
    with pytest.raises(KeyError):
        corpus.open("nothing")


def test_semantic_search_finds_a_paraphrase(corpus: Corpus) -> None:
    hits = corpus.semantic("cheapest route between two vertices", 20)
    assert len(hits) == 20
    assert any("path" in hit.title for hit in hits)
    assert hits == corpus.semantic("cheapest route between two vertices", 20)
    assert corpus.semantic("  ") == []
    assert corpus.semantic("graph", 0) == []


@settings(max_examples=150, deadline=None)
@given(
    query=st.one_of(
        st.text(max_size=80),
        st.sampled_from(['"', "a AND", "NOT", "title:x", "^x", "x*", "(", "NEAR(a b)", "'; DROP TABLE documents;--", "\0", "-"]),
    )
)
def test_any_string_is_a_safe_query(corpus: Corpus, query: str) -> None:
    hits = corpus.search(query, 5)
    assert len(hits) <= 5
    assert hits == corpus.search(query, 5)


def test_ties_are_broken_by_id(tmp_path: Path) -> None:
    same = [Document(f"id{i}", f"t{i}", "word about apples", "s", "MIT") for i in (3, 1, 2)]
    corpus = write_corpus(tmp_path / "c", same, PLAIN)
    assert [hit.document_id for hit in corpus.search("apples")] == ["id1", "id2", "id3"]


def test_snippet_prefers_the_passage_with_the_terms_and_leaves_the_signature_out() -> None:
    text = "solve(f, maxiter=100)\n\nFind a root.\n\nUses the bracketing interval of the caller. It stops early."
    assert snippet(text, ["bracketing", "interval"]) == "Uses the bracketing interval of the caller."
    assert snippet(text, ["solve"]) == "Find a root."
    assert len(snippet("x\n\n" + "word " * 200, ["word"])) <= 200
    assert title_key("scipy.optimize.bisect_left") == "scipy optimize bisect left"


def test_without_links(tmp_path: Path) -> None:
    document = Document("a", "list", "list\n\nA {data structure} in {Lisp}.", "foldoc", "GFDL", ("data structure", "Lisp"))
    corpus = write_corpus(tmp_path / "c", [document], PLAIN)
    plain = corpus.without_links()
    assert corpus.open("a").links == ("data structure", "Lisp")
    assert "{" in corpus.open("a").text
    assert plain.open("a").links == ()
    assert plain.open("a").text == "list\n\nA data structure in Lisp."
    assert plain.content_hash != corpus.content_hash
    assert "{" not in plain.search("lisp")[0].snippet
    assert all(not d.links for d in plain.documents())


def test_corpus_is_a_search_source_and_pickles(corpus: Corpus) -> None:
    source: SearchSource = corpus
    copy = pickle.loads(pickle.dumps(source))
    assert copy.content_hash == corpus.content_hash
    assert copy.search("spanning tree", 3) == corpus.search("spanning tree", 3)


def _titles(corpus: Corpus, query: str) -> tuple[int, list[str]]:
    return os.getpid(), [hit.title for hit in corpus.search(query, 5)] + [hit.title for hit in corpus.semantic(query, 5)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_two_processes_read_the_same_corpus(corpus: Corpus, method: str) -> None:
    expected = _titles(corpus, "graph coloring")[1]  # Opens a connection here first: a fork must not reuse it.
    with ProcessPoolExecutor(2, mp_context=get_context(method)) as pool:
        results = list(pool.map(_titles, [corpus] * 6, ["graph coloring"] * 6))
    assert [titles for _, titles in results] == [expected] * 6
    assert all(process != os.getpid() for process, _ in results)


def test_threads_share_a_corpus(corpus: Corpus) -> None:
    expected = corpus.search("shortest path", 5)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: corpus.search("shortest path", 5), range(20))) == [expected] * 20


def test_a_search_takes_about_a_millisecond(corpus: Corpus) -> None:
    titles = [d.title for d in corpus.documents()][::20]
    start = time.process_time()
    for title in titles:
        corpus.search(title, 5)
    assert (time.process_time() - start) / len(titles) < 0.01  # Seconds; loose, for a busy machine.


# --- building and damage ---


def test_a_valid_corpus_is_reused_and_a_changed_one_rebuilt(tmp_path: Path) -> None:
    config = SMALL.model_copy(update={"packages": ("toolz",), "embeddings": False})
    first = build_corpus(tmp_path / "c", config)
    stamp = (tmp_path / "c" / MANIFEST).stat().st_mtime_ns
    assert build_corpus(tmp_path / "c", config).content_hash == first.content_hash
    assert (tmp_path / "c" / MANIFEST).stat().st_mtime_ns == stamp
    more = build_corpus(tmp_path / "c", config.model_copy(update={"packages": ("toolz", "sortedcontainers")}))
    assert len(more) > len(first)
    assert more.content_hash != first.content_hash
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_packages_may_be_read_in_parallel(corpus: Corpus) -> None:
    with ThreadPoolExecutor(2) as pool:
        assert documents_hash(gather(SMALL, pool)) == corpus.content_hash


def test_empty_corpus(tmp_path: Path) -> None:
    with pytest.raises(EmptyCorpusError, match=r"no documents.*Fix:"):
        build_corpus(tmp_path / "c", PLAIN.model_copy(update={"packages": ("no-such-distribution",)}))
    with pytest.raises(EmptyCorpusError, match=r"5 documents.*at least 6"):
        write_corpus(tmp_path / "c", small_documents(), PLAIN.model_copy(update={"min_documents": 6}))
    assert not (tmp_path / "c").exists()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["no manifest", "half manifest", "short database", "no embeddings", "other format"])
def test_damage_is_noticed_on_loading(tmp_path: Path, damage: str) -> None:
    write_corpus(tmp_path / "c", small_documents(), PLAIN.model_copy(update={"embeddings": True}))
    manifest = tmp_path / "c" / MANIFEST
    if damage == "no manifest":
        manifest.unlink()
    elif damage == "half manifest":
        manifest.write_bytes(manifest.read_bytes()[:40])
    elif damage == "short database":
        os.truncate(tmp_path / "c" / DATABASE, 5000)
    elif damage == "no embeddings":
        (tmp_path / "c" / EMBEDDINGS).unlink()
    else:
        manifest.write_text(manifest.read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(CorruptArtifactError, match="Fix: delete the folder"):
        Corpus.load(tmp_path / "c")
    assert len(build_corpus(tmp_path / "c", SMALL.model_copy(update={"packages": ("toolz",), "embeddings": False}))) > 30


def test_scrambled_database_is_typed(tmp_path: Path) -> None:
    write_corpus(tmp_path / "c", small_documents(), PLAIN)
    database = tmp_path / "c" / DATABASE
    database.write_bytes(b"\xff" * database.stat().st_size)
    with pytest.raises(CorruptArtifactError):
        Corpus.load(tmp_path / "c")


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "thesis.txt").write_text("dear")
    with pytest.raises(InputError, match="not a corpus"):
        build_corpus(tmp_path / "c", SMALL.model_copy(update={"packages": ("toolz",), "embeddings": False}))
    assert (tmp_path / "c" / "thesis.txt").read_text() == "dear"


def test_full_disk_keeps_the_earlier_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_corpus(tmp_path / "c", small_documents(), PLAIN)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(build_module, "write_database", full)
    with pytest.raises(DiskFullError, match="no space left"):
        write_corpus(tmp_path / "c", small_documents()[:2], PLAIN)
    assert len(Corpus.load(tmp_path / "c")) == 5
    assert [p.name for p in tmp_path.iterdir()] == ["c"]


def test_unknown_option_is_refused() -> None:
    with pytest.raises(ValueError, match="packges"):
        CorpusConfig.model_validate({"packges": ["numpy"]})


def test_embeddings_are_unit_vectors_of_blank_and_full_texts() -> None:
    vectors = embed(["graph theory", "", "a longer text about graph theory and trees"])
    assert vectors.shape == (3, 256)
    assert float(vectors[0] @ vectors[0]) == pytest.approx(1.0, abs=1e-5)
    assert float(vectors[0] @ vectors[2]) > 0.3
    assert embed([]).shape == (0, 256)
