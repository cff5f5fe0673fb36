"""Real fixes, fetched and built anew: the counts are those of the committed manifest."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.errors import MissingDependencyError
from environments.sandbox.base import Backend
from tasks.repository.build import BuiltTask, build
from tasks.repository.fixes import FIXES
from tasks.repository.index import OfflineError
from tasks.repository.store import committed_manifest

KNOWN = {row.name: row for row in committed_manifest()}
PRESCRIBED = {
    "jinja2 0001-xmlattr-filter-disallows-keys-with-spaces.patch": (1, 842),
    "jinja2 0002-disallow-invalid-characters-in-keys-to-xmlattr-filte.patch": (7, 842),
    "jinja2 0006-Fix-CVE-2024-56201.patch": (1, 849),
    "jinja2 0007-Fix-CVE-2024-56326.patch": (1, 850),
    "parse 1.20.1 -> 1.20.2": (2, 94),
    "parse 1.20.2 -> 1.21.0": (1, 95),
    "boltons 24.1.0 -> 25.0.0": (6, 417),
    "humanize 4.12.3 -> 4.13.0": (35, 631),
    "more-itertools 10.7.0 -> 10.8.0": (23, 672),
}
"""(fail to pass, pass to pass) as measured apart from this code, by hand, when the fixes were chosen."""


def test_the_manifest_holds_at_least_twelve_sound_tasks() -> None:
    assert len(KNOWN) >= 12
    assert {fix.name for fix in FIXES} == KNOWN.keys()
    for row in KNOWN.values():
        assert min(row.fail_to_pass, row.pass_to_pass, row.controls) > 0
        assert row.runs >= 3
        assert row.licence
        assert row.changed
        assert all(len(sha256) == 64 for _, sha256 in row.sources)


@pytest.mark.parametrize("name", PRESCRIBED)
def test_the_counts_are_those_measured_by_hand(name: str) -> None:
    assert (KNOWN[name].fail_to_pass, KNOWN[name].pass_to_pass) == PRESCRIBED[name]


@pytest.mark.sandbox
@pytest.mark.slow
@pytest.mark.parametrize("name", ["parse 1.20.1 -> 1.20.2", "semver 3.0.1 -> 3.0.2", "jinja2 0006-Fix-CVE-2024-56201.patch"])
def test_a_real_fix_gives_the_same_task_again(name: str, tmp_path: Path, backend: Backend) -> None:
    fix = next(f for f in FIXES if f.name == name)
    try:
        made = build(fix.candidate(tmp_path), backend)
    except (OfflineError, MissingDependencyError) as error:
        pytest.skip(f"{name} cannot be had here: {error}")
    assert isinstance(made, BuiltTask), made
    row, known = made.row, KNOWN[name]
    assert (row.fail_to_pass, row.pass_to_pass, row.flaky) == (known.fail_to_pass, known.pass_to_pass, known.flaky)
    assert row.changed == known.changed
    if fix.origin == "index":  # A Debian tree's payload differs in bytes between two builds; its tests and their outcomes do not.
        assert row.payload_sha256 == known.payload_sha256
        assert row.sources == known.sources
