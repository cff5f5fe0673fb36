"""The sandboxes that the tools are tried on: the process backend's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from environments.sandbox import ProcessBackend
from environments.sandbox.base import Backend, Sandbox


@pytest.fixture(scope="session")
def backend() -> Backend:
    made = ProcessBackend()
    if reason := made.probe():
        pytest.skip(reason)
    return made


@pytest.fixture
def sandbox(backend: Backend) -> Iterator[Sandbox]:
    with backend.create() as made:
        yield made
