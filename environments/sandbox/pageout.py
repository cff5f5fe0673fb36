"""Push the memory of stopped processes out to swap, so that a paused sandbox keeps next to none; see process_madvise(2).

Needs swap space and, for another process's memory, CAP_SYS_NICE. What is touched after the resume comes back page by page.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_SYS_PROCESS_MADVISE, _MADV_PAGEOUT = 440, 21
_CAP_SYS_NICE = 23
_BATCH = 512
"""Most address ranges that one call takes: half of IOV_MAX."""


class _Range(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def usable() -> bool:
    """Whether there is swap, and whether we may use it for others."""
    try:
        swaps = Path("/proc/swaps").read_text().splitlines()[1:]
        status = Path("/proc/self/status").read_text()
    except OSError:
        return False
    effective = int(status.split("CapEff:")[1].split()[0], 16)
    return bool(swaps) and bool(effective >> _CAP_SYS_NICE & 1)


def _private_ranges(pid: int) -> list[tuple[int, int]]:
    """(start, length) of what only this process has: writable private mappings."""
    ranges = []
    for line in Path("/proc", str(pid), "maps").read_text().splitlines():
        addresses, mode = line.split()[:2]
        if mode[1] == "w" and mode[3] == "p":
            start, end = (int(part, 16) for part in addresses.split("-"))
            ranges.append((start, end - start))
    return ranges


def page_out(pid: int) -> None:
    """Ask the kernel to swap out the private memory of a stopped process. What it refuses stays; nothing else changes."""
    try:
        pidfd = os.pidfd_open(pid)
        ranges = _private_ranges(pid)
    except OSError:
        return
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        for at in range(0, len(ranges), _BATCH):
            some = ranges[at : at + _BATCH]
            libc.syscall(
                _SYS_PROCESS_MADVISE,
                pidfd,
                (_Range * len(some))(*(_Range(*pair) for pair in some)),
                ctypes.c_size_t(len(some)),
                _MADV_PAGEOUT,
                0,
            )
    finally:
        os.close(pidfd)
