"""What every flow starts with: the run's folder, its configuration, its plan, and how a stage is run once."""

from __future__ import annotations

import datetime
import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.errors import ConfigError
from environments.records import RunRow
from environments.tables import write_rows
from flows.config import RunConfig, load_config
from flows.stages import Plan
from flows.workspace import RunDirectory, StepRecord, Workspace, utc_now, write_json

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunContext:
    """One run as a flow sees it."""

    run: RunDirectory
    config: RunConfig
    plan: Plan

    def ensure(self, stage: str, do: Callable[[str], StepRecord]) -> StepRecord:
        """The stage's record; `do(key)` runs it when it is not up to date.

        Raises:
            ConfigError: a stage it needs is not finished (a flow called its stages out of order).
        """
        record = self.plan.record(stage)
        if record is not None:
            log.info("%s: up to date", stage)
            return record
        key = self.plan.key(stage)
        if key is None:
            missing = [name for name, done in ((s.name, ok) for s, ok in self.plan.todo([stage])) if not done and name != stage]
            raise ConfigError(f"{stage} needs {', '.join(missing)} first", "run the whole way with `ninefold run --resume`")
        log.info("%s: started", stage)
        started = time.monotonic()
        record = do(key)
        log.info("%s: finished in %.1f s", stage, time.monotonic() - started)
        return record


def run_name(name: str, profile: str, now: datetime.datetime | None = None) -> str:
    """The run a flow works on. `nightly` means today's: the schedules of one night share a run."""
    if name == "nightly":
        return f"nightly-{(now or datetime.datetime.now(datetime.UTC)):%Y-%m-%d}"
    return name or profile


def begin(
    name: str, profile: str, config: Path | str | None, seed: int | None, resume: bool, options: Mapping[str, Any] | None = None
) -> RunContext:
    """Enter a run's folder, creating it when it is new. A flow run that Prefect retries enters its own run again.

    Raises:
        ConfigError: the configuration is wrong.
        RunExistsError: the run exists and neither `resume` is set nor is this a retry.
        DiskFullError: too little free space.
    """
    resolved = load_config(profile, Path(config) if config else None, seed, options)
    run = Workspace().start(run_name(name, profile), resolved, resume or _is_retry())
    return RunContext(run, resolved, Plan(run, resolved))


def record_run(context: RunContext, status: str, dataset_version: str = "", prefect_run_url: str = "") -> RunRow:
    """Write the run's row; `started_at` stays that of the first start."""
    state = context.run.root / "run.json"
    try:
        before: Mapping[str, Any] = json.loads(state.read_text())
    except (OSError, ValueError):
        before = {}
    git = json.loads((context.run.root / "git.json").read_text())
    row = RunRow(
        run=context.run.name,
        profile=context.config.profile,
        seed=context.config.seed,
        status=status,
        started_at=str(before.get("started_at") or utc_now()),
        finished_at="" if status == "running" else utc_now(),
        prefect_run_url=prefect_run_url or str(before.get("prefect_run_url", "")),
        config_json=context.config.model_dump_json(),
        git_commit=git["commit"],
        dataset_version=dataset_version or str(before.get("dataset_version", "")),
    )
    write_json(state, row.model_dump())
    write_rows(context.run.tables / RunRow.TABLE / "run.parquet", RunRow, [row])
    return row


def flow_run_url() -> str:
    """Page of the current Prefect flow run in the UI; empty outside one."""
    from prefect.runtime import flow_run

    return str(flow_run.ui_url or "") if flow_run.id else ""


def _is_retry() -> bool:
    from prefect.runtime import flow_run

    return bool(flow_run.id) and int(flow_run.run_count or 0) > 1
