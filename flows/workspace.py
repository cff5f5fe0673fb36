"""Where a run lies on disk, and how a finished step is recognised.

Workspace = `$NINEFOLD_HOME` or the current directory::

    data/corpus/<hash>/   data/prefect/   catalog.duckdb
    runs/<name>/{config.toml, git.json, run.json, summary.json, report.html,
                 vault/, tables/<table>/<part>.parquet, dataset/, training/<stage>/, stages/<step>/done.json, logs/}

A step's `done.json` is written last. It carries the step's key (inputs and code) and its outputs with size and sha256, so a
later run reuses the step exactly when the key is the same and every output is still what was written.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from environments.errors import ConfigError, DiskFullError, InputError, RunExistsError
from environments.files import replacing
from environments.task import content_hash
from flows.config import RunConfig, config_from_toml, to_toml

log = logging.getLogger(__name__)

DEPENDENCIES = ("torch", "transformers", "deepspeed", "prefect", "dask", "duckdb", "pyarrow", "pydantic", "networkx")
"""Packages whose versions a run records."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def utc_now() -> str:
    """ISO 8601 in UTC, to the second."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_json(path: Path, value: Any) -> Path:
    """Write JSON under a temporary name, then rename.

    Raises:
        DiskFullError: no space left; nothing half-written stays under `path`.
    """
    return write_text(path, json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> Path:
    """Write text under a temporary name, then rename. Raises DiskFullError as `write_json`."""
    with replacing(path) as part:
        part.write_text(text)
    return path


def file_sha256(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class StepRecord:
    """A finished step. `outputs` maps a path relative to the run to [bytes, sha256]; `result` is small JSON for later steps."""

    step: str
    key: str
    outputs: dict[str, tuple[int, str]]
    result: dict[str, Any] = field(default_factory=dict)
    wall_s: float = 0.0
    finished_at: str = ""

    @property
    def content(self) -> str:
        """Hash of what the step produced: the input of those after it."""
        return content_hash([sorted((path, sha) for path, (_, sha) in self.outputs.items()), self.result])


class RunDirectory:
    """The folder of one run."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self.name = self.root.name
        self.tables = self.root / "tables"
        self.stages = self.root / "stages"
        self.vault = self.root / "vault"
        self.dataset = self.root / "dataset"
        self.training = self.root / "training"
        self.logs = self.root / "logs"
        self.summary = self.root / "summary.json"
        self.report = self.root / "report.html"

    @property
    def workspace(self) -> Workspace:
        return Workspace(self.root.parent.parent)

    def config(self) -> RunConfig:
        """The resolved configuration the run was last started with. Raises ConfigError when it does not read back."""
        return config_from_toml(self.root / "config.toml")

    def step_file(self, step: str) -> Path:
        """`done.json` of a step such as `grow` or `validate/shard-0003`."""
        return self.stages / step / "done.json"

    def finish(
        self, step: str, key: str, outputs: Iterable[Path], result: Mapping[str, Any] | None = None, wall_s: float = 0.0
    ) -> StepRecord:
        """Record a finished step; call it last. Raises DiskFullError."""
        sizes = {str(p.relative_to(self.root)): (p.stat().st_size, file_sha256(p)) for p in sorted(outputs)}
        record = StepRecord(step, key, sizes, dict(result or {}), round(wall_s, 3), utc_now())
        write_json(self.step_file(step), record.__dict__)
        return record

    def finished(self, step: str, key: str | None = None) -> StepRecord | None:
        """The record of a step if it is finished, its key is `key` (any when None) and all its outputs are intact."""
        path = self.step_file(step)
        try:
            raw = json.loads(path.read_text())
            outputs = {str(p): (int(size), str(sha)) for p, (size, sha) in raw["outputs"].items()}
            record = StepRecord(raw["step"], raw["key"], outputs, raw["result"], float(raw["wall_s"]), raw["finished_at"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("%s is corrupt (%s): the step %s is done again", path, type(error).__name__, step)
            return None
        if key is not None and record.key != key:
            return None
        for relative, (size, sha) in record.outputs.items():
            file = self.root / relative
            if not file.is_file() or file.stat().st_size != size or file_sha256(file) != sha:
                log.warning("%s is missing or changed: the step %s is done again", file, step)
                return None
        return record

    def part(self, table: str, step: str) -> Path:
        """Where a step writes its part of a table."""
        return self.tables / table / f"{step.replace('/', '-')}.parquet"

    def drop_stale_parts(self, stage: str, keep: Iterable[Path]) -> None:
        """Delete parts that an earlier, differently cut run of the stage left behind."""
        kept = {p.resolve() for p in keep}
        for path in self.tables.glob(f"*/{stage}-*.parquet"):
            if path.resolve() not in kept:
                path.unlink()


class Workspace:
    """The folder that holds `runs/`, `data/` and the catalogue over all runs."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = Path(root or os.environ.get("NINEFOLD_HOME") or Path.cwd()).absolute()
        self.runs = self.root / "runs"
        self.data = self.root / "data"
        self.corpora = self.data / "corpus"
        self.prefect_home = self.data / "prefect"
        self.catalog = self.root / "catalog.duckdb"

    def run(self, name: str) -> RunDirectory:
        """The folder of a run that may or may not exist yet. Raises ConfigError for a name that is not one path part."""
        if not _NAME.fullmatch(name):
            raise ConfigError(
                f"{name!r} is not a run name", "use up to 64 letters, digits, '.', '_' and '-', starting with a letter or digit"
            )
        return RunDirectory(self.runs / name)

    def existing(self, name: str) -> RunDirectory:
        """The folder of a run that must exist.

        Raises:
            InputError: there is no such run.
        """
        run = self.run(name)
        if not (run.root / "config.toml").is_file():
            known = sorted(p.parent.name for p in self.runs.glob("*/config.toml"))
            raise InputError(
                f"there is no run {name!r} under {self.runs}",
                f"use one of: {', '.join(known)}" if known else "start one with `ninefold run`",
            )
        return run

    def start(self, name: str, config: RunConfig, resume: bool = False) -> RunDirectory:
        """Create the folder of a run, or enter it again to resume.

        Raises:
            RunExistsError: the run exists and `resume` is false.
            DiskFullError: less free space than `orchestration.min_free_disk_mb`.
        """
        run = self.run(name)
        if (run.root / "config.toml").exists() and not resume:
            raise RunExistsError(f"a run named {name!r} exists in {self.runs}", "add --resume to continue it, or choose another --name")
        run.root.mkdir(parents=True, exist_ok=True)
        free_mb = free_disk_mb(run.root)
        if free_mb < config.orchestration.min_free_disk_mb:
            raise DiskFullError(
                f"only {free_mb} MB are free under {run.root}, the configuration asks for {config.orchestration.min_free_disk_mb}",
                "free some space, or set NINEFOLD_HOME to a larger disk",
            )
        run.logs.mkdir(exist_ok=True)
        write_json(run.root / "git.json", code_version())
        write_text(run.root / "config.toml", to_toml(config))
        return run


def free_disk_mb(path: Path) -> int:
    """Free space for ordinary users on the disk of `path`, in MB."""
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize // 1_000_000


def versions() -> dict[str, str]:
    """Versions of Python, of ninefold and of the packages that decide results."""
    found = {"python": platform.python_version()}
    for name in ("ninefold", *DEPENDENCIES):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = ""
    return found


def code_version() -> dict[str, Any]:
    """Commit of the checkout that the code runs from (empty outside one), and whether it was changed."""
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    commit = git("rev-parse", "HEAD")
    return {"commit": commit, "changed": bool(commit and git("status", "--porcelain", "--untracked-files=no")), "versions": versions()}
