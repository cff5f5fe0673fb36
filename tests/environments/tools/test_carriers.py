"""Whole episodes in which one tool carries all others: a shell whose commands are the tools, an interpreter whose functions are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pytest

from environments.harness.config import HarnessConfig, ToolModule
from environments.harness.loop import run_messages
from environments.sandbox.base import Backend
from environments.task import Message, ToolSpec
from environments.vault import Vault
from tests.environments.small_tasks import make_resources, settings_task

pytestmark = pytest.mark.sandbox


class Says:
    """Its lines, one a turn."""

    name = "scripted"

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.seen: list[str] = []

    def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        self.seen.append(messages[-1].content)
        return Message(role="assistant", content=self.lines.pop(0))


@pytest.mark.parametrize(
    ("interface", "lines"),
    [
        ("bash", ("```bash\nw=$(get width); echo $((w + 43))\n```", "```bash\nset width 113\nsubmit\n```")),
        ("code", ("```python\nint(get('width')) + 43\n```", "```python\nset('width', '113'); submit()\n```")),
    ],
)
def test_a_task_is_solved_through_one_tool(
    interface: Literal["bash", "code"], lines: tuple[str, ...], backend: Backend, tmp_path: Path
) -> None:
    vault = Vault(tmp_path)
    resources = make_resources(vault)
    resources.sandboxes = backend
    policy = Says(*lines)
    trace = run_messages(policy, settings_task(vault), resources, HarnessConfig(name="one", tools=ToolModule(interface=interface)))
    assert policy.seen[1] == "113"
    assert trace.stop == "submitted"
    assert trace.verdict is not None
    assert trace.verdict.score == 1.0
    assert trace.malformed_calls == 0
    carrier = "bash" if interface == "bash" else "python"
    assert [record.tool for record in trace.tool_records] == ["get", carrier, "set", "submit", carrier]
