"""What a growth may spend, what it has spent, and what each budget that ran out left open."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from environments.protocols import Reading

log = logging.getLogger(__name__)


class GrowthConfig(Protocol):
    """Budgets of a growth; those that may be None are then without limit."""

    @property
    def max_nodes(self) -> int: ...
    @property
    def max_level(self) -> int: ...
    @property
    def max_children(self) -> int: ...
    @property
    def max_searches(self) -> int | None: ...
    @property
    def max_tokens(self) -> int | None: ...
    @property
    def max_wall_s(self) -> float | None: ...


@dataclass(frozen=True)
class Stop:
    """A limit that a growth ran into."""

    budget: str
    """`nodes`, `depth`, `children`, `searches`, `tokens`, `wall time` or `endpoint`."""
    limit: float
    open_nodes: int
    """Nodes that it left with something to do."""
    proposals: int
    """Proposals that it shut out; each is kept as a reject."""

    def __str__(self) -> str:
        left = [f"{self.proposals} proposals shut out"] if self.proposals else []
        left += [f"{self.open_nodes} nodes left open"] if self.open_nodes else []
        return f"{self.cause}: {', '.join(left)}"

    @property
    def cause(self) -> str:
        """What stopped the growth."""
        if self.budget == "endpoint":
            return f"the endpoint failed on {self.limit:g} nodes in a row"
        return f"the budget of {self.limit:g} {self.unit} is spent"

    @property
    def unit(self) -> str:
        """What the limit counts."""
        return {"depth": "levels", "children": "children a node", "wall time": "s of wall time"}.get(self.budget, self.budget)


@dataclass
class Ledger:
    """Spent so far, in one growth. Readings taken from a journal count as when they were made."""

    clock: Callable[[], float] = time.monotonic
    readings: int = 0
    failed: int = 0
    searches: int = 0
    tokens: int = 0
    waves: int = 0
    merged: int = 0
    """Nodes merged into another."""
    stops: list[Stop] = field(default_factory=list)
    _started: float = 0.0

    def start(self) -> None:
        """Start the clock of the wall-time budget."""
        self._started = self.clock()

    def count(self, reading: Reading, failed: bool) -> None:
        """Count one reading."""
        self.readings += 1
        self.failed += failed
        self.searches += reading.searches
        self.tokens += reading.tokens

    def seconds_left(self, config: GrowthConfig) -> float | None:
        """Wall time left, at least 0; None without a limit."""
        return None if config.max_wall_s is None else max(0.0, config.max_wall_s - (self.clock() - self._started))

    def exhausted(self, config: GrowthConfig) -> tuple[str, float] | None:
        """(budget, limit) of the first budget of reading that is spent."""
        for name, limit, spent in (("searches", config.max_searches, self.searches), ("tokens", config.max_tokens, self.tokens)):
            if limit is not None and spent >= limit:
                return name, limit
        if config.max_wall_s is not None and self.seconds_left(config) == 0:
            return "wall time", config.max_wall_s
        return None

    def affordable(self, config: GrowthConfig) -> int | None:
        """Nodes that the searches and tokens left pay for, judged by what a reading has cost so far; None without a limit."""
        counts = []
        for limit, spent in ((config.max_searches, self.searches), (config.max_tokens, self.tokens)):
            if limit is not None:
                mean = spent / self.readings if self.readings else float(limit)
                counts.append(max(1, int((limit - spent) / max(mean, 1.0))))
        return min(counts) if counts else None

    def stop(self, stop: Stop) -> None:
        """Record a limit that was hit, and say so."""
        self.stops.append(stop)
        log.info("growth: %s", stop)
