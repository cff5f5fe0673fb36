"""Merging nodes that turn out to be one concept, and splitting one that turns out to be several.

Ids that tasks and rollouts of earlier runs hold stay valid: each leads, by a redirect, to what stands for it now. What such a
rewriting cannot keep goes to the rejects with its reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from environments.errors import InputError
from kg.concept import Concept, Edge, Redirect
from kg.equivalence import name_key
from kg.graph import ConceptGraph
from kg.order import CycleFoundError

MIN_CONFIDENCE = 0.5
"""Of the strongest passage that claims two nodes to be one; below it a claim stays a claim."""
MIN_DOCUMENTS = 2
"""Documents that must claim it: one page may err."""


@dataclass(frozen=True)
class Sense:
    """One meaning of an ambiguous node."""

    name: str
    """Free, or one of the node's own."""
    parents: tuple[str, ...]
    """Ids among the node's parents, at least one."""
    children: tuple[str, ...] = ()
    passages: tuple[str, ...] = ()
    """sha256 of the node's passages that speak of this sense."""
    aliases: tuple[str, ...] = ()
    """Names among the node's own."""


def merge(graph: ConceptGraph, one: str, other: str, reason: str, agent: str = "", now: str = "") -> str:
    """Make two nodes one. Returns the id that stays: that of a seed, else that of the node found first.

    An edge that would close a cycle is dropped in favour of the rest of it, unless a node would lose its last parent: then the
    weakest edge of the cycle that has an alternative goes.

    Raises:
        InputError: an id is unknown, or both are one node.
    """
    for node in (one, other):
        if node not in graph:
            raise InputError(f"there is no node {node!r:.40} to merge", "name two ids of the graph, resolved by ConceptGraph.current")
    if one == other:
        raise InputError(f"the node {one} cannot be merged with itself", "name two ids")
    swap = graph.concept(other).seed and not graph.concept(one).seed
    keep, gone = (other, one) if swap else (one, other)
    kept, lost = graph.concept(keep), graph.concept(gone)
    parents = [(p, graph.edge(p, gone)) for p in graph.parents(gone)]
    children = [(c, graph.edge(gone, c)) for c in graph.children(gone)]
    graph.rename((lost.name, *lost.aliases), keep)
    relations = [*graph.take_relations(keep), *graph.take_relations(gone)]
    graph.replace(gone, Redirect((keep,), "merge", lost.name, reason, agent, now))
    _absorb(kept, lost)
    graph.give_relations(keep, relations)
    for parent, edge in parents:
        if parent == keep:
            graph.drop(keep, lost.name, "merge: both ends are one concept now")
            continue
        if kept.seed:
            graph.drop(parent, kept.name, "seed: nothing is broader than a seed")
            continue
        try:
            graph.insert(parent, keep, edge)
        except CycleFoundError:
            graph.drop(parent, kept.name, f"cycle: after a merge {kept.name!r:.60} leads to {graph.concept(parent).name!r:.60}")
    for child, edge in children:
        if child == keep:
            graph.drop(keep, lost.name, "merge: both ends are one concept now")
        else:
            _adopt(graph, keep, child, edge)
    return keep


def merge_claims(
    graph: ConceptGraph, agent: str = "", now: str = "", min_confidence: float = MIN_CONFIDENCE, min_documents: int = MIN_DOCUMENTS
) -> list[tuple[str, str]]:
    """Merge the nodes whose equivalence enough documents claim, from either side. Returns (id gone, id kept) in order."""
    done: list[tuple[str, str]] = []
    while (claim := next(_claims(graph, min_confidence, min_documents), None)) is not None:
        one, other, why = claim
        kept = merge(graph, one, other, why, agent, now)
        done.append((other if kept == one else one, kept))
    return done


def split(graph: ConceptGraph, node: str, senses: Sequence[Sense], reason: str, agent: str = "", now: str = "") -> list[str]:
    """Replace a node by its senses. Returns their ids; the first is what the old id and its bare name lead to.

    Children, passages, names and relations that no sense claims go to the first.

    Raises:
        InputError: fewer than two senses; the node is unknown or a seed; a sense lacks a parent, claims what is not the node's,
            or has a name that is taken.
    """
    if node not in graph or graph.concept(node).seed:
        raise InputError(f"the node {node!r:.40} is {'a seed' if node in graph else 'not there'}", "split a node below a seed")
    old = graph.concept(node)
    names = {name_key(n): n for n in (old.name, *old.aliases)}
    _check(graph, node, senses, names)
    parents = {p: graph.edge(p, node) for p in graph.parents(node)}
    children = {c: graph.edge(node, c) for c in graph.children(node)}
    relations = graph.take_relations(node)
    claimed_children = {c for s in senses for c in s.children}
    claimed_passages = {p for s in senses for p in s.passages}
    claimed_names = {name_key(n) for s in senses for n in (s.name, *s.aliases)}
    unclaimed = [n for key, n in names.items() if key not in claimed_names]
    ids: list[str] = []
    for i, sense in enumerate(senses):
        first = i == 0
        ids.append(
            graph.add(
                Concept(
                    "",
                    sense.name,
                    [*(n for n in sense.aliases if name_key(n) != name_key(sense.name)), *(unclaimed if first else ())],
                    old.domain,
                    confidence=old.confidence,
                    created_at=now,
                    evidence=[p for p in old.evidence if p.sha256 in sense.passages or (first and p.sha256 not in claimed_passages)],
                    found_by=agent,
                )
            )
        )
        graph.rename((sense.name, *graph.concept(ids[-1]).aliases), ids[-1])
    graph.replace(node, Redirect(tuple(ids), "split", old.name, reason, agent, now))
    for i, (new, sense) in enumerate(zip(ids, senses, strict=True)):
        for parent in sense.parents:
            graph.insert(parent, new, parents[parent].copy())
        for child, edge in children.items():
            if child in sense.children or (i == 0 and child not in claimed_children):
                graph.insert(new, child, edge.copy())
    graph.give_relations(ids[0], relations)
    return ids


