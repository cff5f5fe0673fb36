"""One episode as a state machine: assistant messages go in, answers come out, until something stops it.

It knows neither tokens nor policies, so that engines, endpoints and scripts are driven by the same rules. It may hold several
conversations: the main agent's, and those of its sub-agents. Agent errors are answered and counted; infrastructure errors
leave through `stop = "infrastructure"` and never become a score.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from environments.environment import Environment
from environments.errors import AgentError, BadArgumentsError, ConfigError, InfrastructureError, MalformedCallError
from environments.harness.config import HarnessConfig
from environments.harness.context import REMOVED, SUMMARY_REQUEST, Plan, drop_results, forget_reasoning, restart
from environments.harness.history import kept
from environments.harness.interfaces import CARRIER, TEXT_STYLES, WrittenCall
from environments.harness.opening import DELEGATE, REMEMBER, SKILL, harness_tools, opening, shown, subagent_opening
from environments.protocols import Memory, Observation, Outcome
from environments.task import Effort, Image, Message, ToolCall, ToolSpec
from environments.trace import StopReason, ToolRecord

Execute = Callable[[ToolCall], str | Observation]


class Transport(Protocol):
    """What carries calls to the environment in place of a direct `step`."""

    def __call__(self, call: ToolCall) -> str | Observation: ...
    def close(self) -> None: ...


@dataclass(eq=False)
class Conversation:
    """One agent's context. `edits` is what happened to it since a driver last took them: messages to append, or plans to fork by."""

    conversation_id: int
    messages: list[Message]
    tools: tuple[ToolSpec, ...]
    """Under the names that the agent sees."""
    pinned: int
    """Opening messages, which context management never touches."""
    step_budget: int
    output_budget: int
    parent_step: int = -1
    """Step of the main agent that started it."""
    call: ToolCall | None = None
    """The call that did."""
    prompt: str = ""
    steps: int = 0
    output_tokens: int = 0
    """Kept by the driver."""
    stop: StopReason | None = None
    result: str = ""
    summarising: bool = False
    blocked: int = 0
    """Sub-agents that it waits for."""
    edits: list[Message | Plan] = field(default_factory=list)
    refused: list[tuple[int, int]] = field(default_factory=list)
    """Of the last message: characters [start, end) of refused calls that were written into its content."""
    refused_natively: int = 0
    """Of the last message: how many of its native calls were refused."""
    _user_spoke: bool = True
    _answers: list[Message] = field(default_factory=list)

    def take(self) -> list[Message | Plan]:
        """The edits since the last call."""
        taken, self.edits = self.edits, []
        return taken


