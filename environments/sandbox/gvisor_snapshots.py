"""Durable checkpoints of gVisor sandboxes: a folder of its own, whole or not there at all."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

from environments.errors import CorruptArtifactError, SandboxError
from environments.sandbox.base import SandboxConfig, Snapshot
from environments.sandbox.bubblewrap import NOBODY
from environments.sandbox.gvisor_bundle import binds
from environments.sandbox.gvisor_runsc import find_runsc, runsc_version

MANIFEST = "manifest.json"


def _digest(path: Path, *, sync: bool = False) -> str:
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


def seal(part: Path, snapshot_id: str, config: SandboxConfig) -> int:
    """Give the checkpoint in `part` its final owner, then write the manifest. Bytes in all. Raises OSError."""
    files, total = {}, 0
    for path in sorted(part.iterdir()):
        if os.geteuid() == 0:  # the sandbox's user may read it, and nobody else; it may not write it
            os.chown(path, 0, NOBODY)
        path.chmod(0o640)
        files[path.name] = {"sha256": _digest(path, sync=True), "bytes": path.stat().st_size}
        total += path.stat().st_size
    manifest = {
        "snapshot_id": snapshot_id,
        "backend": "gvisor",
        "runsc": runsc_version(find_runsc()),
        "folders": binds(config)[0],
        "files": files,
    }
    with (part / MANIFEST).open("w") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    if os.geteuid() == 0:
        os.chown(part, 0, NOBODY)
        part.chmod(0o750)
    return total


def verify(snapshot: Snapshot) -> None:
    """Pass when the snapshot is whole and can be restored by this machine's runsc.

    Raises:
        CorruptArtifactError: a file is missing or not what was written.
        SandboxError: it is of another release of runsc, or a folder that it maps is gone.
    """
    fix = "take another snapshot"
    try:
        manifest = json.loads((snapshot.path / MANIFEST).read_text())
        for name, known in manifest["files"].items():
            if _digest(snapshot.path / name) != known["sha256"]:
                raise CorruptArtifactError(f"{snapshot.path / name} is not what the snapshot wrote", fix)
        version, folders = manifest["runsc"], dict(manifest["folders"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptArtifactError(f"snapshot {snapshot.path} cannot be read: {error}", fix) from error
    if version != (ours := runsc_version(find_runsc())):
        raise SandboxError(f"snapshot {snapshot.snapshot_id} is of runsc {version}, and this is {ours}", f"use runsc {version}")
    if gone := [path for path in folders.values() if not Path(path).is_dir()]:
        raise SandboxError(f"snapshot {snapshot.snapshot_id} maps {', '.join(gone)}, which is gone", f"bring it back, or {fix}")


def restored(snapshot: Snapshot, config: SandboxConfig) -> SandboxConfig:
    """What the snapshot was made with, as far as it is part of the checkpoint; the rest as `config` asks."""
    ours = ("output_kb", "read_mb", "ttl_s", "seed")
    return snapshot.config.model_copy(update={name: getattr(config, name) for name in ours})
