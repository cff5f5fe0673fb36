"""Growing the graph in waves: every open node is read, then what was found is entered in one fixed order.

Reading needs nothing but the node's name, its ancestors' names and the corpus, so the readers of a wave may run
anywhere; entering happens here alone. One worker and many therefore give the same graph.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime
from typing import Protocol

from pydantic import BaseModel, ConfigDict, Field

from environments.errors import InputError, UnknownSeedError
from environments.protocols import Brain, Proposal, Reading, SearchSource
from environments.search.index import STOPWORDS, snippet, terms
from kg.concept import BUDGET, DEPTH, Passage
from kg.equivalence import singular
from kg.graph import ConceptGraph
from kg.seeds import DEFAULT_SEEDS

log = logging.getLogger(__name__)

_BATCH = 8
"""Nodes a worker reads per call: enough to pay for shipping the call."""
_WAVE_SHARE = 0.6
"""Share of the nodes left that one wave may add, so that the next levels find room too."""


class GrowthConfig(Protocol):
    """Budgets of a growth."""

    @property
    def max_nodes(self) -> int: ...
    @property
    def max_level(self) -> int: ...
    @property
    def max_children(self) -> int: ...


class GraphConfig(BaseModel):
    """Budgets of a growth, with the seeds of the laptop run."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    seeds: tuple[str, ...] = DEFAULT_SEEDS
    max_nodes: int = Field(default=400, ge=1)
    """Nodes in the whole graph, seeds included."""
    max_level: int = Field(default=5, ge=1)
    """No node is added deeper than this many edges below a seed."""
    max_children: int = Field(default=12, ge=1)
    """Nodes that one node's reader may add."""


def grow(
    seeds: Sequence[str],
    source: SearchSource,
    brain: Brain,
    config: GrowthConfig | None = None,
    executor: Executor | None = None,
    graph: ConceptGraph | None = None,
    on_wave: Callable[[ConceptGraph], None] | None = None,
) -> ConceptGraph:
    """Grow from seeds, or go on from a graph's open nodes, until nothing is open or the budget is spent.

    `graph` is grown in place and returned. `on_wave` is called with it after each wave, when it is consistent; what a
    killed growth had entered until then can be saved there and passed back in. A reader that fails costs its own node.

    Raises:
        UnknownSeedError: a seed occurs nowhere in the corpus.
        CorruptArtifactError: the corpus is damaged.
    """
    config = config or GraphConfig()
    graph = graph if graph is not None else ConceptGraph()
    grounds = [find_seed(seed, source) for seed in seeds]
    for seed, ground in zip(seeds, grounds, strict=True):
        graph.add_seed(seed, ground, _now())
    waiting: dict[str, deque[Proposal]] = {}
    reasons: dict[str, str] = {}
    added = {concept.concept_id: len(graph.children(concept.concept_id)) for concept in graph}
    while True:
        wave = [node for node in _open_nodes(graph, config) if node not in reasons]
        if not wave and not any(waiting.values()):
            break
        for node, reading in zip(wave, _read_wave(wave, graph, source, brain, executor), strict=True):
            graph.mark(node, brain.name, reading.reason, reading.queries, atomic=reading.atomic)
            reasons[node] = reading.reason
            waiting[node] = deque(reading.proposals)
        before = len(graph)
        allowed = before + max(1, int((config.max_nodes - before) * (_WAVE_SHARE if wave else 1.0)))
        _enter(graph, waiting, source, brain.name, config, min(allowed, config.max_nodes), added)
        for node, proposals in waiting.items():  # Whoever goes on from a saved wave reads these nodes again.
            graph.concept(node).reason = f"{BUDGET}: {len(proposals)} proposals wait; {reasons[node]}"[:300] if proposals else reasons[node]
        log.debug("wave of %d readers: %d nodes", len(wave), len(graph))
        if on_wave is not None:
            on_wave(graph)
        if not wave and len(graph) == before:
            break  # Only proposals are left that the budgets shut out.
    _close(graph, waiting, reasons, config)
    return graph


def find_seed(seed: str, source: SearchSource) -> Passage:
    """The passage that shows a seed to occur in the corpus: the first sentence that holds most of its words.

    Raises:
        UnknownSeedError: no document speaks of all of the seed's words.
    """
    words = [singular(w) for w in terms(seed) if w not in STOPWORDS]
    for hit in source.search(seed, 10) if words else ():
        document = source.open(hit.document_id)
        text = f"{document.title}\n{document.text}"
        if all(word in text.lower() for word in words):
            return Passage(
                document.document_id, document.title, document.source, document.licence, snippet(text, [*terms(seed), *words], 300)
            )
    raise UnknownSeedError(
        f"the seed {seed!r:.80} occurs nowhere in the corpus", "choose a term that the corpus documents, or add packages that do"
    )


