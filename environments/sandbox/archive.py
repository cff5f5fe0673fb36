"""Snapshots of files and variables on disk: written under a temporary name, described by a manifest that comes last, renamed when whole."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from environments.errors import CorruptArtifactError
from environments.sandbox.base import SandboxConfig, Snapshot

FILES, VARIABLES, MANIFEST = "files.tar", "variables.pickle", "manifest.json"


def _digest(path: Path) -> dict[str, int | str]:
    with path.open("rb") as file:
        return {"sha256": hashlib.file_digest(file, "sha256").hexdigest(), "size": path.stat().st_size}


def _flush(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write(directory: Path, backend: str, config: SandboxConfig, fill: Callable[[Path], dict[str, str]]) -> Snapshot:
    """A snapshot in a new folder below `directory`; `fill` writes its files into the folder it is given and returns details.

    Raises:
        OSError: it cannot be written; nothing is left of it.
    """
    directory, snapshot_id = directory.absolute(), uuid.uuid4().hex[:12]
    final, partial = directory / snapshot_id, directory / f".{snapshot_id}.part"
    partial.mkdir(parents=True, mode=0o700)
    try:
        details = fill(partial)
        files = {path.name: _digest(path) for path in sorted(partial.iterdir())}
        manifest = {"snapshot_id": snapshot_id, "backend": backend, "kind": "files", "config": config.model_dump(mode="json")}
        (partial / MANIFEST).write_text(json.dumps({**manifest, "details": details, "files": files}, indent=1))
        for path in partial.iterdir():
            _flush(path)
        size = sum(path.stat().st_size for path in partial.iterdir())
        partial.rename(final)
        _flush(directory)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Snapshot(snapshot_id, backend, "files", final, size, config, details=details)


def verify(snapshot: Snapshot) -> None:
    """Check every file of a snapshot against its manifest.

    Raises:
        CorruptArtifactError: it is not whole, or not what was written.
    """
    fix = "take another snapshot; this one cannot be used"
    try:
        manifest = json.loads((snapshot.path / MANIFEST).read_text())
        if manifest["snapshot_id"] != snapshot.snapshot_id or not isinstance(manifest["files"], dict):
            raise ValueError("the manifest is of another snapshot")
        if FILES not in manifest["files"]:
            raise ValueError(f"{FILES} is missing")
        for name, expected in manifest["files"].items():
            if "/" in name or _digest(snapshot.path / name) != expected:
                raise ValueError(f"{name} is not as it was written")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptArtifactError(f"snapshot {snapshot.path} is damaged: {error}", fix) from error
