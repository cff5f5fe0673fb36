"""The time limit that an agent may set on its own commands."""

from __future__ import annotations

from environments.errors import BadArgumentsError
from environments.task import ToolParameter

DEFAULT_S = 30.0
LONGEST_S = 600.0

TIMEOUT = ToolParameter(
    name="timeout_s",
    type="number",
    description=f"Seconds until it is stopped, {DEFAULT_S:g} unless given, {LONGEST_S:g} at most.",
    required=False,
)


def seconds(timeout_s: float | None) -> float:
    """The limit to use. Raises BadArgumentsError when it is out of range."""
    if timeout_s is None:
        return DEFAULT_S
    if not 0 < timeout_s <= LONGEST_S:
        raise BadArgumentsError(f"timeout_s={timeout_s:g} is out of range", f"pass more than 0 and at most {LONGEST_S:g}")
    return float(timeout_s)
