"""sglang on a CPU without its compiled kernels: chosen with ``SGLANG_PLATFORM=ninefold_cpu``, inert otherwise.

sglang's own CPU backend wants a kernel package that has no wheel for every machine. This platform lets every operation
fall back to sglang's plain PyTorch form, so that integration tests and small runs talk to the real server.
"""

from __future__ import annotations

import os

NAME = "ninefold_cpu"


def activate() -> str | None:
    """Entry point of the group ``sglang.srt.platforms``: the platform's import path, or None when another is chosen."""
    if os.environ.get("SGLANG_PLATFORM") != NAME:
        return None
    from ninefold_sglang_cpu.absent import provide_absent_torchvision

    provide_absent_torchvision()
    return "ninefold_sglang_cpu.platform.PlainCpuPlatform"
