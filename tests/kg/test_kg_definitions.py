from __future__ import annotations

import pytest

from kg.definitions import Claim, abbreviations, claims, genus, subject_tags


@pytest.mark.parametrize(
    ("sentence", "what"),
    [
        ("An instrument for driving nails, beating metals, and the like.", "instrument"),
        ("Any of several species of monkeys of South America.", "monkey"),
        ("A kind of tenon connecting the face of a timber.", "tenon"),
        ("<algorithm> A sorting technique in which pairs are compared.", "sorting technique"),
        ("<language, standard> (From the maker's name) A programming language developed in 1970.", "programming language"),
        ("A small computer that fits a pocket.", "computer"),
        ("One who hunts.", "person"),
        ("The act or process of hunting.", "act"),
        ("The quality of being thin.", "quality"),
    ],
)
def test_a_definition_names_its_class(sentence: str, what: str) -> None:
    assert genus(sentence) == what


@pytest.mark.parametrize(
    "sentence",
    [
        "Arranging data in order.",
        "See {Coke}, n.",
        "A part of a man's beard.",
        "An animal, vegetable, or mineral substance used in dyeing.",
        "A person or thing that hunts.",
        "A thing.",
        "",
    ],
)
def test_what_names_no_class_gives_none(sentence: str) -> None:
    assert genus(sentence) == ""


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (
            "Routing protocols such as OSPF, BGP and RIP.",
            [("Routing protocol", "OSPF"), ("Routing protocol", "BGP"), ("Routing protocol", "RIP")],
        ),
        (
            "It offers sorting algorithms, including quicksort, merge sort and heap sort.",
            [("sorting algorithm", "quicksort"), ("sorting algorithm", "merge sort"), ("sorting algorithm", "heap sort")],
        ),
        ("We use graphs, trees and other data structures.", [("data structure", "graph"), ("data structure", "tree")]),
        ("A B-tree is a kind of balanced tree that holds keys.", [("balanced tree", "B-tree")]),
    ],
)
def test_named_kinds_are_claims(sentence: str, expected: list[tuple[str, str]]) -> None:
    assert [(c.coarse, c.fine) for c in claims(sentence)] == expected


@pytest.mark.parametrize(
    "sentence",
    [
        "Such as it is, this works.",
        "The others are as good as any.",
        "It is one of them.",
        "This is a test of things such as these.",
        "Some other day we sort.",
    ],
)
def test_sentences_without_an_order_claim_nothing(sentence: str) -> None:
    assert list(claims(sentence)) == []


def test_a_claim_says_by_which_pattern_it_was_found() -> None:
    assert list(claims("A trie is a type of search tree.")) == [Claim("search tree", "trie", "is-a")]


def test_subject_tags_stand_at_the_head_of_an_entry_only() -> None:
    assert subject_tags("<networking, standard> A protocol.") == ("networking", "standard")
    assert subject_tags("A protocol <networking>.") == ()
    assert subject_tags("<http://example.org/> A page.") == ()


def test_abbreviations_must_fit_their_long_form() -> None:
    text = "We train a support vector machine (SVM), as in the standard library (API)."
    assert list(abbreviations(text)) == [("support vector machine", "SVM")]
    assert list(abbreviations("no brackets here")) == []


def test_a_long_list_costs_no_more_than_its_length() -> None:
    """A pattern that tries every way to split a list would not come back from this."""
    items = ", ".join(f"abcdefghijklmnop qrstuvw{i}" for i in range(400))
    assert genus(f"A substance, {items}.") == "substance"
    assert isinstance(list(claims(f"Substances such as {items}.")), list)
    assert list(abbreviations(f"{items} (")) == []
