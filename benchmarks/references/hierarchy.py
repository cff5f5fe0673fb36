"""A reference hierarchy to measure a graph against: topics with their names, and which topic is broader than which."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import networkx as nx

from kg.equivalence import name_key


def key_of(name: str) -> str:
    """The name key of a reference's name; empty when nothing is left of it."""
    try:
        return name_key(name)
    except ValueError:
        return ""


@dataclass(frozen=True, eq=False)
class Hierarchy:
    """Topics by name key (a key may name several: a word has several senses) over a DAG broader -> narrower."""

    topics: Mapping[str, tuple[str, ...]]
    """Topic ids by name key, the most common sense first."""
    dag: nx.DiGraph

    def knows(self, name: str) -> bool:
        """True when some topic has this name."""
        return key_of(name) in self.topics

    def relates(self, coarse: str, fine: str) -> int:
        """1 when a sense of `coarse` is above a sense of `fine` (transitively), -1 when only below, else 0."""
        above, below = self.topics.get(key_of(coarse), ()), self.topics.get(key_of(fine), ())
        if any(a in self._ancestors(b) for a in above for b in below):
            return 1
        return -1 if any(b in self._ancestors(a) for a in above for b in below) else 0

    def same(self, one: str, other: str) -> bool:
        """True when both names have the same main sense."""
        a, b = self.topics.get(key_of(one), ()), self.topics.get(key_of(other), ())
        return bool(a and b and a[0] == b[0])

    def edges(self, keys: Iterable[str]) -> set[tuple[str, str]]:
        """Direct edges (broader topic, narrower topic) with both ends among the topics that these name keys have."""
        present = {topic for key in keys for topic in self.topics.get(key, ())}
        return {(a, b) for a, b in self.dag.edges if a in present and b in present}

    def under(self, topic: str) -> set[str]:
        """A topic and everything below it."""
        return {topic, *nx.descendants(self.dag, topic)}

    @functools.lru_cache(maxsize=200_000)  # noqa: B019 - one hierarchy lives as long as the benchmark.
    def _ancestors(self, topic: str) -> frozenset[str]:
        return frozenset(nx.ancestors(self.dag, topic)) if topic in self.dag else frozenset()
