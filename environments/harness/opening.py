"""What stands before an agent's first turn: system prompt, tools, effort, skills, notes, and the task's own messages."""

from __future__ import annotations

from collections.abc import Sequence

from environments.harness.config import HarnessConfig, declare_names, effort_message
from environments.harness.interfaces import TEXT_STYLES, schema_line
from environments.task import Effort, Message, ToolParameter, ToolSpec

SKILL = ToolSpec(
    name="skill",
    description="Read the instructions of a skill.",
    parameters=(ToolParameter(name="name", description="Name of the skill."),),
)
REMEMBER = ToolSpec(
    name="remember",
    description="Keep a note for later attempts at this task.",
    parameters=(ToolParameter(name="note", description="What is worth knowing next time."),),
)
DELEGATE = ToolSpec(
    name="delegate",
    description="Start sub-agents that work in parallel, one a prompt; returns what each answers. They know nothing but their prompt.",
    parameters=(ToolParameter(name="prompts", type="array", description="What each sub-agent has to do, as texts."),),
)


def harness_tools(harness: HarnessConfig, *, subagent: bool = False) -> tuple[ToolSpec, ...]:
    """The tools that the harness itself adds; a sub-agent may read skills only."""
    tools = [SKILL] if harness.skills else []
    if not subagent:
        tools += [REMEMBER] if harness.memory else []
        tools += [DELEGATE] if harness.subagents else []
    return tuple(tools)


def shown(harness: HarnessConfig, tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Tools under the names that this harness gives them."""
    names = harness.tools.names
    return tuple(t.model_copy(update={"name": names[t.name]}) if t.name in names else t for t in tools)


def declaration(harness: HarnessConfig, tools: tuple[ToolSpec, ...]) -> str:
    """The tool declaration as text; `tools` under the names that are shown."""
    module = harness.tools
    if module.interface == "native":
        if module.declaration == "names":
            return declare_names(tools)
        return "\n".join(["Tools:", *map(schema_line, tools)])
    style = TEXT_STYLES[module.interface]
    lines = [declare_names(tools)] if module.declaration == "names" else [style.declare(t) for t in tools]
    return "\n".join([style.instructions, *lines])


def opening(
    harness: HarnessConfig, prompt: Sequence[Message], tools: tuple[ToolSpec, ...], effort: Effort | None, notes: Sequence[str] = ()
) -> list[Message]:
    """The main agent's opening. Option messages stand before the input, so that the input can follow without a change to them."""
    messages = [Message(role="system", content=harness.system_prompt)] if harness.system_prompt else []
    messages.append(Message(role="system", option="tools", content=declaration(harness, tools)))
    if effort is not None:
        messages.append(effort_message(effort))
    if harness.skills:
        lines = [f"{s.name}: {s.description}" for s in harness.skills]
        messages.append(Message(role="system", content="\n".join(["Skills:", *lines])))
    if harness.memory and notes:
        latest = notes[-harness.memory.max_notes :]
        messages.append(Message(role="system", content="\n".join(["Notes from earlier attempts:", *(f"- {n}" for n in latest)])))
    return [*messages, *prompt]


def subagent_opening(harness: HarnessConfig, prompt: str, tools: tuple[ToolSpec, ...]) -> list[Message]:
    """A sub-agent's opening: it knows its prompt and its tools."""
    assert harness.subagents is not None
    return [
        Message(role="system", content=harness.subagents.prompt),
        Message(role="system", option="tools", content=declaration(harness, tools)),
        Message(role="user", content=prompt),
    ]
