"""The concept graph: a DAG, coarse -> fine, acyclic by construction, with one node a concept and its evidence beside it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import networkx as nx

from environments.protocols import Proposal
from environments.records import Row
from environments.search.embedding import embed
from kg.concept import FAILED, Concept, Edge, Passage, Redirect, Reject, Relation, Support, add_supports, concept_id
from kg.equivalence import name_key, split_abbreviation
from kg.lookup import Match, NameIndex, Neighbourhood
from kg.order import CycleFoundError, TopologicalOrder

_STRONGER = 0.1
"""By how much a new edge's confidence must exceed the weakest edge of the cycle it would close, to replace it."""
_MAX_NAME = 100
_RELATIONS = frozenset({"narrower", "broader", "equivalent", "related"})
_FEW_CUTS = 64
"""Edges removed at least before the order is made anew."""
_MAX_EVIDENCE = 8
"""Passages kept of a node itself; those of its edges and relations are all kept."""


class ConceptGraph:
    """Concepts and edges over a networkx `DiGraph` of concept ids.

    Invariants: no cycle; no two nodes with a name or alias in common; seeds have no parents and every other node has
    at least one, so that every node is reachable from a seed; a redirect leads to nodes that are there.
    """

    def __init__(self) -> None:
        self.digraph: nx.DiGraph = nx.DiGraph()
        self.rejects: list[Reject] = []
        self.redirects: dict[str, Redirect] = {}
        """By the id of a node that was merged or split."""
        self._relations: dict[str, list[Relation]] = {}
        self._index = NameIndex(embed)
        self._cuts = 0
        self._order = TopologicalOrder(self.digraph)
        self._names: dict[str, str] = {}
        self._rejected: set[Reject] = set()

    # --- looking up ---

    def __len__(self) -> int:
        return int(self.digraph.number_of_nodes())

    def __contains__(self, concept_id: object) -> bool:
        return concept_id in self.digraph

    def __iter__(self) -> Iterator[Concept]:
        """Concepts in the order they were added."""
        return (data["concept"] for _, data in self.digraph.nodes(data=True))

    def concept(self, node: str) -> Concept:
        """The concept of an id. Raises KeyError when there is none."""
        found: Concept = self.digraph.nodes[node]["concept"]
        return found

    def edge(self, coarse: str, fine: str) -> Edge:
        """The edge between two ids. Raises KeyError when there is none."""
        found: Edge = self.digraph.edges[coarse, fine]["edge"]
        return found

    def edges(self) -> Iterator[tuple[str, str, Edge]]:
        """(coarse, fine, edge), each node's parents in the order they were found."""
        for fine in self.digraph:
            for coarse in self.digraph.predecessors(fine):
                yield coarse, fine, self.edge(coarse, fine)

    def resolve(self, name: str) -> str | None:
        """Id of the concept that has this name or alias, whatever its spelling; None when there is none."""
        try:
            return self._names.get(name_key(name)) or self._names.get(name_key(split_abbreviation(name)[0]))
        except ValueError:
            return None

    def current(self, node: str) -> str:
        """The id that stands for an id today: itself, or where a merge or split leads. Raises KeyError for an id never given."""
        if node in self.digraph:
            return node
        return self.redirects[node].targets[0]

    def relations(self, node: str) -> list[Relation]:
        """Undirected relations found from a node, in the order they were found."""
        return list(self._relations.get(node, ()))

    def find_concepts(self, text: str, limit: int = 8) -> list[Match]:
        """Concepts named like a text, best first: by spelling, name key, shared words, and nearness of meaning.

        Without the embedding model, by the first three alone.
        """
        try:
            key = name_key(text)
        except ValueError:
            return []
        keys = self._index.follow(self._names)
        best: dict[str, Match] = {}

        def keep(node: str, score: float, how: str) -> None:
            if node not in best or score > best[node].score:
                best[node] = Match(node, self.concept(node).name, score, how)

        if (named := self.resolve(text)) is not None:
            spelt = text.strip() in (self.concept(named).name, *self.concept(named).aliases)
            keep(named, 1.0 if spelt else 0.99, "exact" if spelt else "key")
        for how, found in (("words", self._index.by_words(key, 2 * limit)), ("meaning", self._index.by_meaning(key, 2 * limit))):
            for entry, score in found:
                keep(self._names[keys[entry]], min(score, 0.98), how)
        return sorted(best.values(), key=lambda m: (-m.score, m.name))[:limit]

    def neighbourhood(self, node: str) -> Neighbourhood:
        """What stands around a node. Raises KeyError when there is none of this id."""
        concept, parents = self.concept(node), self.parents(node)
        siblings = dict.fromkeys(child for parent in parents for child in self.children(parent) if child != node)
        named = (self.resolve(r.name) for r in self.relations(node))
        return Neighbourhood(
            node,
            concept.name,
            tuple(concept.aliases),
            tuple(parents),
            tuple(self.children(node)),
            tuple(siblings),
            tuple(dict.fromkeys(other for other in named if other not in (None, node))),
        )

    def seeds(self) -> list[str]:
        """Ids of the seeds."""
        return [c.concept_id for c in self if c.seed]

    def parents(self, node: str) -> list[str]:
        """Coarser neighbours, the first found (or strongest left) first."""
        return list(self.digraph.predecessors(node))

    def children(self, node: str) -> list[str]:
        """Finer neighbours, in the order they were found."""
        return list(self.digraph.successors(node))

    def ancestors(self, node: str) -> list[str]:
        """All coarser concepts, nearest seed last: a topological order, reversed."""
        return sorted(nx.ancestors(self.digraph, node), key=self._order.position, reverse=True)

    def lineage(self, node: str) -> list[str]:
        """The chain of first parents, from the node's parent up to its seed."""
        chain: list[str] = []
        while parents := self.parents(node):
            node = parents[0]
            chain.append(node)
        return chain

    def levels(self) -> dict[str, int]:
        """Longest distance from a seed, in edges, by id."""
        level: dict[str, int] = {}
        for node in self._order.sorted():
            level[node] = max((level[p] + 1 for p in self.digraph.predecessors(node)), default=0)
        return level

    def branch_of(self, node: str) -> str:
        """The branch a node belongs to: the child of a seed at the top of its lineage; a seed is a branch of its own.

        A node with several parents belongs to its first parent's branch, so every node is in exactly one.
        """
        chain = [node, *self.lineage(node)]
        return chain[-2] if len(chain) > 1 else chain[0]

    def branches(self) -> dict[str, str]:
        """The branch of every node, by id."""
        branch: dict[str, str] = {}
        for node in self._order.sorted():
            first = next(iter(self.digraph.predecessors(node)), None)
            branch[node] = node if first is None or self.concept(first).seed else branch[first]
        return branch

    def topological(self) -> list[str]:
        """All ids, coarse before fine."""
        return self._order.sorted()

    def frontier(self) -> list[str]:
        """Ids with something left to read, in the order they were added."""
        return [c.concept_id for c in self if c.open]

    # --- adding ---

    def add_seed(self, name: str, ground: Passage | None = None, now: str = "") -> str:
        """Add a seed, or find it. Raises ValueError for a name without letters."""
        if (known := self.resolve(name)) is not None:
            return known
        return self._add(Concept("", name.strip(), seed=True, created_at=now, evidence=[ground] if ground else []))

    def propose(self, node: str, proposal: Proposal, passages: Sequence[Passage] = (), agent: str = "", now: str = "") -> str | None:
        """Enter what a reader found from a node. Returns the id of the concept it is now about, None when rejected.

        `narrower` and `broader` make or reuse a node and an edge that runs coarse to fine. `equivalent` makes an alias, or a
        claim when both names are nodes already (see `kg.merge`); `related` makes a relation beside the edges. What does not
        enter is kept in `rejects` with the reason.
        """
        name, short = split_abbreviation(proposal.name)
        if proposal.relation not in _RELATIONS:
            return self._reject(node, proposal, f"relation: {proposal.relation!r:.30} is none of {', '.join(sorted(_RELATIONS))}")
        if not (0.0 <= proposal.confidence <= 1.0):
            return self._reject(node, proposal, f"evidence: confidence {proposal.confidence} is not within 0 and 1")
        try:
            key = name_key(name)
        except ValueError:
            return self._reject(node, proposal, "name: nothing is left of it")
        if len(name) > _MAX_NAME or not any(c.isalpha() for c in name):
            return self._reject(node, proposal, f"name: longer than {_MAX_NAME} characters or without letters")
        if not proposal.evidence:
            return self._reject(node, proposal, "evidence: none was quoted")
        known = self._names.get(key)
        supports = [
            Support(e.document_id, e.quote, proposal.relation, proposal.confidence, agent, now) for e in dict.fromkeys(proposal.evidence)
        ]
        if proposal.relation == "equivalent":
            if known is None:
                return self._alias(node, name)
            return node if known == node else self._relate(node, name, "equivalent", supports)
        if known == node:
            return self._reject(node, proposal, "name: it is the concept itself")
        if proposal.relation == "related":
            return self._relate(node, name, "related", supports)
        if proposal.relation == "broader" and known is None:
            return self._reject(node, proposal, "reachability: no seed reaches a broader concept that is new")
        if known is None:
            found = Concept("", name, domain=proposal.domain, confidence=proposal.confidence, created_at=now, found_by=agent)
            found.evidence.extend(passages)
            known = self._add(found)
        else:
            self._ground(known, passages)
        if short and self._names.get(name_key(short)) is None:
            self._alias(known, short)
        elif short and self._names[name_key(short)] != known:
            self._relate(known, short, "equivalent", supports)
        coarse, fine = (node, known) if proposal.relation == "narrower" else (known, node)
        return known if self._connect(node, coarse, fine, Edge(proposal.relation, proposal.confidence, supports), proposal) else None

    def reject(self, node: str, proposal: Proposal, reason: str) -> None:
        """Keep a proposal that its caller does not enter, with the reason."""
        self._reject(node, proposal, reason)

    def mark(self, node: str, agent: str, reason: str, queries: Sequence[str] = (), atomic: bool = False) -> None:
        """Record what a reader made of a node."""
        concept = self.concept(node)
        concept.agent, concept.reason, concept.atomic = agent, reason, atomic
        concept.queries = list(queries) or concept.queries

    def mark_failed(self, node: str, agent: str, reason: str) -> None:
        """Record that a reader failed on a node; a later run reads it again."""
        self.mark(node, agent, f"{FAILED}: {reason}")

    # --- rows ---

    def to_rows(self, run: str) -> dict[str, list[Row]]:
        """Rows by table (see `kg.rows`). What was found since the last save is this run's."""
        from kg.rows import graph_to_rows

        return graph_to_rows(self, run)

    @classmethod
    def from_rows(cls, rows: Mapping[str, Iterable[Any]]) -> ConceptGraph:
        """The graph that `to_rows` wrote. Raises CorruptArtifactError when the rows make none."""
        from kg.rows import graph_from_rows

        return graph_from_rows(rows)

    def restore_node(self, concept: Concept) -> None:
        """Put back a node as it was saved. Raises ValueError when one of its names is taken."""
        if concept.concept_id in self.digraph:
            raise ValueError(f"node {concept.concept_id} twice")
        for name in (concept.name, *concept.aliases):
            if self._names.setdefault(name_key(name), concept.concept_id) != concept.concept_id:
                raise ValueError(f"the name {name!r:.60} twice")
        self.digraph.add_node(concept.concept_id, concept=concept)
        self._order.add_node(concept.concept_id)

    def restore_edges(self, edges: Iterable[tuple[str, str, Edge]]) -> None:
        """Put back edges as they were saved. Raises ValueError when an end is missing or they close a cycle."""
        for coarse, fine, edge in edges:
            if coarse not in self.digraph or fine not in self.digraph:
                raise ValueError(f"the edge {coarse} -> {fine} lacks an end")
            self.digraph.add_edge(coarse, fine, edge=edge)
        try:
            self._order = TopologicalOrder(self.digraph)
        except CycleFoundError as error:
            raise ValueError(f"the edges close a cycle through {error.path[0]}") from error

    def restore_relation(self, node: str, relation: Relation) -> None:
        """Put back a relation as it was saved. Raises ValueError when its node is missing."""
        if node not in self.digraph:
            raise ValueError(f"a relation of {node}, which is not there")
        self._relations.setdefault(node, []).append(relation)

    def restore_redirect(self, node: str, redirect: Redirect) -> None:
        """Put back a redirect as it was saved. Raises ValueError when it leads nowhere or from a node that is there."""
        if node in self.digraph or not redirect.targets or not all(t in self.digraph for t in redirect.targets):
            raise ValueError(f"the redirect of {node} does not lead to nodes that are there")
        self.redirects[node] = redirect

    def restore_reject(self, reject: Reject) -> None:
        """Put back a rejected proposal as it was saved."""
        self._rejected.add(reject)
        self.rejects.append(reject)

    # --- rewriting, for kg.merge ---

    def insert(self, coarse: str, fine: str, edge: Edge) -> None:
        """Add an edge, or its support to the one that is there. Raises CycleFoundError, with the graph unchanged."""
        if self.digraph.has_edge(coarse, fine):
            self.edge(coarse, fine).absorb(edge)
            return
        self._order.insert(coarse, fine)
        self.digraph.add_edge(coarse, fine, edge=edge)

    def cut(self, coarse: str, fine: str, reason: str) -> None:
        """Remove an edge and keep it among the rejects."""
        self.digraph.remove_edge(coarse, fine)
        self._cuts += 1
        if self._cuts > _FEW_CUTS + len(self.digraph) // 8:  # Heights that cuts left too high make insertion dearer.
            self._order, self._cuts = TopologicalOrder(self.digraph), 0
        self.drop(coarse, self.concept(fine).name, reason)

    def drop(self, coarse: str, name: str, reason: str) -> None:
        """Keep an edge that cannot be put back among the rejects."""
        self._keep(Reject(coarse, name, "narrower", reason))

    def add(self, concept: Concept) -> str:
        """Add a node under a name that is free. The caller gives it a parent. Returns its id."""
        return self._add(concept)

    def replace(self, node: str, redirect: Redirect) -> None:
        """Take a node out and redirect its id; names, edges and relations are the caller's to hand on first."""
        self.digraph.remove_node(node)
        self._order.remove_node(node)
        self.redirects[node] = redirect
        for old, held in self.redirects.items():
            if node in held.targets:
                targets = itertools.chain.from_iterable(redirect.targets if t == node else (t,) for t in held.targets)
                self.redirects[old] = dataclasses.replace(held, targets=tuple(dict.fromkeys(targets)))

    def rename(self, names: Iterable[str], node: str) -> None:
        """Give names to a node, whoever has them now; the first owner's list of aliases is the caller's."""
        for name in names:
            self._names[name_key(name)] = node

    def take_relations(self, node: str) -> list[Relation]:
        """Remove a node's relations and return them."""
        return self._relations.pop(node, [])

    def give_relations(self, node: str, relations: Iterable[Relation]) -> None:
        """Add relations to a node; those that now name the node itself are settled and go."""
        for relation in relations:
            if self.resolve(relation.name) != node:
                self._relate(node, relation.name, relation.kind, relation.supports)

    # --- inside ---

    def _add(self, concept: Concept) -> str:
        key = name_key(concept.name)
        concept.concept_id = concept_id(key)
        while concept.concept_id in self.digraph or concept.concept_id in self.redirects:  # Ten characters can collide.
            concept.concept_id = concept_id(concept.concept_id + key)
        self.digraph.add_node(concept.concept_id, concept=concept)
        self._order.add_node(concept.concept_id)
        self._names[key] = concept.concept_id
        return concept.concept_id

    def _ground(self, node: str, passages: Sequence[Passage]) -> None:
        evidence = self.concept(node).evidence
        known = {p.sha256 for p in evidence}
        evidence.extend(p for p in passages if p.sha256 not in known and len(evidence) < _MAX_EVIDENCE)

    def _alias(self, node: str, name: str) -> str:
        self._names[name_key(name)] = node
        self.concept(node).aliases.append(name)
        return node

    def _relate(self, node: str, name: str, kind: str, supports: Sequence[Support]) -> str:
        held = self._relations.setdefault(node, [])
        same = next((r for r in held if r.kind == kind and name_key(r.name) == name_key(name)), None)
        if same is None:
            held.append(Relation(name, kind, list(supports)))
        else:
            add_supports(same.supports, supports)
        return node

    def _connect(self, node: str, coarse: str, fine: str, edge: Edge, proposal: Proposal) -> bool:
        if self.concept(fine).seed:
            self._reject(node, proposal, "seed: nothing is broader than a seed")
            return False
        while True:
            try:
                self.insert(coarse, fine, edge)
                return True
            except CycleFoundError as cycle:
                if not self._break_cycle(cycle.path, proposal):
                    self._reject(
                        node, proposal, f"cycle: {self.concept(fine).name!r:.60} already leads to {self.concept(coarse).name!r:.60}"
                    )
                    return False

    def _break_cycle(self, path: Sequence[str], proposal: Proposal) -> bool:
        """Remove the weakest edge of the way back, when the new one is clearly better founded and no node loses its last parent."""
        coarse, fine = min(itertools.pairwise(path), key=lambda step: self.edge(*step).confidence)
        if self.digraph.in_degree(fine) < 2 or proposal.confidence < self.edge(coarse, fine).confidence + _STRONGER:
            return False
        self.cut(coarse, fine, f"cycle: replaced by better evidence for {proposal.name!r:.60}")
        return True

    def _reject(self, node: str, proposal: Proposal, reason: str) -> str | None:
        self._keep(Reject(node, proposal.name[:200], proposal.relation, reason))
        return None

    def _keep(self, reject: Reject) -> None:
        if reject not in self._rejected:
            self._rejected.add(reject)
            self.rejects.append(reject)
