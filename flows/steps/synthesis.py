"""Shards of task synthesis, and what they leave: candidates, their passages, and from which node each was sampled."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from environments.errors import ConfigError
from environments.records import (
    ConstructorRow,
    MaterialRow,
    RejectedCandidateRow,
    RolloutRow,
    ShortfallRow,
    TaskMaterialRow,
    TaskNodeRow,
    TaskRow,
)
from environments.tables import read_rows, write_rows
from environments.vault import Vault
from flows.config import RunConfig
from flows.steps import artifacts
from flows.steps.candidates import candidates_file, specs, task_row, write_candidates
from flows.steps.corpus import open_corpus
from flows.steps.graph import load_graph
from flows.steps.shards import StepOutput
from flows.summary import rows_of
from flows.workspace import RunDirectory, StepRecord
from tasks.constructor import outcomes
from tasks.distribution import Cell, Shortfall
from tasks.filters import FilterConfig, filtered
from tasks.node_sets import Shape
from tasks.sampling import Draw, Sampler
from tasks.synthesis import Candidate, synthesize

log = logging.getLogger(__name__)

TABLES: tuple[type[TaskNodeRow] | type[TaskMaterialRow], ...] = (TaskNodeRow, TaskMaterialRow)
DRAWN = "drawn.parquet"
"""What became of each of a shard's draws."""


def learn(run: RunDirectory, earlier: Sequence[str]) -> list[ConstructorRow]:
    """What became of the generators of earlier runs, and of those that they learnt from. Raises ConfigError when there is none such."""
    history: dict[tuple[str, str], ConstructorRow] = {}
    for name in earlier:
        if name == run.name:
            raise ConfigError(f"the run {run.name!r} cannot learn from itself", "name earlier runs in synthesis.learn_from")
        other = run.workspace.existing(name)
        found = outcomes(run.name, name, rows_of(other, TaskRow), rows_of(other, RolloutRow))
        carried = [row.model_copy(update={"run": run.name}) for row in rows_of(other, ConstructorRow)]
        history |= {(row.learned_run, row.generator): row for row in (*carried, *found)}
    return list(history.values())


def open_sampler(run: RunDirectory, config: RunConfig, corpus: str) -> Sampler:
    """What draws nodes of the run's graph."""
    return Sampler(load_graph(run), open_corpus(run.workspace, corpus), config.synthesis, config.seed)


def first_draws(sampler: Sampler, wanted: Mapping[Cell, int]) -> tuple[list[Draw], list[Shortfall]]:
    """What is to be written first, and what cannot be. Raises ConfigError when it is nothing."""
    draws, lacking = sampler.draw(wanted)
    if not draws:
        fix = "grow more nodes (graph.max_nodes), index more packages (corpus.packages), or ask for tasks (synthesis.tasks)"
        raise ConfigError("no node of the graph has a document with usable facts", fix)
    return draws, lacking


def synthesize_shard(run: RunDirectory, step: str, corpus: str, draws: list[dict[str, Any]], seed: int) -> StepOutput:
    """Write the shard's tasks. Hidden payloads and references go to the vault, everything else to parts."""
    graph, source, vault = load_graph(run), open_corpus(run.workspace, corpus), Vault(run.vault)
    tasks: dict[str, TaskRow] = {}
    materials: dict[str, MaterialRow] = {}
    nodes: set[tuple[str, str]] = set()
    passages: set[tuple[str, str]] = set()
    drawn: list[RejectedCandidateRow] = []
    for given in draws:
        draw = Draw.model_validate(given)
        candidate = synthesize(draw, graph, source, vault, run.name, seed)
        drawn.append(_drawn(run.name, draw, candidate))
        if candidate is None:
            continue
        task = candidate.task
        tasks.setdefault(task.task_id, task_row(run.name, task, candidate.reject_reason))
        materials |= {row.material_sha256: row for row in candidate.materials}
        nodes |= {(task.task_id, node_id) for node_id in task.provenance.node_ids}
        passages |= {(task.task_id, sha) for sha in task.provenance.material_hashes}
    folder = run.stages / step
    outputs = (
        write_rows(folder / DRAWN, RejectedCandidateRow, drawn),
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
        {
            "candidates": len(tasks),
            "rejected": sum(row.status == "synthesis" for row in tasks.values()),
            "unsupported": sum(not row.candidate_id for row in drawn),
        },
    )


def _drawn(run: str, draw: Draw, candidate: Candidate | None) -> RejectedCandidateRow:
    """What became of a draw; without a reason it is no reject yet."""
    return RejectedCandidateRow(
        run=run,
        candidate_id=candidate.task.task_id if candidate else "",
        node_id=draw.node,
        kind=draw.kind,
        level=draw.level,
        shape=draw.shape,
        stage="check" if candidate else "draft",
        reason=candidate.reject_reason if candidate else "the material supports none",
    )


