"""Flows: validate every candidate by execution, attack what is valid, publish what withstands."""

from __future__ import annotations

import time
from collections.abc import Callable

from prefect import flow

from environments.records import ProbeRow, ValidationRow
from flows.context import RunContext, begin
from flows.grow_graph import grow
from flows.publish_dataset import publish
from flows.steps import artifacts
from flows.steps.candidates import read_candidates
from flows.steps.cluster import dask_cluster
from flows.steps.keys import step_key
from flows.steps.shards import cut, run_shards
from flows.summary import rows_of, validated
from flows.synthesize_tasks import synthesize
from flows.workspace import StepRecord


@flow(name="validate-tasks", flow_run_name="validate {name}", persist_result=True, result_serializer="json")
def validate_tasks(
    name: str = "", profile: str = "laptop", config: str | None = None, seed: int | None = None, resume: bool = False
) -> dict[str, int]:
    """Returns how many tasks were checked and how many are valid; what comes before runs first when it is not up to date."""
    context = begin(name, profile, config, seed, resume)
    with dask_cluster(context.config.orchestration, context.run.workspace.data / "dask"):
        grow(context)
        synthesize(context)
        return validate(context)


@flow(name="harden-environments", flow_run_name="harden {name}", persist_result=True, result_serializer="json")
def harden_environments(
    name: str = "", profile: str = "laptop", config: str | None = None, seed: int | None = None, resume: bool = False
) -> dict[str, int]:
    """Validate, probe and publish; returns the counts."""
    context = begin(name, profile, config, seed, resume)
    with dask_cluster(context.config.orchestration, context.run.workspace.data / "dask"):
        grow(context)
        synthesize(context)
        counts = validate(context) | probe(context)
    return counts | publish(context)


def validate(context: RunContext) -> dict[str, int]:
    """Validation of all candidates that synthesis did not reject."""

    def ids() -> list[str]:
        return [row.task_id for row in read_candidates(context.run) if row.status == "candidate"]

    record = context.ensure("validate", lambda key: _sharded(context, "validate", key, ids(), "flows.steps.hardening:validate_shard"))
    rejected = [
        f"{row.check_name}: expected {row.expected}, observed {row.observed}" for row in rows_of(context.run, ValidationRow) if not row.ok
    ]
    artifacts.rejects_table(f"{context.run.name}-validation", rejected, "Validation checks that did not come out as they must")
    return {"tasks": int(record.result["tasks"]), "valid": int(record.result["valid"])}


def probe(context: RunContext) -> dict[str, int]:
    """Exploit probes of all valid tasks."""

    def ids() -> list[str]:
        valid = validated(context.run)
        return [row.task_id for row in read_candidates(context.run) if row.task_id in valid]

    record = context.ensure("probe", lambda key: _sharded(context, "probe", key, ids(), "flows.steps.hardening:probe_shard"))
    hacked = [row.exploit for row in rows_of(context.run, ProbeRow) if row.succeeded]
    artifacts.rejects_table(f"{context.run.name}-probes", hacked, "Exploits that got a pass")
    return {"probed": int(record.result["tasks"]), "hacked": int(record.result["hacked"])}


def _sharded(context: RunContext, stage: str, key: str, task_ids: list[str], function: str) -> StepRecord:
    run, config = context.run, context.config
    started = time.monotonic()
    arguments = {"corpus": context.plan.result("corpus")["corpus"], "config": config.hardening.model_dump(mode="json")}
    shards = {
        step: (step_key(step, [key, part], ""), {**arguments, "task_ids": part})
        for i, part in enumerate(cut(task_ids, config.orchestration.shards))
        for step in [f"{stage}/shard-{i:04d}"]
    }
    progress: Callable[[int, int], None] = artifacts.Progress(f"{run.name}-{stage}", f"shards of {stage}")
    records = run_shards(run, stage, shards, function, config.orchestration, progress)
    outputs = [run.root / path for record in records for path in record.outputs]
    run.drop_stale_parts(stage, outputs)
    totals: dict[str, int] = {}
    for record in records:
        for name, count in record.result.items():
            totals[name] = totals.get(name, 0) + int(count)
    return run.finish(stage, key, outputs, {"tasks": 0, "valid": 0, "hacked": 0} | totals, time.monotonic() - started)
