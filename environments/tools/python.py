"""`python`: cells in the sandbox's stateful interpreter; figures and images come back as pictures."""

from __future__ import annotations

from environments.protocols import Observation
from environments.sandbox.base import Sandbox
from environments.task import ToolParameter, ToolSpec
from environments.tools.observation import as_images, cut_middle
from environments.tools.timeout import TIMEOUT, seconds

PYTHON = ToolSpec(
    name="python",
    description="Run Python code in an interpreter that keeps its variables from call to call. Returns what was printed and the value "
    "of a last expression; open matplotlib figures and displayed images come back as pictures. The working directory is /workspace.",
    parameters=(ToolParameter(name="code", description="One or more statements."), TIMEOUT),
)


def run_python(sandbox: Sandbox, code: str, timeout_s: float | None = None) -> Observation:
    """Run one cell. What the code does wrong is in the text.

    Raises:
        BadArgumentsError: the timeout is out of range.
        SandboxError: the sandbox died.
    """
    limit_s = seconds(timeout_s)
    result = sandbox.python(code, limit_s)
    images, note = as_images(result.images)
    stopped = f"[stopped after {limit_s:g} s; the interpreter was started again and its variables are gone]"
    parts = [result.stdout, stopped if result.timed_out else result.error, note]
    text = "\n".join(part.rstrip("\n") for part in parts if part)
    if not text:
        text = f"[{len(images)} image{'s' if len(images) > 1 else ''}]" if images else "[no output]"
    return Observation(cut_middle(text), images, failed=bool(result.error) or result.timed_out)
