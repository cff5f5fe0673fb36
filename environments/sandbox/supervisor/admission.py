"""Who may have a sandbox: a first-come, first-served queue under limits on number and memory. No threads, no clock of its own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from environments.sandbox.supervisor.wire import AdmissionError

T = TypeVar("T")


class SupervisorLimits(BaseModel):
    """What all sandboxes of a host may use together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sandboxes: int = Field(default=256, ge=1, description="Live at a time, paused ones included")
    memory_mb: int = Field(default=131_072, ge=32, description="Sum of the live sandboxes' SandboxConfig.memory_mb, MiB")


@dataclass
class _Waiter(Generic[T]):
    memory_mb: int
    deadline: float
    waited_s: float
    item: T


@dataclass
class Admission(Generic[T]):
    """Counts what is live and queues what must wait. A large request holds back later small ones, so that it is served at all."""

    limits: SupervisorLimits
    live: int = 0
    memory_mb: int = 0
    _queue: deque[_Waiter[T]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self._queue)

    def shortage(self, memory_mb: int) -> str:
        """The limit that one more sandbox of that size would break, in words; empty when it fits."""
        if self.live + 1 > self.limits.sandboxes:
            return f"the limit of {self.limits.sandboxes} live sandboxes (SupervisorLimits.sandboxes) is reached"
        if self.memory_mb + memory_mb > self.limits.memory_mb:
            used = f"{self.memory_mb} of {self.limits.memory_mb} MB are taken and {memory_mb} more were asked for"
            return f"the memory limit (SupervisorLimits.memory_mb) is reached: {used}"
        return ""

    def ask(self, item: T, memory_mb: int, now: float, wait_s: float) -> None:
        """Queue `item`; `admit` hands it out when there is room.

        Raises:
            AdmissionError: it could never fit.
        """
        if memory_mb > self.limits.memory_mb:
            raise AdmissionError(
                f"a sandbox of {memory_mb} MB is beyond the supervisor's limit of {self.limits.memory_mb} MB for all together",
                "ask for less memory, or raise SupervisorLimits.memory_mb",
            )
        self._queue.append(_Waiter(memory_mb, now + wait_s, wait_s, item))

    def take(self, memory_mb: int) -> AdmissionError | None:
        """Take room at once, past the queue (a fork cannot wait: its parent is stopped). The error if there is none."""
        if short := self.shortage(memory_mb):
            return AdmissionError(short, "release sandboxes first, or raise the limit")
        self.live += 1
        self.memory_mb += memory_mb
        return None

    def give(self, memory_mb: int) -> None:
        """A sandbox of that size is gone."""
        self.live -= 1
        self.memory_mb -= memory_mb

    def admit(self) -> list[T]:
        """Those whose turn has come; room is taken for them."""
        ready = []
        while self._queue and self.take(self._queue[0].memory_mb) is None:
            ready.append(self._queue.popleft().item)
        return ready

    def late(self, now: float) -> list[tuple[T, AdmissionError]]:
        """Those whose time is over, with the limit they waited for. They leave the queue."""
        late = [waiter for waiter in self._queue if waiter.deadline <= now]
        for waiter in late:
            self._queue.remove(waiter)
        return [(w.item, self._too_late(w)) for w in late]

    def _too_late(self, waiter: _Waiter[T]) -> AdmissionError:
        why = self.shortage(waiter.memory_mb) or "others were before it in the queue"
        return AdmissionError(f"no sandbox within {waiter.waited_s:g} s: {why}", "release sandboxes, wait longer, or raise the limit")

    def leave(self, item: T) -> bool:
        """Take `item` out of the queue; False when it is not in it."""
        for waiter in self._queue:
            if waiter.item is item:
                self._queue.remove(waiter)
                return True
        return False
