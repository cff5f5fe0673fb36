"""The Prefect task that supervises a training process: a kill costs a retry that resumes, wrong input costs none."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

from environments.errors import CorruptArtifactError, InputError
from environments.records import CheckpointRow, MetricRow
from environments.tables import read_rows
from flows.steps import training
from flows.steps.training import checkpoint_tables, metrics_table, read_done, train_step
from flows.workspace import RunDirectory, Workspace

ROOT = Path(__file__).parents[2]
STAGE = "expert-coding-max"


@flow(name="test-training")
def train(run_dir: str, key: str) -> dict[str, Any]:
    task = train_step.with_options(retries=2, retry_delay_seconds=0.1, refresh_cache=True)
    result: dict[str, Any] = task(run_dir=run_dir, step=STAGE, key=key, timeout_s=60.0, module="tests.flows.fake_stage")
    return result


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    run = Workspace(tmp_path).run("r")
    run.root.mkdir(parents=True)
    return run


def starts(run: RunDirectory) -> list[int]:
    return [int(line.split()[0]) for line in (run.training / STAGE / "starts.txt").read_text().splitlines()]


@pytest.mark.prefect
@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
class TestUnderPrefect:
    def test_kill_9_is_retried_and_resumes_and_a_second_flow_does_nothing(self, run: RunDirectory) -> None:
        (run.root / "order.json").write_text(json.dumps({"kill_at": 3}))
        assert train(str(run.root), "key")["checkpoint_id"] == f"of-{STAGE}"
        assert starts(run) == [0, 4]
        train(str(run.root), "key")
        assert starts(run) == [0, 4]
        rows = read_rows(run.part(MetricRow.TABLE, STAGE), MetricRow)
        assert [(row.step, row.name) for row in rows] == [(step, "loss") for step in range(6)]
        sealed = read_rows(run.part(CheckpointRow.TABLE, f"{STAGE}-sealed"), CheckpointRow)
        assert [(row.checkpoint_id, row.stage, row.path) for row in sealed] == [(f"of-{STAGE}", "expert", f"runs/r/training/{STAGE}/final")]

    def test_another_key_starts_from_nothing(self, run: RunDirectory) -> None:
        train(str(run.root), "key")
        train(str(run.root), "another")
        assert starts(run) == [0]  # the folder with its notes was new

    def test_wrong_input_is_raised_at_once(self, run: RunDirectory) -> None:
        (run.root / "order.json").write_text(json.dumps({"exit_at": 1, "code": 2}))
        with pytest.raises(InputError, match="no tasks"):
            train(str(run.root), "key")
        assert starts(run) == [0]

    def test_progress_is_an_artifact(self, run: RunDirectory) -> None:
        train(str(run.root), "key")
        with get_client(sync_client=True) as client:
            wanted = ArtifactFilter(key=ArtifactFilterKey(any_=["r-expert-coding-max"]))
            found = client.read_artifacts(artifact_filter=wanted)
        assert found
        assert max(float(artifact.data) for artifact in found) == 100.0


def test_metrics_written_twice_after_a_resume_count_once(run: RunDirectory) -> None:
    where = run.training / "cold_start"
    where.mkdir(parents=True)
    (where / "metrics.jsonl").write_text(
        '{"step": 0, "loss": 3}\n{"step": 1, "loss": 2}\n{"step": 1, "loss": 1.5}\nrubbish\n{"step": 2, "lo'
    )
    rows = read_rows(metrics_table(run, "cold_start"), MetricRow)
    assert [(row.step, row.value) for row in rows] == [(0, 3.0), (1, 1.5)]


def test_a_process_that_left_no_seal_is_named(run: RunDirectory) -> None:
    where = run.training / "cold_start"
    with pytest.raises(CorruptArtifactError, match=r"done\.json"):
        read_done(where)
    where.mkdir(parents=True)
    (where / "done.json").write_text("[1]")
    with pytest.raises(CorruptArtifactError, match="not a JSON object"):
        read_done(where)


def test_the_tasks_that_fed_a_checkpoint_are_rows(run: RunDirectory) -> None:
    done = {"checkpoint_id": "c", "parent_id": "p", "steps": 3, "domain": "coding", "effort": "max", "fed": {"b": 2, "a": 1}}
    checkpoint, fed = checkpoint_tables(run, STAGE, done)
    assert read_rows(checkpoint, CheckpointRow)[0].parent_id == "p"
    rows = read_rows(fed, training.CheckpointTaskRow)
    assert [(row.task_id, row.episodes) for row in rows] == [("a", 1), ("b", 2)]
    assert checkpoint_tables(run, "budgets", {"b0": 1}) == []


def test_parts_of_one_stage_are_not_those_of_another(run: RunDirectory) -> None:
    for name in ("expert-coding-max", "expert-coding-max-0003", "expert-coding-max-sealed", "expert-coding-maximum", "cold_start"):
        path = run.tables / "rollouts" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert {path.stem for path in training.own_parts(run, "expert-coding-max")} == {"expert-coding-max", "expert-coding-max-0003"}
