"""The graph as table rows and back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from environments.errors import CorruptArtifactError
from environments.records import (
    EdgeEvidenceRow,
    EdgeRow,
    GraphRejectRow,
    MaterialRow,
    NodeMaterialRow,
    NodeRedirectRow,
    NodeRow,
    RelationRow,
    Row,
)
from kg.concept import Concept, Edge, Passage, Redirect, Reject, Relation, Support
from kg.graph import ConceptGraph

TABLES: tuple[type[Row], ...] = (
    NodeRow,
    EdgeRow,
    EdgeEvidenceRow,
    RelationRow,
    NodeRedirectRow,
    GraphRejectRow,
    MaterialRow,
    NodeMaterialRow,
)
"""Tables of a graph."""


def graph_to_rows(graph: ConceptGraph, run: str) -> dict[str, list[Row]]:
    """Rows of a run by table of `TABLES`, in the graph's own order. What no run has saved yet is this run's find."""
    return {table: list(rows) for table, rows in row_streams(graph, run).items()}


def row_streams(graph: ConceptGraph, run: str) -> dict[str, Iterator[Row]]:
    """The same rows, one at a time: a large graph's would not fit in memory at once."""
    return {
        NodeRow.TABLE: _nodes(graph, run),
        EdgeRow.TABLE: _edges(graph, run),
        EdgeEvidenceRow.TABLE: (
            EdgeEvidenceRow(run=run, coarse_id=coarse, fine_id=fine, **_support(s, run))
            for coarse, fine, e in graph.edges()
            for s in e.supports
        ),
        RelationRow.TABLE: (
            RelationRow(run=run, node_id=c.concept_id, name=r.name, kind=r.kind, **_support(s, run))
            for c in graph
            for r in graph.relations(c.concept_id)
            for s in r.supports
        ),
        NodeRedirectRow.TABLE: _redirects(graph, run),
        GraphRejectRow.TABLE: (
            GraphRejectRow(run=run, node_id=r.concept_id, name=r.name, relation=r.relation, reason=r.reason) for r in graph.rejects
        ),
        MaterialRow.TABLE: _materials(graph, run),
        NodeMaterialRow.TABLE: (
            NodeMaterialRow(run=run, node_id=c.concept_id, material_sha256=p.sha256) for c in graph for p in c.evidence
        ),
    }


def _nodes(graph: ConceptGraph, run: str) -> Iterator[Row]:
    levels, branches = graph.levels(), graph.branches()
    for c in graph:
        yield NodeRow(
            run=run,
            node_id=c.concept_id,
            name=c.name,
            aliases=c.aliases,
            domain=c.domain,
            level=levels[c.concept_id],
            branch=branches[c.concept_id],
            seed=c.seed,
            atomic=c.atomic,
            agent=c.agent,
            reason=c.reason,
            queries=c.queries,
            confidence=c.confidence,
            created_at=c.created_at,
            found_by=c.found_by,
            found_run=c.run or run,
        )


def _edges(graph: ConceptGraph, run: str) -> Iterator[Row]:
    for coarse, fine, e in graph.edges():
        first = e.supports[0]
        yield EdgeRow(
            run=run,
            coarse_id=coarse,
            fine_id=fine,
            relation=e.relation,
            confidence=e.confidence,
            document_ids=e.document_ids,
            quote=first.quote,
            agent=first.agent,
            created_at=first.found_at,
            found_run=first.run or run,
        )


def _redirects(graph: ConceptGraph, run: str) -> Iterator[Row]:
    for node, r in graph.redirects.items():
        for sense, target in enumerate(r.targets):
            yield NodeRedirectRow(
                run=run,
                node_id=node,
                target_id=target,
                sense=sense,
                kind=r.kind,
                name=r.name,
                reason=r.reason,
                agent=r.agent,
                found_run=r.run or run,
                found_at=r.found_at,
            )


def _materials(graph: ConceptGraph, run: str) -> Iterator[Row]:
    seen: set[str] = set()
    for c in graph:
        for p in c.evidence:
            if p.sha256 not in seen:
                seen.add(p.sha256)
                yield material_row(run, p)


