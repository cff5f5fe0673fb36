"""Settings of the gate."""

from __future__ import annotations

from pydantic import Field

from environments.task import Frozen


class HardeningConfig(Frozen):
    """How thorough the gate is. The defaults cost some 36 sandbox calls for a coding task and none for another."""

    run: str = Field(default="", description="Name of the run, written into every row")
    reference_runs: int = Field(
        default=3, ge=1, le=64, description="Fresh environments in which the reference must pass, with identical verdicts"
    )
    exploits: tuple[str, ...] | None = Field(default=None, description="Names of the exploits to try; all that apply when not given")
    repair: bool = Field(default=True, description="Close what can be closed (and check again) instead of rejecting the task")
