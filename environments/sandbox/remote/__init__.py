"""Sandboxes on another host: a client of any E2B-compatible server (E2B, AgentENV, ours), and the parts of our own server.

The wire is that of E2B's public API and of its in-sandbox daemon envd, learnt from the official Python client (`e2b` 2.63).
"""

from environments.sandbox.remote.backend import RemoteBackend
from environments.sandbox.remote.sandbox import RemoteSandbox

__all__ = ["RemoteBackend", "RemoteSandbox"]
