"""The interpreter's answers: text, errors, pictures, and a stop that says what was lost."""

from __future__ import annotations

import pytest

from environments.sandbox.base import Sandbox
from environments.tools.observation import as_image
from environments.tools.python import run_python
from tests.environments.tools.pictures import PNG

pytestmark = pytest.mark.sandbox


def test_variables_persist_and_errors_are_answers(sandbox: Sandbox) -> None:
    assert run_python(sandbox, "x = 41").text == "[no output]"
    assert run_python(sandbox, "print('a')\nx + 1").text == "a\n42"
    wrong = run_python(sandbox, "print('before')\n1/0")
    assert wrong.failed
    assert wrong.text.startswith("before\n")
    assert "ZeroDivisionError" in wrong.text
    assert run_python(sandbox, "def f(:").failed
    assert run_python(sandbox, "x").text == "41"


def test_images_come_back(sandbox: Sandbox) -> None:
    shown = run_python(sandbox, f"class P:\n    def _repr_png_(self): return {PNG!r}\n    def __repr__(self): return 'a picture'\nP()")
    assert shown.images == (as_image(PNG),)
    assert not shown.failed


def test_a_stopped_interpreter_says_what_was_lost(sandbox: Sandbox) -> None:
    run_python(sandbox, "x = 1")
    stopped = run_python(sandbox, "while True: pass", 1.0)
    assert stopped.failed
    assert "[stopped after 1 s; the interpreter was started again and its variables are gone]" in stopped.text
    assert "NameError" in run_python(sandbox, "x").text
