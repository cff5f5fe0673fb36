"""The graph as table rows and back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx

from environments.errors import CorruptArtifactError
from environments.records import EdgeRow, GraphRejectRow, MaterialRow, NodeMaterialRow, NodeRow, Row
from kg.concept import Concept, Edge, Passage, Reject
from kg.graph import ConceptGraph


def graph_to_rows(graph: ConceptGraph, run: str) -> dict[str, list[Row]]:
    """Rows of a run by table: nodes, edges, graph_rejects, materials, node_materials. Their order is the graph's own."""
    levels = graph.levels()
    nodes: list[Row] = []
    materials: dict[str, Row] = {}
    node_materials: list[Row] = []
    for c in graph:
        nodes.append(
            NodeRow(
                run=run,
                node_id=c.concept_id,
                name=c.name,
                aliases=c.aliases,
                domain=c.domain,
                level=levels[c.concept_id],
                branch=graph.branch_of(c.concept_id),
                seed=c.seed,
                atomic=c.atomic,
                agent=c.agent,
                reason=c.reason,
                queries=c.queries,
                confidence=c.confidence,
                created_at=c.created_at,
            )
        )
        for p in c.evidence:
            materials.setdefault(
                p.sha256,
                MaterialRow(
                    run=run,
                    material_sha256=p.sha256,
                    document_id=p.document_id,
                    title=p.title,
                    source=p.source,
                    licence=p.licence,
                    passage=p.quote,
                ),
            )
            node_materials.append(NodeMaterialRow(run=run, node_id=c.concept_id, material_sha256=p.sha256))
    edges: list[Row] = [
        EdgeRow(
            run=run,
            coarse_id=coarse,
            fine_id=fine,
            relation=e.relation,
            confidence=e.confidence,
            document_ids=e.document_ids,
            quote=e.quote,
            agent=e.agent,
            created_at=e.created_at,
        )
        for coarse, fine, e in graph.edges()
    ]
    rejects: list[Row] = [
        GraphRejectRow(run=run, node_id=r.concept_id, name=r.name, relation=r.relation, reason=r.reason) for r in graph.rejects
    ]
    return {
        NodeRow.TABLE: nodes,
        EdgeRow.TABLE: edges,
        GraphRejectRow.TABLE: rejects,
        MaterialRow.TABLE: list(materials.values()),
        NodeMaterialRow.TABLE: node_materials,
    }


def graph_from_rows(rows: Mapping[str, Sequence[Any]]) -> ConceptGraph:
    """The graph that `graph_to_rows` wrote; tables other than its five are ignored.

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
                )
            )
        for e in rows.get(EdgeRow.TABLE, ()):
            graph.restore_edge(e.coarse_id, e.fine_id, Edge(e.relation, e.confidence, list(e.document_ids), e.quote, e.agent, e.created_at))
    except (KeyError, ValueError) as error:
        raise CorruptArtifactError(f"the graph's rows do not fit together: {error}", fix) from error
    for r in rows.get(GraphRejectRow.TABLE, ()):
        graph.restore_reject(Reject(r.node_id, r.name, r.relation, r.reason))
    if not nx.is_directed_acyclic_graph(graph.digraph):
        raise CorruptArtifactError("the graph's rows hold a cycle", fix)
    if orphan := next((c for c in graph if not c.seed and not graph.parents(c.concept_id)), None):
        raise CorruptArtifactError(f"the graph's rows leave {orphan.name!r:.60} without a parent", fix)
    return graph
