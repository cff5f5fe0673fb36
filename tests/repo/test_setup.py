"""The system-package script: silent when all is there, exact when it is not. apt-get is never really called."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

PACKAGES = ("bubblewrap", "chromium", "dict-foldoc", "python3.11-doc", "fonts-dejavu-core")


def _run(repo_root: Path, commands: Path, **scripts: str) -> subprocess.CompletedProcess[str]:
    """Run the script with a PATH that holds only the given commands (name to shell body) and bash's own."""
    for name, body in scripts.items():
        path = commands / name.replace("_", "-")
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
    return subprocess.run(
        ["/bin/bash", str(repo_root / ".ci" / "system_packages.sh")],
        env=os.environ | {"PATH": str(commands), "CALLS": str(commands / "calls")},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_says_nothing_when_everything_is_there(repo_root: Path, tmp_path: Path) -> None:
    done = _run(repo_root, tmp_path, bwrap="", chromium="", dpkg_query="echo -n installed", apt_get="exit 1", id="echo 0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_names_the_command_when_not_root(repo_root: Path, tmp_path: Path) -> None:
    done = _run(repo_root, tmp_path, bwrap="", dpkg_query="exit 1", apt_get='echo "$@" >> "$CALLS"', id="echo 1000")
    assert done.returncode == 0
    assert "apt-get install -y --no-install-recommends chromium dict-foldoc python3.11-doc fonts-dejavu-core" in done.stdout
    assert "bubblewrap" not in done.stdout
    assert not (tmp_path / "calls").exists()


def test_installs_one_by_one_as_root_and_names_what_failed(repo_root: Path, tmp_path: Path) -> None:
    apt = 'echo "$@" >> "$CALLS"; case "$*" in *dict-foldoc*) exit 100;; esac'
    done = _run(repo_root, tmp_path, dpkg_query="exit 1", apt_get=apt, id="echo 0")
    assert done.returncode == 0
    calls = (tmp_path / "calls").read_text()
    assert all(package in calls for package in PACKAGES)
    assert done.stdout.rstrip().endswith("apt-get install -y --no-install-recommends dict-foldoc")


@pytest.mark.parametrize("target", ["setup", "run", "test", "setup-sglang", "lint", "typecheck", "clean"])
def test_every_make_target_resolves(repo_root: Path, target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=repo_root, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if target == "run":
        assert "ninefold run --profile laptop --name laptop --resume" in done.stdout
    if target == "test":
        assert "-m pytest" in done.stdout
