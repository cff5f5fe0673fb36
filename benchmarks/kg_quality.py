"""How good the graph is that the embedded reader grows, against hierarchies it never saw.

    python -m benchmarks.kg_quality                 # after `make setup-references`
    python -m benchmarks.kg_quality --half tuning   # what the reader's weights were set on

Two growths of 2,000 nodes: from the top topics of the Computer Science Ontology (CSO) on the default corpus with two more manuals
and the Jargon File, and from the names of WordNet's noun files on a dictionary (GCIDE) and two encyclopaedic ones (FOLDOC, the Jargon
File), all without their cross-reference markup. Beside each, two baselines over the same documents and the same nodes:
cross-references as edges (links of the document that a node is the title of), and document subsumption (Sanderson and
Croft, "Deriving concept hierarchies from text", 1999: P(x|y) >= .8, P(y|x) < 1).

Branches (top topics of CSO, noun files of WordNet) are halved by a fixed seed: the reader was tuned on one half, the figures are of the
other. An edge belongs to the branch of its narrower end; one whose narrower end is in no branch counts in neither.

- precision: of edges whose ends both are in the reference, the share that it relates in either direction, over its closure;
- orientation: of those, the share that runs broader -> narrower;
- recall: of the reference's direct edges, the share that the graph has, directly or by a path; `all` counts every edge,
  `reachable` those whose ends both occur in the corpus. Cross-references count in either direction, for they have none;
- duplicate rate: of nodes in the reference, the share that another node with the same main topic precedes;
- multi-parent share: of nodes that are no seeds, those with several parents.

Prints progress to standard error and one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import random
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx

import kg
from benchmarks.references.cso import load_cso, top_topics
from benchmarks.references.hierarchy import Hierarchy, key_of
from benchmarks.references.texts import gcide, jargon, manuals
from benchmarks.references.wordnet import FILES, load_wordnet
from environments.errors import UnknownSeedError
from environments.protocols import Document
from environments.search import Corpus, CorpusConfig
from environments.search.build import gather, write_corpus
from environments.search.debian import foldoc_documents
from environments.search.sources import unique_documents
from kg import ConceptGraph, GraphConfig, grow
from kg.concept_reader import ConceptReader
from kg.grow import find_seed
from kg.survey import occurrences, subsumes, survey_corpus

SPLIT_SEED = 0
REFERENCES = Path(".cache/references")
READER = [Path(kg.__file__).with_name(f"{m}.py") for m in ("concept_reader", "survey", "definitions", "words", "equivalence", "phrases")]


@dataclass(frozen=True)
class Reference:
    """A hierarchy with its branches: `branch` gives that of a topic, None for one in none."""

    name: str
    hierarchy: Hierarchy
    seeds: tuple[str, ...]
    branch: Callable[[str], str | None]
    branches: tuple[str, ...]
    topical: bool
    """True for an ontology of topics, False for one of kinds (see `ConceptReader`)."""

    def half(self, tuning: bool) -> frozenset[str]:
        """Branches of the tuning or the held-out half."""
        shuffled = sorted(self.branches)
        random.Random(SPLIT_SEED).shuffle(shuffled)
        middle = len(shuffled) // 2
        return frozenset(shuffled[:middle] if tuning else shuffled[middle:])

    def branch_of_name(self, name: str) -> str | None:
        """The branch of a name's main topic."""
        topics = self.hierarchy.topics.get(key_of(name))
        return self.branch(topics[0]) if topics else None


def cso_reference(folder: Path) -> Reference:
    """CSO; a topic's branch is its nearest top topic."""
    cso = load_cso(folder / "cso.csv")
    tops = top_topics(cso)
    nearest = {topic: path[0] for topic, path in nx.multi_source_dijkstra_path(cso.dag, set(tops)).items()}
    return Reference("cso", cso, tuple(tops), nearest.get, tuple(tops), topical=True)


def wordnet_reference(folder: Path) -> Reference:
    """WordNet's nouns; a synset's branch is the file it is in, save the file of tops."""
    wordnet, file_of = load_wordnet(folder / "wordnet")
    files = tuple(FILES[1:])
    branch = {synset: file for synset, file in file_of.items() if file in files}
    return Reference("wordnet", wordnet, files, branch.get, files, topical=False)