def _absorb(kept: Concept, lost: Concept) -> None:
    kept.aliases = list(dict.fromkeys([*kept.aliases, lost.name, *lost.aliases]))
    held = {p.sha256 for p in kept.evidence}
    kept.evidence.extend(p for p in lost.evidence if p.sha256 not in held)
    kept.queries = list(dict.fromkeys([*kept.queries, *lost.queries]))
    kept.confidence = max(kept.confidence, lost.confidence)
    if kept.open and not lost.open:
        kept.agent, kept.reason = lost.agent, lost.reason
    kept.atomic = kept.atomic and lost.atomic


def _adopt(graph: ConceptGraph, keep: str, child: str, edge: Edge) -> None:
    """Hang a child of the node that is gone below the one that stays."""
    while True:
        try:
            graph.insert(keep, child, edge)
            return
        except CycleFoundError as cycle:
            steps = [step for step in itertools.pairwise(cycle.path) if len(graph.parents(step[1])) > 1]
            if graph.parents(child) and not (steps and _weakest(graph, steps).confidence < edge.confidence):
                name = graph.concept(child).name
                graph.drop(keep, name, f"cycle: after a merge {name!r:.60} leads to {graph.concept(keep).name!r:.60}")
                return
            # Some step has an alternative: the path ends at `keep`, which has the parents of the node that is gone as well.
            coarse, fine = min(steps, key=lambda step: graph.edge(*step).confidence)
            better = f"{graph.concept(keep).name!r:.60} -> {graph.concept(child).name!r:.60}"
            graph.cut(coarse, fine, f"cycle: after a merge, replaced by {better}")


def _weakest(graph: ConceptGraph, steps: Sequence[tuple[str, str]]) -> Edge:
    return min((graph.edge(*step) for step in steps), key=lambda edge: edge.confidence)


def _claims(graph: ConceptGraph, min_confidence: float, min_documents: int) -> Iterator[tuple[str, str, str]]:
    """(node, node, why) of each pair whose equivalence is claimed well enough, in the graph's order."""
    documents: dict[tuple[str, str], dict[str, float]] = {}
    age = {concept.concept_id: i for i, concept in enumerate(graph)}
    for concept in graph:
        node = concept.concept_id
        for relation in graph.relations(node):
            other = graph.resolve(relation.name)
            if relation.kind != "equivalent" or other is None or other == node:
                continue
            first, second = sorted((node, other), key=age.__getitem__)
            said = documents.setdefault((first, second), {})
            for s in relation.supports:
                said[s.document_id] = max(said.get(s.document_id, 0.0), s.confidence)
            if len(said) >= min_documents and max(said.values()) >= min_confidence:
                yield first, second, f"equivalent according to {', '.join(list(said)[:4])}"


def _check(graph: ConceptGraph, node: str, senses: Sequence[Sense], names: dict[str, str]) -> None:
    old = graph.concept(node)
    if len(senses) < 2:
        raise InputError(f"{len(senses)} senses make no split of {old.name!r:.60}", "give at least two")
    keys = [name_key(n) for s in senses for n in (s.name, *s.aliases)]
    if len(set(keys)) < len(keys):
        raise InputError(f"two senses of {old.name!r:.60} share a name", "give each name to one sense")
    passages = {p.sha256 for p in old.evidence}
    for sense in senses:
        if not sense.parents:
            raise InputError(f"the sense {sense.name!r:.60} has no parent", "give it one of the node's")
        foreign = [
            *(p for p in sense.parents if p not in graph.parents(node)),
            *(c for c in sense.children if c not in graph.children(node)),
            *(p for p in sense.passages if p not in passages),
            *(a for a in sense.aliases if name_key(a) not in names),
        ]
        if foreign:
            raise InputError(f"{foreign[0]!r:.60} is not of the node {old.name!r:.60}", "divide what it has among its senses")
        if graph.resolve(sense.name) not in (None, node):
            raise InputError(f"the name {sense.name!r:.60} is another node's", "use a free name, or one of the node's own")
