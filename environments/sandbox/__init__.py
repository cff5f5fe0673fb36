"""Boxes for code that nobody trusts: a `Sandbox` for a whole workspace, from one of several backends; `CodePool` for single functions."""

from environments.sandbox.base import Backend, Capabilities, ExecResult, PythonResult, Sandbox, SandboxConfig, Snapshot
from environments.sandbox.bubblewrap import available, require
from environments.sandbox.code_pool import CallResult, CodePool
from environments.sandbox.process import ProcessBackend, ProcessSandbox

__all__ = [
    "Backend",
    "CallResult",
    "Capabilities",
    "CodePool",
    "ExecResult",
    "ProcessBackend",
    "ProcessSandbox",
    "PythonResult",
    "Sandbox",
    "SandboxConfig",
    "Snapshot",
    "available",
    "require",
]