def cso_documents(folder: Path) -> list[Document]:
    """The default corpus, two manuals and the Jargon File."""
    default = gather(CorpusConfig(linux_manual=False))
    return list(unique_documents(d for part in (default, manuals(folder / "doc"), jargon(folder / "dictd")) for d in part))


def wordnet_documents(folder: Path) -> list[Document]:
    """A dictionary of English and two encyclopaedic ones of computing."""
    return list(unique_documents(d for part in (gcide(folder / "dictd"), foldoc_documents(), jargon(folder / "dictd")) for d in part))


# --- judging -------------------------------------------------------------------------------------------------------


def judged(edges: Iterable[tuple[str, str]], reference: Reference, half: frozenset[str]) -> dict[str, Any]:
    """Precision and orientation of (broader name, narrower name) edges, with how many were judged and related."""
    knows, relates = reference.hierarchy.knows, reference.hierarchy.relates
    verdicts = [
        relates(coarse, fine)
        for coarse, fine in edges
        if knows(coarse) and knows(fine) and not reference.hierarchy.same(coarse, fine) and reference.branch_of_name(fine) in half
    ]
    related = [v for v in verdicts if v]
    return {
        "precision": _share(len(related), len(verdicts)),
        "orientation": _share(sum(v > 0 for v in related), len(related)),
        "judged": len(verdicts),
        "related": len(related),
    }


def recalled(paths: set[tuple[str, str]], wanted: set[tuple[str, str]]) -> float | None:
    """Share of the wanted topic pairs that are among the paths."""
    return _share(len(paths & wanted), len(wanted))


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def topic_pairs(pairs: Iterable[tuple[str, str]], hierarchy: Hierarchy) -> set[tuple[str, str]]:
    """Pairs of names as pairs of topics, every sense of each."""
    return {(a, b) for x, y in pairs for a in hierarchy.topics.get(key_of(x), ()) for b in hierarchy.topics.get(key_of(y), ())}


def closure(edges: Iterable[tuple[str, str]]) -> Iterable[tuple[str, str]]:
    """All pairs that a path joins."""
    graph = nx.DiGraph(list(edges))
    return ((a, b) for a in graph for b in nx.descendants(graph, a))


def cross_references(documents: Sequence[Document], keys: set[str]) -> set[tuple[str, str]]:
    """(title, linked name) where both are among the name keys."""
    found: set[tuple[str, str]] = set()
    for document in documents:
        if document.links and (title := key_of(document.title)) in keys:
            found.update((title, key) for link in document.links if (key := key_of(link)) in keys and key != title)
    return found


# --- one reference -------------------------------------------------------------------------------------------------


def measure(reference: Reference, documents: Sequence[Document], workspace: Path, nodes: int, tuning: bool) -> dict[str, Any]:
    """Grow and judge; see the module's docstring."""
    half = reference.half(tuning)
    started = time.monotonic()
    corpus = write_corpus(workspace / f"corpus-{reference.name}", documents, CorpusConfig(embeddings=False))
    plain = corpus.without_links()
    built = time.monotonic()
    survey = survey_corpus(list(plain.documents()))
    surveyed = time.monotonic()
    seeds = occurring_seeds(reference.seeds, plain)
    reader = ConceptReader(survey, seeds, topical=reference.topical)
    graph = grow(seeds, plain, reader, GraphConfig(seeds=seeds, max_nodes=nodes, max_level=10, max_children=200))
    grown = time.monotonic()
    spent = f"corpus {built - started:.0f} s, survey {surveyed - built:.0f} s, growth {grown - surveyed:.0f} s"
    _say(f"{reference.name}: {len(graph)} nodes; {spent}")

    names = {c.concept_id: c.name for c in graph}
    edges = [(names[a], names[b]) for a, b, _ in graph.edges()]
    report = judged(edges, reference, half)
    hierarchy = reference.hierarchy
    occurring = occurrences(plain.documents(), hierarchy.topics)
    in_half = {(a, b) for a, b in hierarchy.dag.edges if reference.branch(b) in half}
    reachable = hierarchy.edges(occurring) & in_half
    ways = topic_pairs(_with_aliases(closure(edges), graph), hierarchy)
    keys = {key_of(name) for name in names.values()}
    links = cross_references(documents, keys)
    above = {(a, b) for a, b, _ in subsumes(occurrences(plain.documents(), keys))}
    both = links | {(b, a) for a, b in links}
    baselines = {
        "crossref": {**judged(links, reference, half), "recall_reachable": recalled(topic_pairs(both, hierarchy), reachable)},
        "subsumption": {**judged(above, reference, half), "recall_reachable": recalled(topic_pairs(closure(above), hierarchy), reachable)},
    }
    known = [name for name in names.values() if hierarchy.knows(name)]
    mains = [hierarchy.topics[key_of(name)][0] for name in known]
    followers = [c for c in graph if not c.seed]
    return {
        **report,
        "recall_all": recalled(ways, in_half),
        "recall_reachable": recalled(ways, reachable),
        "duplicate_rate": _share(len(mains) - len(set(mains)), len(mains)),
        "multi_parent_share": _share(sum(len(graph.parents(c.concept_id)) > 1 for c in followers), len(followers)),
        "nodes": len(graph),
        "wall_s": round(grown - started, 1),
        "baselines": baselines,
        "nodes_in_reference": len(known),
        "reachable_edges": len(reachable),
        "edges": len(edges),
        "documents": len(documents),
        "seeds_used": len(seeds),
        "branches": sorted(half),
        "unrelated": sorted(
            (a, b)
            for a, b in edges
            if hierarchy.knows(a) and hierarchy.knows(b) and hierarchy.relates(a, b) < 1 and reference.branch_of_name(b) in half
        ),
    }


