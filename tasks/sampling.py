"""Which node, type and level each task is written for: the target distribution, spread over the graph.

Retrieval happens here too: a node's own evidence first, then what a query from its keywords and its ancestors' finds. A
document belongs to the branch that reached it first, so that the same passage never supports tasks of two branches.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from itertools import cycle

from pydantic import Field, field_validator

from environments.protocols import Document, SearchSource
from environments.task import DOMAINS, Domain, Frozen
from kg import ConceptGraph
from tasks.facts import askable, defaults
from tasks.filters import FilterConfig
from tasks.kinds import KINDS, Material

log = logging.getLogger(__name__)


class SynthesisConfig(Frozen):
    """How many tasks are written, and how hard they are."""

    tasks: dict[Domain, int] = Field(default_factory=lambda: dict.fromkeys(DOMAINS, 700))
    """Candidates aimed for, by domain."""
    kinds: tuple[str, ...] = tuple(sorted(kind.name for kind in KINDS.values() if kind.default))
    """Task types that are written."""
    levels: tuple[int, ...] = (1, 2, 3)
    """Difficulty levels, in equal parts."""
    documents: int = Field(default=8, ge=1)
    """Documents with usable facts that a node is given."""
    hits: int = Field(default=12, ge=1)
    """Search results looked at for each node."""
    filters: FilterConfig = FilterConfig()
    """What keeps a written task out."""

    @field_validator("kinds")
    @classmethod
    def _known(cls, kinds: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := sorted(set(kinds) - set(KINDS)):
            raise ValueError(f"no task types: {', '.join(unknown)}; there are {', '.join(sorted(KINDS))}")
        return kinds


class Draw(Frozen):
    """One task to write."""

    node: str
    kind: str
    level: int
    index: int
    documents: tuple[str, ...]


def retrieve(graph: ConceptGraph, source: SearchSource, config: SynthesisConfig) -> dict[str, tuple[str, ...]]:
    """Ids of the documents with usable facts, by node; nodes without any are left out."""
    documents: dict[str, Document | None] = {}
    owner: dict[str, str] = {}
    nodes = sorted(graph, key=lambda c: c.concept_id)

    def usable(document_id: str) -> bool:
        if document_id not in documents:
            try:
                found = source.open(document_id)
            except KeyError:
                found = None
            documents[document_id] = found if found is not None and askable(defaults(found)) else None
        return documents[document_id] is not None

    own: dict[str, list[str]] = {}
    for concept in nodes:
        mine = [p.document_id for p in concept.evidence if usable(p.document_id)]
        for document_id in mine:
            owner.setdefault(document_id, graph.branch_of(concept.concept_id))
        own[concept.concept_id] = mine
    found: dict[str, list[str]] = {}
    shared: dict[str, list[str]] = {}
    for concept in nodes:
        branch = graph.branch_of(concept.concept_id)
        ancestors = [graph.concept(a).name for a in graph.lineage(concept.concept_id)[:2]]
        hits = [h.document_id for h in source.search(" ".join([concept.name, *ancestors]), config.hits)]
        mine = list(dict.fromkeys(d for d in [*own[concept.concept_id], *hits] if usable(d) and owner.setdefault(d, branch) == branch))
        found[concept.concept_id] = mine
        shared.setdefault(branch, []).extend(mine)
    given: dict[str, tuple[str, ...]] = {}
    for concept_id, mine in found.items():
        if mine:  # neighbours of the same branch fill up, since most documents state one fact or two
            filled = dict.fromkeys([*mine, *shared[graph.branch_of(concept_id)]])
            given[concept_id] = tuple(filled)[: config.documents]
    return given


def sample(graph: ConceptGraph, source: SearchSource, config: SynthesisConfig, seed: int) -> list[Draw]:
    """The draws that meet the targets: every kind of a domain and every level in equal parts, every node in turn.

    The same graph, corpus, configuration and seed give the same draws.
    """
    documents = retrieve(graph, source, config)
    material = {
        node: Material((node,), (graph.concept(node).name,), tuple(source.open(d) for d in ids), source) for node, ids in documents.items()
    }
    return list(_draws(documents, material, config, seed))


def _draws(
    documents: Mapping[str, tuple[str, ...]], material: Mapping[str, Material], config: SynthesisConfig, seed: int
) -> Iterator[Draw]:
    chosen = [kind for kind in KINDS.values() if kind.name in config.kinds]
    for domain in DOMAINS:
        cells = [(kind.name, level) for kind in chosen if kind.domain == domain for level in config.levels if level in kind.levels]
        for n, (kind_name, level) in enumerate(cells):
            count = config.tasks.get(domain, 0) * (n + 1) // len(cells) - config.tasks.get(domain, 0) * n // len(cells)
            able = [node for node in documents if _supports(kind_name, material[node], level)]
            log.info(
                "%s level %d: %d tasks over %d of %d nodes with material", kind_name, level, count if able else 0, len(able), len(documents)
            )
            for index, node in zip(range(count), _turns(able, f"{seed}/{kind_name}/{level}"), strict=False):
                yield Draw(node=node, kind=kind_name, level=level, index=index, documents=documents[node])


def _supports(kind: str, material: Material, level: int) -> bool:
    """Whether a node's material can make a task at all: one of a few fixed tries succeeds."""
    return any(KINDS[kind].draft(random.Random(i), material, level) is not None for i in range(5))


def _turns(nodes: Iterable[str], seed: str) -> Iterator[str]:
    """All nodes in a shuffled order, over and over."""
    order = sorted(nodes)
    random.Random(seed).shuffle(order)
    return cycle(order)
