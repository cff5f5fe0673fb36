"""The shell keeps its directory and exported variables, whatever a command does; time and size limits are answers."""

from __future__ import annotations

import pytest

from environments.errors import BadArgumentsError
from environments.sandbox.base import Sandbox
from environments.tools.bash import run_bash

pytestmark = pytest.mark.sandbox


def said(sandbox: Sandbox, command: str, timeout_s: float | None = None) -> str:
    return run_bash(sandbox, command, timeout_s).text


def test_directory_and_exported_variables_persist(sandbox: Sandbox) -> None:
    assert said(sandbox, "pwd") == "/workspace"
    assert said(sandbox, "mkdir -p 'a b/c' && cd 'a b' && export X='1 \"2\"\n$3' Y=4; Z=5; f() { :; }") == "[no output]"
    assert said(sandbox, 'pwd; echo "$X"; echo $Y; echo "[$Z]"; type -t f') == '/workspace/a b\n1 "2"\n$3\n4\n[]\n[exit code 1]'
    assert said(sandbox, "cd c; cd - >/dev/null; unset Y; pwd") == "/workspace/a b"
    assert said(sandbox, 'cd - >/dev/null; pwd; echo "[$Y]"') == "/workspace/a b/c\n[]"


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("cd d; export V=1; exit 3", 3),
        ("cd d; export V=1; set -e; false; echo never", 1),
        ("set -eu; cd d; export V=1; echo $nothing", 1),
        ("trap 'true' EXIT; cd d; export V=1", 0),
        ("cd d; export V=1; cd() { false; }; export() { false; }; mv() { false; }", 0),
        ("cd d; export V=1; PATH=", 0),
        ("cd d; export V=1; set -o noglob -o noclobber; shopt -s extglob", 0),
    ],
)
def test_what_a_command_leaves_persists_however_it_ends(sandbox: Sandbox, command: str, code: int) -> None:
    said(sandbox, "mkdir d")
    first = run_bash(sandbox, command)
    assert first.failed == (code != 0)
    assert (f"[exit code {code}]" in first.text) == (code != 0)
    assert said(sandbox, 'pwd; echo "$V"') == "/workspace/d\n1"


def test_a_command_that_ends_without_a_word_changes_nothing(sandbox: Sandbox) -> None:
    said(sandbox, "mkdir d e; cd d; export V=1")
    said(sandbox, "cd ../e; V=2; exec true")
    said(sandbox, "cd ../e; V=2; kill -9 $$")
    stopped = run_bash(sandbox, "cd ../e; V=2; echo before; sleep 60", 0.5)
    assert stopped.failed
    assert stopped.text == "before\n[stopped after 0.5 s; the working directory and variables are as they were before]"
    assert said(sandbox, "pwd; echo $V") == "/workspace/d\n1"


def test_a_directory_that_is_gone_is_left(sandbox: Sandbox) -> None:
    said(sandbox, "mkdir d; cd d; rmdir ../d")
    text = said(sandbox, "pwd")
    assert text.splitlines()[-1] == "/workspace"
    assert "/workspace/d is gone" in text


def test_output_and_errors_come_in_the_order_written(sandbox: Sandbox) -> None:
    assert said(sandbox, "echo 1; echo 2 >&2; echo 3") == "1\n2\n3"
    assert "syntax error" in said(sandbox, "if then")
    assert said(sandbox, "cat") == "[no output]"  # nothing to read, rather than a wait
    assert said(sandbox, 'echo "$# [$1]"') == "0 []"
    assert said(sandbox, "echo " + "x" * 200_000 + " | wc -c") == "200001"
    assert said(sandbox, "cat <<'END'\n a\\b\n\nEND\necho  'c  d'") == " a\\b\n\nc  d"


def test_long_output_is_cut_in_the_middle(sandbox: Sandbox) -> None:
    text = said(sandbox, "seq 100000")
    assert text.startswith("1\n2\n")
    assert text.endswith("\n99999\n100000")
    assert "left out" in text
    assert len(text) < 17_000


@pytest.mark.parametrize("timeout_s", [0, -1, 601, float("nan")])
def test_a_time_limit_out_of_range_is_refused(sandbox: Sandbox, timeout_s: float) -> None:
    with pytest.raises(BadArgumentsError, match="timeout_s"):
        run_bash(sandbox, "true", timeout_s)
