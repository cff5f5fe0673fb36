"""What a node and an edge of the concept graph carry."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

UNREAD = "unread"
FAILED = "failed"
BUDGET = "budget"
DEPTH = "depth"
"""How `Concept.reason` begins while there is more to do for a node: never read, its reader failed, or proposals were cut."""


@dataclass(frozen=True)
class Passage:
    """A quoted passage of a document, with what is needed to cite it."""

    document_id: str
    title: str
    source: str
    licence: str
    quote: str

    @property
    def sha256(self) -> str:
        """sha256 (hex) of the quoted text."""
        return hashlib.sha256(self.quote.encode()).hexdigest()


@dataclass
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

    @property
    def open(self) -> bool:
        """True while a later run has something to read here."""
        return not self.atomic and self.reason.startswith((UNREAD, FAILED, BUDGET, DEPTH))


@dataclass
class Edge:
    """Support of an edge coarse -> fine."""

    relation: str
    """As found: `narrower` or `broader`."""
    confidence: float
    document_ids: list[str]
    quote: str
    agent: str
    created_at: str = ""


@dataclass(frozen=True)
class Reject:
    """A proposal that did not enter the graph."""

    concept_id: str
    name: str
    relation: str
    reason: str


def concept_id(key: str) -> str:
    """Id of a concept first met under this name key: 10 hex characters of its sha256."""
    return hashlib.sha256(key.encode()).hexdigest()[:10]
