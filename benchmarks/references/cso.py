"""The Computer Science Ontology (Salatino et al., 2018; CC BY 4.0) as a reference hierarchy.

Read from `cso.csv` of the `cso-classifier` wheel: `;`-separated triples of topic, relation and topic.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import networkx as nx

from benchmarks.references.hierarchy import Hierarchy, key_of

ROOT = "computer science"


def load_cso(path: Path) -> Hierarchy:
    """CSO with synonyms merged. A topic's id is the first of its labels by spelling.

    Raises:
        ValueError: the file holds no hierarchy.
    """
    broader: list[tuple[str, str]] = []
    merged: nx.Graph = nx.Graph()
    with path.open(newline="", encoding="utf-8") as file:
        for subject, relation, value in csv.reader(file, delimiter=";"):
            if relation.endswith("broaderGeneric"):
                broader.append((subject, value))
                merged.add_nodes_from((subject, value))
            elif relation.endswith("relatedEquivalent"):
                merged.add_edge(subject, value)
            elif relation.endswith("label"):
                merged.add_node(subject)
    topic = {label: min(group) for group in nx.connected_components(merged) for label in group}
    dag = nx.DiGraph()
    dag.add_nodes_from(sorted(set(topic.values())))
    dag.add_edges_from(sorted({(topic[a], topic[b]) for a, b in broader if topic[a] != topic[b]}))
    if not nx.is_directed_acyclic_graph(dag) or topic.get(ROOT) not in dag:
        raise ValueError(f"{path} holds no hierarchy below {ROOT!r}")
    names: dict[str, dict[str, None]] = defaultdict(dict)
    for label in sorted(topic):
        names[key_of(label)][topic[label]] = None
    names.pop("", None)
    return Hierarchy({key: tuple(topics) for key, topics in names.items()}, dag)


def top_topics(cso: Hierarchy) -> list[str]:
    """The direct children of computer science, by name: where a growth starts."""
    return sorted(cso.dag.successors(cso.topics[ROOT][0]))
