"""Real documents of installed packages, and a small graph whose nodes quote them."""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from environments.protocols import Document
from environments.resources import Resources
from environments.search import Corpus, CorpusConfig, build_corpus
from environments.vault import Vault
from kg import Concept, ConceptGraph, Edge, Passage
from kg.concept import Support
from tasks.facts import askable, defaults

PACKAGES = ("numpy", "networkx")


@functools.cache
def corpus() -> Corpus:
    """The documentation of two packages, built once a process."""
    directory = Path(tempfile.mkdtemp(prefix="ninefold-corpus-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    config = CorpusConfig(packages=PACKAGES, foldoc=False, python_manual=False, linux_manual=False, embeddings=False)
    return build_corpus(directory / "corpus", config)


@functools.cache
def stating() -> tuple[Document, ...]:
    """Documents that state something to ask for, those with the most first."""
    found = [(len(askable(defaults(d))), d.document_id, d) for d in corpus().documents()]
    return tuple(d for count, _, d in sorted(found, key=lambda f: (-f[0], f[1])) if count)


def graph(branches: int = 4, leaves: int = 3, documents: int = 3) -> ConceptGraph:
    """One seed, `branches` below it, `leaves` below each; every leaf quotes documents, and neighbouring leaves share one."""
    made = ConceptGraph()
    made.restore_node(Concept("seed", "numerics", seed=True))
    material = stating()
    at = 0
    for b in range(branches):
        branch = f"b{b}"
        made.restore_node(Concept(branch, f"branch {b}"))
        made.restore_edges([("seed", branch, Edge("narrower", 1.0, [Support("d", "a quote", "narrower", 1.0, "test")]))])
        for i in range(leaves):
            chosen = material[at : at + documents + 1]  # the last one is the next leaf's first
            at += documents
            name = chosen[0].title.rsplit(".", 1)[-1].replace("_", " ")
            quotes = [Passage.of(d, d.text[:80]) for d in chosen]
            made.restore_node(Concept(f"{branch}n{i}", f"{name} {b} {i}", evidence=quotes))
            made.restore_edges([(branch, f"{branch}n{i}", Edge("narrower", 1.0, [Support("d", "a quote", "narrower", 1.0, "test")]))])
    return made


@contextmanager
def resources(directory: Path) -> Iterator[Resources]:
    with Resources(Vault(directory / "vault"), corpus()) as made:
        yield made
