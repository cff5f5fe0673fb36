"""The rule of tests/conftest.py: a required test that is skipped, or not there, fails the run. Driven by a real pytest."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SKIPS = "import pytest\n\n@pytest.mark.dask\ndef test_it():\n    pytest.skip('no cluster here')\n"
SKIPS_BY_MARK = "import pytest\n\n@pytest.mark.dask\n@pytest.mark.skipif(True, reason='no cluster here')\ndef test_it():\n    pass\n"
SKIPS_WHOLE = "import pytest\n\npytest.skip('no cluster here', allow_module_level=True)\n"
EXPECTED_FAILURE = "import pytest\n\n@pytest.mark.dask\n@pytest.mark.xfail(strict=True)\ndef test_it():\n    raise ValueError\n"
PASSES = "import pytest\n\n@pytest.mark.dask\ndef test_it():\n    assert True\n"
UNMARKED = "import pytest\n\ndef test_it():\n    pytest.skip('another reason')\n\ndef test_other():\n    assert True\n"


def _pytest(repo_root: Path, directory: Path, source: str, require: str, *options: str) -> tuple[int, str]:
    shutil.copy(repo_root / "tests" / "conftest.py", directory)
    (directory / "test_sample.py").write_text(source)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "NINEFOLD"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", ".", *options, "test_sample.py"],
        cwd=directory,
        env=environment | ({"NINEFOLD_REQUIRE": require} if require else {}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("source", [SKIPS, SKIPS_BY_MARK])
def test_a_required_skip_fails_with_its_reason(repo_root: Path, tmp_path: Path, source: str) -> None:
    assert _pytest(repo_root, tmp_path, source, "")[0] == 0
    code, output = _pytest(repo_root, tmp_path, source, "dask")
    assert code == 1
    assert "1 failed" in output or "1 error" in output
    assert "no cluster here" in output


def test_the_rule_holds_with_parallel_workers(repo_root: Path, tmp_path: Path) -> None:
    assert _pytest(repo_root, tmp_path, SKIPS, "dask", "-n", "1")[0] == 1
    assert _pytest(repo_root, tmp_path, PASSES, "dask", "-n", "1")[0] == 0


def test_a_module_that_skips_itself_fails(repo_root: Path, tmp_path: Path) -> None:
    code, output = _pytest(repo_root, tmp_path, SKIPS_WHOLE, "dask")
    assert code != 0
    assert "skips itself as a module" in output


def test_a_required_marker_without_any_test_fails(repo_root: Path, tmp_path: Path) -> None:
    code, output = _pytest(repo_root, tmp_path, PASSES, "dask, chromium")
    assert code == 1
    assert "no test ran for: chromium" in output


@pytest.mark.parametrize(("source", "require"), [(PASSES, "dask"), (EXPECTED_FAILURE, ""), (UNMARKED, "")])
def test_everything_else_is_left_alone(repo_root: Path, tmp_path: Path, source: str, require: str) -> None:
    assert _pytest(repo_root, tmp_path, source, require)[0] == 0


def test_other_skips_are_no_failures(repo_root: Path, tmp_path: Path) -> None:
    code, output = _pytest(repo_root, tmp_path, UNMARKED + PASSES.partition("\n")[2].replace("test_it", "test_third"), "dask")
    assert code == 0
    assert "1 skipped" in output
