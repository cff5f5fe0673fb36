"""One episode as a state machine: messages go in, tool messages come out, until something stops it.

It knows neither tokens nor policies, so that engines, endpoints and scripts are driven by the same rules. Agent errors
are answered and counted; infrastructure errors leave through `stop = "infrastructure"` and never become a score.
"""

from __future__ import annotations

import time

from environments.environment import Environment
from environments.errors import AgentError, InfrastructureError
from environments.harness.config import HarnessConfig
from environments.protocols import Outcome
from environments.task import Effort, Message
from environments.trace import StopReason, ToolRecord


class Episode:
    """Drives one environment. Call `start` once, then `act` per assistant message until `stop` is set."""

    def __init__(self, environment: Environment, harness: HarnessConfig, effort: Effort | None = None) -> None:
        self.environment = environment
        self.task = environment.task
        self.harness = harness
        self.effort = effort
        self.messages: list[Message] = []
        self.records: list[ToolRecord] = []
        self.stop: StopReason | None = None
        self.failure = ""
        self.steps = 0
        self.malformed = 0
        self.environment_s = 0.0
        self._deadline = 0.0

    def start(self) -> list[Message]:
        """Bring the environment up and return the opening messages."""
        self._deadline = time.monotonic() + self.task.budgets.wall_s
        try:
            self.environment.setup()
        except InfrastructureError as error:
            self._fail(error)
        self.messages = self.harness.opening(self.task.prompt, self.environment.tools, self.effort)
        return list(self.messages)

    def act(self, message: Message) -> list[Message]:
        """Execute one assistant message; returns the tool messages that answer it (none when the episode ended)."""
        self.messages.append(message)
        self.steps += 1
        answers: list[Message] = []
        for call in message.calls:
            started = time.monotonic()
            error = ""
            try:
                text = self.environment.step(call)
            except AgentError as refused:
                text, error = f"error: {refused}", type(refused).__name__
                self.malformed += 1
            except InfrastructureError as broken:
                self._fail(broken)
                return []
            elapsed = time.monotonic() - started
            self.environment_s += elapsed
            self.records.append(
                ToolRecord(step=self.steps, tool=call.tool, arguments=call.arguments, result=text, error=error, wall_s=elapsed)
            )
            answers.append(Message(role="tool", tool=call.tool, index=call.index, content=self.harness.observe(text)))
            if self.environment.submitted:
                self.stop = "submitted"
                return []
        if not message.calls:
            self.stop = "finished"
            return []
        return self._continue(answers)

    def refuse(self, error: AgentError) -> list[Message]:
        """Answer an assistant message that could not be parsed."""
        self.steps += 1
        self.malformed += 1
        self.records.append(ToolRecord(step=self.steps, tool="", arguments={}, result=str(error), error=type(error).__name__))
        return self._continue([Message(role="tool", content=self.harness.observe(f"error: {error}"))])

    def _continue(self, answers: list[Message]) -> list[Message]:
        if self.steps >= self.task.budgets.steps:
            self.stop = "steps"
        elif time.monotonic() > self._deadline:
            self.stop = "wall"
        if self.stop:
            return []
        self.messages += answers
        return answers

    def _fail(self, error: InfrastructureError) -> None:
        self.stop, self.failure = "infrastructure", str(error)

    def finalize(self) -> Outcome:
        """End the episode and return what the verifier may see."""
        self.stop = self.stop or "aborted"
        return self.environment.finalize()
