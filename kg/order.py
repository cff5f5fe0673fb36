"""An incremental topological order (Pearce and Kelly, "A dynamic topological sort algorithm for directed acyclic graphs", 2006).

An insertion that agrees with the order costs nothing; one that does not looks only at the nodes between its two ends.
"""

from __future__ import annotations

import networkx as nx


class CycleFoundError(Exception):
    """The edge would close a cycle; `path` runs from its target back to its source."""

    def __init__(self, path: list[str]) -> None:
        super().__init__(path)
        self.path = path


class TopologicalOrder:
    """Positions of a graph's nodes such that every edge runs upwards. The graph's edges are its owner's to add and remove."""

    def __init__(self, graph: nx.DiGraph) -> None:
        self._graph = graph
        self._position: dict[str, int] = {node: i for i, node in enumerate(nx.topological_sort(graph))}
        self._next = len(self._position)

    def add_node(self, node: str) -> None:
        """Put a new node last. Removing an edge never breaks the order, so there is nothing to do then."""
        if node not in self._position:
            self._position[node] = self._next
            self._next += 1

    def position(self, node: str) -> int:
        """Rank of a node; only comparable with others."""
        return self._position[node]

    def sorted(self) -> list[str]:
        """All nodes in topological order."""
        return sorted(self._position, key=self._position.__getitem__)

    def insert(self, source: str, target: str) -> None:
        """Make room for the edge source -> target; the caller adds it to the graph afterwards.

        Raises:
            CycleFoundError: target already reaches source; the order is unchanged.
        """
        if source == target:
            raise CycleFoundError([source])
        low, high = self._position[target], self._position[source]
        if high < low:
            return
        forward = self._forward(target, source, high)
        backward = self._backward(source, low)
        ordered = sorted(backward, key=self._position.__getitem__) + sorted(forward, key=self._position.__getitem__)
        slots = sorted(self._position[node] for node in ordered)
        for node, slot in zip(ordered, slots, strict=True):
            self._position[node] = slot

    def _forward(self, start: str, goal: str, high: int) -> set[str]:
        parent: dict[str, str | None] = {start: None}
        stack = [start]
        while stack:
            node = stack.pop()
            for successor in self._graph.successors(node):
                if successor in parent or self._position[successor] > high:
                    continue
                parent[successor] = node
                if successor == goal:
                    path: list[str] = []
                    step: str | None = goal
                    while step is not None:
                        path.append(step)
                        step = parent[step]
                    raise CycleFoundError(path[::-1])
                stack.append(successor)
        return set(parent)

    def _backward(self, start: str, low: int) -> set[str]:
        seen = {start}
        stack = [start]
        while stack:
            for predecessor in self._graph.predecessors(stack.pop()):
                if predecessor not in seen and self._position[predecessor] >= low:
                    seen.add(predecessor)
                    stack.append(predecessor)
        return seen
