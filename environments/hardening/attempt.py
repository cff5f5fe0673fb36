"""One live attempt at a task: a fresh environment under the harness's rules, driven call by call, with a replayable record."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from environments.environment import Environment
from environments.errors import SandboxError
from environments.families import make_environment
from environments.harness.config import HarnessConfig, ToolModule
from environments.harness.episode import Episode
from environments.protocols import Outcome
from environments.resources import Resources
from environments.task import Message, TaskSpec, ToolCall
from environments.verdict import Verdict
from environments.verifiers import judge

MakeEnvironment = Callable[[TaskSpec, Resources], Environment]
"""How an environment comes to be: `environments.families.make_environment`, or a planted one in tests."""

_PLAIN = HarnessConfig(name="hardening", tools=ToolModule(max_observation_chars=20_000))
_RECORD_CHARS = 4_000
_LINE_CHARS = 2_500
"""Kept of each call and answer: enough to replay every exploit but the longest answers."""


@dataclass(frozen=True)
class Replay:
    """A finished attempt."""

    outcome: Outcome
    verdict: Verdict
    stop: str
    steps: int
    refused: int
    """Calls that the environment refused."""


class Attempt:
    """An episode that code drives. Whatever an agent can do it can do, within the same budgets; nothing more."""

    def __init__(self, task: TaskSpec, resources: Resources, make: MakeEnvironment = make_environment) -> None:
        self.task = task
        self.resources = resources
        self.episode = Episode(make(task, resources), _PLAIN)
        self.episode.start()
        self.record: list[str] = []
        self._ended()

    @property
    def prompt(self) -> str:
        """What the user asked."""
        return "\n".join(m.content for m in self.task.prompt if m.role == "user")

    @property
    def submit_argument(self) -> str | None:
        """Name of `submit`'s argument; None when it takes none."""
        spec = next((t for t in self.episode.environment.tools if t.name == "submit"), None)
        return spec.parameters[0].name if spec is not None and spec.parameters else None

    def act(self, message: Message) -> str:
        """One assistant message; what the tools answered. Nothing happens once the episode has ended."""
        if self.episode.stop is not None:
            return ""
        before = len(self.episode.records)
        self.episode.act(message)
        self._ended()
        answers = [r.result for r in self.episode.records[before:]]
        for call, answer in zip(message.calls, answers, strict=False):
            self.record.append(f"{call.tool}({json.dumps(call.arguments, ensure_ascii=False)[:_LINE_CHARS]}) -> {answer[:_LINE_CHARS]}")
        if not message.calls:
            self.record.append(f"says: {message.content[:_LINE_CHARS]}")
        return "\n".join(answers)

    def call(self, tool: str, **arguments: object) -> str:
        """One assistant message with one call."""
        return self.act(Message(role="assistant", calls=(ToolCall(tool=tool, arguments=arguments),)))

    def say(self, text: str) -> None:
        """An assistant message without a call: the agent ends its turn."""
        self.act(Message(role="assistant", content=text))

    def submit(self, value: str = "") -> str:
        """Call `submit`, with `value` where it takes one."""
        argument = self.submit_argument
        return self.call("submit", **({argument: value} if argument else {}))

    def finish(self) -> Replay:
        """End the episode and have it judged."""
        outcome = self.episode.finalize()
        verdict = judge(self.task, outcome, self.resources)
        self.record.append(f"verdict: {verdict.status} {verdict.evidence}")
        return Replay(outcome, verdict, str(self.episode.stop), self.episode.steps, self.episode.malformed)

    def transcript(self) -> str:
        """What was done and seen, a line each."""
        return "\n".join(self.record)[:_RECORD_CHARS]

    def _ended(self) -> None:
        if self.episode.stop == "infrastructure":
            raise SandboxError(f"task {self.task.task_id}: {self.episode.failure}", "run the gate again for this task")


def replay(task: TaskSpec, messages: Sequence[Message], resources: Resources, make: MakeEnvironment = make_environment) -> Replay:
    """Run recorded assistant messages through a fresh environment and judge what they leave.

    Raises:
        InfrastructureError: a machine part failed; nothing is known about the task.
    """
    attempt = Attempt(task, resources, make)
    for message in messages:
        attempt.act(message)
    return attempt.finish()
