"""The sandboxes that a server of ours owns: their tokens, timeouts, metadata and snapshots. Blocking; safe from any thread."""

from __future__ import annotations

import functools
import logging
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from environments.errors import ConfigError, NinefoldError, SandboxError, UnsupportedError
from environments.sandbox.base import Backend, Sandbox, SandboxConfig, Snapshot
from environments.sandbox.remote.wire import NewSandbox

log = logging.getLogger(__name__)

CEILING = SandboxConfig(memory_mb=4096, processes=1024, workspace_mb=4096, output_kb=16 << 10, read_mb=256)
"""The most that one sandbox of a server may ask for."""
_LIMITS = ("memory_mb", "processes", "workspace_mb", "output_kb", "read_mb")


class MissingError(SandboxError):
    """The server has no such sandbox, snapshot or template."""


class TooManyError(SandboxError):
    """The server has as many sandboxes as it may."""


@dataclass(eq=False)
class Box:
    """One sandbox of the server."""

    sandbox: Sandbox
    template: str
    auto_pause: bool
    auto_resume: bool
    metadata: Mapping[str, str]
    timeout_s: float
    box_id: str = field(default_factory=lambda: secrets.token_hex(10))
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    """By which the data plane lets callers in."""
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    ends_at: float = 0.0
    """On the monotonic clock."""

    def __post_init__(self) -> None:
        self.keep(self.timeout_s)

    def keep(self, timeout_s: float) -> None:
        """Let it live for that long from now."""
        self.ends_at = time.monotonic() + timeout_s

    @property
    def paused(self) -> bool:
        return self.sandbox.state in ("pausing", "paused")

    @property
    def left_s(self) -> float:
        """Seconds that it has to live."""
        return self.ends_at - time.monotonic()

    @property
    def end_time(self) -> datetime:
        """When it expires, by the calendar."""
        return datetime.now(UTC) + timedelta(seconds=self.left_s)


