"""A package of one module with a fault, as a candidate whose parts a test may change."""

from __future__ import annotations

from tasks.repository.candidate import Candidate

BEFORE = '''"""Counting words."""


def count_words(text):
    """How many words a text has."""
    return len(text.split(" "))


def longest_word(text):
    """The longest word."""
    return max(text.split(), key=len)
'''
AFTER = BEFORE.replace('return len(text.split(" "))', "words_without_empty_ones = text.split()\n    return len(words_without_empty_ones)")
OLD_TEST = """from wordy import count_words, longest_word


def test_two_words():
    assert count_words("one two") == 2


def test_longest():
    assert longest_word("a bcd ef") == "bcd"
"""
NEW_TEST = (
    OLD_TEST
    + """

def test_more_spaces():
    assert count_words("one   two  three") == 3
"""
)
CHANGES = "Changes\n\n1.1\n- count_words no longer counts what is between two spaces.\n"


def candidate(
    before: dict[str, str] | None = None,
    after: dict[str, str] | None = None,
    licence: str = "MIT",
    statement: str = "count_words counts nothing as words.",
) -> Candidate:
    """The small fix, with further files on either side."""
    old = {"wordy/__init__.py": BEFORE, "tests/test_wordy.py": OLD_TEST, "README.md": "wordy", "debian/changelog": "x", ".git/HEAD": "ref"}
    new = {"wordy/__init__.py": AFTER, "tests/test_wordy.py": NEW_TEST, "README.md": "wordy", "CHANGES.md": CHANGES}
    trees = [{path: text.encode() for path, text in {**tree, **(more or {})}.items()} for tree, more in ((old, before), (new, after))]
    return Candidate("wordy fix", "wordy", "git", "abc", trees[0], trees[1], statement, licence, (("abc", "0" * 64),))
