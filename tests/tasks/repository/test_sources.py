"""Where fixes come from: patches of a series, commits of a repository, archives, change logs."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

from tasks.repository.debian import SourcePackage, apply_patch, patch_candidates, patch_header
from tasks.repository.git import clone, commit_candidates
from tasks.repository.index import OfflineError, licence_of, release_notes
from tasks.repository.leaks import telling_lines
from tasks.repository.problem import problem, replacements
from tasks.repository.tree import TreeError, is_history, is_test, layout_of, read_tar, read_tar_bytes
from tests.tasks.repository.small import AFTER, BEFORE, NEW_TEST, OLD_TEST, candidate

PATCH = b"""From: A Person <a@example.org>
Date: Mon, 1 Jan 2024 00:00:00 +0000
Subject: [PATCH] wordy: do not count nothing
Origin: upstream, https://example.org/1
Bug-Debian: https://bugs.example.org/2

Between two spaces there is no word.
---
--- a/wordy/__init__.py
+++ b/wordy/__init__.py
@@ -3,7 +3,7 @@

 def count_words(text):
     \"\"\"How many words a text has.\"\"\"
-    return len(text.split(" "))
+    return len(text.split())


 def longest_word(text):
--- /dev/null
+++ b/tests/test_new.py
@@ -0,0 +1,2 @@
+def test_new():
+    pass
"""


def _tree() -> dict[str, bytes]:
    return {"wordy/__init__.py": BEFORE.encode(), "tests/test_wordy.py": OLD_TEST.encode()}


def test_a_patch_is_applied_and_new_files_are_made() -> None:
    after = apply_patch(_tree(), PATCH)
    assert b"len(text.split())" in after["wordy/__init__.py"]
    assert after["tests/test_new.py"].startswith(b"def test_new")
    with pytest.raises(TreeError, match="does not apply"):
        apply_patch(after, PATCH)


@pytest.mark.parametrize("path", [b"../outside.py", b"/etc/passwd"])
def test_a_patch_cannot_leave_the_tree(path: bytes) -> None:
    with pytest.raises(TreeError):
        apply_patch(_tree(), b"--- a/" + path + b"\n+++ b/" + path + b"\n@@ -0,0 +1 @@\n+x\n")


def test_each_patch_of_a_series_is_a_candidate_on_those_before_it() -> None:
    second = (
        PATCH.replace(b"text.split())", b"text.split()) or 0")
        .replace(b'text.split(" "))', b"text.split())")
        .replace(b"test_new.py", b"test_b.py")
    )
    debian = {"debian/patches/series": b"# all\none.patch\nbad.patch\ntwo.patch -p1\n", "debian/patches/one.patch": PATCH}
    debian |= {
        "debian/patches/bad.patch": PATCH,
        "debian/patches/two.patch": second,
        "debian/copyright": b"Files: *\nCopyright: x\nLicense: Expat-MIT\n",
    }
    found, refused = patch_candidates(SourcePackage("wordy", "1-1", _tree(), debian, ()))
    assert [c.name for c in found] == ["wordy one.patch", "wordy two.patch"]
    assert [name for name, _ in refused] == ["bad.patch"]
    assert found[1].before == found[0].after
    assert found[0].changed == ("wordy/__init__.py",)
    assert found[0].licence == "Expat-MIT"
    only, missing = patch_candidates(SourcePackage("wordy", "1-1", _tree(), debian, ()), ["two.patch", "none.patch"])
    assert [c.name for c in only] == ["wordy two.patch"]
    assert ("none.patch", "the series has no such patch") in missing


def test_the_header_keeps_what_was_wrong_and_no_people_or_addresses() -> None:
    assert patch_header(PATCH.decode()) == "wordy: do not count nothing\n\nBetween two spaces there is no word."


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


def test_commits_that_change_package_and_tests_are_candidates(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    _git(work, "init", "-q")

    def commit(message: str, **files: str) -> None:
        for name, text in files.items():
            path = work / name.replace("__", "/")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        _git(work, "add", "-A")
        _git(work, "commit", "-qm", message)

    (work / "wordy").mkdir()
    (work / "wordy" / "__init__.py").write_text(BEFORE)
    commit("start", tests__test_wordy_py="", LICENSE="MIT License\n\nPermission ...")
    (work / "tests" / "test_wordy.py").write_text(OLD_TEST)
    commit("only tests")
    (work / "wordy" / "__init__.py").write_text(AFTER)
    (work / "tests" / "test_wordy.py").write_text(NEW_TEST)
    commit("Count only words\n\nWhat is between two spaces is none.")
    repository = clone(str(work), tmp_path / "clones")
    (found,) = commit_candidates(repository, "wordy")
    assert (found.before["wordy/__init__.py"], found.after["wordy/__init__.py"]) == (BEFORE.encode(), AFTER.encode())
    assert found.statement.startswith("Count only words")
    assert found.licence == "MIT"
    with pytest.raises(OfflineError, match="cannot be cloned"):
        clone(str(tmp_path / "nowhere"), tmp_path / "clones")
    with pytest.raises(TreeError):
        list(commit_candidates(repository, "wordy", revision="--output=x"))


def _tar(**files: bytes) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return stream.getvalue()


def test_archives_lose_their_top_folder_and_bad_ones_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    path.write_bytes(_tar(**{"a-1/m.py": b"x", "a-1/tests/test_m.py": b"y"}))
    assert read_tar(path) == {"m.py": b"x", "tests/test_m.py": b"y"}
    path.write_bytes(b"\x00" * 500)
    with pytest.raises(TreeError, match="no readable archive"):
        read_tar(path)
    with pytest.raises(TreeError, match="leaves the tree"):
        read_tar_bytes(_tar(**{"../m.py": b"x"}))


def test_parts_of_a_tree_are_told_apart() -> None:
    layout = layout_of(
        {"src/pkg/__init__.py": b"", "src/pkg/history.py": b"", "setup.py": b"", "tests/test_a.py": b"", "docs/conf.py": b""}
    )
    assert (layout.roots, layout.editable, layout.names) == (("src", ""), ("src/pkg/",), ("pkg",))
    assert layout.holds("src/pkg/history.py")
    assert not any(map(layout.holds, ["setup.py", "src/pkg/conftest.py", "src/pkg/tests/test_x.py", "tests/test_a.py"]))
    assert all(
        map(
            is_history,
            ["CHANGES.rst", "docs/changelog.md", "HISTORY", "debian/rules", ".git/HEAD", "a/b.pyc", "x.patch", "newsfragments/1.txt"],
        )
    )
    assert not any(map(is_history, ["src/pkg/history.py", "README.md", "pkg/changes.py"]))
    assert is_test("pkg/tests/data.json")
    assert not is_test("docs/test_of_docs.py")
    with pytest.raises(TreeError, match="no importable package"):
        layout_of({"README": b""})


def test_licence_and_release_notes_are_read_from_the_release() -> None:
    assert licence_of({"PKG-INFO": b"Name: a\nLicense-Expression: MIT\n"}) == "MIT"
    assert licence_of({"PKG-INFO": b"Name: a\nClassifier: License :: OSI Approved :: BSD License\n"}) == "BSD"
    assert licence_of({"pyproject.toml": b'license = "Apache-2.0"\n'}) == "Apache-2.0"
    assert licence_of({}) == ""
    old = {"CHANGES.rst": b"1.0\n---\nfirst\n"}
    new = {"CHANGES.rst": b"1.1\n---\nno longer counts what is between spaces\n\n1.0\n---\nfirst\n"}
    notes = release_notes(new, old, "1.1")
    assert "no longer counts" in notes
    assert "first" not in notes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (BEFORE, AFTER),
        ("a\nb\na\nb\n", "a\nb\nc\na\nb\nd\n"),
        ("x\n" * 9, "x\n" * 4 + "y\n" + "x\n" * 5),
        ("a\n", "a"),
        ("a\nb\nc\n", "c\n"),
        ("a\r\nb\r\n", "a\r\nc\r\n"),
    ],
)
def test_replacements_are_unique_one_after_the_other(old: str, new: str) -> None:
    text = old
    for before, after in replacements(old, new):
        assert text.count(before) == 1
        text = text.replace(before, after)
    assert text == new


def test_lines_that_the_package_had_before_tell_nothing() -> None:
    made = candidate(after={"wordy/__init__.py": AFTER + "\n\n# a line which only the fix has in it\nlen(text.split(\n"})
    assert "# a line which only the fix has in it" in telling_lines(made)
    assert not any(line in BEFORE for line in telling_lines(made))


def test_the_problem_says_what_is_missing_and_not_how_it_is_done() -> None:
    text = problem(candidate(), ["tests/test_wordy.py::test_more_spaces"])
    assert "count_words counts nothing as words." in text
    assert "test_more_spaces" in text
    assert "words_without_empty_ones" not in text
