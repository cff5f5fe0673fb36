"""A real sglang server on this machine's CPU, for tests and small runs.

The server runs in an environment of its own (``make setup-sglang``) with the platform plugin beside this file; on a GPU
machine a plain sglang installation takes its place and only the address changes.
"""

from training.sglang_cpu.launch import SglangServer, launch, server_python

__all__ = ["SglangServer", "launch", "server_python"]
