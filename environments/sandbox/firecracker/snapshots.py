"""A durable snapshot's folder: `state` and `memory` of its own, and a manifest that names the layers below and all digests."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from environments.errors import SandboxError
from environments.sandbox.firecracker import memory
from environments.sandbox.firecracker.machine import Image

MANIFEST = "snapshot.json"


def write_manifest(folder: Path, image: Image) -> None:
    """Beside a snapshot's files: which layers it needs, and what its own contain."""
    layers = [os.path.relpath(layer, folder) for layer in image.layers]
    digests = {"state": memory.digest(image.state), "memory": memory.digest(image.layers[-1])}
    fresh = folder / "manifest.new"
    fresh.write_text(json.dumps({"memory_mb": image.memory_mb, "layers": layers, "sha256": digests}))
    fresh.replace(folder / MANIFEST)


def read_manifest(folder: Path) -> Image:
    """The image in a snapshot's folder, every file of it checked.

    Raises:
        SandboxError: a file is missing or not what was written.
    """
    manifest = _manifest(folder)
    image = Image(folder / "state", tuple(folder / str(layer) for layer in manifest["layers"]), int(manifest["memory_mb"]))
    _verify(image.state, manifest["sha256"]["state"])
    for layer in image.layers:
        _verify(layer, _manifest(layer.parent)["sha256"]["memory"])
    return image


def _manifest(folder: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        raise SandboxError(f"{folder / MANIFEST} cannot be read ({error})", "restore from another snapshot") from error
    return manifest


def _verify(path: Path, expected: str) -> None:
    try:
        status = path.stat()
    except OSError as error:
        raise SandboxError(f"{path} cannot be read ({error.strerror})", "restore from another snapshot") from error
    if _digest(path, status.st_ino, status.st_size, status.st_mtime_ns) != expected:
        raise SandboxError(f"{path} is not what was written: its digest differs", "restore from another snapshot")


@lru_cache(maxsize=1024)
def _digest(path: Path, inode: int, size: int, changed_ns: int) -> str:
    """Read once for many sandboxes from one snapshot; a file that changes is read again."""
    return memory.digest(path)
