"""Flow: distil the nine experts into one student."""

from __future__ import annotations

from typing import Any

from prefect import flow

from environments.errors import ConfigError
from flows.context import RunContext, begin
from flows.stages import GROUPS
from flows.steps.training import do_training


@flow(name="distill-student", flow_run_name="distill {name}", persist_result=True, result_serializer="json")
def distill_student(
    name: str = "", profile: str = "laptop", config: str | None = None, seed: int | None = None, resume: bool = False
) -> dict[str, Any]:
    """Distil unless it is up to date; the experts must be trained."""
    context = begin(name, profile, config, seed, resume)
    need_experts(context)
    return distill(context)


def need_experts(context: RunContext) -> None:
    """Raise ConfigError unless cold start and all nine experts are up to date."""
    missing = [stage for stage in GROUPS["train"] if context.plan.record(stage) is None]
    if missing:
        raise ConfigError(f"not trained yet: {', '.join(missing)}", f"`ninefold train --name {context.run.name} --resume` trains them")


def distill(context: RunContext) -> dict[str, Any]:
    """The student of a run, unless it is up to date."""
    record = context.ensure("distill", lambda key: do_training(context.run, "distill", key, context.config))
    return {k: v for k, v in record.result.items() if isinstance(v, int | float | str)}
