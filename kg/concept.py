"""What a node and an edge of the concept graph carry, and what is kept beside them: relations, redirects, rejects."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from environments.protocols import Document

UNREAD = "unread"
FAILED = "failed"
BUDGET = "budget"
DEPTH = "depth"
"""How `Concept.reason` begins while there is more to do for a node: never read, its reader failed, or proposals were cut."""


@dataclass(frozen=True, slots=True)
class Passage:
    """A quoted passage of a document, with what is needed to cite it."""

    document_id: str
    title: str
    source: str
    licence: str
    quote: str

    @classmethod
    def of(cls, document: Document, quote: str) -> Passage:
        """A passage of a document at hand."""
        return Passage(document.document_id, document.title, document.source, document.licence, quote)

    @property
    def sha256(self) -> str:
        """sha256 (hex) of the quoted text."""
        return hashlib.sha256(self.quote.encode()).hexdigest()


@dataclass(slots=True)
class Concept:
    """One concept. Names are unique within a graph, aliases included."""

    concept_id: str
    name: str
    aliases: list[str] = field(default_factory=list)
    domain: str = "general"
    seed: bool = False
    atomic: bool = False
    agent: str = ""
    """Brain that read for the node; empty while unread."""
    reason: str = UNREAD
    queries: list[str] = field(default_factory=list)
    confidence: float = 1.0
    created_at: str = ""
    evidence: list[Passage] = field(default_factory=list)
    found_by: str = ""
    """Brain whose proposal made the node; empty for a seed."""
    run: str = ""
    """Run that added the node; empty until the first save names it."""

    @property
    def open(self) -> bool:
        """True while a later run has something to read here."""
        return not self.atomic and self.reason.startswith((UNREAD, FAILED, BUDGET, DEPTH))


@dataclass(frozen=True, slots=True)
class Support:
    """One passage that speaks for an edge or a relation, and who found it."""

    document_id: str
    quote: str
    relation: str
    """As proposed: narrower, broader, related or equivalent."""
    confidence: float
    agent: str = ""
    found_at: str = ""
    run: str = ""
    """Run that found it; empty until the first save names it."""

    def same(self, other: Support) -> bool:
        """True when both quote the same words of the same document."""
        return self.document_id == other.document_id and self.quote == other.quote


def add_supports(held: list[Support], new: Sequence[Support]) -> None:
    """Append the passages that are not held yet."""
    for support in new:
        if not any(support.same(h) for h in held):
            held.append(support)


@dataclass(slots=True)
class Edge:
    """An edge coarse -> fine with everything that supports it, first found first."""

    relation: str
    """As first found: `narrower` or `broader`."""
    confidence: float
    supports: list[Support]

    @property
    def agent(self) -> str:
        """Who found it first."""
        return self.supports[0].agent

    @property
    def document_ids(self) -> list[str]:
        """Documents that support the edge, without repeats."""
        return list(dict.fromkeys(s.document_id for s in self.supports))

    def copy(self) -> Edge:
        """An edge of the same support, to be extended apart."""
        return Edge(self.relation, self.confidence, list(self.supports))

    def absorb(self, other: Edge) -> None:
        """Take over another edge's support."""
        add_supports(self.supports, other.supports)
        self.confidence = max(self.confidence, other.confidence)


@dataclass(slots=True)
class Relation:
    """An undirected relation from a node to a name, beside the DAG. The name need not be a concept (yet)."""

    name: str
    kind: str
    """`related`, or `equivalent`: a claim that two nodes are one, which `kg.merge` decides."""
    supports: list[Support]

    @property
    def confidence(self) -> float:
        """That of the strongest support."""
        return max(s.confidence for s in self.supports)


@dataclass(frozen=True, slots=True)
class Redirect:
    """Where the id of a node that was merged or split leads now. Targets are live nodes, the main one first."""

    targets: tuple[str, ...]
    kind: str
    """`merge` or `split`."""
    name: str
    """Preferred name of the node that is gone."""
    reason: str
    agent: str = ""
    found_at: str = ""
    run: str = ""


@dataclass(frozen=True, slots=True)
class Reject:
    """A proposal that did not enter the graph."""

    concept_id: str
    name: str
    relation: str
    reason: str


def concept_id(key: str) -> str:
    """Id of a concept first met under this name key: 10 hex characters of its sha256."""
    return hashlib.sha256(key.encode()).hexdigest()[:10]
