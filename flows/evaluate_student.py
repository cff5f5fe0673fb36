"""Flow: evaluate cold start, experts, student and trivial policies on held-out tasks; then summary, catalogue and report."""

from __future__ import annotations

from typing import Any

from prefect import flow

from environments.errors import ConfigError
from flows.context import RunContext, begin, flow_run_url, record_run
from flows.distill_student import need_experts
from flows.steps import artifacts
from flows.steps.publishing import write_outputs
from flows.steps.training import do_training


@flow(name="evaluate-student", flow_run_name="evaluate {name}", persist_result=True, result_serializer="json")
def evaluate_student(
    name: str = "", profile: str = "laptop", config: str | None = None, seed: int | None = None, resume: bool = False
) -> dict[str, Any]:
    """Evaluate unless it is up to date, and write what people read; the student must be trained."""
    context = begin(name, profile, config, seed, resume)
    need_experts(context)
    if context.plan.record("distill") is None:
        raise ConfigError("the student is not trained yet", f"`ninefold distill --name {context.run.name} --resume` trains it")
    return evaluate(context)


def evaluate(context: RunContext) -> dict[str, Any]:
    """Evaluation, then summary, catalogue and report. Returns the summary."""
    run = context.run
    context.ensure("evaluate", lambda key: do_training(run, "evaluate", key, context.config))
    record_run(context, "finished", prefect_run_url=flow_run_url())
    outputs = write_outputs(run)
    artifacts.table(f"{run.name}-experts", list(outputs.summary["experts"]), "Nine experts: pass@1 within the budget, before and after")
    artifacts.table(f"{run.name}-student", list(outputs.summary["student"]), "The student in the nine cells")
    artifacts.link(f"{run.name}-report", run.report.as_uri(), "Offline report of the run")
    return dict(outputs.summary)
