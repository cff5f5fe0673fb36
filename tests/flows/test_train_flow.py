"""The training flows from the published dataset on, with a stand-in for the training process that is killed once in every stage."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest

from environments.errors import ConfigError
from flows.config import RunConfig, load_config
from flows.distill_student import distill_student
from flows.evaluate_student import evaluate_student
from flows.stages import EXPERTS, GROUPS, Plan, expert
from flows.steps import training
from flows.train_experts import train_experts
from flows.workspace import RunDirectory, Workspace

ROOT = Path(__file__).parents[2]
CONFIG = "[orchestration]\ntrainer_processes = 2\ntrainer_retries = 2\nretry_delay_s = 0.1\nmin_free_disk_mb = 10\n"

pytestmark = [pytest.mark.slow, pytest.mark.prefect, pytest.mark.usefixtures("prefect_harness")]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    monkeypatch.setenv("NINEFOLD_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setattr(training, "MODULE", "tests.flows.fake_stage")
    (tmp_path / "small.toml").write_text(CONFIG)
    return load_config("laptop", tmp_path / "small.toml")


@pytest.fixture
def run(config: RunConfig) -> RunDirectory:
    """A run whose data stages are finished."""
    run = Workspace().start("r", config)
    for name in ("corpus", "grow", "synthesize", "validate", "probe", "publish", "select"):
        key = Plan(run, config).key(name)
        assert key is not None
        run.finish(name, key, [], {"corpus": "c", "documents": 7, "dataset_version": "v1"})
    return run


def arguments(run: RunDirectory) -> dict[str, object]:
    return {"name": run.name, "config": str(run.workspace.root / "small.toml"), "resume": True}


def done(run: RunDirectory, stage: str) -> dict[str, float]:
    return dict(json.loads((training.folder(run, stage) / "done.json").read_text()))


def starts(run: RunDirectory, stage: str) -> list[int]:
    return [int(line.split()[0]) for line in (training.folder(run, stage) / "starts.txt").read_text().splitlines()]


def test_killed_in_every_stage_it_resumes_and_ends_with_a_summary(run: RunDirectory, config: RunConfig) -> None:
    (run.root / "order.json").write_text(json.dumps({"kill_at": 2}))
    train_experts(**arguments(run))
    assert {stage: starts(run, stage) for stage in GROUPS["train"]} == {stage: [0, 3] for stage in GROUPS["train"]}
    assert all(done(run, expert(d, e))["began"] >= done(run, expert(d, "max"))["ended"] for d, e in EXPERTS if e != "max")
    spans = sorted((done(run, expert(d, e))["began"], done(run, expert(d, e))["ended"]) for d, e in EXPERTS)
    assert any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))  # side by side
    distill_student(**arguments(run))
    summary = evaluate_student(**arguments(run))
    assert summary["funnel"]["documents"] == 7
    assert set(summary["wall_s"]) >= {"cold_start", "distill", "evaluate", "expert-coding-low"}
    assert run.summary.is_file()
    assert run.report.is_file()
    assert run.workspace.catalog.is_file()
    before = {path: path.stat().st_mtime_ns for path in run.training.rglob("done.json")}
    train_experts(**arguments(run))
    distill_student(**arguments(run))
    assert {path: path.stat().st_mtime_ns for path in run.training.rglob("done.json")} == before


def test_out_of_order_is_refused_with_the_command_that_helps(run: RunDirectory, config: RunConfig) -> None:
    with pytest.raises(ConfigError, match="ninefold train --name r --resume"):
        distill_student(**arguments(run))
    run.step_file("publish").unlink()
    with pytest.raises(ConfigError, match="ninefold probe --name r --resume"):
        train_experts(**arguments(run))
