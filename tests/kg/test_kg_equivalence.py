from __future__ import annotations

import pytest

from kg.equivalence import abbreviates, is_qualified, name_key, singular, split_abbreviation


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("Neural Networks", "neural network"),
        ("The graph-algorithm", "graph algorithms"),
        ("sparse matrices", "Sparse matrix"),
        ("optimisation", "Optimization"),
        ("Newton's method", "newton method"),
        ("vertex_cover", "vertex cover"),
        ("time series", "time-series"),
    ],
)
def test_names_of_one_concept(a: str, b: str) -> None:
    assert name_key(a) == name_key(b)


@pytest.mark.parametrize(
    ("a", "b"), [("C++", "C"), ("sqlalchemy.Text", "sqlalchemy.text"), ("graph", "graphics"), ("analysis", "analyst"), ("C#", "C")]
)
def test_names_of_two_concepts(a: str, b: str) -> None:
    assert name_key(a) != name_key(b)


def test_a_name_without_letters_or_digits_is_refused() -> None:
    with pytest.raises(ValueError, match="no name is left"):
        name_key(" --- ")


def test_singular_keeps_words_that_only_look_plural() -> None:
    assert [singular(w) for w in ("statistics", "analysis", "class", "classes", "queries", "indices", "trees", "bus")] == [
        "statistics", "analysis", "class", "class", "query", "index", "tree", "bus",
    ]  # fmt: skip


def test_abbreviations_beside_their_long_form() -> None:
    assert split_abbreviation("fast Fourier transform (FFT)") == ("fast Fourier transform", "FFT")
    assert split_abbreviation("list (Python)") == ("list (Python)", None)
    assert abbreviates("TOC", "table of contents")
    assert not abbreviates("A", "algorithm")


def test_qualified_names() -> None:
    assert is_qualified("scipy.optimize.bisect")
    assert not is_qualified("e.g. this")
    assert not is_qualified("bisect")
