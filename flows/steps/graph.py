"""The graph step: waves of readers over Dask, the graph so far saved after each, so that a killed run goes on from there."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from environments.errors import CorruptArtifactError
from environments.records import ROW_MODELS, Row
from environments.tables import read_rows, write_rows
from flows.config import GraphSection
from flows.steps.artifacts import Progress, rejects_table
from flows.steps.corpus import open_corpus
from flows.steps.shards import StepOutput
from flows.workspace import RunDirectory
from kg import ConceptGraph, EmbeddedReader, grow

log = logging.getLogger(__name__)

MODELS: dict[str, type[Row]] = {model.TABLE: model for model in ROW_MODELS}


def grow_step(run: RunDirectory, step: str, corpus: str, graph: dict[str, Any], key: str, dask_address: str) -> StepOutput:
    """Grow from the seeds. Raises UnknownSeedError for a seed that occurs nowhere in the corpus."""
    from distributed import Client

    config = GraphSection.model_validate(graph)
    source = open_corpus(run.workspace, corpus)
    if config.strip_links:
        source = source.without_links()
    saved = run.stages / step / f"waves-{key[:12]}"
    progress = Progress(f"{run.name}-grow", "nodes of the concept graph")

    def on_wave(so_far: ConceptGraph) -> None:
        _save(so_far.to_rows(run.name), lambda table: saved / f"{table}.parquet")
        progress(len(so_far), config.max_nodes)
        log.info("grow: %d nodes", len(so_far))

    with Client(dask_address, set_as_default=False) as client:  # type: ignore[no-untyped-call]
        grown = grow(config.seeds, source, EmbeddedReader(), config, client.get_executor(), graph=_resume(saved), on_wave=on_wave)
    rows = grown.to_rows(run.name)
    outputs = _save(rows, lambda table: run.part(table, step))
    shutil.rmtree(saved, ignore_errors=True)
    rejects = [getattr(row, "reason", "") for row in rows.get("graph_rejects", ())]
    rejects_table(f"{run.name}-graph-rejects", rejects, "Proposals that did not enter the graph")
    return StepOutput(tuple(outputs), {"nodes": len(grown), "rejects": len(rejects)})


def load_graph(run: RunDirectory, step: str = "grow") -> ConceptGraph:
    """The finished graph of a run. Raises CorruptArtifactError naming the part that does not read."""
    return ConceptGraph.from_rows({table: read_rows(path, MODELS[table]) for table in MODELS if (path := run.part(table, step)).exists()})


def _save(rows: Mapping[str, Sequence[Row]], where: Callable[[str], Path]) -> list[Path]:
    return [write_rows(where(table), MODELS[table], list(members)) for table, members in rows.items()]


def _resume(saved: Path) -> ConceptGraph | None:
    tables = {table: saved / f"{table}.parquet" for table in MODELS}
    present = {table: path for table, path in tables.items() if path.exists()}
    if not present:
        return None
    try:
        graph = ConceptGraph.from_rows({table: read_rows(path, MODELS[table]) for table, path in present.items()})
    except CorruptArtifactError as error:
        log.warning("growing anew: %s", error.message)
        return None
    log.info("grow: goes on from %d nodes", len(graph))
    return graph
