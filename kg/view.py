"""The graph as a reader sees it while it reads: look-ups by name and meaning, and what stands around a concept."""

from __future__ import annotations

import threading
from typing import Any

from kg.graph import ConceptGraph

_MAX_NAMES = 30
"""Names shown of each kind of neighbour."""


class GraphView:
    """Look-ups in a graph that stands still. Threads may share one: the graph's name index grows while it is asked."""

    def __init__(self, graph: ConceptGraph) -> None:
        self._graph = graph
        self._lock = threading.Lock()

    def find_concepts(self, text: str, limit: int = 8) -> list[dict[str, Any]]:
        """Concepts whose names or aliases are spelt like a text, share its words or mean nearly the same, best first."""
        with self._lock:
            return [
                {"name": m.name, "aliases": self._graph.concept(m.node).aliases, "alike_by": m.how, "score": round(m.score, 2)}
                for m in self._graph.find_concepts(text, limit)
            ]

    def neighbourhood(self, name: str) -> dict[str, Any] | None:
        """Names around the concept of this name or alias; None when the graph has none."""
        with self._lock:
            node = self._graph.resolve(name)
            if node is None:
                return None
            around = self._graph.neighbourhood(node)
            kinds = {
                "broader": around.parents,
                "narrower": around.children,
                "beside": around.siblings,
                "related": around.related,
            }
            named = {kind: [self._graph.concept(n).name for n in nodes[:_MAX_NAMES]] for kind, nodes in kinds.items()}
            return {"name": around.name, "aliases": list(around.aliases), **named}
