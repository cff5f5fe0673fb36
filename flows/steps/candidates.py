"""Candidate tasks between synthesis and publication: one Parquet file a run, read by shards."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from environments.records import TaskRow
from environments.resources import Resources
from environments.sandbox import CodePool
from environments.tables import read_rows, write_rows
from environments.task import TaskSpec, canonical_json
from environments.vault import Vault
from flows.steps.corpus import open_corpus
from flows.workspace import RunDirectory

log = logging.getLogger(__name__)


def candidates_file(run: RunDirectory) -> Path:
    """Where synthesis leaves all candidates of a run."""
    return run.stages / "synthesize" / "candidates.parquet"


def task_row(run: str, task: TaskSpec, reject_reason: str = "") -> TaskRow:
    """The row of a candidate; one that synthesis rejected keeps the reason."""
    return TaskRow(
        run=run,
        task_id=task.task_id,
        family=task.family,
        domain=task.domain,
        kind=task.kind,
        level=task.level,
        branch=task.provenance.branch,
        split="",
        status="synthesis" if reject_reason else "candidate",
        reject_reason=reject_reason,
        prompt="\n".join(m.content for m in task.prompt if m.role == "user"),
        spec_json=canonical_json(task),
        verifier_kind=task.hidden_verifier.kind,
        verifier_sha256=task.hidden_verifier.sha256,
        verifier_version=task.hidden_verifier.version,
        synthesizer=task.provenance.synthesizer,
        synthesizer_version=task.provenance.synthesizer_version,
        licence=task.licence,
    )


def read_candidates(run: RunDirectory) -> list[TaskRow]:
    """All candidates, rejected ones included. Raises CorruptArtifactError."""
    return read_rows(candidates_file(run), TaskRow)


def write_candidates(run: RunDirectory, rows: Sequence[TaskRow]) -> Path:
    """Write all candidates of a run."""
    return write_rows(candidates_file(run), TaskRow, rows)


def specs(rows: Sequence[TaskRow]) -> list[TaskSpec]:
    """The tasks of rows."""
    return [TaskSpec.model_validate_json(row.spec_json) for row in rows]


@contextmanager
def resources(run: RunDirectory, corpus: str) -> Iterator[Resources]:
    """What environments and verifiers need in one worker process: the corpus, one sandbox for code, the vault."""
    with Resources(vault=Vault(run.vault), corpus=open_corpus(run.workspace, corpus), pool=CodePool(workers=1)) as shared:
        yield shared
