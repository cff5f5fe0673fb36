"""Shard functions for tests: they note that they ran, and some die on the way."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from environments.errors import ConfigError, SandboxError
from flows.steps.shards import StepOutput
from flows.workspace import RunDirectory


def _note(run: RunDirectory, step: str) -> int:
    """How often the step was begun, this time included."""
    path = run.root / f"{step.replace('/', '-')}.begun"
    with path.open("a") as file:
        file.write("x")
    return path.stat().st_size


def _write(run: RunDirectory, step: str, number: int) -> StepOutput:
    part = run.part("nodes", step)
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_text(str(number))
    return StepOutput((part,), {"number": number, "pid": os.getpid()})


def plain(run: RunDirectory, step: str, number: int) -> StepOutput:
    _note(run, step)
    return _write(run, step, number)


def dies_once(run: RunDirectory, step: str, number: int) -> StepOutput:
    """Number 2 takes its whole worker process with it, the first time."""
    if _note(run, step) == 1 and number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return _write(run, step, number)


def hangs_once(run: RunDirectory, step: str, number: int) -> StepOutput:
    if _note(run, step) == 1 and number == 0:
        time.sleep(600)
    return _write(run, step, number)


def machine_fails_once(run: RunDirectory, step: str, number: int) -> StepOutput:
    if _note(run, step) == 1 and number == 1:
        raise SandboxError("the box is gone", "try again")
    return _write(run, step, number)


def wrong_input(run: RunDirectory, step: str, number: int) -> StepOutput:
    _note(run, step)
    if number == 1:
        raise ConfigError("number 1 is wrong", "use another")
    return _write(run, step, number)


def begun(run: RunDirectory, step: str) -> int:
    """How often a step was begun."""
    path: Path = run.root / f"{step.replace('/', '-')}.begun"
    return path.stat().st_size if path.exists() else 0
