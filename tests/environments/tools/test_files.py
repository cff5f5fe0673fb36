"""Files are shown with numbers, changed only where it is certain what is meant, and what does not fit is explained."""

from __future__ import annotations

import pytest

from environments.errors import BadArgumentsError
from environments.sandbox.base import Sandbox
from environments.tools.files import create, edit, view
from tests.environments.tools.pictures import PNG

pytestmark = pytest.mark.sandbox

CODE = "def f(x):\n    return x + 1\n\n\ndef g(x):\n    return x + 2\n"


@pytest.fixture
def code(sandbox: Sandbox) -> Sandbox:
    sandbox.write("src/code.py", CODE.encode())
    return sandbox


def test_lines_are_numbered_and_a_range_says_what_is_left(code: Sandbox) -> None:
    assert view(code, "src/code.py").text == "\n".join(f"{i:6}\t{line}" for i, line in enumerate(CODE.splitlines(), 1))
    assert view(code, "/workspace/src/code.py", 2, 3).text == "     2\t    return x + 1\n     3\t\n[6 lines in all]"
    assert view(code, "src/code.py", 6, 99).text == "     6\t    return x + 2"
    past = view(code, "src/code.py", 7)
    assert (past.text, past.failed) == ("src/code.py has 6 lines; there is no line 7", True)
    for start, end in ((0, None), (3, 2), (None, 0), (-1, 4)):
        with pytest.raises(BadArgumentsError, match="no range"):
            view(code, "src/code.py", start, end)


def test_a_long_file_stops_between_lines_and_says_how_to_go_on(sandbox: Sandbox) -> None:
    sandbox.write("long", "".join(f"{i} {'x' * 50}\n" for i in range(1, 2001)).encode())
    *lines, mark = view(sandbox, "long").text.splitlines()
    number = len(lines) + 1
    assert mark == f"[lines {number} to 2000 are left out; pass start={number} to go on]"
    assert view(sandbox, "long", number).text.startswith(f"{number:6}\t{number} x")
    sandbox.write("wide", b"y" * 100_000)
    assert view(sandbox, "wide").text == f"     1\t{'y' * 2000} [... 98000 more characters]"


def test_folders_are_listed(code: Sandbox) -> None:
    code.write("top.txt", b"")
    code.exec(["mkdir", "empty"])
    assert view(code, ".").text == "empty/ (empty)\nsrc/ (1)\ntop.txt"
    assert view(code, "src").text == "code.py"
    assert view(code, "empty").text == "empty is an empty folder"


def test_pictures_are_shown_and_other_binaries_refused_kindly(sandbox: Sandbox) -> None:
    for name, data in {"a.png": PNG, "b": b"\x7fELF\0\1", "c": b"caf\xe9", "d": b""}.items():
        sandbox.write(name, data)
    shown = view(sandbox, "a.png")
    assert (len(shown.images), shown.failed) == (1, False)
    for name in "bc":
        assert view(sandbox, name).failed
        assert "is not text" in view(sandbox, name).text
    assert view(sandbox, "d").text == "d is empty"
    missing = view(sandbox, "nothing")
    assert missing.failed
    assert "nothing" in missing.text
    assert view(sandbox, "../../etc/passwd").failed


def test_an_edit_needs_its_text_exactly_once(code: Sandbox) -> None:
    done = edit(code, "src/code.py", "    return x + 1\n", "    y = x\n    return y + 1\n")
    assert not done.failed
    assert done.text.splitlines()[:3] == ["src/code.py: replaced 1 occurrence", "     1\tdef f(x):", "     2\t    y = x"]
    changed = code.read("src/code.py").decode()
    assert changed == CODE.replace("    return x + 1\n", "    y = x\n    return y + 1\n")

    twice = edit(code, "src/code.py", "(x):\n", "(z):\n")
    assert twice.failed
    assert "occurs 2 times in src/code.py, at lines 1, 6;" in twice.text
    assert code.read("src/code.py").decode() == changed
    assert not edit(code, "src/code.py", "(x):\n", "(z):\n", every=True).failed
    assert code.read("src/code.py").decode() == changed.replace("(x)", "(z)")
    assert not edit(code, "src/code.py", "\n\n", "").failed
    assert b"\n\n" not in code.read("src/code.py")


@pytest.mark.parametrize(
    ("old", "told"),
    [
        ("def g(x):\n\treturn x + 2", "Only the white space differs at line 5:\n     5\tdef g(x):\n     6\t    return x + 2"),
        ("def g(y):\n    return y + 2", "The nearest lines are:\n     5\tdef g(x):\n     6\t    return x + 2"),
        ("class Elephant: pass", "Nothing in it is similar"),
    ],
)
def test_a_text_that_does_not_occur_is_answered_with_the_nearest_lines(code: Sandbox, old: str, told: str) -> None:
    answer = edit(code, "src/code.py", old, "new")
    assert answer.failed
    assert told in answer.text
    assert code.read("src/code.py").decode() == CODE


def test_edits_that_cannot_be(code: Sandbox) -> None:
    for old, new, why in (("", "x", "old is empty"), ("x", "x", "equal")):
        with pytest.raises(BadArgumentsError, match=why):
            edit(code, "src/code.py", old, new)
    code.write("b", b"\0\1")
    for path in ("b", "missing", "src", "../x"):
        assert edit(code, path, "a", "b").failed


def test_windows_line_ends_stay(sandbox: Sandbox) -> None:
    sandbox.write("dos.txt", b"one\r\ntwo\r\nthree\r\n")
    assert not edit(sandbox, "dos.txt", "one\ntwo\n", "1\n2\n").failed
    assert sandbox.read("dos.txt") == b"1\r\n2\r\nthree\r\n"
    assert view(sandbox, "dos.txt", 1, 1).text.startswith("     1\t1\n")


def test_create_writes_folders_and_keeps_what_exists(code: Sandbox) -> None:
    assert create(code, "new/deep/file.txt", "a\nb\n").text == "new/deep/file.txt: created, 2 lines"
    assert code.read("new/deep/file.txt") == b"a\nb\n"
    kept = create(code, "src/code.py", "gone")
    assert kept.failed
    assert "exists" in kept.text
    assert code.read("src/code.py").decode() == CODE
    assert create(code, "src/code.py", "", overwrite=True).text == "src/code.py: replaced, 0 lines"
    assert code.read("src/code.py") == b""
    for path in ("../out", "/etc/x", "src"):
        assert create(code, path, "x", overwrite=True).failed
