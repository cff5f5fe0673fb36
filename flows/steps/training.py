"""One Prefect task supervises one training process; a retry resumes it from its last checkpoint."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from prefect import task

from environments.errors import CorruptArtifactError
from environments.records import CheckpointRow, CheckpointTaskRow, MetricRow
from environments.tables import write_rows
from flows.config import RunConfig
from flows.stages import STAGES
from flows.steps.artifacts import Progress
from flows.steps.shards import BY_KEY, worth_retrying
from flows.steps.supervise import run_process
from flows.workspace import RunDirectory, StepRecord, utc_now, write_text

log = logging.getLogger(__name__)

THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
"""Spinning threads of two processes on two cores slow each other down tenfold."""
MODULE = "flows.train_process"


def stage_arguments(stage: str) -> list[str]:
    """A stage's name as arguments of the training process: `expert-coding-max` is `expert --domain coding --effort max`."""
    if stage.startswith("expert-"):
        _, domain, effort = stage.split("-")
        return ["expert", "--domain", domain, "--effort", effort]
    return {"distill": ["mopd"]}.get(stage, [stage])


def folder(run: RunDirectory, stage: str) -> Path:
    """Where the training process of a stage writes."""
    return run.training / {"distill": "student"}.get(stage, stage)


@task(
    task_run_name="{step}",
    cache_policy=BY_KEY,
    persist_result=True,
    result_serializer="json",
    retry_condition_fn=worth_retrying,
    tags=["training"],
)
def train_step(run_dir: str, step: str, key: str, timeout_s: float, module: str = MODULE, shards: int = 1) -> dict[str, Any]:
    """Train one stage to its end unless it is done; what an interrupted process of the same key left is continued.

    Args:
        shards: processes that share the stage's work before one of them all seals it; only for stages that can be shared.

    Raises:
        InputError: the process says that its input is wrong.
        ProcessFailedError: it died; the message ends with its last lines.
    """
    run = RunDirectory(Path(run_dir))
    if record := run.finished(step, key):
        return record.result
    where = folder(run, step)
    if claim_folder(where, key):
        for part in own_parts(run, where.name):
            part.unlink()
    started = time.monotonic()
    progress = Progress(f"{run.name}-{step}", STAGES[step].says if step in STAGES else step)
    said = 0.0

    def on_metrics(rows: list[dict[str, Any]]) -> None:
        nonlocal said
        last = rows[-1]
        progress(*position(last))
        if time.monotonic() - said > 10:
            said = time.monotonic()
            log.info("%s: %s", step, describe(last))

    argv = [sys.executable, "-m", module, *stage_arguments(step), "--run-dir", str(run.root)]
    settings: dict[str, Any] = {"log_file": run.logs / f"{step}.log", "env": {**os.environ, **THREADS}, "timeout_s": timeout_s}
    if shards > 1:
        _side_by_side([[*argv, "--shard", str(i), "--shards", str(shards)] for i in range(shards)], settings)
    run_process(argv, metrics_file=where / "metrics.jsonl", on_metrics=on_metrics, **settings)
    done = read_done(where)
    progress(1, 1)
    tables = [*own_parts(run, where.name), metrics_table(run, step), *checkpoint_tables(run, step, done)]
    outputs = [where / "done.json", *(path for path in sorted((where / "final").glob("*")) if path.is_file()), *tables]
    figures = {k: v for k, v in done.items() if isinstance(v, int | float | str)}
    return run.finish(step, key, dict.fromkeys(outputs), figures, time.monotonic() - started).result


def _side_by_side(commands: list[list[str]], settings: dict[str, Any]) -> None:
    """Run processes at the same time; all end before the first failure is raised."""
    with ThreadPoolExecutor(len(commands)) as pool:
        ended = [pool.submit(run_process, argv, **settings) for argv in commands]
    for future in ended:
        future.result()


def read_done(where: Path) -> dict[str, Any]:
    """What the process said in `done.json`. Raises CorruptArtifactError when it is not there or not a JSON object."""
    path = where / "done.json"
    try:
        done = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        fix = f"delete {where} and run again with --resume"
        raise CorruptArtifactError(f"{path} is missing or not JSON ({type(error).__name__})", fix) from error
    if not isinstance(done, dict):
        raise CorruptArtifactError(f"{path} is not a JSON object", f"delete {where} and run again with --resume")
    return done


