"""Which nodes, type and level each task is written for: the target distribution, spread over the graph.

Retrieval happens here too: a node's own evidence first, then what a query from its keywords and its ancestors' finds. A
document belongs to the branch that reached it first, so that the same passage never supports tasks of two branches.
"""

from __future__ import annotations

import heapq
import logging
import random
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pydantic import Field, field_validator

from environments.protocols import Document, SearchSource
from environments.task import DOMAINS, Domain, Frozen
from kg import ConceptGraph
from tasks.constructor import shifted
from tasks.distribution import Cell, Shortfall, apportion
from tasks.facts import askable, defaults
from tasks.filters import FilterConfig
from tasks.kinds import KINDS, Material
from tasks.node_sets import Shape, interleaved, node_set

log = logging.getLogger(__name__)


class SynthesisConfig(Frozen):
    """How many tasks are written, and how hard they are."""

    tasks: dict[Domain, int] = Field(default_factory=lambda: dict.fromkeys(DOMAINS, 700))
    """Candidates aimed for, by domain."""
    kinds: tuple[str, ...] = tuple(sorted(kind.name for kind in KINDS.values() if kind.default))
    """Task types that are written."""
    levels: tuple[int, ...] = (1, 2, 3)
    """Difficulty levels, in equal parts unless `level_weights` says otherwise."""
    kind_weights: dict[str, float] = Field(default_factory=dict)
    """How much of its domain's tasks a type gets, beside the others' 1."""
    level_weights: dict[int, float] = Field(default_factory=dict)
    """How much of its type's tasks a level gets, beside the others' 1."""
    shapes: dict[Shape, float] = Field(default={"single": 1.0})
    """Node sets that tasks are written for, with their weights: single, siblings, chain (of ancestors), cross (two branches)."""
    set_size: int = Field(default=3, ge=2)
    """Nodes of siblings and chains at most."""
    node_levels: tuple[int, ...] = ()
    """Levels of the graph (edges from a seed) that nodes are sampled at; empty: all."""
    rounds: int = Field(default=3, ge=1)
    """How often what a cell still lacks, after the filters, is drawn again."""
    learn_from: tuple[str, ...] = ()
    """Earlier runs of the workspace; what was valid and hard there shifts the types' and levels' shares within a domain."""
    exploration: float = Field(default=0.3, gt=0, le=1)
    """Share of the target that no score takes away."""
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

    @field_validator("kind_weights", "level_weights", "shapes")
    @classmethod
    def _weights(cls, weights: dict[Any, float]) -> dict[Any, float]:
        if any(not 0 <= weight < float("inf") for weight in weights.values()):
            raise ValueError("weights are finite and not negative")
        return weights


class Draw(Frozen):
    """One task to write."""

    node: str
    kind: str
    level: int
    index: int
    documents: tuple[str, ...]
    shape: Shape = "single"
    related: tuple[str, ...] = ()
    """Nodes that were drawn with it."""

    @property
    def cell(self) -> Cell:
        """The cell of the target distribution that it serves."""
        return Cell(self.kind, self.level, self.shape)


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


def targets(config: SynthesisConfig, scores: Mapping[str, float] | None = None) -> dict[Cell, int]:
    """Tasks aimed for, by cell.

    Args:
        scores: of generators (see `tasks.constructor`); they shift shares within a domain.
    """
    wanted: dict[Cell, int] = {}
    for domain in DOMAINS:
        weights: dict[Cell, float] = {}
        for kind in (k for k in KINDS.values() if k.name in config.kinds and k.domain == domain):
            levels = [level for level in config.levels if level in kind.levels]
            whole = sum(config.level_weights.get(level, 1.0) for level in levels)
            for level in levels:
                share = config.kind_weights.get(kind.name, 1.0) * len(levels) * config.level_weights.get(level, 1.0) / (whole or 1.0)
                weights |= {Cell(kind.name, level, shape): share * weight for shape, weight in config.shapes.items()}
        wanted |= apportion(config.tasks.get(domain, 0), shifted(weights, scores or {}, config.exploration))
    return wanted


