"""Growing the graph in waves: every open node is read, then what was found is entered in one fixed order.

Reading needs nothing but the node's name, its ancestors' names, the corpus and a graph that stands still meanwhile, so the
readers of a wave may run anywhere; entering happens here alone. One worker and many therefore give the same graph.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field

from environments.errors import UnknownSeedError
from environments.protocols import Brain, Proposal, Reading, SearchSource
from environments.search.index import STOPWORDS, snippet, terms
from kg.brain import BrainConfig, ConsultingBrain
from kg.budget import GrowthConfig, Ledger, Stop
from kg.concept import BUDGET, DEPTH, FAILED, UNREAD, Passage
from kg.equivalence import singular
from kg.evidence import verify
from kg.graph import ConceptGraph
from kg.journal import Journal
from kg.merge import merge_claims
from kg.readers import INFRASTRUCTURE, Question, Readers, join
from kg.seeds import DEFAULT_SEEDS
from kg.view import GraphView

log = logging.getLogger(__name__)

_WAVE_SHARE = 0.6
"""Share of the nodes left that one wave may add, so that the next levels find room too."""
_ROUND = 32
"""Nodes read between two looks at the budgets."""
_DEAD = 8
"""Nodes in a row that failed for the machine's sake, after which no more are tried."""


class GraphConfig(BaseModel):
    """The brain and the budgets of a growth, with the seeds of the laptop run. A budget that is None is without limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    seeds: tuple[str, ...] = DEFAULT_SEEDS
    max_nodes: int = Field(default=400, ge=1)
    """Nodes in the whole graph, seeds included."""
    max_level: int = Field(default=5, ge=1)
    """No node is added deeper than this many edges below a seed."""
    max_children: int = Field(default=12, ge=1)
    """Nodes that one node's reader may add."""
    max_searches: int | None = Field(default=None, ge=1)
    """Searches of all readers together. The readings begun within it are finished."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens that a language model reads and writes in all. The readings begun within it are finished."""
    max_wall_s: float | None = Field(default=None, gt=0)
    """Seconds of reading. What it cuts depends on the machine, so a graph grown with it cannot be grown again exactly."""
    brain: BrainConfig = BrainConfig()


def grow(
    seeds: Sequence[str],
    source: SearchSource,
    brain: Brain,
    config: GrowthConfig | None = None,
    executor: Executor | None = None,
    graph: ConceptGraph | None = None,
    on_wave: Callable[[ConceptGraph], None] | None = None,
    journal: Journal | None = None,
    ledger: Ledger | None = None,
) -> ConceptGraph:
    """Grow from seeds, or go on from a graph's open nodes, until nothing is open or a budget is spent.

    A reader that fails costs its own node, and a seed that the corpus does not speak of its own: each is a node whose reason
    says so, and stays open.

    Args:
        graph: grown in place and returned.
        on_wave: called with the graph after each wave, when it is consistent and may be saved.
        journal: takes each reading as it ends, and spares those that it holds; a killed growth goes on from it.
        ledger: filled with what was spent and which budgets stopped the growth.

    Raises:
        UnknownSeedError: a seed is no name, or the corpus speaks of none of them.
        InputError: the corpus is damaged, or a language model's endpoint refuses us.
    """
    growth = _Growth(
        source, config or GraphConfig(), graph if graph is not None else ConceptGraph(), brain, ledger if ledger is not None else Ledger()
    )
    growth.plant(seeds)
    growth.run(Readers(brain, source, executor, journal), on_wave)
    return growth.graph


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
            return Passage.of(document, snippet(text, [*terms(seed), *words], 300))
    raise UnknownSeedError(
        f"the seed {seed!r:.80} occurs nowhere in the corpus", "choose a term that the corpus documents, or add packages that do"
    )


