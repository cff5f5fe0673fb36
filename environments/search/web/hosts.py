"""What is known of each host, shared by all processes of a cache folder: when its next turn is, and whether it is left alone.

One small file a host, changed under a lock. A host that failed `failures` times in a row is left alone for `cooldown_s`;
then one request may try, and success forgets everything (a circuit breaker).
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from environments.search.web.config import FetchConfig
from environments.search.web.outcome import RefusedError

log = logging.getLogger(__name__)

_MAX_COOLDOWN_S = 3600.0


class _State(BaseModel):
    """Times in seconds since 1970, as processes share no other clock."""

    host: str = ""
    next_at: float = 0.0
    failed: int = 0
    closed_until: float = 0.0
    reason: str = ""


class Hosts:
    """Turns and circuits of hosts. `clock` and `sleep` are the system's."""

    def __init__(
        self, folder: Path, config: FetchConfig, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._folder = folder
        self._config = config
        self._clock = clock
        self._sleep = sleep

    def admit(self, host: str, interval_s: float = 0.0) -> float:
        """Wait for this request's turn and return the seconds waited.

        Args:
            interval_s: what the host asks for between requests, when that is more than the configuration says.

        Raises:
            RefusedError: `circuit_open` while the host is left alone, `rate_limited` when the turn is too far off.
        """
        now = self._clock()
        interval = max(interval_s, self._config.interval_s)
        with self._state(host) as state:
            if state.closed_until > now:
                left = state.closed_until - now
                raise RefusedError("circuit_open", f"{host} is left alone for {left:.0f} s more: {state.reason}", retry_after_s=left)
            if state.failed >= self._config.failures:
                state.closed_until = now + self._config.cooldown_s  # this one tries; the others wait for what it finds
            turn = min(max(now, state.next_at), now + _MAX_COOLDOWN_S)
            if turn - now > self._config.max_wait_s:
                raise RefusedError("rate_limited", f"the next turn at {host} is in {turn - now:.1f} s", retry_after_s=turn - now)
            state.next_at = turn + interval
        if turn > now:
            self._sleep(turn - now)
        return turn - now

    def succeeded(self, host: str) -> None:
        """The host answered as it should."""
        with self._state(host) as state:
            state.failed, state.closed_until, state.reason = 0, 0.0, ""

    def failed(self, host: str, reason: str) -> None:
        """The host is dead, slow or broken."""
        with self._state(host) as state:
            state.failed += 1
            state.reason = reason[:300]
            if (over := state.failed - self._config.failures) >= 0:
                state.closed_until = self._clock() + min(self._config.cooldown_s * 2.0 ** min(over, 12), _MAX_COOLDOWN_S)

    def defer(self, host: str, seconds: float, reason: str) -> None:
        """The host asked to be left alone for a while (429, or 503 with Retry-After)."""
        with self._state(host) as state:
            state.closed_until = max(state.closed_until, self._clock() + min(seconds, _MAX_COOLDOWN_S))
            state.reason = reason[:300]

    @contextmanager
    def _state(self, host: str) -> Iterator[_State]:
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{hashlib.sha256(host.encode()).hexdigest()[:24]}.json"
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            state = _read(file)
            state.host = host
            yield state
            try:
                file.seek(0)
                file.truncate()
                file.write(state.model_dump_json().encode())
                file.flush()
            except OSError as error:  # a full disk costs what is known of the host, not the request
                log.warning("%s cannot be written: %s", path, error)


def _read(file: Any) -> _State:
    try:
        return _State.model_validate_json(file.read())
    except ValidationError:  # new, or cut by a killed process: the host starts afresh
        return _State()
