"""The cases that every verifier ships with itself: full, zero, malformed and determinism (after NeMo Gym's verifier fixtures)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from environments.protocols import Outcome
from environments.task import InitialState
from environments.verdict import Status


@dataclass(frozen=True)
class VerifierFixture:
    """One outcome with the verdict it must get."""

    name: str
    case: Literal["full", "zero", "partial", "malformed", "determinism"]
    payload: Any
    outcome: Outcome
    status: Status
    score: float | None
    initial_state: InitialState = field(default_factory=InitialState)
    runs: int = 1
    """How often it is judged; all verdicts must be identical."""