class Episode:
    """Drives one environment. Call `start` once; then, until `stop` is set, give each conversation that waits its next message.

    Raises:
        ConfigError: the harness needs what the task or the caller does not offer.
    """

    def __init__(
        self,
        environment: Environment,
        harness: HarnessConfig,
        effort: Effort | None = None,
        memory: Memory | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.environment = environment
        self.task = environment.task
        self.harness = harness
        self.effort = effort
        self.memory = memory
        self._transport = transport
        self.execute: Execute = environment.step if transport is None else transport
        environment.on_call = self._nested
        self.conversations: list[Conversation] = []
        self.records: list[ToolRecord] = []
        self.stop: StopReason | None = None
        self.failure = ""
        self.malformed = 0
        self.environment_s = 0.0
        self._deadline = 0.0
        self._canonical = {name: tool for tool, name in harness.tools.names.items()}
        self._style = TEXT_STYLES.get(harness.tools.interface)
        carrier = CARRIER.get(harness.tools.interface)
        if carrier and carrier not in {t.name for t in environment.tools}:
            raise ConfigError(
                f"harness {harness.name!r} calls everything through {carrier}, which this environment does not offer",
                f"make the environment with carrier={carrier!r}, or use another harness",
            )
        if harness.memory and memory is None:
            raise ConfigError(f"harness {harness.name!r} keeps notes, but there is no place for them", "pass memory=FileMemory(folder)")
        self._own: dict[str, Callable[[Conversation, dict[str, Any]], str | None]] = {
            SKILL.name: self._skill,
            REMEMBER.name: self._remember,
            DELEGATE.name: self._delegate,
        }
        self._own = {t.name: self._own[t.name] for t in harness_tools(harness)}

    @property
    def main(self) -> Conversation:
        """The agent that the task was given to."""
        return self.conversations[0]

    @property
    def messages(self) -> list[Message]:
        """The main agent's context."""
        return self.main.messages

    @property
    def steps(self) -> int:
        """The main agent's turns."""
        return self.main.steps

    def waiting(self) -> list[Conversation]:
        """The conversations that need an assistant message next."""
        if self.stop is not None:
            return []
        return [c for c in self.conversations if c.stop is None and not c.blocked]

    def start(self) -> list[Message]:
        """Bring the environment up and return the main agent's opening messages."""
        budgets = self.task.budgets
        self._deadline = time.monotonic() + budgets.wall_s
        try:
            self.environment.setup()
        except InfrastructureError as error:
            self._fail(error)
        tools = shown(self.harness, (*self.environment.tools, *harness_tools(self.harness)))
        notes = self.memory.notes(self.task.task_id) if self.memory is not None and self.harness.memory else ()
        messages = opening(self.harness, self.task.prompt, tools, self.effort, notes)
        self._converse(messages, tools, budgets.steps, budgets.output_tokens)
        return list(messages)

    def _converse(self, messages: list[Message], tools: tuple[ToolSpec, ...], steps: int, tokens: int) -> Conversation:
        who = Conversation(len(self.conversations), messages, tools, len(messages), steps, tokens, edits=list(messages))
        self.conversations.append(who)
        return who

    # --- turns -------------------------------------------------------------------------------------------------------------

    def act(self, message: Message, who: Conversation | None = None) -> list[Message]:
        """Execute one assistant message; returns the messages that answer it: none when the conversation ended or has to wait."""
        who = who or self.conversations[0]
        who.messages.append(message)
        who.steps += 1
        who.refused, who.refused_natively = [], 0
        if who.summarising:
            who.summarising = False
            self._follow(who, restart(who.pinned, message.content or message.thinking))
            return self._continue(who, [])
        written: Sequence[WrittenCall] = ()
        calls: Sequence[ToolCall] = message.calls
        if self._style is not None and not calls:
            written = self._style.read(message.content, {t.name: t for t in who.tools})
            calls = [w.call for w in written]
        answers: list[Message] = []
        for position, call in enumerate(calls):
            answer = self._call(who, call)
            if self.stop is not None:
                return []
            if self.records[-1].error and written:
                who.refused.append((written[position].start, written[position].end))
            elif self.records[-1].error:
                who.refused_natively += 1
            if answer is not None:
                answers.append(answer)
            if self.environment.submitted:
                self._end(who, "submitted")
                return []
        if not calls:
            self._end(who, "finished")
            return []
        if who.blocked:
            who._answers = answers
            return []
        return self._continue(who, answers)

    def refuse(self, error: AgentError, who: Conversation | None = None, said: str = "") -> list[Message]:
        """Answer an assistant message that could not be parsed; `said` is what can be shown of it."""
        who = who or self.conversations[0]
        who.messages.append(Message(role="assistant", content=said))
        who.steps += 1
        self._note(ToolCall(tool=""), str(error), type(error).__name__, who=who)
        return self._continue(who, [Message(role="tool", content=self.harness.observe(f"error: {error}"))])

    def _note(self, call: ToolCall, result: str, error: str = "", wall_s: float = 0.0, who: Conversation | None = None) -> None:
        self.malformed += bool(error)
        self.environment_s += wall_s
        self.records.append(
            ToolRecord(
                step=(who or self.conversations[0]).steps,
                tool=call.tool,
                arguments=call.arguments,
                result=result,
                error=error,
                wall_s=wall_s,
                conversation=who.conversation_id if who else 0,
            )
        )

    def _nested(self, call: ToolCall, answer: str | Observation, error: str) -> None:
        """Code inside the sandbox called a tool; it was answered there."""
        self._note(call, answer if isinstance(answer, str) else answer.text, error)

    def _call(self, who: Conversation, call: ToolCall) -> Message | None:
        started = time.monotonic()
        error = ""
        images: tuple[Image, ...] = ()
        name = self._canonical.get(call.tool, call.tool)
        try:
            if name in self._own and (who.conversation_id == 0 or name == SKILL.name):
                text = self._own_tool(who, name, call)
            else:
                observation = self._execute(who, call if name == call.tool else call.model_copy(update={"tool": name}))
                if isinstance(observation, str):
                    text = observation
                else:
                    text, images = observation.text, observation.images
        except AgentError as refused:
            text, error = f"error: {refused}", type(refused).__name__
        except InfrastructureError as broken:
            self._fail(broken)
            return None
        self._note(call, text or "", error, time.monotonic() - started, who)
        if text is None:
            return None
        return self._answer(call, text, images)

    def _answer(self, call: ToolCall, text: str, images: tuple[Image, ...] = ()) -> Message:
        return Message(role="tool", tool=call.tool, index=call.index, content=self.harness.observe(text), images=images)

    def _execute(self, who: Conversation, call: ToolCall) -> str | Observation:
        if not who.conversation_id:
            return self.execute(call)
        if call.tool == "submit":
            raise BadArgumentsError("a sub-agent cannot submit", "answer with your result instead")
        self.environment.refused_inside = frozenset({"submit"})  # nor may code that it runs
        try:
            return self.execute(call)
        finally:
            self.environment.refused_inside = frozenset()

    def _own_tool(self, who: Conversation, name: str, call: ToolCall) -> str | None:
        spec = next(t for t in (SKILL, REMEMBER, DELEGATE) if t.name == name)
        parameter = spec.parameters[0]
        if call.malformed:
            raise MalformedCallError(f"the call of {call.tool!r:.40} cannot be read: {call.malformed!r:.60}", "write it as declared")
        value = call.arguments.get(parameter.name)
        if set(call.arguments) != {parameter.name} or not isinstance(value, list if parameter.type == "array" else str):
            raise BadArgumentsError(f"{call.tool} takes {parameter.name} ({parameter.type}) and nothing else", "pass it")
        return self._own[name](who, {"value": value, "call": call})

    def _continue(self, who: Conversation, answers: list[Message]) -> list[Message]:
        if who.steps >= who.step_budget:
            self._end(who, "steps")
        elif time.monotonic() > self._deadline:
            self._end(who, "wall")
        if who.stop is not None:
            return []
        who.messages += answers
        who.edits += answers
        return answers

    def _end(self, who: Conversation, stop: StopReason) -> None:
        who.stop = stop
        if who.conversation_id == 0:
            self.stop = stop
            return
        last = next((m for m in reversed(who.messages) if m.role == "assistant"), None)
        who.result = last.content if last is not None else ""
        main = self.main
        main.blocked -= 1
        if main.blocked == 0:
            self._continue(main, self._collected(main))

    def end(self, stop: StopReason, who: Conversation | None = None) -> None:
        """A driver's verdict on a conversation: its tokens are spent, or its context is full."""
        self._end(who or self.conversations[0], stop)

    def _fail(self, error: InfrastructureError) -> None:
        self.stop, self.failure = "infrastructure", str(error)

    def finalize(self) -> Outcome:
        """End the episode and return what the verifier may see."""
        self.stop = self.stop or "aborted"
        try:
            return self.environment.finalize()
        except InfrastructureError as error:  # the sandbox died before its declared files were read
            self._fail(error)
            return self.environment.outcome
        finally:
            self.close()

    def close(self) -> None:
        """Free what the episode holds of the machine. May be called again, and in place of `finalize`."""
        self.environment.close()
        if self._transport is not None:
            self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the harness's own tools ---------------------------------------------------------------------------------------------

    def _skill(self, who: Conversation, given: dict[str, Any]) -> str:
        skill = next((s for s in self.harness.skills if s.name == given["value"]), None)
        if skill is None:
            known = ", ".join(k.name for k in self.harness.skills)
            raise BadArgumentsError(f"there is no skill {given['value']!r:.60}", f"use one of: {known}")
        return skill.text

    def _remember(self, who: Conversation, given: dict[str, Any]) -> str:
        assert self.memory is not None
        assert self.harness.memory is not None
        note = given["value"].strip()
        if not 0 < len(note) <= self.harness.memory.max_chars:
            raise BadArgumentsError(f"a note of {len(note)} characters", f"write 1 to {self.harness.memory.max_chars}")
        self.memory.add(self.task.task_id, note)
        return "kept"

    def _delegate(self, who: Conversation, given: dict[str, Any]) -> None:
        module = self.harness.subagents
        assert module is not None
        prompts = given["value"]
        started = len(self.conversations) - 1
        if not prompts or not all(isinstance(p, str) and p.strip() for p in prompts):
            raise BadArgumentsError(f"{len(prompts)} prompts, or one that is no text", "pass a list of texts")
        if len(prompts) > module.max_parallel or started + len(prompts) > module.max_total:
            raise BadArgumentsError(
                f"{len(prompts)} sub-agents after {started} earlier ones",
                f"start at most {module.max_parallel} at a time and {module.max_total} in all",
            )
        tools = shown(
            self.harness, (*(t for t in self.environment.tools if t.name != "submit"), *harness_tools(self.harness, subagent=True))
        )
        for prompt in prompts:
            child = self._converse(subagent_opening(self.harness, prompt, tools), tools, module.steps, module.output_tokens)
            child.parent_step, child.prompt = who.steps, prompt
            child.call = given["call"]
        who.blocked += len(prompts)

    def _collected(self, main: Conversation) -> list[Message]:
        """The answers of the turn that delegated, its sub-agents' results among them, in the order of the calls."""
        done = [c for c in self.conversations[1:] if c.parent_step == main.steps]
        for call in dict.fromkeys(id(c.call) for c in done):
            mine = [c for c in done if id(c.call) == call]
            blocks = [f"{i}. {c.result}" if c.stop == "finished" else f"{i}. [stopped: {c.stop}] {c.result}" for i, c in enumerate(mine, 1)]
            assert mine[0].call is not None
            main._answers.append(self._answer(mine[0].call, "\n".join(blocks)))
        answers, main._answers = sorted(main._answers, key=lambda m: m.index), []
        return answers

    # --- the context -----------------------------------------------------------------------------------------------------------

    def manage(self, who: Conversation, used: int, window: int) -> None:
        """Manage the context before a turn, by the harness's strategy; what changed is among the conversation's edits.

        Args:
            used: tokens of the context now.
            window: tokens that the policy can hold.
        """
        module = self.harness.context
        if who._user_spoke:
            who._user_spoke = False
            if (plan := forget_reasoning(who.messages, module)) is not None:
                self._follow(who, plan)
        if module.strategy == "keep_all" or who.summarising or used <= module.threshold * window:
            return
        if module.strategy == "summarise":
            if len(who.messages) <= who.pinned + 1:
                return  # the opening and a summary alone are too long: nothing is won by another one
            who.summarising = True
            request = Message(role="user", content=SUMMARY_REQUEST)
            who.messages.append(request)
            who.edits.append(request)
            return
        whole = [i for i, m in enumerate(who.messages) if m.role == "tool" and (len(m.content) > len(REMOVED) or m.images)]
        if (plan := drop_results(who.messages, module, whole)) is not None:
            self._follow(who, plan)

    def hear(self, message: Message) -> None:
        """The user speaks again, to the main agent."""
        self.main.messages.append(message)
        self.main.edits.append(message)
        self.main._user_spoke = True

    def _follow(self, who: Conversation, plan: Plan) -> None:
        who.messages = kept(plan, who.messages)
        who.edits.append(plan)
