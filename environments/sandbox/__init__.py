"""Boxes for code that nobody trusts: bubblewrap, seccomp and limits (:class:`ProcessSandbox`), and a pool of fork servers (:class:`CodePool`)."""

from environments.sandbox.bubblewrap import available
from environments.sandbox.code_pool import CallResult, CodePool

__all__ = ["CallResult", "CodePool", "available"]