class Sampler:
    """Draws tasks to write, again and again, nodes that are covered least first.

    The same graph, corpus, configuration, seed and sequence of calls give the same draws.
    """

    def __init__(self, graph: ConceptGraph, source: SearchSource, config: SynthesisConfig, seed: int) -> None:
        self.graph, self.source, self.config, self.seed = graph, source, config, seed
        self._covered: Counter[str] = Counter()
        self._drawn: dict[Cell, Counter[str]] = {}
        self._materials: dict[tuple[str, ...], Material] = {}

    @cached_property
    def documents(self) -> dict[str, tuple[str, ...]]:
        """Documents of the nodes that may be drawn: those with material, at the chosen levels."""
        found = retrieve(self.graph, self.source, self.config)
        if not self.config.node_levels:
            return found
        levels = self.graph.levels()
        return {node: ids for node, ids in found.items() if levels[node] in self.config.node_levels}

    @cached_property
    def _sets(self) -> dict[tuple[str, Shape], tuple[str, ...]]:
        return {
            (node, shape): node_set(
                self.graph, node, shape, self.documents, self.config.set_size, random.Random(f"{self.seed}/{node}/{shape}")
            )
            for node in sorted(self.documents)
            for shape in self.config.shapes
        }

    def draw(self, wanted: Mapping[Cell, int]) -> tuple[list[Draw], list[Shortfall]]:
        """So many draws of each cell, and the cells for which no node has what they need."""
        draws: list[Draw] = []
        lacking: list[Shortfall] = []
        for cell, count in wanted.items():
            if count <= 0:
                continue
            able = self._able(cell)
            log.info(
                "%s level %d %s: %d tasks over %d of %d nodes with material",
                *(cell.kind, cell.level, cell.shape, count if able else 0, len(able), len(self.documents)),
            )
            if able:
                draws.extend(self._turns(cell, able, count))
            else:
                lacking.append(Shortfall(cell, count, 0, self._reason(cell)))
        return draws, lacking

    def _turns(self, cell: Cell, able: list[str], count: int) -> list[Draw]:
        """Each time the node drawn least for this cell; among them the one drawn least at all; among them by lot."""
        random.Random(f"{self.seed}/{cell.kind}/{cell.level}/{cell.shape}").shuffle(able)
        drawn = self._drawn.setdefault(cell, Counter())
        heap = [(drawn[node], self._covered[node], lot, node) for lot, node in enumerate(able)]
        heapq.heapify(heap)
        found: list[Draw] = []
        for _ in range(count):
            _, _, lot, node = heap[0]
            nodes = self._sets[node, cell.shape]
            found.append(
                Draw(
                    node=node,
                    kind=cell.kind,
                    level=cell.level,
                    index=drawn.total(),
                    documents=self._documents(nodes),
                    shape=cell.shape,
                    related=nodes[1:],
                )
            )
            drawn[node] += 1
            for covered in nodes:
                self._covered[covered] += 1
            heapq.heapreplace(heap, (drawn[node], self._covered[node], lot, node))
        return found

    def _able(self, cell: Cell) -> list[str]:
        return [
            node
            for node in sorted(self.documents)
            if (nodes := self._sets[node, cell.shape]) and _supports(cell.kind, self._material(nodes), cell.level)
        ]

    def _documents(self, nodes: tuple[str, ...]) -> tuple[str, ...]:
        return interleaved([self.documents[node] for node in nodes], max(self.config.documents, len(nodes)))

    def _material(self, nodes: tuple[str, ...]) -> Material:
        if nodes not in self._materials:
            names = tuple(self.graph.concept(node).name for node in nodes)
            documents = tuple(self.source.open(d) for d in self._documents(nodes))
            self._materials[nodes] = Material(nodes, names, documents, self.source)
        return self._materials[nodes]

    def _reason(self, cell: Cell) -> str:
        if not self.documents:
            return "no node at the chosen levels has material"
        if not any(self._sets[node, cell.shape] for node in self.documents):
            return f"no node with material has others for a set of shape {cell.shape}"
        return "no node's material supports the type at this level"


def sample(graph: ConceptGraph, source: SearchSource, config: SynthesisConfig, seed: int) -> list[Draw]:
    """The first draws that meet the targets; see `Sampler` for further ones."""
    return Sampler(graph, source, config, seed).draw(targets(config))[0]


def _supports(kind: str, material: Material, level: int) -> bool:
    """Whether material can make a task at all: one of a few fixed tries succeeds."""
    return any(KINDS[kind].draft(random.Random(i), material, level) is not None for i in range(5))