def _with_aliases(pairs: Iterable[tuple[str, str]], graph: ConceptGraph) -> Iterable[tuple[str, str]]:
    aliases = {c.name: [c.name, *c.aliases] for c in graph}
    return ((x, y) for a, b in pairs for x in aliases[a] for y in aliases[b])


def occurring_seeds(seeds: Sequence[str], corpus: Corpus) -> tuple[str, ...]:
    """Seeds that the corpus speaks of; the others are said."""
    found = []
    for seed in seeds:
        try:
            find_seed(seed, corpus)
        except UnknownSeedError:
            _say(f"the corpus does not speak of the seed {seed!r}")
        else:
            found.append(seed)
    return tuple(found)


def leaks(hierarchy: Hierarchy, modules: Iterable[Path]) -> list[str]:
    """Lines of the reader's string constants that name two topics of the reference which it relates: there must be none.

    Single words are left out: the reader's word lists are lists of single words, and any two of them may be related by chance.
    """
    found = []
    for path in modules:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for line in node.value.splitlines():
                    names = [n for n in re.split(r"[;,:|=\t]|->", line) if " " in key_of(n) and hierarchy.knows(n)]
                    found += [f"{path.name}: {a!r}, {b!r}" for a, b in pairwise(names) if hierarchy.relates(a, b)]
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--references", type=Path, default=REFERENCES)
    parser.add_argument("--workspace", type=Path, default=Path("bench-workspace"))
    parser.add_argument("--nodes", type=int, default=2000)
    parser.add_argument("--half", choices=("held-out", "tuning"), default="held-out")
    parser.add_argument("--only", choices=("cso", "wordnet"))
    parser.add_argument("--unrelated", action="store_true", help="keep the edges that the reference does not relate")
    options = parser.parse_args()
    options.workspace.mkdir(parents=True, exist_ok=True)
    reports: dict[str, dict[str, Any]] = {}
    for name, load, texts in (("cso", cso_reference, cso_documents), ("wordnet", wordnet_reference, wordnet_documents)):
        if options.only not in (None, name):
            continue
        reference = load(options.references)
        if leaked := leaks(reference.hierarchy, READER):
            raise SystemExit(f"the reader holds relations of {name}: {leaked[:5]}. Fix: take them out; it must not have seen the reference")
        reports[name] = measure(reference, texts(options.references), options.workspace, options.nodes, options.half == "tuning")
        if not options.unrelated:
            del reports[name]["unrelated"]
    result: dict[str, Any] = {**reports.get("cso", {})}
    if "wordnet" in reports:
        result["wordnet"] = reports["wordnet"]
    result |= {
        "half": options.half,
        "split_seed": SPLIT_SEED,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
