"""WordNet's nouns (Princeton WordNet 3.0) as a reference hierarchy, read from `data.noun` and `index.noun` (wndb(5WN))."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import networkx as nx

from benchmarks.references.hierarchy import Hierarchy, key_of

FILES = """
Tops act animal artifact attribute body cognition communication event feeling food group location motive object person phenomenon plant
possession process quantity relation shape state substance time
""".split()  # noqa: SIM905
"""Names of the noun files by number less 3 (lexnames(5WN)); all but the first name what is in them, and so make seeds."""


def load_wordnet(folder: Path) -> tuple[Hierarchy, dict[str, str]]:
    """Noun synsets over their hypernyms (instances included), and the file each synset is in.

    Raises:
        ValueError: the files hold no hierarchy.
    """
    dag = nx.DiGraph()
    file_of: dict[str, str] = {}
    for line in (folder / "data.noun").read_text("utf-8").splitlines():
        if line.startswith("  "):
            continue
        words = line.partition("|")[0].split()
        synset, file = words[0], FILES[int(words[1]) - 3]
        dag.add_node(synset)
        file_of[synset] = file
        at = 4 + 2 * int(words[3], 16)
        for k in range(int(words[at])):
            symbol, target, part = words[at + 1 + 4 * k : at + 4 + 4 * k]
            if symbol in {"@", "@i"} and part == "n":
                dag.add_edge(target, synset)
    names: dict[str, dict[str, None]] = defaultdict(dict)
    for line in (folder / "index.noun").read_text("utf-8").splitlines():
        if line.startswith("  "):
            continue
        words = line.split()
        count = int(words[2])
        for synset in words[-count:]:
            names[key_of(words[0])][synset] = None
    names.pop("", None)
    if not dag or not nx.is_directed_acyclic_graph(dag):
        raise ValueError(f"{folder} holds no hierarchy")
    return Hierarchy({key: tuple(synsets) for key, synsets in names.items()}, dag), file_of
