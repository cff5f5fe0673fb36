"""A single-use environment: setup, step, finalize. Families subclass it; the harness drives it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, Self

from environments.errors import AgentError, BadArgumentsError, InfrastructureError, MalformedCallError, UnknownToolError
from environments.protocols import Observation, Outcome
from environments.task import TaskSpec, ToolCall, ToolSpec

_PYTHON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}

ARTEFACTS = "artefacts"
"""Table of a task's initial state, with a column `path`, that names the files (or, with `/` at the end, folders) of the
sandbox's workspace which the outcome holds. No part of the world."""

Answer = str | Observation
"""What a call returns."""
OnCall = Callable[[ToolCall, Answer, str], None]
"""Told of each call that code inside the sandbox made: the call, its answer, and the class name of the AgentError or ''."""


class Equipment(Protocol):
    """Tools beside a family's own: `environments.tools.Toolbox`."""

    specs: Mapping[str, ToolSpec]

    def open(self, environment: Environment) -> None:
        """Bring up what the tools need."""

    def call(self, tool: str, arguments: dict[str, Any], nested: bool) -> Answer:
        """Execute a valid call."""

    def collect(self) -> dict[str, bytes]:
        """The files that the task declares as its outcome."""

    def close(self) -> None:
        """Free everything. May be called again."""


class Environment(ABC):
    """One episode of one task. Calls are validated here against the declared tools; a family implements `call`."""

    TOOLS: ClassVar[dict[str, ToolSpec]] = {}

    def __init__(self, task: TaskSpec) -> None:
        self.task = task
        self.outcome = Outcome()
        self.submissions = 0
        self.on_call: OnCall | None = None
        """Hears of the calls that code inside the sandbox makes; set it before `setup`."""
        self.refused_inside: frozenset[str] = frozenset()
        """Tools that code inside the sandbox may not call just now: whoever runs a sub-agent's calls puts `submit` here."""
        self._equipment: Equipment | None = None
        self._turn = threading.Lock()  # code inside the sandbox may call while the agent does
        self._state = "new"

    def equip(self, equipment: Equipment) -> None:
        """Offer further tools, before `setup`. A family's own tool goes before one of the same name."""
        if self._state != "new":
            raise RuntimeError(f"an environment is equipped before its setup; this one is {self._state}")
        self._equipment = equipment

    @property
    def equipment(self) -> Equipment | None:
        """What `equip` gave it."""
        return self._equipment

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools of this task, as the agent sees them."""
        specs = self._specs
        return tuple(specs[name] for name in self._offered)

    @property
    def _specs(self) -> Mapping[str, ToolSpec]:
        return self.TOOLS if self._equipment is None else {**self._equipment.specs, **self.TOOLS}

    @property
    def _offered(self) -> tuple[str, ...]:
        """The task's tools, then the equipment's."""
        if self._equipment is None:
            return self.task.tools
        return (*self.task.tools, *(name for name in self._equipment.specs if name not in self.task.tools))

    @property
    def submitted(self) -> bool:
        """True once the submission budget is spent."""
        return self.submissions >= self.task.budgets.submissions

    def setup(self) -> None:
        """Bring up the initial state. Raises InfrastructureError when a machine part fails."""
        if self._state != "new":
            raise RuntimeError(f"an environment is single use; this one is {self._state}")
        self._state = "running"
        if self._equipment is not None:
            try:
                self._equipment.open(self)
            except BaseException:
                self._state = "broken"
                self._equipment.close()
                raise

    def step(self, call: ToolCall, nested: bool = False) -> Answer:
        """Execute one call and return what the agent reads.

        Args:
            nested: the call comes from code inside the sandbox, while the sandbox runs that code.

        Raises:
            AgentError: unknown tool, bad arguments, or a call after the end; the text is the agent's answer.
            InfrastructureError: a machine part failed. Nothing can be called afterwards.
        """
        with self._turn:
            if nested and call.tool in self.refused_inside:
                raise AgentError(f"{call.tool} cannot be called from here", "answer with your result instead")
            self._check(call)
            self.outcome.tool_calls += 1
            if self._equipment is None or call.tool in self.TOOLS:
                answer = self.call(call.tool, call.arguments)
                if call.tool == "submit":
                    self.submissions += 1
                return answer
        # Without the lock: the code that this runs may call the family's tools.
        try:
            return self._equipment.call(call.tool, call.arguments, nested)
        except InfrastructureError:
            if not nested:
                self._state = "broken"
                self._equipment.close()
            raise

    def _check(self, call: ToolCall) -> None:
        if self._state == "broken":
            raise InfrastructureError(f"a machine part of this episode failed, {call.tool!r:.60} was not executed", "run it again")
        if self._state == "finished":
            raise AgentError(f"the episode is over, {call.tool!r:.60} was not executed", "make no calls after the end")
        if self.submitted:
            raise AgentError(
                f"all {self.task.budgets.submissions} submissions are used, {call.tool!r:.60} was not executed",
                "make no calls after the last submit",
            )
        offered = self._offered
        if call.tool not in offered:
            raise UnknownToolError(f"there is no tool {call.tool!r:.60}", f"use one of: {', '.join(offered)}")
        if call.malformed:
            raise MalformedCallError(f"the call of {call.tool!r:.40} cannot be read: {call.malformed!r:.60}", "write it as declared")
        declared = {p.name: p for p in self._specs[call.tool].parameters}
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

    @abstractmethod
    def call(self, tool: str, arguments: dict[str, Any]) -> Answer:
        """Execute a valid call of a tool of the family's own."""

    def finalize(self) -> Outcome:
        """End the episode and return the declared artefacts. The verifier sees nothing else.

        Raises:
            InfrastructureError: the sandbox died before its files could be read; the outcome is unknown.
        """
        running, self._state = self._state == "running", "finished"
        if self._equipment is not None:
            try:
                if running:
                    self.outcome.files = self._equipment.collect()
            finally:
                self._equipment.close()
        return self.outcome

    def close(self) -> None:
        """Free what `setup` brought up, without an outcome. May be called again, and after `finalize`."""
        self._state = "finished"
        if self._equipment is not None:
            self._equipment.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_text(value: str) -> bool:
    """False for strings with lone surrogates, which no file, database or sandbox takes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
