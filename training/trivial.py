"""Policies that do not try. What they score on held-out tasks bounds what a score can mean."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from environments.protocols import MessagePolicy
from environments.resources import Resources
from environments.task import Domain, Message, TaskSpec, ToolCall, ToolSpec


def _submit(tools: Sequence[ToolSpec], value: str) -> Message:
    """Hand `value` in, through whatever argument `submit` takes."""
    submit = next(t for t in tools if t.name == "submit")
    return Message(role="assistant", calls=(ToolCall(tool="submit", arguments={p.name: value for p in submit.parameters}),))


class Constant:
    """Always hands in the answer most common in training."""

    name = "constant"

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        return _submit(tools, self.answer)


class CopyFromPrompt:
    """Hands in the last number of the prompt; as code, a function that returns it."""

    name = "copy"

    def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        prompt = next(m.content for m in messages if m.role == "user")
        number = (re.findall(r"\d+", prompt) or ["0"])[-1]
        code = any(p.name == "source" for t in tools if t.name == "submit" for p in t.parameters)
        return _submit(tools, f"def solve(n):\n    return {number}" if code else number)


class NoTools:
    """Talks: ends its turn with the last number of the prompt and calls nothing."""

    name = "no-tools"

    def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        return Message(role="assistant", content=(re.findall(r"\d+", messages[-1].content) or ["0"])[-1])


def policies(domain: Domain, train: Sequence[TaskSpec], resources: Resources) -> list[MessagePolicy]:
    """The three, the constant one fitted to the training tasks' own reference solutions."""
    answers: Counter[str] = Counter()
    for task in train:
        calls = [c for m in resources.vault.get_reference(task.reference_sha256) for c in m.calls]
        given = list(calls[-1].arguments.values()) or [c.arguments["value"] for c in calls if c.tool == "record"]
        answers[",".join(map(str, given))] += 1
    constant = answers.most_common(1)[0][0] if answers else "done"
    return [Constant(constant), CopyFromPrompt(), NoTools()]
