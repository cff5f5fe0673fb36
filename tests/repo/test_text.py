"""Tracked files speak of the project alone, and the files that a reader expects are there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

# Put together here so that this file does not hold them.
PLACES = (r"(?<![\w.])/wo" + r"rk/", r"(?<![\w-])sha" + r"red/", r"/opt/py" + r"pi", r"/opt/whe" + r"els", r"/tm" + r"p/w/")
FORBIDDEN = re.compile("|".join(PLACES))


@pytest.fixture(scope="module")
def tracked(repo_root: Path) -> list[Path]:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=repo_root, capture_output=True, text=True)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [repo_root / name for name in listing.stdout.split("\0") if name and (repo_root / name).is_file()]


def test_no_file_names_a_place_of_one_machine(tracked: list[Path], repo_root: Path) -> None:
    assert len(tracked) > 20
    found = []
    for path in tracked:
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if FORBIDDEN.search(line):
                found.append(f"{path.relative_to(repo_root)}:{number}: {line.strip()[:120]}")
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("text", ["see /wo" + "rk/main/x.py", "../sha" + "red/design", "pip --find-links /opt/whe" + "els"])
def test_the_pattern_finds_them(text: str) -> None:
    assert FORBIDDEN.search(text)


@pytest.mark.parametrize("text", ["https://example.org/wo" + "rk/of/art", "unsha" + "red/", "runs/laptop/work"])
def test_the_pattern_lets_others_be(text: str) -> None:
    assert not FORBIDDEN.search(text)


def test_what_a_run_makes_is_never_tracked(tracked: list[Path], repo_root: Path) -> None:
    made = [path for path in tracked if path.relative_to(repo_root).parts[0] in ("runs", "data", ".venv", ".venv-sglang")]
    assert not made


def test_the_licence_is_apache_2(repo_root: Path) -> None:
    text = (repo_root / "LICENSE").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
