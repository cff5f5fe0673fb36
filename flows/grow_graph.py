"""Flow: index the documents, grow the concept graph."""

from __future__ import annotations

import contextlib
from typing import Any

from prefect import flow

from flows.context import RunContext, begin
from flows.steps.cluster import dask_cluster
from flows.steps.shards import do_step
from flows.workspace import StepRecord


@flow(name="grow-graph", flow_run_name="grow {name}", retries=0, persist_result=True, result_serializer="json")
def grow_graph(
    name: str = "",
    profile: str = "laptop",
    config: str | None = None,
    seed: int | None = None,
    resume: bool = False,
    options: dict[str, Any] | None = None,
) -> dict[str, int]:
    """Returns the number of documents and nodes. `options` are keys of the configuration that win over the file's."""
    return grow(begin(name, profile, config, seed, resume, options))


def grow(context: RunContext) -> dict[str, int]:
    """The corpus and the graph of a run, each unless it is up to date."""
    from flows.steps.corpus import corpus_dir, open_or_forget

    run, config = context.run, context.config
    open_or_forget(run)
    where = str(corpus_dir(run.workspace, config.corpus))
    corpus = context.ensure(
        "corpus",
        lambda key: do_step(
            run,
            "corpus",
            key,
            "flows.steps.corpus:index_documents",
            {"corpus": where, "config": config.corpus.model_dump(mode="json")},
            config.orchestration,
        ),
    )

    def do(key: str) -> StepRecord:
        graph = config.graph
        # A language model's readers wait for its endpoint: they are threads of this process and need no cluster.
        embedded = graph.brain.kind == "embedded"
        cluster = dask_cluster(config.orchestration, run.workspace.data / "dask") if embedded else contextlib.nullcontext("")
        with cluster as address:
            arguments = {"corpus": corpus.result["corpus"], "graph": graph.model_dump(mode="json"), "key": key, "dask_address": address}
            return do_step(run, "grow", key, "flows.steps.graph:grow_step", arguments, config.orchestration)

    graph = context.ensure("grow", do)
    return {"documents": int(corpus.result["documents"]), "nodes": int(graph.result["nodes"])}
