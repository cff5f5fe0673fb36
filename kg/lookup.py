"""Finding concepts by name and by meaning: exact, normalised, sharing words, or near in embedding space."""

from __future__ import annotations

import itertools
import logging
import math
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from environments.errors import MissingDependencyError

log = logging.getLogger(__name__)

_MAX_EMBEDDED = 200_000
"""Names embedded: a query reads 1 kB of each, so beyond this it takes over 50 ms and 200 MB; later names are found by words alone."""
_MAX_POSTINGS = 20_000
"""Names that one query compares by words, those of its rarest words first: a word that half the names have tells nothing."""
_NEAR = 0.5
"""Cosine from which two names are worth showing as neighbours."""
_BY_WORDS = 0.25
"""Weighted share of words in common from which a name is worth showing."""

Embed = Callable[[Sequence[str]], npt.NDArray[np.float32]]


@dataclass(frozen=True)
class Match:
    """A concept found for a text."""

    node: str
    name: str
    """Its preferred name."""
    score: float
    """0 to 1: 1 for the same spelling, .99 for the same name key, below that the words in common or the cosine."""
    how: str
    """`exact`, `key`, `words` or `meaning`."""


@dataclass(frozen=True)
class Neighbourhood:
    """What is around a node; ids."""

    node: str
    name: str
    aliases: tuple[str, ...]
    parents: tuple[str, ...]
    children: tuple[str, ...]
    siblings: tuple[str, ...]
    """Other children of its parents, first parent's first."""
    related: tuple[str, ...]
    """Concepts it has an undirected relation with."""


class NameIndex:
    """An index of name keys that only grows; entry numbers are the order of adding.

    When `embed` raises MissingDependencyError, the index says so once and finds by words alone.
    """

    def __init__(self, embed: Embed | None) -> None:
        self._embed = embed
        self._keys: list[str] = []
        self._lengths: list[int] = []
        self._postings: dict[str, array[int]] = {}
        self._vectors: npt.NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self._embedded = 0

    def follow(self, names: Mapping[str, object]) -> Sequence[str]:
        """Index the name keys that came since the last call (a mapping keeps their order). Returns all keys by entry number."""
        for key in itertools.islice(names, len(self._keys), None):
            words = set(_words(key))
            for word in words:
                self._postings.setdefault(word, array("I")).append(len(self._keys))
            self._keys.append(key)
            self._lengths.append(len(words))
        return self._keys

    def by_words(self, key: str, limit: int) -> list[tuple[int, float]]:
        """Entries that share words with a key, best first: Jaccard index, each word weighted by its rarity."""
        words = set(_words(key))
        found = sorted((len(self._postings[word]), word) for word in words if word in self._postings)
        weight: dict[int, float] = {}
        shared: dict[int, int] = {}
        seen = 0
        for count, word in found:
            if seen and seen + count > _MAX_POSTINGS:
                break
            seen += count
            for entry in self._postings[word][:_MAX_POSTINGS]:
                weight[entry] = weight.get(entry, 0.0) + self._weight(word)
                shared[entry] = shared.get(entry, 0) + 1
        total = sum(self._weight(word) for word in words)
        # An entry's other words are not looked up one by one: each weighs as little as a word can.
        scored = [(entry, value / (total + math.log(2.0) * (self._lengths[entry] - shared[entry]))) for entry, value in weight.items()]
        scored.sort(key=lambda item: (-item[1], item[0]))
        return [(entry, score) for entry, score in scored[:limit] if score >= _BY_WORDS]

    def by_meaning(self, key: str, limit: int) -> list[tuple[int, float]]:
        """Entries near a key in embedding space, best first (cosine)."""
        if self._embed is None or not self._keys:
            return []
        try:
            self._extend()
            query = self._embed([key])[0]
        except MissingDependencyError as error:
            log.warning("concepts are found by their words alone: %s", error)
            self._embed = None
            return []
        cosine = self._vectors[: self._embedded] @ query
        best = np.argpartition(-cosine, limit)[:limit] if len(cosine) > limit else np.arange(len(cosine))
        ranked = sorted(((int(i), float(cosine[i])) for i in best), key=lambda item: (-item[1], item[0]))
        return [(entry, score) for entry, score in ranked if score >= _NEAR]

    def _weight(self, word: str) -> float:
        return math.log(2.0 + len(self._keys) / (1 + len(self._postings.get(word, ()))))

    def _extend(self) -> None:
        assert self._embed is not None
        wanted = min(len(self._keys), _MAX_EMBEDDED)
        if wanted <= self._embedded:
            return
        fresh = self._embed(self._keys[self._embedded : wanted])
        if wanted > len(self._vectors):
            grown = np.zeros((max(wanted, 2 * len(self._vectors), 256), fresh.shape[1]), np.float32)
            if self._embedded:
                grown[: self._embedded] = self._vectors[: self._embedded]
            self._vectors = grown
        self._vectors[self._embedded : wanted] = fresh
        self._embedded = wanted


def _words(key: str) -> list[str]:
    return key.replace(".", " ").replace("_", " ").lower().split()
