"""Shards of task synthesis, and what they leave: candidates, their passages, and from which node each was sampled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from environments.errors import ConfigError
from environments.records import MaterialRow, TaskMaterialRow, TaskNodeRow, TaskRow
from environments.tables import read_rows, write_rows
from environments.vault import Vault
from flows.config import RunConfig
from flows.steps import artifacts
from flows.steps.candidates import candidates_file, specs, task_row, write_candidates
from flows.steps.corpus import open_corpus
from flows.steps.graph import load_graph
from flows.steps.shards import StepOutput
from flows.workspace import RunDirectory, StepRecord
from tasks.filters import FilterConfig, filtered
from tasks.sampling import Draw, sample
from tasks.synthesis import synthesize

TABLES: tuple[type[TaskNodeRow] | type[TaskMaterialRow], ...] = (TaskNodeRow, TaskMaterialRow)


def plan_draws(run: RunDirectory, config: RunConfig, corpus: str) -> list[dict[str, Any]]:
    """What is to be written: node, type, level and material of every task, in a fixed order. Raises ConfigError when it is nothing."""
    draws = sample(load_graph(run), open_corpus(run.workspace, corpus), config.synthesis, config.seed)
    if not draws:
        fix = "grow more nodes (graph.max_nodes), index more packages (corpus.packages), or ask for tasks (synthesis.tasks)"
        raise ConfigError("no node of the graph has a document with usable facts", fix)
    return [draw.model_dump(mode="json") for draw in draws]


def synthesize_shard(run: RunDirectory, step: str, corpus: str, draws: list[dict[str, Any]], seed: int) -> StepOutput:
    """Write the shard's tasks. Hidden payloads and references go to the vault, everything else to parts."""
    graph, source, vault = load_graph(run), open_corpus(run.workspace, corpus), Vault(run.vault)
    tasks: dict[str, TaskRow] = {}
    materials: dict[str, MaterialRow] = {}
    nodes: set[tuple[str, str]] = set()
    passages: set[tuple[str, str]] = set()
    unsupported = 0
    for draw in draws:
        candidate = synthesize(Draw.model_validate(draw), graph, source, vault, run.name, seed)
        if candidate is None:
            unsupported += 1
            continue
        task = candidate.task
        tasks.setdefault(task.task_id, task_row(run.name, task, candidate.reject_reason))
        materials |= {row.material_sha256: row for row in candidate.materials}
        nodes |= {(task.task_id, node_id) for node_id in task.provenance.node_ids}
        passages |= {(task.task_id, sha) for sha in task.provenance.material_hashes}
    folder = run.stages / step
    outputs = (
        write_rows(folder / "tasks.parquet", TaskRow, tasks.values()),
        write_rows(folder / "materials.parquet", MaterialRow, materials.values()),
        write_rows(folder / "task_nodes.parquet", TaskNodeRow, [TaskNodeRow(run=run.name, task_id=t, node_id=n) for t, n in sorted(nodes)]),
        write_rows(
            folder / "task_materials.parquet",
            TaskMaterialRow,
            [TaskMaterialRow(run=run.name, task_id=t, material_sha256=m) for t, m in sorted(passages)],
        ),
    )
    return StepOutput(
        outputs,
        {"candidates": len(tasks), "rejected": sum(row.status == "synthesis" for row in tasks.values()), "unsupported": unsupported},
    )


def gather(run: RunDirectory, records: Sequence[StepRecord], filters: FilterConfig) -> StepOutput:
    """Join the shards, and filter what they wrote together. A passage that the graph already holds is not repeated."""
    folders = [run.stages / record.step for record in records]
    tasks = {row.task_id: row for folder in folders for row in read_rows(folder / "tasks.parquet", TaskRow)}
    graph = run.part(MaterialRow.TABLE, "grow")
    known = {row.material_sha256 for row in read_rows(graph, MaterialRow)} if graph.exists() else set()
    materials = {row.material_sha256: row for folder in folders for row in read_rows(folder / "materials.parquet", MaterialRow)}
    links = {(r.task_id, r.material_sha256) for folder in folders for r in read_rows(folder / "task_materials.parquet", TaskMaterialRow)}
    licences: dict[str, list[str]] = {}
    for task_id, sha in sorted(links):
        licences.setdefault(task_id, []).append(materials[sha].licence)
    written = [row for row in tasks.values() if not row.reject_reason]
    for task_id, reason in filtered(specs(written), filters, licences).items():
        tasks[task_id] = tasks[task_id].model_copy(update={"status": "synthesis", "reject_reason": reason})
    outputs = [
        write_candidates(run, list(tasks.values())),
        write_rows(run.part(MaterialRow.TABLE, "synthesize"), MaterialRow, [row for sha, row in materials.items() if sha not in known]),
    ]
    for model in TABLES:
        rows = {
            (row.task_id, tuple(row.model_dump().values())): row
            for folder in folders
            for row in read_rows(folder / f"{model.TABLE}.parquet", model)
        }
        outputs.append(write_rows(run.part(model.TABLE, "synthesize"), model, list(rows.values())))
    # For people and the catalogue until publication decides; not an output, since publication writes it anew.
    write_rows(run.tables / TaskRow.TABLE / "tasks.parquet", TaskRow, list(tasks.values()))
    reasons = [row.reject_reason for row in tasks.values()]
    artifacts.rejects_table(f"{run.name}-synthesis", reasons, "Candidates by what synthesis rejected them for")
    return StepOutput(tuple(outputs), {"candidates": len(tasks), "rejected": sum(bool(reason) for reason in reasons)})


__all__ = ["candidates_file", "gather", "plan_draws", "synthesize_shard"]
