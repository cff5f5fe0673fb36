"""Facts against the functions that the documents describe: what is said to be a default is the default."""

from __future__ import annotations

import importlib
import inspect
import warnings

import pytest

from environments.protocols import Document
from environments.search.sources import distribution_documents
from tasks.facts import FLAGS, Fact, askable, defaults, integers


def document(text: str) -> Document:
    return Document("d", "m.f", text, "s", "MIT")


def pairs(text: str) -> list[tuple[str, str]]:
    return [(f.parameter, f.value) for f in defaults(document(text))]


@pytest.fixture(scope="module")
def real() -> list[Fact]:
    return [f for d in distribution_documents("numpy") for f in defaults(d)]


def test_every_fact_of_a_real_package_is_what_the_function_does(real: list[Fact]) -> None:
    checked = 0
    for fact in real:
        module, _, name = fact.title.rpartition(".")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                signature = inspect.signature(getattr(importlib.import_module(module), name))
        except (ImportError, AttributeError, ValueError, TypeError):
            continue  # a method, or compiled: it cannot be asked
        default = signature.parameters[fact.parameter].default
        assert str(default) == fact.value or float(default) == float(fact.value), fact
        checked += 1
    assert checked > 300


def test_every_fact_stands_in_its_passage_and_names_its_source(real: list[Fact]) -> None:
    for fact in real:
        spelled = fact.quote.replace("'", "").replace(" ", "")
        assert f"{fact.parameter}={fact.value}" in spelled
        assert fact.source == "numpy"
        assert fact.licence


def test_signatures_are_read_and_prose_is_not() -> None:
    assert pairs("f(a, size=70, *, mode='wrap', tol=1e-08, deep: int = 3, on=True)\n\nWith x=5, as in f(z=9).") == [
        ("size", "70"),
        ("mode", "wrap"),
        ("tol", "1e-08"),
        ("deep", "3"),
        ("on", "True"),
    ]
    assert pairs("A sentence with x=5, and more.\n\nf(size=70)") == []
    assert pairs("") == []
    assert pairs("f(" + "a, " * 2000 + "size=70)") == []


@pytest.mark.parametrize(
    "text", ["f(a=g(1))", "f(a=[1, 2])", "f(a=b.c)", "f(a=1.5j)", "f(a=0x10)", "f(a=1_000)", "f(a=10 * 2)", "f(a=-x)", "f(a=')')"]
)
def test_expressions_are_no_facts(text: str) -> None:
    assert pairs(text) == []


def test_a_name_that_comes_twice_counts_once_and_long_values_not_at_all() -> None:
    assert pairs("f(size=70, size=80)") == [("size", "70")]
    assert pairs("f(size=12345678901, seed=5)") == [("seed", "5")]


def test_what_can_be_guessed_is_not_asked_and_integers_are_whole(real: list[Fact]) -> None:
    asked = askable(real)
    assert asked
    assert not FLAGS & {f.value for f in asked}
    assert [f for f in real if f not in asked]
    whole = integers(real)
    assert whole
    assert all(2 <= int(f.value) <= 9_999 for f in whole)
    assert [f.integer for f in defaults(document("f(a=5, bb=-7, cc=1.0, dd='x', ee=None)")) if f.parameter != "a"] == [-7, None, None, None]
