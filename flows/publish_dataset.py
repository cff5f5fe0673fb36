"""Flow: split what withstood by graph branch and publish it, the manifest last."""

from __future__ import annotations

from prefect import flow

from environments.errors import ConfigError
from flows.context import RunContext, begin, flow_run_url, record_run
from flows.steps.shards import do_step


@flow(name="publish-dataset", flow_run_name="publish {name}", persist_result=True, result_serializer="json")
def publish_dataset(
    name: str = "", profile: str = "laptop", config: str | None = None, seed: int | None = None, resume: bool = False
) -> dict[str, int]:
    """Returns the number of tasks by split. Raises ConfigError while the run is not validated and probed."""
    return publish(begin(name, profile, config, seed, resume))


def publish(context: RunContext) -> dict[str, int]:
    """The dataset of a run, unless it is up to date.

    Raises:
        ConfigError: nothing withstood, or the run is not probed yet.
    """
    run, config = context.run, context.config
    arguments = {"shares": config.dataset.model_dump(), "seed": config.seed}
    record = context.ensure(
        "publish", lambda key: do_step(run, "publish", key, "flows.steps.publishing:publish_step", arguments, config.orchestration)
    )
    record_run(context, "running", str(record.result["dataset_version"]), flow_run_url())
    counts = {split: int(record.result[split]) for split in ("train", "validation", "heldout")}
    if not all(counts.values()):
        empty = ", ".join(split for split, count in counts.items() if not count)
        raise ConfigError(
            f"no task is left for: {empty}",
            "grow more nodes (graph.max_nodes), write more tasks (synthesis), or change the shares (dataset)",
        )
    return counts
