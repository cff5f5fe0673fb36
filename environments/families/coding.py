"""Coding family: write a Python function; public examples may be run, hidden tests decide."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from environments.environment import Environment
from environments.errors import BadArgumentsError
from environments.resources import Resources
from environments.task import TaskSpec, ToolParameter, ToolSpec
from environments.verifiers.equality import same_value

_SOURCE = ToolParameter(name="source", description="Python source that defines the function.")
_FINAL = ToolParameter(name="source", description="Python source; leave it out to hand in what was tested last.", required=False)


class CodingEnvironment(Environment):
    """Tools: `run_tests` executes the public examples in a sandbox, `submit` hands in a source, or what was tested last."""

    TOOLS: ClassVar[dict[str, ToolSpec]] = {
        "run_tests": ToolSpec(name="run_tests", description="Run the public examples against a source.", parameters=(_SOURCE,)),
        "submit": ToolSpec(name="submit", description="Submit the source, or what was tested last.", parameters=(_FINAL,)),
    }
    TIMEOUT_S = 2.0

    def __init__(self, task: TaskSpec, resources: Resources) -> None:
        super().__init__(task)
        self.resources = resources
        self._tested: str | None = None

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        if tool == "submit":
            source = arguments.get("source", self._tested)
            if source is None:
                raise BadArgumentsError("submit lacks source, and nothing was tested", "pass the source, or test it first")
            self.outcome.submission = source
            return "submitted"
        self._tested = arguments["source"]
        public = self.task.initial_state.tables["examples"]
        inputs = [json.loads(str(row["arguments"])) for row in public]
        result = self.resources.pool.call(arguments["source"], "solve", inputs, timeout_s=self.TIMEOUT_S)
        for i, (row, given) in enumerate(zip(public, inputs, strict=True)):
            expected = json.loads(str(row["result"]))
            if i >= len(result.outputs) or result.errors[i]:
                return result.error or "no result"
            if not same_value(result.outputs[i], expected):
                return f"solve({', '.join(map(json.dumps, given))}) is {json.dumps(result.outputs[i])}, not {json.dumps(expected)}"
        return "passed"
