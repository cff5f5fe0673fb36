"""Boxes for code that nobody trusts: :class:`ProcessSandbox` for a whole workspace, :class:`CodePool` for single functions."""

from environments.sandbox.bubblewrap import available, require
from environments.sandbox.code_pool import CallResult, CodePool
from environments.sandbox.process import ProcessSandbox, SandboxConfig

__all__ = ["CallResult", "CodePool", "ProcessSandbox", "SandboxConfig", "available", "require"]
