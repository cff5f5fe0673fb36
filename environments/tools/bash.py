"""`bash`: shell commands whose working directory and exported variables persist.

Every call is a shell of its own, so that a hung or crashed one costs nothing but itself; what persists is written to a
file in the sandbox when the shell ends and read by the next one.
"""

from __future__ import annotations

from environments.errors import BadArgumentsError
from environments.protocols import Observation
from environments.sandbox.base import WORKSPACE, Sandbox
from environments.task import ToolParameter, ToolSpec
from environments.tools.observation import cut_middle
from environments.tools.timeout import TIMEOUT, seconds

BASH = ToolSpec(
    name="bash",
    description="Run a shell command (bash). The working directory and exported variables persist from call to call; other "
    "variables and functions do not. Starts in /workspace. Background processes go on running; redirect their output to a file.",
    parameters=(ToolParameter(name="command", description="One or more lines of bash."), TIMEOUT),
)

_STATE = "/tmp/.bash-tool"
# NINEFOLD_SEED belongs to the sandbox, not to the shell: a forked sandbox has another. The save runs in a subshell with the
# shell's options and functions out of its way. A command that replaces the shell (`exec`) or is killed saves nothing.
_WRAPPER = f"""
exec 2>&1
__save_state() {{
  (
    set +eux; unset -f builtin cd command export mv printf unset 2>/dev/null
    {{ printf 'cd -- %q 2>/dev/null || {{ cd {WORKSPACE}; echo "[%q is gone; the working directory is {WORKSPACE}]"; }}\\n' "$PWD" "$PWD"
       unset NINEFOLD_SEED SHLVL _ PWD 2>/dev/null; builtin export -p; }} > {_STATE}.$$ 2>/dev/null &&
    command -p mv -f {_STATE}.$$ {_STATE}
  ) </dev/null >/dev/null 2>&1
}}
if [ -r {_STATE} ]; then . {_STATE}; else cd {WORKSPACE}; fi
if [ -r "$1" ]; then . "$1"; fi
set --; IFS= read -r -d "" __command
trap __save_state EXIT
eval "$__command"
__status=$?
[[ $(trap -p EXIT) == *__save_state* ]] || __save_state  # the command has a trap of its own
exit $__status
"""


def run_bash(sandbox: Sandbox, command: str, timeout_s: float | None = None, prelude: str = "") -> Observation:
    """Run a command in the persistent shell; output and errors are in the order written.

    Args:
        prelude: a file in the sandbox that is sourced first, if it is there.

    Raises:
        BadArgumentsError: the timeout is out of range, or a NUL is in the command.
        SandboxError: the sandbox died.
    """
    limit_s = seconds(timeout_s)
    if "\0" in command:
        raise BadArgumentsError("the command holds a NUL", "write it as \\0 where a program reads escapes")
    # Through the input, since an argument may hold 128 KiB only; the command itself then finds its input at the end.
    result = sandbox.exec(["bash", "-c", _WRAPPER, "bash", prelude], stdin=command, timeout_s=limit_s)
    text = cut_middle((result.stdout + result.stderr).rstrip("\n"))
    notes = []
    if result.truncated:
        notes.append(f"[output beyond {sandbox.config.output_kb} KiB was dropped]")
    if result.timed_out:
        notes.append(f"[stopped after {limit_s:g} s; the working directory and variables are as they were before]")
    elif result.exit_code:
        notes.append(f"[exit code {result.exit_code}]")
    text = "\n".join(part for part in (text, *notes) if part) or "[no output]"
    return Observation(text, failed=result.exit_code != 0)
