"""What a verifier says of an outcome, and when it may become a reward."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from environments.errors import NonFiniteRewardError

Status = Literal["pass", "fail", "no-verdict", "tainted", "unproven"]


class Verdict(BaseModel):
    """One judgement. `score` may carry partial credit; `reward` exists only for pass and fail.

    - pass / fail: the verifier ran and decided.
    - no-verdict: the verifier crashed, timed out, or its artefact is missing. Never 0, never 1.
    - tainted: a confirmed hack. What it means to training is the objective's rule, not ours.
    - unproven: a claim without the evidence the task asked for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    status: Status
    score: float | None = None
    """In [0, 1]; None unless the verifier decided."""
    parts: dict[str, float] = Field(default_factory=dict)
    """The score's parts, each in [0, 1]."""
    evidence: dict[str, Any] = Field(default_factory=dict)
    """What the verifier saw: enough for a person to check the judgement. Never the hidden payload."""

    @model_validator(mode="after")
    def _finite(self) -> Self:
        decided = self.status in ("pass", "fail")
        if decided and self.score is None:
            raise ValueError(f"a {self.status} verdict needs a score")
        if self.status in ("no-verdict", "unproven") and self.score is not None:
            raise ValueError(f"a {self.status} verdict carries no score, got {self.score}")
        for name, value in [("score", self.score), *self.parts.items()]:
            if value is not None and not (math.isfinite(value) and 0.0 <= value <= 1.0):
                raise ValueError(f"{name}={value!r} is not a finite number in [0, 1]")
        return self

    @property
    def reward(self) -> float | None:
        """1.0 for pass, 0.0 for fail, None otherwise. Partial credit stays in `score`."""
        return {"pass": 1.0, "fail": 0.0}.get(self.status)

    @classmethod
    def decide(cls, score: object, *, parts: dict[str, float] | None = None, evidence: dict[str, Any] | None = None) -> Verdict:
        """Pass at exactly 1, fail below.

        Raises:
            NonFiniteRewardError: `score` is not a real number in [0, 1] (NaN, 1.5, "1", an object).
        """
        if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1:  # NaN compares false
            raise NonFiniteRewardError(f"the verifier returned {score!r:.80}", "return a finite float in [0, 1]")
        status: Status = "pass" if score == 1 else "fail"
        return cls(status=status, score=float(score), parts=parts or {}, evidence=evidence or {})

    @classmethod
    def no_verdict(cls, reason: str) -> Verdict:
        """The judge failed, not the agent."""
        return cls(status="no-verdict", evidence={"reason": reason})
