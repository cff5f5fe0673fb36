"""The process backend in its two modes: the shared suite, the attacks, and what only it has."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from environments.errors import BadArgumentsError, CorruptArtifactError, MissingDependencyError, SandboxError
from environments.sandbox import ProcessBackend, ProcessSandbox, available, bubblewrap
from environments.sandbox.base import Backend, Sandbox, SandboxConfig
from environments.sandbox.places import Branch
from tests.environments.sandbox.attacks import SYSCALLS, Attacks, trying
from tests.environments.sandbox.conformance import Conformance, boxes_of

pytestmark = pytest.mark.sandbox


class _Process(Conformance, Attacks):
    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls) -> Backend:
        return ProcessBackend()

    def destroy(self, box: Sandbox) -> None:
        assert isinstance(box, ProcessSandbox)
        os.kill(box._place.processes()[0], 9)


class TestStrict(_Process):
    config = SandboxConfig(memory_mb=256, workspace_mb=16, processes=32)


class TestForkable(_Process):
    config = SandboxConfig(memory_mb=256, workspace_mb=16, processes=32, mode="forkable")
