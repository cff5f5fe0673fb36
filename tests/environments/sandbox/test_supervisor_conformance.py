"""The shared suite over a supervisor in a process of its own: a lease is a sandbox in every respect."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import psutil
import pytest

from environments.sandbox.base import Backend, Sandbox
from environments.sandbox.process import ProcessBackend
from environments.sandbox.supervisor import SupervisorBackend, SupervisorProcess, start_supervisor
from tests.environments.sandbox.conformance import Conformance, wait_for

pytestmark = pytest.mark.sandbox


class TestSupervisorOfProcessSandboxes(Conformance):
    supervisor: ClassVar[SupervisorProcess]

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
        with start_supervisor(tmp_path_factory.mktemp("s"), ProcessBackend()) as cls.supervisor:
            yield cls.supervisor.backend()

    def destroy(self, box: Sandbox) -> None:
        """The supervisor's newest child is the box that the test has just made."""
        newest = max(psutil.Process(self.supervisor.process.pid).children(), key=lambda child: child.create_time())
        for process in reversed(newest.children(recursive=True)):
            os.kill(process.pid, signal.SIGKILL)

    def test_the_backend_and_its_sandboxes_claim_the_same(self, backend: Backend, box: Sandbox) -> None:
        """A snapshot must find back to the backend that made it, so its name is the one below."""
        assert backend.probe() == ""
        assert backend.capabilities(self.config) == box.capabilities() == ProcessBackend().capabilities(self.config)
        assert (backend.name, box.capabilities().backend) == ("supervisor", "process")

    def test_nothing_is_left(self, backend: Backend) -> None:
        assert isinstance(backend, SupervisorBackend)
        assert len(backend.status()["leases"]) <= 1, "the shared one"


def test_a_killed_supervisors_boxes_die_with_it_and_a_state_is_restored(tmp_path: Path) -> None:
    first = start_supervisor(tmp_path / "s", ProcessBackend())
    backend = first.backend()
    box = backend.create()
    assert box.python("n = 41").error == ""
    box.write("state", b"precious")
    box.snapshot_every(0.1)
    wait_for(lambda: backend.snapshots(box.lease_id), "a snapshot")
    boxes = psutil.Process(first.process.pid).children(recursive=True)
    assert len(boxes) >= 2
    first.process.kill()
    first.stop()
    wait_for(lambda: not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in boxes), "their end")
    with start_supervisor(tmp_path / "s", ProcessBackend()) as second:
        with second.backend().acquire(snapshot=second.backend().snapshots(box.lease_id)[-1]) as restored:
            assert restored.read("state") == b"precious"
            assert restored.python("n + 1").stdout == "42\n"
        assert second.backend().status()["live"] == 0