def judge(run: RunDirectory, records: Sequence[StepRecord], filters: FilterConfig) -> tuple[dict[str, TaskRow], list[RejectedCandidateRow]]:
    """The tasks of all shards after the filters, and every draw, with a reason where it led to no task of its own."""
    folders = [run.stages / record.step for record in records]
    tasks = {row.task_id: row for folder in folders for row in read_rows(folder / "tasks.parquet", TaskRow)}
    materials = {row.material_sha256: row for folder in folders for row in read_rows(folder / "materials.parquet", MaterialRow)}
    links = {(r.task_id, r.material_sha256) for folder in folders for r in read_rows(folder / "task_materials.parquet", TaskMaterialRow)}
    licences: dict[str, list[str]] = {}
    for task_id, sha in sorted(links):
        licences.setdefault(task_id, []).append(materials[sha].licence)
    written = [row for row in tasks.values() if not row.reject_reason]
    for task_id, reason in filtered(specs(written), filters, licences).items():
        tasks[task_id] = tasks[task_id].model_copy(update={"status": "synthesis", "reject_reason": reason})
    drawn: list[RejectedCandidateRow] = []
    seen: set[str] = set()
    rows = (row for folder in folders for row in read_rows(folder / DRAWN, RejectedCandidateRow))
    for row in sorted(rows, key=lambda r: (r.candidate_id, r.kind, r.level, r.shape, r.node_id)):
        if row.candidate_id in seen:
            row = row.model_copy(update={"stage": "filter", "reason": f"duplicate: {row.candidate_id} was drawn already"})
        elif row.candidate_id and not row.reason and tasks[row.candidate_id].reject_reason:
            row = row.model_copy(update={"stage": "filter", "reason": tasks[row.candidate_id].reject_reason})
        if row.candidate_id:
            seen.add(row.candidate_id)
        drawn.append(row)
    return tasks, drawn


def missing(wanted: Mapping[Cell, int], drawn: Iterable[RejectedCandidateRow]) -> dict[Cell, int]:
    """How many tasks each cell still lacks."""
    kept = Counter(Cell(row.kind, row.level, cast(Shape, row.shape)) for row in drawn if not row.reason)
    return {cell: count - kept[cell] for cell, count in wanted.items() if count > kept[cell]}


def shortfalls(
    run: str, wanted: Mapping[Cell, int], drawn: Sequence[RejectedCandidateRow], lacking: Iterable[Shortfall]
) -> list[ShortfallRow]:
    """The cells that stayed short, with the commonest reasons."""
    impossible = {one.cell: one.reason for one in lacking}
    rows: list[ShortfallRow] = []
    for cell, short in missing(wanted, drawn).items():
        lost = Counter(
            r.reason.partition(":")[0] for r in drawn if r.reason and (r.kind, r.level, r.shape) == (cell.kind, cell.level, cell.shape)
        )
        reason = impossible.get(cell) or "rejected: " + ", ".join(f"{why} ({n})" for why, n in lost.most_common(3))
        rows.append(
            ShortfallRow(
                run=run,
                kind=cell.kind,
                level=cell.level,
                shape=cell.shape,
                wanted=wanted[cell],
                supplied=wanted[cell] - short,
                reason=reason,
            )
        )
    return rows


def gather(
    run: RunDirectory,
    records: Sequence[StepRecord],
    tasks: Mapping[str, TaskRow],
    drawn: Sequence[RejectedCandidateRow],
    wanted: Mapping[Cell, int],
    lacking: Iterable[Shortfall] = (),
    history: Sequence[ConstructorRow] = (),
) -> StepOutput:
    """Join the shards around what `judge` made of them. A passage that the graph already holds is not repeated."""
    folders = [run.stages / record.step for record in records]
    short = shortfalls(run.name, wanted, drawn, lacking)
    for row in short:
        log.warning("%s level %d %s: %d of %d tasks: %s", row.kind, row.level, row.shape, row.supplied, row.wanted, row.reason)
    graph = run.part(MaterialRow.TABLE, "grow")
    known = {row.material_sha256 for row in read_rows(graph, MaterialRow)} if graph.exists() else set()
    materials = {row.material_sha256: row for folder in folders for row in read_rows(folder / "materials.parquet", MaterialRow)}
    outputs = [
        write_candidates(run, list(tasks.values())),
        write_rows(run.part(MaterialRow.TABLE, "synthesize"), MaterialRow, [row for sha, row in materials.items() if sha not in known]),
        write_rows(run.part(RejectedCandidateRow.TABLE, "synthesize"), RejectedCandidateRow, [row for row in drawn if row.reason]),
        write_rows(run.part(ShortfallRow.TABLE, "synthesize"), ShortfallRow, short),
        write_rows(run.part(ConstructorRow.TABLE, "synthesize"), ConstructorRow, history),
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
    reasons = [row.reason for row in drawn]
    artifacts.rejects_table(f"{run.name}-synthesis", reasons, "Candidates by what synthesis rejected them for")
    cells = [row.model_dump(exclude={"run"}) for row in short]
    artifacts.table(f"{run.name}-shortfalls", cells, "What of the target distribution could not be filled")
    rejected = sum(bool(row.reject_reason) for row in tasks.values())
    return StepOutput(tuple(outputs), {"candidates": len(tasks), "rejected": rejected, "short": sum(r.wanted - r.supplied for r in short)})


__all__ = ["candidates_file", "first_draws", "gather", "judge", "learn", "missing", "open_sampler", "synthesize_shard"]
