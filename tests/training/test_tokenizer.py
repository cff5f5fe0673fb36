"""The tokenizer: text comes back, numbers are cut by threes, and what the corpus says often is one token."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.errors import CorruptArtifactError
from environments.families import TOOLS
from training.tokenizer import XtmlTokenizer, element_tags

TEXTS = ["find_root(f, xtol=2e-12, max_iter=100)", "1234567 of 100", "\n    return n * 100 + 22"] * 3
TOKENIZER = XtmlTokenizer.train(TEXTS, element_tags(TOOLS), 400)


def pieces(text: str) -> list[str]:
    return [TOKENIZER.decode([i]) for i in TOKENIZER.encode(text)]


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_any_text_comes_back_and_never_holds_a_reserved_id(text: str) -> None:
    ids = TOKENIZER.encode(text)
    assert TOKENIZER.decode(ids) == text
    assert not set(ids) & {TOKENIZER.pad, *TOKENIZER.reserved.values(), *TOKENIZER.elements.values()}


def test_numbers_are_cut_into_up_to_three_digits_from_the_left() -> None:
    assert pieces("1234567") == ["123", "456", "7"]
    assert pieces("max_iter=100") == ["max", "_", "iter", "=", "100"]
    assert all(len(p) <= 3 for p in pieces("9081726354 1234567123456") if p.isdigit())


def test_the_vocabulary_is_never_larger_than_asked_for() -> None:
    assert TOKENIZER.vocab_size <= 400
    assert max(TOKENIZER.encode(" ".join(TEXTS))) < TOKENIZER.vocab_size


def test_a_saved_tokenizer_comes_back_and_a_broken_one_is_corrupt(tmp_path: Path) -> None:
    TOKENIZER.save(tmp_path)
    again = XtmlTokenizer.load(tmp_path)
    assert [again.encode(t) for t in TEXTS] == [TOKENIZER.encode(t) for t in TEXTS]
    assert (again.vocab_size, again.reserved, again.elements) == (TOKENIZER.vocab_size, TOKENIZER.reserved, TOKENIZER.elements)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CorruptArtifactError, match="holds no tokenizer"):
        XtmlTokenizer.load(tmp_path)
