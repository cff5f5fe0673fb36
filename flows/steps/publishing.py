"""From checked candidates to a published dataset; and from tables to catalogue, summary and report."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from environments.errors import ConfigError
from environments.records import ProbeRow, TaskRow, ValidationRow
from environments.tables import write_rows
from environments.task import TaskSpec, content_hash
from environments.vault import Vault
from flows.steps import artifacts
from flows.steps.candidates import read_candidates
from flows.steps.hardening import read_repaired
from flows.steps.shards import StepOutput
from flows.summary import rows_of, tasks_by_reason, write_summary
from flows.workspace import RunDirectory, Workspace, write_json

log = logging.getLogger(__name__)


def decide(rows: list[TaskRow], validations: list[ValidationRow], probes: list[ProbeRow]) -> list[TaskRow]:
    """Set each candidate's status: rejected by synthesis, validation or probe, or still a candidate.

    A task without any validation row was not validated, and is rejected; one without a probe row was not attacked, and is
    rejected too.
    """
    failed: dict[str, str] = {}
    for check in validations:
        if not check.ok:
            failed.setdefault(check.task_id, f"{check.check_name}: expected {check.expected}, observed {check.observed}")
    hacked: dict[str, str] = {}
    for attack in probes:
        if attack.succeeded:
            hacked.setdefault(attack.task_id, f"{attack.exploit} passed")
    validated, probed = {row.task_id for row in validations}, {row.task_id for row in probes}

    def decided(row: TaskRow) -> TaskRow:
        if row.status == "synthesis":
            return row
        if row.task_id in failed or row.task_id not in validated:
            return row.model_copy(update={"status": "validation", "reject_reason": failed.get(row.task_id, "no validation was recorded")})
        if row.task_id in hacked or row.task_id not in probed:
            return row.model_copy(update={"status": "probe", "reject_reason": hacked.get(row.task_id, "no probe was recorded")})
        return row

    return [decided(row) for row in rows]


def publish_step(run: RunDirectory, step: str, shares: dict[str, float], seed: int) -> StepOutput:
    """Decide every candidate, split by branch, write the dataset with its manifest last, and the final tasks table."""
    from tasks.dataset import card, publish
    from tasks.split import split_tasks

    probed = run.finished("probe")
    repaired = read_repaired(run, list(probed.outputs)) if probed else []
    decided = decide([*read_candidates(run), *repaired], rows_of(run, ValidationRow), rows_of(run, ProbeRow))
    tasks = [TaskSpec.model_validate_json(row.spec_json) for row in decided if row.status == "candidate"]
    vault = Vault(run.vault)
    split = split_tasks(tasks, lambda task: answers(task, vault), shares=shares, seed=seed)  # type: ignore[arg-type]
    where = {task.task_id: name for name, members in split.by_split().items() for task in members}
    why = {dropped.task.task_id: dropped.reason for dropped in split.dropped}

    def final(row: TaskRow) -> TaskRow:
        if row.status != "candidate":
            return row
        if row.task_id in where:
            return row.model_copy(update={"status": "published", "split": where[row.task_id]})
        return row.model_copy(update={"status": "split", "reject_reason": why.get(row.task_id, "dropped by the split")})

    rows = [final(row) for row in decided]
    dropped = Counter(row.status for row in rows if row.status != "published")
    by_split: dict[str, tuple[TaskSpec, ...]] = {str(name): members for name, members in split.by_split().items()}
    git = json.loads((run.root / "git.json").read_text())
    grown = run.finished("grow")
    manifest = publish(
        by_split,
        run.dataset,
        graph_version=(grown.content if grown else "")[:16],
        code_version=str(git["commit"])[:16],
        dropped=dict(dropped),
    )
    table = write_rows(run.tables / TaskRow.TABLE / "tasks.parquet", TaskRow, rows)
    counts = {name: len(members) for name, members in by_split.items()}
    artifacts.markdown(f"{run.name}-dataset-card", card(manifest), "Dataset card")
    rejected = [
        {"stage and reason": reason, "tasks": count} for reason, count in sorted(tasks_by_reason(rows).items(), key=lambda kv: -kv[1])[:50]
    ]
    artifacts.table(f"{run.name}-rejected-tasks", rejected, "Candidates that were not published")
    outputs = [run.dataset / "manifest.json", *(run.dataset / shard.file for shard in manifest.shards), table]
    return StepOutput(tuple(outputs), {"dataset_version": manifest.dataset_version, **counts})


SEALED = "SET enable_external_access = false"
"""A query sees the tables and no other file of the machine."""


def select_step(run: RunDirectory, step: str, query: str) -> StepOutput:
    """Ask the run's tables which training tasks RL uses; the query and its answer stay with the run.

    Raises:
        ConfigError: the query does not run, or names no published training task.
    """
    from tasks.catalog import load_run

    connection = load_run(run.root)
    try:
        connection.execute(SEALED)
        named = {str(row[0]) for row in connection.execute(query).fetchall()}
    except Exception as error:
        raise ConfigError(
            f"selection.query does not run: {error}", "correct it; the tables and views are those of the catalogue"
        ) from error
    finally:
        connection.close()
    published = [row.task_id for row in rows_of(run, TaskRow) if row.status == "published" and row.split == "train"]
    chosen = sorted(task_id for task_id in published if task_id in named)
    if not chosen:
        raise ConfigError("selection.query names no published training task", "widen it, or remove it to use them all")
    file = write_json(run.training / "selection.json", {"query": query, "task_ids": chosen})
    return StepOutput((file,), {"tasks": len(chosen)})


def answers(task: TaskSpec, vault: Vault) -> set[str]:
    """What must not recur across splits: what the reference solution hands in or writes, with the type of task."""
    calls = [call for message in vault.get_reference(task.reference_sha256) for call in message.calls]
    given = [[call.tool, call.arguments] for call in calls if call.tool in ("submit", "set", "record") and call.arguments]
    return {content_hash([task.kind, given])}


class Outputs:
    """What a run leaves for people: where it lies."""

    def __init__(self, run: RunDirectory, summary: Mapping[str, Any]) -> None:
        self.summary = summary
        self.report = run.report
        self.catalog = run.workspace.catalog


def write_outputs(run: RunDirectory) -> Outputs:
    """Summary, catalogue and report of a run, from its tables alone.

    Raises:
        CorruptArtifactError: a table's part does not read.
    """
    summary = write_summary(run)
    build_catalog(run.workspace)
    from flows.report import write_report

    write_report(run.root)
    return Outputs(run, summary)


def build_catalog(workspace: Workspace) -> Path:
    """Build and swap in the catalogue over all runs; a run whose parts do not read is left out, with a warning."""
    from tasks.catalog import build_catalog as build

    warnings: list[str] = []
    path = build(workspace.root, skip_corrupt=True, warnings=warnings)
    for warning in warnings:
        log.warning("%s", warning)
    return path


def ask_catalog(workspace: Workspace, query: str) -> list[str]:
    """Rows of a query as tab-separated lines, the column names first. Raises ConfigError for SQL that does not run."""
    from tasks.catalog import open_catalog

    connection = open_catalog(workspace.catalog)
    try:
        connection.execute(SEALED)
        result = connection.execute(query)
        names = [column[0] for column in result.description or ()]
        return ["\t".join(map(str, row)) for row in [names, *result.fetchall()]]
    except Exception as error:
        raise ConfigError(f"the query does not run: {error}", "`from catalog_guide` or docs/catalog.md shows tables and views") from error
    finally:
        connection.close()
