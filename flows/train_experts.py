"""Flow: the cold start, then nine experts, each in a supervised process of its own, a few at a time."""

from __future__ import annotations

from queue import SimpleQueue
from typing import Any

from prefect import flow
from prefect.futures import PrefectFuture
from prefect.task_runners import ThreadPoolTaskRunner

from environments.errors import ConfigError, InputError
from flows.context import RunContext, begin
from flows.stages import EXPERTS, expert
from flows.steps import training
from flows.steps.shards import do_step
from flows.steps.training import configured, do_training


@flow(name="train-experts", flow_run_name="train {name}", persist_result=True, result_serializer="json")
def train_experts(
    name: str = "", profile: str = "laptop", config: str | None = None, seed: int | None = None, resume: bool = False
) -> dict[str, Any]:
    """Train what is not up to date; the dataset must be published."""
    context = begin(name, profile, config, seed, resume)
    need_dataset(context)
    return train(context)


def need_dataset(context: RunContext) -> None:
    """Raise ConfigError unless the run's dataset is published and up to date."""
    if context.plan.record("publish") is None:
        raise ConfigError(
            f"the run {context.run.name!r} has no dataset that is up to date",
            f"`ninefold probe --name {context.run.name} --resume` grows, writes, checks and publishes one",
        )


def train(context: RunContext) -> dict[str, Any]:
    """Cold start and budgets first; then the experts."""
    run, config = context.run, context.config
    query = {"query": config.selection.query}
    context.ensure("select", lambda key: do_step(run, "select", key, "flows.steps.publishing:select_step", query, config.orchestration))
    done: dict[str, Any] = {"cold_start": context.ensure("cold_start", lambda key: do_training(run, "cold_start", key, config)).result}
    done["budgets"] = context.ensure("budgets", lambda key: do_training(run, "budgets", key, config)).result
    _experts(context)
    done |= {expert(d, e): context.plan.result(expert(d, e)) for d, e in EXPERTS}
    return {stage: {k: v for k, v in result.items() if isinstance(v, int | float | str)} for stage, result in done.items()}


def _experts(context: RunContext) -> None:
    """Train the experts that are not up to date, as many at a time as configured, each as soon as what it starts from is there.

    All that can be trained are, before the first failure is raised.
    """
    o = context.config.orchestration
    waiting = [stage for stage in (expert(d, e) for d, e in EXPERTS) if context.plan.record(stage) is None]
    ended: SimpleQueue[PrefectFuture[Any]] = SimpleQueue()
    running, failure = 0, None
    with ThreadPoolTaskRunner(max_workers=o.trainer_processes) as runner:  # type: ignore[var-annotated]
        task = configured(context.config)
        while True:
            ready = {stage: key for stage in waiting if (key := context.plan.key(stage))}
            for stage, key in ready.items():
                step = {
                    "run_dir": str(context.run.root),
                    "step": stage,
                    "key": key,
                    "timeout_s": o.trainer_timeout_s,
                    "module": training.MODULE,
                }
                runner.submit(task, step).add_done_callback(ended.put)
            waiting, running = [stage for stage in waiting if stage not in ready], running + len(ready)
            if not running:
                break
            try:
                ended.get().result()
            except Exception as error:  # noqa: BLE001 - kept, and raised below when the others are through
                failure = error if failure is None or isinstance(error, InputError) else failure
            running -= 1
    if failure is not None:
        raise failure
