"""Spellings that are the same answer, and spellings that are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from environments.answers.declared import declared_answer
from environments.answers.form import AnswerForm, Kind
from environments.answers.numbers import parse_number

SAME: tuple[tuple[Kind, str, str], ...] = (
    ("number", "1234567", "1,234,567"),
    ("number", "1234567", "1 234 567"),
    ("number", "0.12", "12%"),
    ("number", "1200", "1.2e3"),
    ("number", "1200", "1.2 x 10^3"),
    ("number", "21", "twenty-one"),
    ("number", "2005", "two thousand and five"),
    ("number", "3500000", "3.5 million"),
    ("number", "-7", "minus seven"),
    ("number", "100", "one hundred"),
    ("quantity", "2.5 MHz", "2500 kHz"),
    ("quantity", "1 inch", "2.54 cm"),
    ("quantity", "2 minutes", "120 s"),
    ("quantity", "1 KB", "1000 bytes"),
    ("quantity", "8 bits", "1 byte"),
    ("quantity", "56 kbps", "56000 bit/s"),
    ("date", "1987-04-02", "2 April 1987"),
    ("date", "1987-04-02", "April 2nd, 1987"),
    ("date", "1987-04", "Apr 1987"),
    ("date", "1987", "in 1987"),
    ("date", "1987", "1987-04"),
    ("name", "Niklaus Wirth", "Wirth, Niklaus"),
    ("name", "Donald E. Knuth", "Prof. D. Knuth"),
    ("name", "Kurt Gödel", "kurt godel"),
    ("name", "Sun Microsystems", "Sun Microsystems, Inc."),
    ("name", "ALGOL 60", "Algol-60"),
    ("version", "1.4.0", "v1.4"),
    ("boolean", "yes", "True."),
)
DIFFERENT: tuple[tuple[Kind, str, str], ...] = (
    ("number", "15", "1,5"),
    ("number", "3", "3 or 4"),
    ("number", "3", "nan"),
    ("number", "12", "12%"),
    ("number", "5", "two three"),
    ("quantity", "512 bytes", "512"),
    ("quantity", "512 bytes", "512 bits"),
    ("quantity", "2 s", "2 m"),
    ("quantity", "8 bit", "8 radian"),
    ("date", "1987-04", "1987"),
    ("date", "1987-04-03", "03/04/1987"),
    ("date", "1987", "1988"),
    ("date", "1987", "1986 or 1987"),
    ("name", "Niklaus Wirth", "Wirth"),
    ("name", "Niklaus Wirth", "Karl Wirth"),
    ("name", "C++", "C"),
    ("name", "Apple II", "Apple III"),
    ("version", "1.4", "1.40"),
    ("version", "2.0", "2.0rc1"),
    ("boolean", "yes", "no"),
    ("text", "a", ""),
)


@pytest.mark.parametrize(("kind", "expected", "got"), SAME)
def test_the_same_answer(kind: Kind, expected: str, got: str) -> None:
    form = AnswerForm(kind=kind, values=((expected,),))
    assert form.score(expected) == (1.0, 1)
    assert form.score(got) == (1.0, 1)


@pytest.mark.parametrize(("kind", "expected", "got"), DIFFERENT)
def test_another_answer(kind: Kind, expected: str, got: str) -> None:
    assert AnswerForm(kind=kind, values=((expected,),)).score(got)[0] == 0.0


@given(st.lists(st.sampled_from(["Ada", "Pascal", "Lisp", "Forth", "APL"]), min_size=2, unique=True), st.randoms())
def test_a_set_has_no_order_a_list_has(items: list[str], rng: object) -> None:
    values = tuple((i,) for i in items)
    turned = "; ".join(items[::-1])
    assert AnswerForm(kind="name", shape="set", values=values).score(turned)[0] == 1.0
    assert AnswerForm(kind="name", shape="list", values=values).score(turned)[0] == 0.0
    assert AnswerForm(kind="name", shape="set", values=values).score("; ".join(items[1:]))[0] == 0.0
    assert 0 < AnswerForm(kind="name", shape="set", values=values, partial=True).score("; ".join(items[1:]))[0] < 1


@given(st.integers(-(10**12), 10**12))
def test_a_number_survives_separators(number: int) -> None:
    assert parse_number(f"{number:,}") == number == parse_number(str(number))


@given(st.text(max_size=60))
def test_no_text_is_too_strange(text: str) -> None:
    for kind, value in (("number", "7"), ("quantity", "7 MHz"), ("date", "1987"), ("name", "Ada"), ("version", "1.2"), ("boolean", "yes")):
        assert 0 <= AnswerForm.model_validate({"kind": kind, "values": [[value]]}).score(text)[0] <= 1


def test_alternatives_count_once() -> None:
    form = AnswerForm(kind="name", shape="set", values=(("ALGOL", "Algorithmic Language"), ("Ada",)))
    assert form.score("Ada; Algorithmic Language")[0] == 1.0
    assert form.score("ALGOL; Algorithmic Language")[0] == 0.0


def test_a_form_that_reads_as_nothing_is_refused() -> None:
    with pytest.raises(ValidationError):
        AnswerForm(kind="date", values=(("03/04/2005",),))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("7", "7"),
        ("So it is <answer> 7 </answer>.", "7"),
        ("Long thought.\nFinal answer: 7", "7"),
        ("The answer is 7", "7"),
        ("<answer>7</answer> or <answer>8</answer>", None),
        ("<answer>7", None),
        ("", None),
        (None, None),
        ("7" * 9_000, None),
    ],
)
def test_where_the_answer_stands(text: str | None, answer: str | None) -> None:
    assert declared_answer(text) == answer
