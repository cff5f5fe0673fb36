"""A policy that says given lines: for replays, tests and measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from environments.task import Message, ToolSpec

Line = Message | Callable[[Sequence[Message], Sequence[ToolSpec]], Message]
"""A message, or what makes one of the context."""
DONE = Message(role="assistant", content="done")


class ScriptedPolicy:
    """Says its lines in order, then `done` without a call, which ends any conversation. Not for several conversations at once."""

    def __init__(self, *lines: Line, name: str = "scripted") -> None:
        self.name = name
        self._lines = iter(lines)

    @classmethod
    def of(cls, lines: Iterable[Line], name: str = "scripted") -> ScriptedPolicy:
        """From any iterable, which is read as the episode goes on."""
        policy = cls(name=name)
        policy._lines = iter(lines)
        return policy

    def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The next line."""
        line = next(self._lines, DONE)
        return line if isinstance(line, Message) else line(messages, tools)
