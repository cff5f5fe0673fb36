from __future__ import annotations

import pytest

from environments.protocols import Document
from environments.search import Corpus
from kg import EmbeddedReader
from kg.apidocs import is_callable, is_module, module_label, module_of, summary
from kg.phrases import akin, content, coverage, defined_as, named_examples, noun_phrases, shared_phrases


def api(title: str, text: str) -> Document:
    return Document("x", title, text, "demo", "MIT")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("=====\nOptimization and root finding (:mod:`demo.x`)\n=====\n\nMore.", "optimization and root finding"),
        ("Shortest path algorithms for weighted graphs.", "shortest path algorithms for weighted graphs"),
        ("Functions for hashing graphs to strings.", "hashing graphs to strings"),
        ("This module provides functions and operations for bipartite graphs.\n\nMore.", "bipartite graphs"),
        ("A sub-package for efficiently dealing with polynomials.", "polynomials"),
        (".. _ref:\n\n=====\nStatistical functions (:mod:`demo.x`)\n=====\n", "statistical functions"),
        ("Discrete Fourier Transforms\n---------------------------\n", "discrete Fourier transforms"),
        ("This module cooks up a docstring when imported.", ""),
        ("This is used by `x` and you should not care.", ""),
        ("Compute things.", ""),
    ],
)
def test_a_module_names_its_topic(text: str, label: str) -> None:
    assert module_label(api("demo.x", f"module demo.x\n\n{text}")) == label


def test_what_an_api_document_says_about_itself() -> None:
    function = api("demo.f", "f(a, b=1)\n\nCompute the sum, e.g. of a and b. It is fast.\n\nDefined in demo.sums.")
    assert summary(function) == "Compute the sum, e.g. of a and b."
    assert module_of(function) == "demo.sums"
    assert is_callable(function)
    assert not is_module(function)
    method = api("demo.kind.f", "f(a)\n\nA method.\n\nMethod of demo.kind.")
    assert not is_callable(method)
    assert not is_callable(api("demo.BadError", "BadError(a)\n\nRaised."))
    assert not is_callable(api("demo.Kind.f", "f(a)\n\nText."))


def test_noun_phrases_leave_verbs_and_small_words_out() -> None:
    assert noun_phrases("Compute the frequency response of a digital filter in ZPK form.") == [
        "frequency response",
        "digital filter",
    ]
    assert noun_phrases("Return the given input arrays.") == []


def test_shared_phrases_prefer_the_longer_one_that_carries_the_shorter() -> None:
    sentences = [
        ("1", "Return a discrete cosine transform of data."),
        ("2", "Invert the discrete cosine transform."),
        ("3", "Design a digital filter."),
        ("4", "Apply a digital filter forward and backward."),
        ("5", "Plot a histogram."),
    ]
    assert shared_phrases(sentences) == [("discrete cosine transform", ["1", "2"]), ("digital filter", ["3", "4"])]


def test_names_keep_their_capitals_and_odd_forms_do_not() -> None:
    sentences = [
        ("1", "Perform the Kolmogorov-Smirnov test on Least SQuares data."),
        ("2", "Run a Kolmogorov-Smirnov test."),
        ("3", "Fit a B-spline curve by least squares regression."),
        ("4", "Draw a B-spline curve with least SQuares regression."),
    ]
    assert {phrase for phrase, _ in shared_phrases(sentences)} >= {"Kolmogorov-Smirnov test", "B-spline curve"}
    assert not any("SQ" in phrase for phrase, _ in shared_phrases(sentences))


def test_content_and_kinship_of_words() -> None:
    assert content("numerical optimization") == ["optimization"]
    assert content("number theory") == ["number", "theory"]
    assert akin("statistics", "statistical")
    assert not akin("graph", "graphics")
    assert not akin("integer", "integral")
    assert coverage(["graph", "tree"], ["graph"]) == 0.5
    assert coverage([], ["graph"]) == 0.0


def test_definitions_and_examples() -> None:
    assert defined_as("<algorithm> A sorting technique in which pairs are compared.") == "sorting technique"
    assert defined_as("A kind of balanced tree.") == "balanced tree"
    assert defined_as("Arranging data in order.") == ""
    assert named_examples("Window functions such as Hann, Hamming and Blackman.", ["window"]) == ["Hann", "Hamming", "Blackman"]
    assert named_examples("Window functions such as Hann.", ["graph"]) == []


def test_reading_a_topic(tiny: Corpus) -> None:
    reading = EmbeddedReader().read("sorting", ("algorithms",), tiny)
    found = {p.name: p for p in reading.proposals}
    assert {"bubble sort", "quicksort", "stable merge sort", "demo.sorting.merge_sort", "demo.sorting.heap_sort"} <= set(found)
    assert all(p.relation == "narrower" and p.evidence for p in reading.proposals)
    assert found["bubble sort"].evidence[0].document_id == "d1"
    assert "pairs of adjacent values" in found["bubble sort"].evidence[0].quote
    assert set(found["stable merge sort"].evidence) == {
        e for p in ("demo.sorting.merge_sort", "demo.sorting.top") for e in found[p].evidence
    }
    assert not reading.atomic
    assert "PWNED" not in {p.name for p in reading.proposals}
    assert reading == EmbeddedReader().read("sorting", ("algorithms",), tiny)


def test_a_seed_gets_topics_before_functions(tiny: Corpus) -> None:
    reading = EmbeddedReader().read("sorting", (), tiny)
    assert reading.proposals
    assert not any(p.name.startswith("demo.") for p in reading.proposals)


def test_a_concrete_function_is_an_atom_and_so_is_what_nothing_extends(tiny: Corpus) -> None:
    reading = EmbeddedReader().read("demo.sorting.top", ("sorting",), tiny)
    assert reading.atomic
    assert reading.proposals == ()
    assert reading.documents == ("f3",)
    assert EmbeddedReader().read("zebra", ("animals",), tiny).atomic
