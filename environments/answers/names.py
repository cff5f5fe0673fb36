"""Names of people and things: case, diacritics, punctuation, titles, initials and `Last, First` do not matter."""

from __future__ import annotations

import re
import unicodedata

_TITLES = frozenset(["dr", "prof", "professor", "sir", "mr", "mrs", "ms", "miss", "the", "phd"])
_SUFFIXES = frozenset(["inc", "incorporated", "corp", "corporation", "ltd", "limited", "llc", "co", "company", "gmbh", "ag", "plc"])
_LETTERS = str.maketrans({"ß": "ss", "ø": "o", "Ø": "o", "ł": "l", "Ł": "l", "đ": "d", "æ": "ae", "Æ": "ae", "œ": "oe", "ı": "i"})


def plain(text: str) -> str:
    """Lower case without diacritics; punctuation that joins is kept out, other than what tells names apart (`C++`, `C#`)."""
    text = unicodedata.normalize("NFKD", text.translate(_LETTERS))
    text = "".join(c for c in text if not unicodedata.combining(c)).casefold()
    text = re.sub(r"['’`\"“”]", "", text)
    return " ".join(re.sub(r"[^\w+#*&/]+", " ", text.replace("_", " ")).split())


def words(name: str) -> tuple[str, ...]:
    """The words that identify a name, `Last, First` turned round; titles in front and legal forms at the end left out."""
    if name.count(",") == 1:
        last, first = name.split(",")
        if plain(first) not in _SUFFIXES:
            name = f"{first} {last}"
    found = plain(re.sub(r"(?<=\b[A-Za-z]\.)(?=[A-Za-z])", " ", name)).split()
    while len(found) > 1 and found[0] in _TITLES:
        found = found[1:]
    while len(found) > 1 and found[-1] in _SUFFIXES | {"phd"}:
        found = found[:-1]
    return tuple(found)


def same_name(got: str, expected: str) -> bool:
    """Whether both name the same: the same words, or a person's with given names as initials or middle ones left out.

    Family name and first initial must agree; a bare family name is not the person's whole name.
    """
    if len(got) > 300:
        return False
    left, right = words(got), words(expected)
    if not left or not right:
        return False
    if left == right or "".join(left) == "".join(right):
        return True
    if len(left) < 2 or len(right) < 2 or left[-1] != right[-1] or not _is_person(got) or not _is_person(expected):
        return False
    if not _agrees(left[0], right[0]):
        return False
    short, long = sorted((left[1:-1], right[1:-1]), key=len)
    return not short or (len(short) == len(long) and all(map(_agrees, short, long)))


def _agrees(a: str, b: str) -> bool:
    return a == b or (min(len(a), len(b)) == 1 and a[0] == b[0])


def _is_person(name: str) -> bool:
    """Two to four words of letters: `Niklaus Wirth`, `D. E. Knuth`; not `Apple II` or `Z-80`."""
    found = words(name)
    return 2 <= len(found) <= 4 and all(w.isalpha() for w in found) and not re.fullmatch(r"[ivx]+", found[-1]) and len(found[-1]) > 1
