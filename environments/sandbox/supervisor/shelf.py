"""The last few snapshots of each lease, kept on disk so that they outlive the supervisor."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

from environments.errors import CorruptArtifactError
from environments.files import replacing
from environments.sandbox.base import Sandbox, Snapshot
from environments.sandbox.supervisor import wire
from environments.sandbox.supervisor.wire import LeaseError

_KEPT_S = 7 * 24 * 3600.0
"""Snapshots of a lease that ended without a release wait this long for whoever wants to go on from them."""


class SnapshotShelf:
    """Below `root`, a folder for each lease: numbered snapshots, and beside each its description, written when it is whole."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(mode=0o700, exist_ok=True)

    def _folder(self, lease_id: str) -> Path:
        if len(lease_id) != 32 or set(lease_id) - set("0123456789abcdef"):
            raise LeaseError(f"{lease_id!r} is no lease", "use LeasedSandbox.lease_id")
        return self._root / lease_id

    def take(self, lease_id: str, sandbox: Sandbox, keep: int) -> Snapshot:
        """Add a snapshot of `sandbox`, then forget all but the last `keep` and those that they are increments of.

        Raises:
            CaptureError: it could not be taken; what was there stays.
            SandboxError: the sandbox is paused or gone.
        """
        folder = self._folder(lease_id)
        folder.mkdir(mode=0o700, exist_ok=True)
        numbers = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
        path = folder / f"{max(numbers, default=0) + 1:08d}"
        try:
            snapshot = sandbox.snapshot(path)
            with replacing(path.with_suffix(".json")) as part:
                part.write_text(json.dumps(wire.pack_snapshot(snapshot)))
        except BaseException:
            shutil.rmtree(path, ignore_errors=True)
            raise
        self._forget(folder, keep)
        return snapshot

    def stored(self, lease_id: str) -> list[Snapshot]:
        """Snapshots of a lease, oldest first.

        Raises:
            CorruptArtifactError: a description that does not read back.
        """
        return list(self._read(self._folder(lease_id)).values())

    def remove(self, lease_id: str) -> None:
        """Forget all of a lease."""
        shutil.rmtree(self._folder(lease_id), ignore_errors=True)

    def remove_old(self) -> None:
        """Forget leases whose last snapshot is old."""
        for folder in self._root.iterdir():
            newest = max(path.stat().st_mtime for path in [folder, *folder.glob("*.json")])
            if time.time() - newest > _KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)

    def _read(self, folder: Path) -> dict[Path, Snapshot]:
        found = {}
        for path in sorted(folder.glob("[0-9]*.json")):
            try:
                found[path] = wire.unpack_snapshot(json.loads(path.read_text()))
            except FileNotFoundError:  # forgotten meanwhile
                continue
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise CorruptArtifactError(f"{path} does not describe a snapshot ({error})", f"delete {path}") from error
        return found

    def _forget(self, folder: Path, keep: int) -> None:
        stored = self._read(folder)
        by_id = {snapshot.snapshot_id: snapshot for snapshot in stored.values()}
        needed: set[str] = set()
        for snapshot in list(stored.values())[-keep:]:
            one: Snapshot | None = snapshot
            while one is not None and one.snapshot_id not in needed:
                needed.add(one.snapshot_id)
                one = by_id.get(one.parent_id or "")
        for path, snapshot in stored.items():
            if snapshot.snapshot_id not in needed:
                path.unlink()
                shutil.rmtree(path.with_suffix(""), ignore_errors=True)
