"""The parent flow: the whole way from documents to an evaluated student."""

from __future__ import annotations

from typing import Any

from prefect import flow

from flows.context import begin, flow_run_url, record_run
from flows.distill_student import distill_student
from flows.evaluate_student import evaluate_student
from flows.grow_graph import grow_graph
from flows.harden_environments import harden_environments
from flows.steps.cluster import dask_cluster
from flows.synthesize_tasks import synthesize_tasks
from flows.train_experts import train_experts


@flow(name="post-train", flow_run_name="run {name}", persist_result=True, result_serializer="json")
def post_train(
    name: str = "", profile: str = "laptop", config: str | None = None, seed: int | None = None, resume: bool = False
) -> dict[str, Any]:
    """Every stage as a flow of its own; what is up to date is not done again. Returns the summary."""
    context = begin(name, profile, config, seed, resume)
    record_run(context, "running", prefect_run_url=flow_run_url())
    again: dict[str, Any] = {"name": context.run.name, "profile": profile, "config": config, "seed": seed, "resume": True}
    try:
        # One cluster for the three stages that use it; it is gone before training wants the cores.
        with dask_cluster(context.config.orchestration, context.run.workspace.data / "dask"):
            grow_graph(**again)
            synthesize_tasks(**again)
            harden_environments(**again)
        train_experts(**again)
        distill_student(**again)
        summary: dict[str, Any] = evaluate_student(**again)
        return summary
    except BaseException:
        record_run(context, "failed", prefect_run_url=flow_run_url())
        raise
