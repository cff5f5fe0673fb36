"""gVisor sandboxes: the shared suite, and what only whole-tree checkpoints can do."""

from __future__ import annotations

import os
import signal

import pytest

from environments.sandbox.base import Backend, Sandbox, SandboxConfig
from environments.sandbox.gvisor import GVisorBackend, GVisorSandbox
from tests.environments.sandbox.conformance import Conformance

_REASON = GVisorBackend().probe()
pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(bool(_REASON), reason=_REASON or "works")]


class TestGVisor(Conformance):
    config = SandboxConfig(memory_mb=256, workspace_mb=16, processes=48)

    @pytest.fixture(scope="class")
    def backend(self) -> Backend:
        return GVisorBackend()

    def destroy(self, box: Sandbox) -> None:
        assert isinstance(box, GVisorSandbox)
        os.kill(box._boxes[0].pids[0], signal.SIGKILL)