def own_parts(run: RunDirectory, name: str) -> list[Path]:
    """Table parts that the training process of a stage wrote: `<stage>.parquet` and `<stage>-<step>.parquet`; the evaluation's all."""
    if name == "evaluate":
        return sorted([*run.tables.glob("evaluations/*.parquet"), *run.tables.glob("*/evaluation-*.parquet")])
    found = (path for path in run.tables.glob(f"*/{name}*.parquet") if path.parent.name != "evaluations")
    return sorted(path for path in found if re.fullmatch(rf"{re.escape(name)}(-\d+)?", path.stem))


def checkpoint_tables(run: RunDirectory, step: str, done: dict[str, Any]) -> list[Path]:
    """Rows of the sealed checkpoint and of the tasks that fed it, from `done.json`; nothing for stages without weights."""
    if not done.get("checkpoint_id"):
        return []
    published = run.finished("publish")
    where, identity = folder(run, step), str(done["checkpoint_id"])
    row = CheckpointRow(
        run=run.name,
        checkpoint_id=identity,
        parent_id=str(done.get("parent_id", "")),
        stage={"distill": "mopd"}.get(step, step.split("-")[0]),
        domain=str(done.get("domain", "")),
        effort=str(done.get("effort", "")),
        step=int(done.get("steps", 0)),
        path=str((where / "final").relative_to(run.workspace.root)),
        dataset_version=str(published.result["dataset_version"]) if published else "",
        created_at=utc_now(),
    )
    fed = done.get("fed", {})
    tasks = [CheckpointTaskRow(run=run.name, checkpoint_id=identity, task_id=task, episodes=int(n)) for task, n in sorted(fed.items())]
    return [
        write_rows(run.part(CheckpointRow.TABLE, f"{step}-sealed"), CheckpointRow, [row]),
        write_rows(run.part(CheckpointTaskRow.TABLE, f"{step}-sealed"), CheckpointTaskRow, tasks),
    ]


def claim_folder(where: Path, key: str) -> bool:
    """Keep a folder that was begun under the same key, so that its process resumes; delete one of another key. True when new."""
    stamp = where / "key.txt"
    if stamp.is_file() and stamp.read_text().strip() == key:
        return False
    if where.exists():
        log.info("%s was begun with other inputs or code: it is trained anew", where.name)
        shutil.rmtree(where)
    write_text(stamp, key + "\n")
    return True


def position(row: dict[str, Any]) -> tuple[float, float]:
    """(done, total) of a metrics line: its `step` of its `total`, or its `progress` of one."""
    if isinstance(row.get("progress"), int | float):
        return float(row["progress"]), 1.0
    return float(row.get("step", 0)), float(row.get("total", 0))


def describe(row: dict[str, Any]) -> str:
    """A metrics line in words: its numbers."""
    return " ".join(f"{k}={v:.4g}" for k, v in row.items() if isinstance(v, int | float) and not isinstance(v, bool))


def metrics_table(run: RunDirectory, step: str) -> Path:
    """The stage's metrics as rows, from its `metrics.jsonl`; a step that was done twice (before and after a kill) counts once."""
    values: dict[tuple[int, str], float] = {}
    path = folder(run, step) / "metrics.jsonl"
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            values |= {
                (row["step"], k): float(v)
                for k, v in row.items()
                if k not in ("step", "total") and isinstance(v, int | float) and not isinstance(v, bool)
            }
    rows = [
        MetricRow(run=run.name, stage=folder(run, step).name, step=n, name=name, value=value) for (n, name), value in sorted(values.items())
    ]
    return write_rows(run.part(MetricRow.TABLE, step), MetricRow, rows)


def do_training(run: RunDirectory, stage: str, key: str, config: RunConfig) -> StepRecord:
    """Train a stage here and now, with the configured retries, and return its record."""
    shards = config.orchestration.trainer_processes if stage == "evaluate" else 1
    configured(config)(
        run_dir=str(run.root), step=stage, key=key, timeout_s=config.orchestration.trainer_timeout_s, module=MODULE, shards=shards
    )
    record = run.finished(stage, key)
    assert record is not None, f"{stage} ended without its record"
    return record


def configured(config: RunConfig) -> Any:
    """`train_step` with the run's retries."""
    o = config.orchestration
    return train_step.with_options(retries=o.trainer_retries, retry_delay_seconds=o.retry_delay_s, refresh_cache=True)
