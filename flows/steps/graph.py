"""The graph step: waves of readers over Dask, with a journal of finished readings, so that a killed run loses only those in flight."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from environments.errors import ConfigError
from environments.protocols import Brain, SearchSource
from environments.search.web import open_sources
from environments.tables import iterate_rows, write_rows
from environments.task import content_hash
from flows.config import GraphSection
from flows.steps.artifacts import Progress, rejects_table
from flows.steps.corpus import open_corpus
from flows.steps.keys import stage_code
from flows.steps.shards import StepOutput
from flows.workspace import RunDirectory
from kg import ConceptGraph, grow
from kg.brain import make_brain
from kg.budget import Ledger
from kg.journal import Journal
from kg.rows import TABLES, row_streams

log = logging.getLogger(__name__)

_TRANSPORT = frozenset({"endpoint", "api_key_env", "timeout_s", "retries", "parallel"})
"""Settings of a language model that do not change what it reads."""


def grow_step(run: RunDirectory, step: str, corpus: str, graph: dict[str, Any], key: str, dask_address: str) -> StepOutput:
    """Grow from the seeds, or from what another run's graph left open. Without a Dask address the readers are threads here.

    Raises:
        UnknownSeedError: the corpus speaks of none of the seeds.
        ConfigError: the run to continue from is this one or has no graph, or a language model's endpoint refuses us.
    """
    config = GraphSection.model_validate(graph)
    source = _source(run, corpus, config)
    brain = make_brain(config.brain)
    progress = Progress(f"{run.name}-grow", "nodes of the concept graph")
    ledger = Ledger()

    def on_wave(so_far: ConceptGraph) -> None:
        progress(len(so_far), config.max_nodes)
        log.info("grow: %d nodes, %d readings", len(so_far), ledger.readings)

    base = _base(run, config)
    with _executor(dask_address) as executor, Journal(_journal(run, step, config, brain), brain, source) as journal:
        if len(journal):
            log.info("grow: %d readings are there already", len(journal))
        grown = grow(config.seeds, source, brain, config, executor, base, on_wave, journal, ledger)
    rows = row_streams(grown, run.name)
    outputs = [write_rows(run.part(model.TABLE, step), model, rows[model.TABLE]) for model in TABLES]
    rejects = [reject.reason for reject in grown.rejects]
    rejects_table(f"{run.name}-graph-rejects", rejects, "Proposals that did not enter the graph")
    return StepOutput(tuple(outputs), _figures(grown, rejects, brain, ledger))


def load_graph(run: RunDirectory, step: str = "grow") -> ConceptGraph:
    """The finished graph of a run. Raises CorruptArtifactError naming the part that does not read."""
    parts = {model: run.part(model.TABLE, step) for model in TABLES}
    return ConceptGraph.from_rows({model.TABLE: iterate_rows(path, model) for model, path in parts.items() if path.exists()})


def _source(run: RunDirectory, corpus: str, config: GraphSection) -> SearchSource:
    """The corpus, and what is retrieved beside it; its cache is shared by all runs of the workspace."""
    local = open_corpus(run.workspace, corpus)
    if config.strip_links:
        local = local.without_links()
    if config.retrieval.empty:
        return local
    return open_sources(config.retrieval, run.workspace.data / "retrieved", local=(local,))


def _base(run: RunDirectory, config: GraphSection) -> ConceptGraph | None:
    if not config.continue_from:
        return None
    if config.continue_from == run.name:
        raise ConfigError(
            f"the run {run.name!r} cannot continue from itself", "give the new run another --name, or raise --nodes and --resume"
        )
    earlier = run.workspace.existing(config.continue_from)
    if earlier.finished("grow") is None:
        raise ConfigError(f"the run {config.continue_from!r} has no finished graph", "finish it with `ninefold grow --resume`")
    graph = load_graph(earlier)
    log.info("grow: goes on from %d nodes of %s, %d of them open", len(graph), earlier.name, len(graph.frontier()))
    return graph


@contextlib.contextmanager
def _executor(dask_address: str) -> Iterator[Executor | None]:
    if not dask_address:
        yield None
        return
    from distributed import Client

    with Client(dask_address, set_as_default=False) as client:  # type: ignore[no-untyped-call]
        yield client.get_executor()


def _journal(run: RunDirectory, step: str, config: GraphSection, brain: Brain) -> Path:
    """One file for all growths of the run whose readings would be the same: a larger one does not read again what a smaller one read."""
    settings = config.brain.model_dump(mode="json", exclude=set(_TRANSPORT))
    code = stage_code("grow") if config.brain.kind == "embedded" else ""
    return run.stages / step / f"readings-{content_hash([brain.name, settings, code])[:12]}.jsonl"


def _figures(graph: ConceptGraph, rejects: Sequence[str], brain: Brain, ledger: Ledger) -> dict[str, Any]:
    concepts = list(graph)
    below = Counter(graph.concept([c.concept_id, *graph.lineage(c.concept_id)][-1]).name for c in concepts if not c.seed)
    return {
        "nodes": len(graph),
        "edges": graph.digraph.number_of_edges(),
        "seeds": sum(c.seed for c in concepts),
        "atomic": sum(c.atomic for c in concepts),
        "open": sum(c.open for c in concepts),
        "levels": 1 + max(graph.levels().values(), default=0),
        "by_seed": {graph.concept(seed).name: below[graph.concept(seed).name] for seed in graph.seeds()},
        "unknown_seeds": [c.name for c in concepts if c.seed and not c.evidence],
        "brain": brain.name,
        "readings": ledger.readings,
        "failed": ledger.failed,
        "searches": ledger.searches,
        "tokens": ledger.tokens,
        "merged": ledger.merged,
        "stops": [str(stop) for stop in ledger.stops],
        "rejects": len(rejects),
        "rejects_by_reason": dict(Counter(reason.partition(":")[0] for reason in rejects).most_common()),
    }