def _open_nodes(graph: ConceptGraph, config: GrowthConfig) -> list[str]:
    """Nodes to read: never read, failed, or cut by a budget that has since grown."""
    levels = graph.levels()
    found = []
    for node in graph.frontier():
        reason = graph.concept(node).reason
        cut = (reason.startswith(BUDGET) and len(graph) >= config.max_nodes) or (
            reason.startswith(DEPTH) and levels[node] + 1 > config.max_level
        )
        if not cut:
            found.append(node)
    return found


# --- reading ---


def _read_batch(brain: Brain, source: SearchSource, batch: Sequence[tuple[str, Sequence[str]]]) -> list[Reading]:
    return [_read(brain, source, name, ancestors) for name, ancestors in batch]


def _read(brain: Brain, source: SearchSource, name: str, ancestors: Sequence[str]) -> Reading:
    """The boundary where a failing reader becomes an outcome: a bad reading is data, not a crash."""
    try:
        return brain.read(name, ancestors, source)
    except InputError:  # The corpus itself is damaged: no other node would fare better.
        raise
    except Exception as error:  # noqa: BLE001
        log.warning("reading %r failed: %s", name, error)
        return Reading((), (), (), False, f"failed: {type(error).__name__}: {error}"[:300])


def _read_wave(wave: Sequence[str], graph: ConceptGraph, source: SearchSource, brain: Brain, executor: Executor | None) -> list[Reading]:
    asked = [(graph.concept(node).name, tuple(graph.concept(a).name for a in graph.lineage(node))) for node in wave]
    batches = [asked[i : i + _BATCH] for i in range(0, len(asked), _BATCH)]
    if executor is None:
        done = [_read_batch(brain, source, batch) for batch in batches]
    else:
        futures = [executor.submit(_read_batch, brain, source, batch) for batch in batches]
        done = [future.result() for future in futures]
    return [reading for batch in done for reading in batch]


# --- entering ---


def _enter(
    graph: ConceptGraph,
    waiting: dict[str, deque[Proposal]],
    source: SearchSource,
    agent: str,
    config: GrowthConfig,
    allowed: int,
    added: dict[str, int],
) -> None:
    """Enter proposals round by round, each node's next one in turn, so that no branch eats the budget of the others."""
    now = _now()
    levels = graph.levels()
    held: dict[str, deque[Proposal]] = {node: deque() for node in waiting}
    while any(waiting.values()):
        for node, proposals in waiting.items():
            while proposals:
                proposal = proposals.popleft()
                new = proposal.relation == "narrower" and graph.resolve(proposal.name) is None
                if new and (len(graph) >= allowed or added.get(node, 0) >= config.max_children or levels[node] + 1 > config.max_level):
                    held[node].append(proposal)
                    continue
                size = len(graph)
                graph.propose(node, proposal, _passages(proposal, source), agent, now)
                if len(graph) > size:
                    added[node] = added.get(node, 0) + 1
                    break  # One new node a turn; edges and aliases cost nothing.
    waiting.update(held)


def _close(graph: ConceptGraph, waiting: dict[str, deque[Proposal]], reasons: dict[str, str], config: GrowthConfig) -> None:
    """Keep what the budgets shut out as rejects, and leave those nodes open for a later, larger growth."""
    levels = graph.levels()
    for node, proposals in waiting.items():
        if not proposals:
            continue
        deep = levels[node] + 1 > config.max_level
        full = len(graph) >= config.max_nodes
        why = f"depth of {config.max_level}" if deep else f"{config.max_nodes} nodes" if full else f"{config.max_children} children"
        for proposal in proposals:
            graph.reject(node, proposal, f"budget: {why}")
        cut = f"{DEPTH if deep else BUDGET}: {len(proposals)} narrower concepts wait; " if deep or full else ""
        graph.concept(node).reason = f"{cut}{reasons[node]}"[:300]


def _passages(proposal: Proposal, source: SearchSource) -> list[Passage]:
    passages = []
    for evidence in proposal.evidence:
        try:
            document = source.open(evidence.document_id)
        except KeyError:
            continue  # A reader named a document that is not there: the quote proves nothing.
        passages.append(Passage(document.document_id, document.title, document.source, document.licence, evidence.quote))
    return passages


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
