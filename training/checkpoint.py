"""Checkpoints that are whole or absent: state written last, read back strictly."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from environments.errors import CorruptArtifactError
from training.model import Llama, checkpoint_id

STATE = "state.json"


def save(directory: Path, model: Llama, optimizer: torch.optim.Optimizer | None, state: dict[str, Any]) -> str:
    """Write weights, optimizer and `state.json` into a temporary folder, then rename it. Returns the checkpoint id."""
    part = directory.with_name(f".{directory.name}.tmp")
    shutil.rmtree(part, ignore_errors=True)
    identity = model.save(part)
    if optimizer is not None:
        torch.save(optimizer.state_dict(), part / "optimizer.pt")
    (part / STATE).write_text(json.dumps({**state, "checkpoint_id": identity}, indent=1))
    shutil.rmtree(directory, ignore_errors=True)
    os.replace(part, directory)
    return identity


def latest(stage: Path) -> Path | None:
    """The newest whole `checkpoints/step_N` of a stage."""
    found = [p for p in (stage / "checkpoints").glob("step_*") if (p / STATE).exists()]
    return max(found, key=lambda p: int(p.name.split("_")[1]), default=None)


def prune(stage: Path, keep: set[str], last: int = 1) -> None:
    """Delete all but the newest `last` checkpoints and those named in `keep`."""
    found = sorted((stage / "checkpoints").glob("step_*"), key=lambda p: int(p.name.split("_")[1]))
    for path in found[: max(0, len(found) - last)]:
        if path.name not in keep:
            shutil.rmtree(path, ignore_errors=True)


def read_state(directory: Path) -> dict[str, Any]:
    """`state.json` of a checkpoint, its weights' hash checked.

    Raises:
        CorruptArtifactError: the file is missing or broken, or the weights are not those it names.
    """
    try:
        state = dict(json.loads((directory / STATE).read_text()))
        named = state["checkpoint_id"]
        found = checkpoint_id(directory)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CorruptArtifactError(
            f"{directory} is not a whole checkpoint ({type(error).__name__})",
            "delete the folder and resume; the stage goes on from the one before",
        ) from error
    if named != found:
        raise CorruptArtifactError(f"{directory} holds weights {found}, its state names {named}", "delete the folder and resume")
    return state


def load_optimizer(directory: Path, optimizer: torch.optim.Optimizer) -> None:
    """Restore an optimizer's state from a checkpoint.

    Raises:
        CorruptArtifactError: the file is missing, cut short, or of another optimizer.
    """
    try:
        optimizer.load_state_dict(torch.load(directory / "optimizer.pt", weights_only=True))
    except Exception as error:  # pickle, zip and torch raise many kinds
        raise CorruptArtifactError(
            f"{directory} holds no whole optimizer state ({type(error).__name__})", "delete the folder and resume"
        ) from error