class Boxes:
    """All of them.

    Args:
        templates: names that clients may ask for, with the root folder of the image of each; None is the backend's bare system.
        ceiling: the most that a sandbox may ask for; what a client leaves open is SandboxConfig's default.
        limit: sandboxes at a time.
    """

    def __init__(self, backend: Backend, templates: Mapping[str, Path | None], ceiling: SandboxConfig, limit: int) -> None:
        self.backend, self.templates, self.ceiling, self.limit = backend, dict(templates), ceiling, limit
        self._boxes: dict[str, Box] = {}
        self._snapshots: dict[str, tuple[Snapshot, str]] = {}
        self._lock = threading.Lock()
        self._pending = 0
        self._folder = Path(tempfile.mkdtemp(prefix="ninefold-snapshots-"))

    def get(self, box_id: str) -> Box | None:
        with self._lock:
            return self._boxes.get(box_id)

    def all(self) -> list[Box]:
        """Newest first."""
        with self._lock:
            return sorted(self._boxes.values(), key=lambda box: box.started_at, reverse=True)

    def snapshots(self) -> list[tuple[str, str]]:
        """Ids, each with that of the sandbox it was taken of."""
        with self._lock:
            return [(snapshot_id, box_id) for snapshot_id, (_, box_id) in self._snapshots.items()]

    def create(self, new: NewSandbox) -> Box:
        """A sandbox as the client asks for it.

        Raises:
            ConfigError: a bad configuration.
            MissingError: there is no such template or snapshot.
            TooManyError: the server is full.
            UnsupportedError: it asks for what the backend, or this server, does not give.
        """
        with self._lock:
            snapshot, _ = self._snapshots.get(new.template, (None, ""))
        if snapshot is None and new.template not in self.templates:
            raise MissingError(f"template {new.template!r} not found", f"there are {', '.join(sorted(self.templates))}")
        if new.internet:
            raise UnsupportedError("sandboxes of this server have no way into the internet", "leave allow_internet_access out")
        config = self._config(new, self.templates.get(new.template) if snapshot is None else snapshot.config.image)
        with self._room(1):
            sandbox = self.backend.create(config, snapshot)
            return self._add(Box(sandbox, new.template, new.auto_pause, new.auto_resume.enabled, new.metadata, new.timeout_s))

    def _config(self, new: NewSandbox, image: Path | None) -> SandboxConfig:
        asked = dict(new.config or {})
        try:
            config = SandboxConfig.model_validate({**asked, "env": {**asked.get("env", {}), **new.env}, "image": None, "ttl_s": None})
        except ValueError as error:
            raise ConfigError(f"no configuration of a sandbox: {error!s:.200}", "see SandboxConfig") from None
        for name in _LIMITS:
            if getattr(config, name) > getattr(self.ceiling, name):
                raise UnsupportedError(
                    f"{name}={getattr(config, name)} is over this server's {getattr(self.ceiling, name)}", "ask for less"
                )
        return config.model_copy(update={"image": image})

    def _room(self, count: int) -> _Room:
        return _Room(self, count)

    def _add(self, box: Box) -> Box:
        with self._lock:
            self._boxes[box.box_id] = box
        return box

    def fork(self, box: Box, count: int, timeout_s: float | None) -> Sequence[Box | SandboxError]:
        """`count` children, each a box of its own or the error that prevented it."""
        life_s = box.timeout_s if timeout_s is None else timeout_s
        with self._room(count):
            children = box.sandbox.fork(count)
            return [
                child
                if isinstance(child, SandboxError)
                else self._add(Box(child, box.template, box.auto_pause, box.auto_resume, box.metadata, life_s))
                for child in children
            ]

    def snapshot(self, box: Box, name: str | None) -> str:
        """The new snapshot's id, or its name. It lasts as long as the server."""
        taken = box.sandbox.snapshot(self._folder / secrets.token_hex(8))
        snapshot_id = name or f"snapshot-{taken.snapshot_id}"
        with self._lock:
            self._snapshots[snapshot_id] = (taken, box.box_id)
        return snapshot_id

    def drop_snapshot(self, snapshot_id: str) -> bool:
        """Whether there was one."""
        with self._lock:
            found = self._snapshots.pop(snapshot_id, None)
        if found is not None:
            shutil.rmtree(found[0].path, ignore_errors=True)
        return found is not None

    def kill(self, box: Box) -> None:
        with self._lock:
            self._boxes.pop(box.box_id, None)
        box.sandbox.close()

    def due(self) -> list[Callable[[], None]]:
        """What has to be done about boxes whose time is over: each may block, while a command ends."""
        now = time.monotonic()
        tasks: list[Callable[[], None]] = []
        for box in self.all():
            if now >= box.ends_at and not box.paused and box.sandbox.state != "killing":
                box.ends_at = now + 60.0  # not again while this is being done
                tasks.append(functools.partial(self._expire, box))
        return tasks

    def _expire(self, box: Box) -> None:
        if box.auto_pause:
            try:
                box.sandbox.pause()
                return
            except NinefoldError as error:
                log.warning("sandbox %s could not be paused at its timeout and is ended: %s", box.box_id, error)
        self.kill(box)

    def close(self) -> None:
        """End every sandbox, and forget the snapshots."""
        for box in self.all():
            self.kill(box)
        shutil.rmtree(self._folder, ignore_errors=True)


class _Room:
    """Room for so many sandboxes, held while they are made."""

    def __init__(self, boxes: Boxes, count: int) -> None:
        self._boxes, self._count = boxes, count

    def __enter__(self) -> None:
        boxes = self._boxes
        with boxes._lock:
            there = len(boxes._boxes) + boxes._pending
            if there + self._count > boxes.limit:
                raise TooManyError(f"the server has {there} of {boxes.limit} sandboxes", "end some, or try again later")
            boxes._pending += self._count

    def __exit__(self, *_: object) -> None:
        with self._boxes._lock:
            self._boxes._pending -= self._count
