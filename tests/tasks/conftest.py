"""Tasks made of given parts, for tests of splits and datasets."""

from __future__ import annotations

import pytest

from tests.tasks.specs import make_task


@pytest.fixture
def tasks():
    """60 tasks over 3 domains and 12 branches, without shared material."""
    domains = ("general", "agent", "coding")
    return [make_task(i, domain=domains[i % 3], branch=f"b{i % 12}", level=1 + i % 4) for i in range(60)]