@dataclass
class _Growth:
    """One call of `grow`."""

    source: SearchSource
    config: GrowthConfig
    graph: ConceptGraph
    brain: Brain
    ledger: Ledger
    waiting: dict[str, deque[Proposal]] = field(default_factory=dict)
    """Proposals not entered yet, by the node they were found from."""
    reasons: dict[str, str] = field(default_factory=dict)
    """What became of each node that was read in this growth."""
    added: dict[str, int] = field(default_factory=dict)
    dead: int = 0
    """Nodes in a row that failed for the machine's sake."""

    def plant(self, seeds: Sequence[str]) -> None:
        """Enter the seeds. Those that occur nowhere in the corpus are nodes too, and say so."""
        unknown: list[UnknownSeedError] = []
        for seed in seeds:
            if not any(c.isalnum() for c in seed):
                raise UnknownSeedError(f"the seed {seed!r:.80} is no name", "choose a term that the corpus documents")
            try:
                ground = find_seed(seed, self.source)
            except UnknownSeedError as error:
                unknown.append(error)
                node = self.graph.add_seed(seed, None, _now())
                if self.graph.concept(node).open:
                    self.reasons[node] = f"{FAILED}: {error.message}"
                    self.graph.mark(node, "", self.reasons[node])
                    log.warning("%s: it stays without children", error.message)
            else:
                self.graph.add_seed(seed, ground, _now())
        if unknown and len(unknown) == len(self.graph):
            raise unknown[0]
        self.added = {concept.concept_id: len(self.graph.children(concept.concept_id)) for concept in self.graph}

    def run(self, readers: Readers, on_wave: Callable[[ConceptGraph], None] | None) -> None:
        """Wave after wave until nothing is left to read or to enter."""
        self.ledger.start()
        while True:
            wave = self._read(readers, [node for node in self._open_nodes() if node not in self.reasons])
            if not wave and not any(self.waiting.values()):
                break
            self.ledger.waves += 1
            before = len(self.graph)
            allowed = before + max(1, int((self.config.max_nodes - before) * (_WAVE_SHARE if wave else 1.0)))
            self._enter(min(allowed, self.config.max_nodes))
            self._merge()
            for node, proposals in self.waiting.items():  # Whoever goes on from a saved wave reads these nodes again.
                cut = f"{BUDGET}: {len(proposals)} proposals wait; " if proposals else ""
                self.graph.concept(node).reason = f"{cut}{self.reasons[node]}"[:300]
            log.debug("wave of %d readers: %d nodes", len(wave), len(self.graph))
            if on_wave is not None:
                on_wave(self.graph)
            if not wave and len(self.graph) <= before:
                break  # Only proposals are left that the budgets shut out.
        self._close()

    # --- reading ---

    def _open_nodes(self) -> list[str]:
        """Nodes to read: never read, failed, or cut by a budget that has since grown."""
        levels = self.graph.levels()
        found = []
        for node in self.graph.frontier():
            reason = self.graph.concept(node).reason
            cut = (reason.startswith(BUDGET) and len(self.graph) >= self.config.max_nodes) or (
                reason.startswith(DEPTH) and levels[node] + 1 > self.config.max_level
            )
            if not cut:
                found.append(node)
        return found

    def _read(self, readers: Readers, wave: Sequence[str]) -> list[str]:
        """Read the wave round by round while the budgets last; the nodes that were read."""
        view = GraphView(self.graph)
        read: list[str] = []
        left, merged = list(wave), self._merged_names()
        while left and self.ledger.exhausted(self.config) is None and self.dead < _DEAD:
            affordable = self.ledger.affordable(self.config)
            bounded = affordable is not None or self.config.max_wall_s is not None or isinstance(self.brain, ConsultingBrain)
            size = min(affordable or _ROUND, _ROUND) if bounded else len(left)
            now, left = left[:size], left[size:]
            asked = [(node, name) for node in now for name in (self.graph.concept(node).name, *merged.get(node, ()))]
            questions = [Question(name, tuple(self.graph.concept(a).name for a in self.graph.lineage(node))) for node, name in asked]
            found: dict[str, list[Reading | None]] = {}
            for (node, _), reading in zip(asked, readers.read(questions, view, self.ledger.seconds_left(self.config)), strict=True):
                found.setdefault(node, []).append(reading)
            for node, readings in found.items():
                whole = [reading for reading in readings if reading is not None]
                if len(whole) == len(readings):
                    self._take(node, join(whole))
                    read.append(node)
        return read

    def _merged_names(self) -> dict[str, list[str]]:
        """Names under which nodes were read before they were merged into another, by the one that stays."""
        names: dict[str, list[str]] = {}
        for redirect in self.graph.redirects.values():
            if redirect.kind == "merge":
                names.setdefault(redirect.targets[0], []).append(redirect.name)
        return names

    def _take(self, node: str, reading: Reading) -> None:
        infrastructure = reading.reason.startswith(INFRASTRUCTURE)
        self.dead = self.dead + 1 if infrastructure else 0
        self.ledger.count(reading, reading.reason.startswith(FAILED))
        self.graph.mark(node, self.brain.name, reading.reason, reading.queries, atomic=reading.atomic)
        self.reasons[node] = reading.reason
        self.waiting[node] = deque(reading.proposals)
        for refusal in reading.refused:
            self.graph.reject(node, Proposal(refusal.name, refusal.relation, 0.0, ()), refusal.reason)

    # --- entering ---

    def _enter(self, allowed: int) -> None:
        """Enter proposals round by round, each node's next one in turn, so that no branch eats the budget of the others."""
        now = _now()
        levels = self.graph.levels()
        held: dict[str, deque[Proposal]] = {node: deque() for node in self.waiting}
        while any(self.waiting.values()):
            for node, proposals in self.waiting.items():
                while proposals:
                    proposal = proposals.popleft()
                    new = proposal.relation == "narrower" and self.graph.resolve(proposal.name) is None
                    full = len(self.graph) >= allowed or self.added.get(node, 0) >= self.config.max_children
                    if new and (full or levels[node] + 1 > self.config.max_level):
                        held[node].append(proposal)
                        continue
                    size = len(self.graph)
                    self._propose(node, proposal, now)
                    if len(self.graph) > size:
                        self.added[node] = self.added.get(node, 0) + 1
                        break  # One new node a turn; edges and aliases cost nothing.
        self.waiting.update(held)

    def _propose(self, node: str, proposal: Proposal, now: str) -> None:
        """Enter a proposal with the evidence that counts; without any it is rejected."""
        judged, passages, refused = verify(proposal, self.source)
        if refused and not judged.evidence:
            self.graph.reject(node, proposal, refused)
            return
        self.graph.propose(node, judged, passages, self.brain.name, now)

    def _merge(self) -> None:
        """Merge the nodes that enough documents call one concept; what waits for one that is gone waits for the one that stays."""
        for gone, kept in merge_claims(self.graph, self.brain.name, _now()):
            self.ledger.merged += 1
            log.info("merged %r into %r", self.graph.redirects[gone].name, self.graph.concept(kept).name)
            if gone in self.reasons and kept not in self.reasons:
                self.reasons[kept] = self.graph.concept(kept).reason = self.reasons[gone]  # The concept was read, by its other name.
            self.reasons.pop(gone, None)
            self.added[kept] = self.added.pop(gone, 0) + self.added.get(kept, 0)
            if left := self.waiting.pop(gone, None):
                self.waiting.setdefault(kept, deque()).extend(left)

    # --- ending ---

    def _close(self) -> None:
        """Keep what the budgets shut out as rejects, leave those nodes open for a later, larger growth, and say which budget it was."""
        levels = self.graph.levels()
        cut: dict[str, list[int]] = {}
        for node, proposals in self.waiting.items():
            if not proposals:
                continue
            deep = levels[node] + 1 > self.config.max_level
            full = len(self.graph) >= self.config.max_nodes
            budget = "depth" if deep else "nodes" if full else "children"
            why = {
                "depth": f"depth of {self.config.max_level}",
                "nodes": f"{self.config.max_nodes} nodes",
                "children": f"{self.config.max_children} children",
            }[budget]
            for proposal in proposals:
                self.graph.reject(node, proposal, f"budget: {why}")
            opened = f"{DEPTH if deep else BUDGET}: {len(proposals)} narrower concepts wait; " if deep or full else ""
            self.graph.concept(node).reason = f"{opened}{self.reasons[node]}"[:300]
            cut.setdefault(budget, []).append(len(proposals))
        limits = {"nodes": self.config.max_nodes, "depth": self.config.max_level, "children": self.config.max_children}
        for budget, limit in limits.items():
            if counts := cut.get(budget):
                self.ledger.stop(Stop(budget, limit, 0 if budget == "children" else len(counts), sum(counts)))
        unread = [node for node in self._open_nodes() if node not in self.reasons]
        if unread and (spent := self.ledger.exhausted(self.config)):
            self._leave(unread, Stop(spent[0], spent[1], len(unread), 0))
        elif unread and self.dead >= _DEAD:
            self._leave(unread, Stop("endpoint", self.dead, len(unread), 0))

    def _leave(self, unread: Sequence[str], stop: Stop) -> None:
        for node in unread:
            if self.graph.concept(node).reason.startswith(UNREAD):
                self.graph.concept(node).reason = f"{UNREAD}: {stop.cause}"
        self.ledger.stop(stop)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
