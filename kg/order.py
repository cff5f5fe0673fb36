"""An incremental topological order by heights: every node stands higher than those below it.

An edge that agrees with the heights costs nothing; one that does not raises its source and those ancestors that are not high
enough yet, and closes a cycle exactly when its target is among them. Nothing below the edge is looked at, which is where a
concept graph is wide; a node is raised at most as often as the graph is deep, so an insertion costs the same in a large graph
as in a small one. A levelled order after Bender, Fineman, Gilbert and Tarjan, "A new approach to incremental cycle detection
and related problems" (2015), with levels counted from the leaves and kept exact (a removed edge may leave them too high).
"""

from __future__ import annotations

from heapq import heappop, heappush

import networkx as nx


class CycleFoundError(Exception):
    """The edge would close a cycle; `path` runs from its target back to its source."""

    def __init__(self, path: list[str]) -> None:
        super().__init__(path)
        self.path = path


class TopologicalOrder:
    """Heights of a graph's nodes such that every edge runs downwards. The graph's edges are its owner's to add and remove.

    Raises:
        CycleFoundError: the graph that is given has a cycle; its path is one of its nodes.
    """

    def __init__(self, graph: nx.DiGraph) -> None:
        self._graph = graph
        below = {node: len(successors) for node, successors in graph.succ.items()}
        self._height: dict[str, int] = dict.fromkeys(graph, 0)
        ready = [node for node, count in below.items() if not count]
        placed = 0
        while ready:
            node = ready.pop()
            placed += 1
            above = self._height[node] + 1
            for predecessor in graph.pred[node]:
                self._height[predecessor] = max(self._height[predecessor], above)
                below[predecessor] -= 1
                if not below[predecessor]:
                    ready.append(predecessor)
        if placed < len(below):
            raise CycleFoundError([next(node for node, count in below.items() if count)])

    def add_node(self, node: str) -> None:
        """Put a new node lowest. Removing an edge never breaks the order, so there is nothing to do then."""
        self._height.setdefault(node, 0)

    def remove_node(self, node: str) -> None:
        """Forget a node that leaves the graph."""
        del self._height[node]

    def position(self, node: str) -> tuple[int, str]:
        """Where a node stands; only comparable with others: coarse before fine."""
        return -self._height[node], node

    def sorted(self) -> list[str]:
        """All nodes in topological order; among equals the first added first."""
        return sorted(self._height, key=lambda node: -self._height[node])

    def insert(self, source: str, target: str) -> None:
        """Make room for the edge source -> target; the caller adds it to the graph afterwards.

        Raises:
            CycleFoundError: target already reaches source; the order is unchanged.
        """
        if source == target:
            raise CycleFoundError([source])
        height = self._height
        if height[source] > height[target]:
            return
        raised = {source: height[target] + 1}
        below: dict[str, str] = {}
        waiting = [(height[source], source)]
        while waiting:  # By height as it was: a node comes after all those below it that are raised, so it is raised once.
            _, node = heappop(waiting)
            needed = raised[node] + 1
            for predecessor in self._graph.pred[node]:
                if height[predecessor] >= needed or raised.get(predecessor, 0) >= needed:
                    continue
                if predecessor not in raised:
                    heappush(waiting, (height[predecessor], predecessor))
                raised[predecessor] = needed
                below[predecessor] = node
                if predecessor == target:
                    path = [target]
                    while path[-1] != source:
                        path.append(below[path[-1]])
                    raise CycleFoundError(path)
        height.update(raised)
