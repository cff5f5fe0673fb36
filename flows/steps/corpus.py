"""The corpus step: documents of this machine, indexed once per configuration and shared by all runs of a workspace."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from environments.errors import CorruptArtifactError
from environments.search import Corpus, CorpusConfig, build_corpus
from environments.task import content_hash
from flows.steps.shards import StepOutput
from flows.workspace import RunDirectory, Workspace, write_json

log = logging.getLogger(__name__)


def corpus_dir(workspace: Workspace, config: CorpusConfig) -> Path:
    """Where the corpus of a configuration lies."""
    return workspace.corpora / content_hash(config)[:16]


def index_documents(run: RunDirectory, step: str, corpus: str, config: dict[str, object]) -> StepOutput:
    """Build the corpus, or find it whole and unchanged; its content hash is the input of what follows."""
    # Packages are parsed side by side; fresh processes, because the flow's own has threads.
    with ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=get_context("spawn")) as executor:
        built = build_corpus(Path(corpus), CorpusConfig.model_validate(config), executor)
    figures = {"corpus": Path(corpus).name, "content_hash": built.content_hash, "documents": len(built)}
    return StepOutput((write_json(run.stages / step / "corpus.json", figures),), figures)


def open_corpus(workspace: Workspace, name: str) -> Corpus:
    """The corpus a finished corpus step names. Raises CorruptArtifactError when it is gone or damaged."""
    return Corpus.load(workspace.corpora / name)


def open_or_forget(run: RunDirectory) -> None:
    """Forget a finished corpus step whose corpus is gone or damaged, so that it is indexed again."""
    record = run.finished("corpus")
    if record is None:
        return
    try:
        open_corpus(run.workspace, str(record.result["corpus"]))
    except CorruptArtifactError as error:
        log.warning("indexing again: %s", error.message)
        run.step_file("corpus").unlink()
