"""Boxes for code that nobody trusts: :class:`ProcessSandbox` for a whole workspace, :class:`CodePool` for single functions."""

from environments.sandbox.bubblewrap import available
from environments.sandbox.code_pool import CallResult, CodePool

__all__ = ["CallResult", "CodePool", "available"]
