"""A harness is data: a frozen configuration, hashed into every trace."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

from environments.task import Effort, Frozen, Message, ToolParameter, ToolSpec, content_hash

EFFORT_LINES: dict[str, str] = {effort: f"Reasoning effort: {effort}." for effort in ("low", "high", "max")}
"""The natural-language effort message (Kimi K3 report, appendix F: a global option message before the input)."""


class HarnessConfig(Frozen):
    """How an agent meets a task."""

    name: str = "laptop"
    system_prompt: str = ""
    tool_declaration: Literal["names", "schema"] = "names"
    """`names`: tool names only (a policy trained on these tools); `schema`: descriptions and parameters too."""
    max_observation_chars: int = 400
    """A longer tool result is cut there, with a mark that says so."""

    @cached_property
    def sha256(self) -> str:
        """Content hash of the configuration (16 hex characters)."""
        return content_hash(self)[:16]

    def opening(self, prompt: tuple[Message, ...], tools: tuple[ToolSpec, ...], effort: Effort | None) -> list[Message]:
        """The messages before the first assistant turn: tool declaration, effort option, system prompt, the task's own."""
        opening = [Message(role="system", content=self.declare(tools))]
        if self.system_prompt:
            opening.insert(0, Message(role="system", content=self.system_prompt))
        if effort is not None:
            opening.append(Message(role="system", content=EFFORT_LINES[effort]))
        return [*opening, *prompt]

    def declare(self, tools: tuple[ToolSpec, ...]) -> str:
        """The tool declaration as text."""
        if self.tool_declaration == "names":
            return " ".join(t.name for t in tools)
        lines = [f"{t.name}({', '.join(map(_signature, t.parameters))}): {t.description}" for t in tools]
        return "Tools:\n" + "\n".join(lines)

    def observe(self, text: str) -> str:
        """A tool result as the agent reads it."""
        if len(text) <= self.max_observation_chars:
            return text
        return text[: self.max_observation_chars] + " [cut]"


LAPTOP = HarnessConfig()
ENDPOINT = HarnessConfig(
    name="endpoint",
    system_prompt="Work on the task with the tools you have. Call one tool at a time and finish by calling submit.",
    max_observation_chars=8000,
)
"""For chat endpoints: tools are declared through the endpoint's own `tools` field as well."""


def _signature(parameter: ToolParameter) -> str:
    return f"{parameter.name}{'' if parameter.required else '?'}: {parameter.type}"