def material_row(run: str, passage: Passage) -> MaterialRow:
    """A passage as a row."""
    return MaterialRow(
        run=run,
        material_sha256=passage.sha256,
        document_id=passage.document_id,
        title=passage.title,
        source=passage.source,
        licence=passage.licence,
        passage=passage.quote,
    )


def graph_from_rows(rows: Mapping[str, Iterable[Any]]) -> ConceptGraph:
    """The graph that `graph_to_rows` wrote; other tables are ignored.

    Raises:
        CorruptArtifactError: the rows make no graph (an edge without its nodes, a cycle, a node without a parent).
    """
    graph = ConceptGraph()
    passages = {m.material_sha256: Passage(m.document_id, m.title, m.source, m.licence, m.passage) for m in rows.get(MaterialRow.TABLE, ())}
    evidence: dict[str, list[Passage]] = defaultdict(list)
    fix = "delete the graph's tables and grow it again"
    try:
        for link in rows.get(NodeMaterialRow.TABLE, ()):
            evidence[link.node_id].append(passages[link.material_sha256])
        for n in rows.get(NodeRow.TABLE, ()):
            graph.restore_node(
                Concept(
                    n.node_id,
                    n.name,
                    list(n.aliases),
                    n.domain,
                    n.seed,
                    n.atomic,
                    n.agent,
                    n.reason,
                    list(n.queries),
                    n.confidence,
                    n.created_at,
                    evidence[n.node_id],
                    n.found_by,
                    n.found_run,
                )
            )
        supports: dict[tuple[str, str], list[Support]] = defaultdict(list)
        for e in rows.get(EdgeEvidenceRow.TABLE, ()):
            supports[e.coarse_id, e.fine_id].append(_restored(e))
        graph.restore_edges(_edges_of(rows.get(EdgeRow.TABLE, ()), supports))
        claims: dict[tuple[str, str, str], list[Support]] = defaultdict(list)
        for r in rows.get(RelationRow.TABLE, ()):
            claims[r.node_id, r.name, r.kind].append(_restored(r))
        for (node, name, kind), held in claims.items():
            graph.restore_relation(node, Relation(name, kind, held))
        leads: dict[str, list[NodeRedirectRow]] = defaultdict(list)
        for r in rows.get(NodeRedirectRow.TABLE, ()):
            leads[r.node_id].append(r)
        for node, found in leads.items():
            found.sort(key=lambda r: r.sense)
            targets, main = tuple(r.target_id for r in found), found[0]
            graph.restore_redirect(node, Redirect(targets, main.kind, main.name, main.reason, main.agent, main.found_at, main.found_run))
    except (KeyError, ValueError) as error:
        raise CorruptArtifactError(f"the graph's rows do not fit together: {error}", fix) from error
    for r in rows.get(GraphRejectRow.TABLE, ()):
        graph.restore_reject(Reject(r.node_id, r.name, r.relation, r.reason))
    if orphan := next((c for c in graph if not c.seed and not graph.parents(c.concept_id)), None):
        raise CorruptArtifactError(f"the graph's rows leave {orphan.name!r:.60} without a parent", fix)
    return graph


def _edges_of(rows: Iterable[Any], supports: Mapping[tuple[str, str], list[Support]]) -> Iterator[tuple[str, str, Edge]]:
    for e in rows:
        if not (held := supports.get((e.coarse_id, e.fine_id))):
            raise ValueError(f"the edge {e.coarse_id} -> {e.fine_id} has no evidence")
        yield e.coarse_id, e.fine_id, Edge(e.relation, e.confidence, held)


def _support(support: Support, run: str) -> dict[str, Any]:
    return {
        "document_id": support.document_id,
        "quote": support.quote,
        "relation": support.relation,
        "confidence": support.confidence,
        "agent": support.agent,
        "found_run": support.run or run,
        "found_at": support.found_at,
    }


def _restored(row: EdgeEvidenceRow | RelationRow) -> Support:
    return Support(row.document_id, row.quote, row.relation, row.confidence, row.agent, row.found_at, row.found_run)
