"""A working sandbox with pytest in it, and the small fix as a built task."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from environments.errors import MissingDependencyError
from environments.sandbox.backends import choose
from environments.sandbox.base import Backend
from environments.sandbox.images import ImageError
from environments.verifiers.suite import IMAGES, sandbox_config
from tasks.repository.build import BuiltTask, build
from tests.tasks.repository.small import candidate


@pytest.fixture(scope="package")
def backend() -> Iterator[Backend]:
    """A working backend with pytest to be had for its sandboxes."""
    try:
        sandbox_config(("pytest>=8,<10",))
        yield choose()[0]
    except MissingDependencyError as error:
        pytest.skip(str(error))
    except ImageError as error:
        pytest.skip(f"pytest cannot be installed for sandboxes ({error}). Fix: a package index in reach, or {IMAGES} with a built image")


@pytest.fixture(scope="package")
def task(backend: Backend) -> BuiltTask:
    """The small fix, built."""
    built = build(candidate(), backend)
    assert isinstance(built, BuiltTask), built
    return built
