"""Built tasks on disk: one JSON file each, `rejected.jsonl`, and `manifest.json`, which is written last."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from environments.errors import CorruptArtifactError
from environments.files import replacing
from tasks.repository.build import BuiltTask
from tasks.repository.candidate import ManifestRow, Rejected

MANIFEST = "manifest.json"
REJECTED = "rejected.jsonl"


def file_name(name: str) -> str:
    """A candidate's name as a file's."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-") + ".json"


def save(folder: Path, task: BuiltTask) -> None:
    """Write one task under a temporary name and rename it."""
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / file_name(task.row.name)) as part:
        part.write_text(task.model_dump_json())


def save_manifest(folder: Path, rows: Iterable[ManifestRow], rejected: Iterable[Rejected]) -> None:
    """Write what was built and what was not, sorted by name."""
    with replacing(folder / REJECTED) as part:
        part.write_text("".join(r.model_dump_json() + "\n" for r in sorted(rejected, key=lambda r: r.name)))
    with replacing(folder / MANIFEST) as part:
        found = [r.model_dump(mode="json") for r in sorted(rows, key=lambda r: r.name)]
        part.write_text(json.dumps({"tasks": found}, indent=1, sort_keys=True) + "\n")


def read_rejected(folder: Path) -> tuple[Rejected, ...]:
    """What earlier builds in a folder rejected.

    Raises:
        CorruptArtifactError: the file does not read.
    """
    path = folder / REJECTED
    try:
        return tuple(Rejected.model_validate_json(line) for line in path.read_text().splitlines()) if path.is_file() else ()
    except (OSError, ValueError) as error:
        raise CorruptArtifactError(f"{path} does not read ({error})", "delete it and build again") from error


def read_manifest(path: Path) -> tuple[ManifestRow, ...]:
    """The rows of a manifest.

    Raises:
        CorruptArtifactError: it does not read as one.
    """
    try:
        return tuple(ManifestRow.model_validate(row) for row in json.loads(path.read_text())["tasks"])
    except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
        raise CorruptArtifactError(f"{path} is no manifest ({error})", "build the repository tasks again") from error


def committed_manifest() -> tuple[ManifestRow, ...]:
    """What was measured of the default fixes when they were chosen."""
    return read_manifest(Path(str(files("tasks.repository") / MANIFEST)))


def load(folder: Path) -> tuple[BuiltTask, ...]:
    """The tasks that a folder's manifest names; none where there is no manifest.

    Raises:
        CorruptArtifactError: a task is missing, or not what the manifest says.
    """
    if not (folder / MANIFEST).is_file():
        return ()
    found = []
    for row in read_manifest(folder / MANIFEST):
        path = folder / file_name(row.name)
        try:
            task = BuiltTask.model_validate_json(path.read_text())
        except (OSError, ValidationError) as error:
            raise CorruptArtifactError(f"{path} is no repository task ({error})", "build it again") from error
        if task.row != row:
            raise CorruptArtifactError(f"{path} is not the task that the manifest names", "build it again")
        found.append(task)
    return tuple(found)
