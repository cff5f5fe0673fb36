"""What the concept graph costs as it grows: insertion, saving, loading, look-up, sampling of nodes, memory.

    python benchmarks/kg_scale.py

Every size runs in a process of its own, so that its memory is its own. A node is proposed by name below a random node, with two
further edges between known names, a third of them from the finer end and some by an alias; that is three edges a node, each
with its passage, name look-up and cycle check. Further edges run from the end nearer to the seed to the other, and one in
twenty the wrong way round, as often as a good reader errs, with less confidence. `insert_us` is a proposal's time, the median
over blocks of 500 nodes among the last tenth, when the graph has nearly its size; `insert_growth` is that of the largest size
over that of the smallest. Embedding neighbours are not needed to insert and are measured apart (`find_ms`), up to 100,000
nodes. All times are CPU time. Prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from environments.protocols import Evidence, Proposal
from environments.tables import iterate_rows, write_rows
from kg import ConceptGraph
from kg.rows import TABLES, row_streams

SIZES = (10_000, 100_000, 1_000_000)
_BLOCK = 500
_EMBEDDED = 100_000
_WORDS = [
    a + b + c
    for a in ("ka", "lo", "mi", "nu", "ro", "su", "te", "vi")
    for b in ("ba", "de", "fi", "go", "hu")
    for c in ("x", "l", "n", "r")
]


def grow(size: int, seed: int) -> tuple[ConceptGraph, list[float]]:
    """A random graph and seconds a proposal in each block of the last tenth."""
    rng = random.Random(seed)
    graph = ConceptGraph()
    ids, names, depth = [graph.add_seed("seed field")], ["seed field"], [0]
    blocks: list[float] = []
    started = time.process_time()

    def propose(node: str, name: str, relation: str, sure: float) -> str | None:
        document = f"document-{rng.randrange(size)}"
        evidence = (Evidence(document, f"a passage of {document} that speaks of {name}"),)
        return graph.propose(node, Proposal(name, relation, sure, evidence), agent="benchmark")

    def called(i: int) -> str:
        return names[i] + (" too" if i % 10 == 9 and rng.random() < 0.5 else "")

    while len(ids) < size:
        parent = rng.randrange(len(ids))
        name = f"{rng.choice(_WORDS)} {rng.choice(_WORDS)} {rng.choice(_WORDS)} {len(ids):x}"
        found = propose(ids[parent], name, "narrower", rng.uniform(0.5, 1.0))
        assert found is not None
        ids.append(found)
        names.append(name)
        depth.append(depth[parent] + 1)
        if len(ids) % 10 == 0:
            graph.propose(found, Proposal(f"{name} too", "equivalent", 0.9, (Evidence("document", "a passage"),)))
        for _ in range(2):
            fine, coarse = rng.randrange(len(ids)), rng.randrange(len(ids))
            while depth[fine] == depth[coarse]:
                fine, coarse = rng.randrange(len(ids)), rng.randrange(len(ids))
            if depth[fine] < depth[coarse]:
                fine, coarse = coarse, fine
            sure = rng.uniform(0.5, 1.0)
            if rng.random() < 0.05:
                fine, coarse, sure = coarse, fine, rng.uniform(0.0, 0.6)
            if rng.random() < 1 / 3:
                propose(ids[fine], called(coarse), "broader", sure)
            else:
                propose(ids[coarse], called(fine), "narrower", sure)
        if len(ids) % _BLOCK == 0:
            now = time.process_time()
            if len(ids) > 0.9 * size:
                blocks.append((now - started) / (3 * _BLOCK))
            started = now
    return graph, blocks


def measure(size: int, seed: int) -> dict[str, Any]:
    process = psutil.Process()
    before = process.memory_info().rss
    graph, blocks = grow(size, seed)
    found: dict[str, Any] = {
        "nodes": len(graph),
        "edges": graph.digraph.number_of_edges(),
        "rejects": len(graph.rejects),
        "insert_us": round(1e6 * statistics.median(blocks), 2),
        "memory_mb": round((process.memory_info().rss - before) / 2**20, 1),
    }
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        for model in TABLES:
            write_rows(Path(folder, f"{model.TABLE}.parquet"), model, row_streams(graph, "benchmark")[model.TABLE])
        found["save_s"] = round(time.process_time() - started, 2)
        edges = set(graph.digraph.edges)
        rng = random.Random(seed)
        started = time.process_time()
        chosen = rng.sample(list(graph.digraph), 1_000)
        for node in chosen:
            graph.neighbourhood(node)
            graph.lineage(node)
        found["sample_us"] = round(1e6 * (time.process_time() - started) / len(chosen), 1)
        if size <= _EMBEDDED:
            started = time.process_time()
            graph.find_concepts("kabax lodel")
            found["index_s"] = round(time.process_time() - started, 2)
            started = time.process_time()
            for node in chosen[:100]:
                graph.find_concepts(graph.concept(node).name)
            found["find_ms"] = round(1e3 * (time.process_time() - started) / 100, 2)
        del graph
        started = time.process_time()
        again = ConceptGraph.from_rows({m.TABLE: iterate_rows(Path(folder, f"{m.TABLE}.parquet"), m) for m in TABLES})
        found["load_s"] = round(time.process_time() - started, 2)
        assert set(again.digraph.edges) == edges
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.seed)))
        return
    sizes = []
    for size in options.sizes:
        command = [sys.executable, __file__, "--one", str(size), "--seed", str(options.seed)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
        sizes.append(json.loads(done.stdout.splitlines()[-1]))
        print(sizes[-1], file=sys.stderr, flush=True)
    growth = round(sizes[-1]["insert_us"] / sizes[0]["insert_us"], 2)
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(json.dumps({"benchmark": "kg_scale", "machine": machine, "seed": options.seed, "sizes": sizes, "insert_growth": growth}))


if __name__ == "__main__":
    main()
