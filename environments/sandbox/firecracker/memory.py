"""Guest memory on disk: sparse files of the guest's size, laid over each other in the order in which they were written.

A diff snapshot holds the pages written since the one before it and holes elsewhere (Firecracker, docs/snapshotting).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from environments.errors import SandboxError

_FICLONE = 0x40049409
_BLOCK = 1 << 20
_ZEROS = bytes(_BLOCK)


def data_ranges(fd: int) -> Iterator[tuple[int, int]]:
    """(start, end) of everything in a file that is not a hole, bytes."""
    end = 0
    while True:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        end = os.lseek(fd, start, os.SEEK_HOLE)
        yield start, end


def lay_over(source: int, target: int) -> int:
    """Copy what is not a hole in `source` to the same place in `target` (both descriptors); bytes copied."""
    copied = 0
    for start, end in data_ranges(source):
        at = start
        while at < end:
            try:
                done = os.copy_file_range(source, target, end - at, at, at)
            except OSError as error:
                if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                done = os.pwrite(target, os.pread(source, min(_BLOCK, end - at), at), at)
            if done == 0:
                raise SandboxError("a memory file became shorter while it was read", "restore from another snapshot")
            at += done
        copied += end - start
    return copied


def flatten(layers: Sequence[Path], target: Path, size_bytes: int) -> None:
    """Write the memory that `layers` (the first one complete, the rest diffs) amount to.

    Raises:
        SandboxError: a layer is missing or has not `size_bytes`.
        OSError: it cannot be written; nothing of it is left.
    """
    check(layers, size_bytes)
    try:
        with target.open("xb") as out:
            for number, layer in enumerate(layers):
                with layer.open("rb") as file:
                    if number == 0:
                        with contextlib.suppress(OSError):  # a file system that shares blocks copies at once
                            fcntl.ioctl(out, _FICLONE, file.fileno())
                            continue
                        out.truncate(size_bytes)
                    lay_over(file.fileno(), out.fileno())
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def check(layers: Sequence[Path], size_bytes: int) -> None:
    """Raises SandboxError naming the layer that is missing or of the wrong size."""
    for layer in layers:
        try:
            found = layer.stat().st_size
        except OSError as error:
            raise SandboxError(f"the memory file {layer} cannot be read ({error.strerror})", "restore from another snapshot") from error
        if found != size_bytes:
            raise SandboxError(f"the memory file {layer} has {found} bytes, not {size_bytes}", "restore from another snapshot")


def digest(path: Path) -> str:
    """SHA-256 over the non-zero blocks of a sparse file with their places; a copy with other holes has the same.

    Raises:
        SandboxError: it cannot be read.
    """
    state, done = hashlib.sha256(), -1
    try:
        with path.open("rb") as file:
            fd = file.fileno()
            for start, end in data_ranges(fd):
                for number in range(max(start // _BLOCK, done + 1), -(-end // _BLOCK)):
                    block = os.pread(fd, _BLOCK, number * _BLOCK)
                    if block != _ZEROS[: len(block)]:
                        state.update(number.to_bytes(8, "big"))
                        state.update(block)
                    done = number
    except OSError as error:
        raise SandboxError(f"{path} cannot be read ({error.strerror})", "restore from another snapshot") from error
    return state.hexdigest()


def allocated_bytes(path: Path) -> int:
    """Bytes that a sparse file holds on disk."""
    with path.open("rb") as file:
        return sum(end - start for start, end in data_ranges(file.fileno()))


class SharedFile:
    """A file of ours that several machines map; it goes away with the last of them, in the process that made it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._holders = 1
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def hold(self) -> SharedFile:
        """One more holder."""
        with self._lock:
            self._holders += 1
        return self

    def release(self) -> None:
        """One holder less."""
        with self._lock:
            self._holders -= 1
            if self._holders == 0 and os.getpid() == self._owner:
                self.path.unlink(missing_ok=True)

    @property
    def exclusive(self) -> bool:
        """Nobody else holds it."""
        return self._holders == 1
