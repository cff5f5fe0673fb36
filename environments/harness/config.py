"""A harness is data: a frozen configuration of modules, hashed into every trace (Kimi K3 report, section 4.2.1).

Its modules are the tool interface, the system prompt, the management of the context, skills, memory and sub-agents. What
each does lies in the module of that name; presets and their recombination in `presets` and `sampler`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Literal, Self

from pydantic import Field, model_validator

from environments.errors import ConfigError
from environments.task import Effort, Frozen, Message, ToolSpec, content_hash

EFFORT_LINES: dict[str, str] = {effort: f"Reasoning effort: {effort}." for effort in ("low", "high", "max")}
"""The natural-language effort message (Kimi K3 report, appendix F: a global option message before the input)."""

Interface = Literal["native", "json", "xml", "fence", "bash", "code"]
Strategy = Literal["keep_all", "summarise", "drop_oldest", "drop_all"]
Reasoning = Literal["always", "tool_use", "until_user"]


class ToolModule(Frozen):
    """How tools are shown and called."""

    interface: Interface = Field(
        default="native",
        description="native: the policy's own calls (XTML, or an endpoint's tools field); json, xml, fence: calls written into the text; "
        "bash: one shell command a message, tools are commands; code: one Python cell a message, tools are functions",
    )
    transport: Literal["direct", "mcp"] = Field(default="direct", description="mcp: calls go through a Model Context Protocol session")
    declaration: Literal["names", "schema"] = Field(
        default="schema", description="names: tool names only (a policy trained on these tools); schema: descriptions and parameters too"
    )
    names: dict[str, str] = Field(default_factory=dict, description="Tool name to the name that the agent sees")
    max_observation_chars: int = Field(default=8000, ge=16, description="A longer tool result is cut there, with a mark that says so")


class ContextModule(Frozen):
    """What is done when the context grows towards the window's end (DeepSeek-V3.2 report), and how long reasoning stays."""

    strategy: Strategy = "keep_all"
    threshold: float = Field(default=0.8, gt=0, le=1, description="Share of the window above which the strategy acts")
    drop_share: float = Field(default=0.75, gt=0, le=1, description="Share of the tool results that drop_oldest removes, oldest first")
    reasoning: Reasoning = Field(
        default="always",
        description="always: kept (Kimi K3); tool_use: kept in messages with calls, dropped in plain chat (DeepSeek V4); "
        "until_user: dropped when the user speaks again (DeepSeek V3.2)",
    )


class Skill(Frozen):
    """Instructions that are loaded when they are needed: the agent sees name and description, and reads the text on request."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,40}$")
    description: str
    text: str


class MemoryModule(Frozen):
    """Notes that persist between the episodes of a task."""

    max_notes: int = Field(default=20, ge=1, description="Shown at the start, the latest ones")
    max_chars: int = Field(default=500, ge=1, description="Of one note; a longer one is refused")


class SubagentModule(Frozen):
    """Sub-agents that the agent may start, several at a time, each with budgets of its own (Kimi K2.5: agent swarm)."""

    max_parallel: int = Field(default=4, ge=1, description="Sub-agents in one call")
    max_total: int = Field(default=16, ge=1, description="Sub-agents in one episode")
    steps: int = Field(default=20, ge=1, description="Assistant messages of one sub-agent")
    output_tokens: int = Field(default=8000, ge=1, description="Tokens that one sub-agent may sample in all")
    prompt: str = "You are a sub-agent. Do what you are asked with the tools you have, then answer with the result only."


class HarnessConfig(Frozen):
    """How an agent meets a task."""

    name: str
    system_prompt: str = ""
    tools: ToolModule = ToolModule()
    context: ContextModule = ContextModule()
    skills: tuple[Skill, ...] = ()
    memory: MemoryModule | None = None
    subagents: SubagentModule | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        names = [s.name for s in self.skills]
        if len(set(names)) < len(names):
            raise ConfigError(f"harness {self.name!r} has two skills of one name: {', '.join(names)}", "name each skill once")
        shown = list(self.tools.names.values())
        if len(set(shown)) < len(shown):
            raise ConfigError(f"harness {self.name!r} shows two tools under one name: {', '.join(shown)}", "give each its own")
        if self.tools.names and self.tools.interface in ("bash", "code"):
            raise ConfigError(
                f"harness {self.name!r} renames tools in the {self.tools.interface} interface, where code calls them by their own names",
                "leave the names out",
            )
        own = [name for name in ("skills", "memory", "subagents") if getattr(self, name)]
        if own and self.tools.interface in ("bash", "code"):
            raise ConfigError(
                f"harness {self.name!r} has {', '.join(own)} and the {self.tools.interface} interface, whose code cannot reach them",
                "use another interface, or leave these out",
            )
        return self

    @cached_property
    def sha256(self) -> str:
        """Content hash of the configuration (16 hex characters)."""
        return content_hash(self)[:16]

    def observe(self, text: str) -> str:
        """A tool result as the agent reads it."""
        cap = self.tools.max_observation_chars
        return text if len(text) <= cap else text[:cap] + " [cut]"


def effort_message(effort: Effort) -> Message:
    """The option message that states the effort."""
    return Message(role="system", option="effort", content=EFFORT_LINES[effort])


LAPTOP = HarnessConfig(name="laptop", tools=ToolModule(declaration="names", max_observation_chars=400))
"""For policies that are trained on the tools themselves and have no window to waste on schemas."""
ENDPOINT = HarnessConfig(
    name="endpoint",
    tools=ToolModule(declaration="names"),
    system_prompt="Work on the task with the tools you have. Call one tool at a time and finish by calling submit.",
)
"""For chat endpoints: tools are declared through the endpoint's own `tools` field as well."""


def declare_names(tools: tuple[ToolSpec, ...]) -> str:
    """Tools by name only."""
    return " ".join(t.name for t in tools)
