"""Flow: sample nodes, retrieve their documents, write candidate tasks, in shards over Dask."""

from __future__ import annotations

import time

from prefect import flow

from flows.context import RunContext, begin
from flows.grow_graph import grow
from flows.steps.artifacts import Progress
from flows.steps.cluster import dask_cluster
from flows.steps.keys import step_key
from flows.steps.shards import cut, run_shards
from flows.workspace import StepRecord
from tasks.constructor import scores
from tasks.sampling import targets


@flow(name="synthesize-tasks", flow_run_name="synthesize {name}", persist_result=True, result_serializer="json")
def synthesize_tasks(
    name: str = "", profile: str = "laptop", config: str | None = None, seed: int | None = None, resume: bool = False
) -> dict[str, int]:
    """Returns the number of candidates; grows the graph first when it is not up to date."""
    context = begin(name, profile, config, seed, resume)
    with dask_cluster(context.config.orchestration, context.run.workspace.data / "dask"):
        grow(context)
        return synthesize(context)


def synthesize(context: RunContext) -> dict[str, int]:
    """The candidates of a run, unless they are up to date."""
    from flows.steps.synthesis import first_draws, gather, judge, learn, missing, open_sampler

    run, config = context.run, context.config

    def do(key: str) -> StepRecord:
        started = time.monotonic()
        corpus = str(context.plan.result("corpus")["corpus"])
        history = learn(run, config.synthesis.learn_from)
        wanted = targets(config.synthesis, scores(history))
        sampler = open_sampler(run, config, corpus)
        draws, lacking = first_draws(sampler, wanted)
        arguments = {"corpus": corpus, "seed": config.seed}
        records: list[StepRecord] = []
        for again in range(config.synthesis.rounds):
            name = f"again-{again}-shard" if again else "shard"
            shards = {
                step: (step_key(step, [key, part], ""), {**arguments, "draws": part})
                for i, part in enumerate(cut([draw.model_dump(mode="json") for draw in draws], config.orchestration.shards))
                for step in [f"synthesize/{name}-{i:04d}"]
            }
            progress = Progress(f"{run.name}-synthesize", "shards of task synthesis")
            records += run_shards(run, "synthesize", shards, "flows.steps.synthesis:synthesize_shard", config.orchestration, progress)
            tasks, drawn = judge(run, records, config.synthesis.filters)
            if again + 1 == config.synthesis.rounds:
                break
            draws, _ = sampler.draw(missing(wanted, drawn))
            if not draws:
                break
        output = gather(run, records, tasks, drawn, wanted, lacking, history)
        return run.finish("synthesize", key, output.outputs, output.result, time.monotonic() - started)

    record = context.ensure("synthesize", do)
    return {"candidates": int(record.result["candidates"]), "rejected": int(record.result["rejected"])}
