"""A growth that a test kills: run as a script with a corpus, a journal and seeds."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from environments.protocols import Reading, SearchSource
from environments.search import Corpus
from kg import EmbeddedReader, GraphConfig, grow
from kg.journal import Journal


class Counting(EmbeddedReader):
    """The embedded reader, counting what it is asked."""

    def __init__(self) -> None:
        self.read_count: Counter[str] = Counter()

    def read(self, concept: str, ancestors: Sequence[str], source: SearchSource) -> Reading:
        self.read_count[concept] += 1
        return super().read(concept, ancestors, source)


if __name__ == "__main__":
    corpus = Corpus.load(Path(sys.argv[1]))
    with Journal(Path(sys.argv[2]), EmbeddedReader(), corpus) as kept:
        grow(sys.argv[3:], corpus, EmbeddedReader(), GraphConfig(max_nodes=120), journal=kept)
