"""One child process, watched: its own process group, its signals, its metrics, its last words.

The group dies with the watcher, whatever ends the watcher: SIGTERM is passed on, and the kernel's parent-death signal covers
kill -9.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from environments.errors import InfrastructureError, InputError

log = logging.getLogger(__name__)

POLL_S = 0.2
GRACE_S = 15.0
"""Time between SIGTERM and SIGKILL: a trainer finishes its step and writes a checkpoint."""
STDERR_TAIL_CHARS = 2000
INPUT_ERROR_EXIT = 2
"""Exit code by which our processes say that retrying cannot help."""

_PR_SET_PDEATHSIG = 1


class ProcessFailedError(InfrastructureError):
    """A supervised process ended with a non-zero code, or ran past its time; its last lines are in the message."""


@dataclass(frozen=True)
class ProcessResult:
    """How a supervised process ended."""

    wall_s: float
    metrics_seen: int


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel sends SIGTERM to this process when the thread that started it is gone."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def stop_group(process: subprocess.Popen[bytes], grace_s: float = GRACE_S) -> None:
    """SIGTERM to the whole group of a child started with its own session, then SIGKILL to whatever is left of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class MetricsTail:
    """Reads what was appended to a JSON-lines file since the last look. Half-written last lines wait for the next look."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def read(self) -> list[dict[str, Any]]:
        """New whole lines that are JSON objects; others are skipped, with a warning."""
        if not self.path.exists():
            return []
        if self.path.stat().st_size < self._offset:
            self._offset = 0
        with self.path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        rows = []
        for line in whole.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                log.warning("%s holds a line that is not JSON: %r", self.path, line[:80])
                continue
            if isinstance(row, dict):
                rows.append(row)
        return rows


def run_process(
    argv: Sequence[str],
    *,
    log_file: Path,
    metrics_file: Path | None = None,
    on_metrics: Callable[[list[dict[str, Any]]], None] | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    cancelled: threading.Event | None = None,
) -> ProcessResult:
    """Run a command to its end; stdout and stderr are appended to `log_file`.

    Raises:
        InputError: the process ended with code 2 (its input is wrong; a retry cannot help).
        ProcessFailedError: any other non-zero end, or `timeout_s` passed. Retrying resumes from what the process had saved.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    tail = MetricsTail(metrics_file) if metrics_file else None
    started, seen = time.monotonic(), 0
    start_offset = log_file.stat().st_size if log_file.exists() else 0
    with log_file.open("ab") as output:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(env) if env is not None else None,
            start_new_session=True, preexec_fn=die_with_parent,
        )  # fmt: skip

    def report() -> None:
        nonlocal seen
        if tail and (rows := tail.read()):
            seen += len(rows)
            if on_metrics:
                on_metrics(rows)

    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=POLL_S)
            report()
            if process.returncode is not None:
                break
            if cancelled is not None and cancelled.is_set():
                raise ProcessFailedError(f"{_name(argv)} was cancelled", "run again; it resumes from its last checkpoint")
            if timeout_s is not None and time.monotonic() - started > timeout_s:
                raise ProcessFailedError(
                    f"{_name(argv)} ran longer than {timeout_s:.0f} s", "raise orchestration.trainer_timeout_s, or run again: it resumes"
                )
    finally:
        # Also on KeyboardInterrupt and on the SystemExit that SIGTERM turns into; and what the child left in its group.
        stop_group(process)
    if process.returncode != 0:
        words = _last_words(log_file, start_offset)
        how = f"was killed by signal {-process.returncode}" if process.returncode < 0 else f"ended with code {process.returncode}"
        message = f"{_name(argv)} {how}; its last lines: {words or '(none)'}"
        if process.returncode == INPUT_ERROR_EXIT:
            raise InputError(message, f"see {log_file}")
        raise ProcessFailedError(message, f"run again, it resumes from its last checkpoint; the whole output is in {log_file}")
    return ProcessResult(time.monotonic() - started, seen)


def _name(argv: Sequence[str]) -> str:
    words = [word for word in argv[1:] if not word.startswith("-")]
    return " ".join(words[:2]) or argv[0]


def _last_words(log_file: Path, offset: int) -> str:
    with log_file.open("rb") as file:
        file.seek(offset)
        text = file.read().decode(errors="replace").strip()
    return text[-STDERR_TAIL_CHARS:]
