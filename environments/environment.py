"""A single-use environment: setup, step, finalize. Families subclass it; the harness drives it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from environments.errors import AgentError, BadArgumentsError, MalformedCallError, UnknownToolError
from environments.protocols import Outcome
from environments.task import TaskSpec, ToolCall, ToolSpec

_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}


class Environment(ABC):
    """One episode of one task. Calls are validated here against the declared tools; a family implements `call`."""

    TOOLS: ClassVar[dict[str, ToolSpec]] = {}

    def __init__(self, task: TaskSpec) -> None:
        self.task = task
        self.outcome = Outcome()
        self.submissions = 0
        self._state = "new"

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools of this task, as the agent sees them."""
        return tuple(self.TOOLS[name] for name in self.task.tools)

    @property
    def submitted(self) -> bool:
        """True once the submission budget is spent."""
        return self.submissions >= self.task.budgets.submissions

    def setup(self) -> None:
        """Bring up the initial state. Raises InfrastructureError when a machine part fails."""
        if self._state != "new":
            raise RuntimeError(f"an environment is single use; this one is {self._state}")
        self._state = "running"

    def step(self, call: ToolCall) -> str:
        """Execute one call and return what the agent reads.

        Raises:
            AgentError: unknown tool, bad arguments, or a call after the end; the text is the agent's answer.
            InfrastructureError: a machine part failed.
        """
        if self._state == "finished":
            raise AgentError(f"the episode is over, {call.tool!r:.60} was not executed", "make no calls after the end")
        if self.submitted:
            raise AgentError(
                f"all {self.task.budgets.submissions} submissions are used, {call.tool!r:.60} was not executed",
                "make no calls after the last submit",
            )
        if call.tool not in self.task.tools:
            raise UnknownToolError(f"there is no tool {call.tool!r:.60}", f"use one of: {', '.join(self.task.tools)}")
        if call.malformed:
            raise MalformedCallError(f"the arguments of {call.tool} are no JSON object: {call.malformed!r:.60}", "pass one JSON object")
        declared = {p.name: p for p in self.TOOLS[call.tool].parameters}
        for name, value in call.arguments.items():
            if name not in declared:
                raise BadArgumentsError(f"{call.tool} has no argument {name!r:.60}", f"it takes: {', '.join(declared) or 'nothing'}")
            expected = _PYTHON_TYPES[declared[name].type]
            if not isinstance(value, expected) or (isinstance(value, bool) and declared[name].type != "boolean"):
                raise BadArgumentsError(f"{call.tool}.{name} is not of type {declared[name].type}: {value!r:.60}", "pass the declared type")
            if isinstance(value, str) and not _is_text(value):
                raise BadArgumentsError(f"{call.tool}.{name} holds a lone surrogate: {value!r:.60}", "pass valid Unicode")
        if missing := [name for name, p in declared.items() if p.required and name not in call.arguments]:
            raise BadArgumentsError(f"{call.tool} lacks {', '.join(missing)}", "pass every required argument")
        self.outcome.tool_calls += 1
        answer = self.call(call.tool, call.arguments)
        if call.tool == "submit":
            self.submissions += 1
        return answer

    @abstractmethod
    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        """Execute a valid call of a declared tool."""

    def finalize(self) -> Outcome:
        """End the episode and return the declared artefacts. The verifier sees nothing else."""
        self._state = "finished"
        return self.outcome


def _is_text(value: str) -> bool:
    """False for strings with lone surrogates, which no file, database or sandbox takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
