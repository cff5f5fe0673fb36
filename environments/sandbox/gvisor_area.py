"""The folder of this process below which all its gVisor sandboxes live; it goes away with it, or is swept away by the next one."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from environments.sandbox.bubblewrap import NOBODY

_PREFIX = "ninefold-gvisor-"


@dataclass
class Area:
    """One folder a process, locked while it lives. `lock` also tells others that they must not sweep it away."""

    folder: Path
    lock: int
    owner_pid: int = field(default_factory=os.getpid)

    def new_folder(self, name: str) -> Path:
        """A folder that runsc may write to."""
        path = self.folder / name
        path.mkdir(mode=0o700)
        hand_over(path)
        return path

    def remove(self) -> None:
        if os.getpid() == self.owner_pid:
            shutil.rmtree(self.folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                os.close(self.lock)


_area: Area | None = None
_area_lock = threading.Lock()


def area() -> Area:
    """This process's; made, and those of dead processes removed, at the first use."""
    global _area
    with _area_lock:
        if _area is None or _area.owner_pid != os.getpid() or not _area.folder.is_dir():
            _sweep()
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if os.geteuid() == 0:
                folder.chmod(0o711)
            _area = Area(folder, lock)
            atexit.register(_area.remove)
        return _area


def _sweep() -> None:
    """Remove what killed processes left. Their sandboxes died with them."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            status = folder.lstat()
            if status.st_uid != os.geteuid() or not folder.is_dir() or folder.is_symlink():
                continue
            if not (folder / "lock").exists():
                if time.time() - status.st_mtime > 60:  # else it is just being made
                    shutil.rmtree(folder, ignore_errors=True)
                continue
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)


def hand_over(path: Path) -> None:
    """To the user that runsc runs as."""
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
