"""`python -m tasks.repository` over a repository of one's own: tasks, manifest and every rejected commit with its reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from environments.sandbox.base import Backend
from tasks.repository.fixes import FIXES, fetch_all
from tasks.repository.index import OfflineError, index_urls
from tasks.repository.store import load, read_rejected
from tests.tasks.repository.small import AFTER, BEFORE, NEW_TEST, OLD_TEST

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


def _commit(work: Path, message: str, source: str, tests: str) -> None:
    (work / "wordy" / "__init__.py").write_text(source)
    (work / "tests" / "test_wordy.py").write_text(tests)
    for command in (["add", "-A"], ["commit", "-qm", message]):
        subprocess.run(["git", "-c", "user.name=n", "-c", "user.email=e@example.org", *command], cwd=work, check=True)


def test_commits_of_a_repository_become_tasks_or_are_rejected_with_a_reason(tmp_path: Path, repo_root: Path, backend: Backend) -> None:
    work = tmp_path / "wordy"
    (work / "wordy").mkdir(parents=True)
    (work / "tests").mkdir()
    (work / "LICENSE").write_text("MIT License\n")
    subprocess.run(["git", "init", "-q"], cwd=work, check=True)
    _commit(work, "start", BEFORE, OLD_TEST)
    _commit(work, "count_words counts only words", AFTER, NEW_TEST)
    _commit(work, "a comment", f"{AFTER}# more\n", f"{NEW_TEST}# more\n")
    folder = tmp_path / "out"
    command = [sys.executable, "-m", "tasks.repository", "--git", str(work), "--folder", str(folder), "--runs", "2"]
    said = subprocess.run(command, cwd=repo_root, capture_output=True, text=True, timeout=300)
    assert said.returncode == 0, said.stdout + said.stderr
    assert "1 built, 1 rejected, 0 undecided" in said.stdout
    (task,) = load(folder)
    assert (task.row.fail_to_pass, task.row.pass_to_pass, task.row.licence) == (1, 2, "MIT")
    assert "count_words counts only words" in task.prompt
    (refused,) = read_rejected(folder)
    assert (refused.stage, refused.reason) == ("design", "no test fails before the fix and passes after it")
    assert json.loads((folder / "manifest.json").read_text())["tasks"][0]["name"] == task.row.name


def test_an_index_out_of_reach_says_nothing_about_a_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    index_urls.cache_clear()
    try:
        (found,) = fetch_all(FIXES[:1], tmp_path)
    finally:
        index_urls.cache_clear()
    assert isinstance(found, OfflineError), found
