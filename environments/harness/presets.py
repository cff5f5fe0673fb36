"""Harnesses in the public shape of well-known agents: tool names, interface, context management, skills, memory, sub-agents.

Shapes only, from their public documentation and source as far as it is open; every prompt is written here. A policy that is
trained under many of them does not come to depend on one (Kimi K3 report, section 4.2.1).
"""

from __future__ import annotations

from environments.harness.config import (
    ENDPOINT,
    LAPTOP,
    ContextModule,
    HarnessConfig,
    MemoryModule,
    Skill,
    SubagentModule,
    ToolModule,
)

DEBUGGING = Skill(
    name="debugging",
    description="How to find the cause of a failure.",
    text="Reproduce the failure with the smallest input. Read the whole error. Form one hypothesis at a time and test it with one "
    "change. When it is fixed, run what failed before and everything next to it.",
)
EVIDENCE = Skill(
    name="evidence",
    description="How to answer from sources.",
    text="Search with several wordings. Open what you cite and read around the place. Prefer two independent sources. If they "
    "disagree, say so and look for a third. Answer only what was found.",
)
DATA = Skill(
    name="data-work",
    description="How to work on tables.",
    text="Look at the columns, types, units and missing values first. Compute in code, never by head. Check sums against a second "
    "way of computing them. State rounding and assumptions with the result.",
)

_LEAN = "Work on the task with the tools you have and finish by calling submit."

MINIMAL = HarnessConfig(
    name="minimal",
    system_prompt="Solve the task by running shell commands. Hand in with the command `submit`.",
    tools=ToolModule(interface="bash", max_observation_chars=10_000),
)
"""One shell command a message and nothing else, as mini-swe-agent."""

KIMI_CODE = HarnessConfig(
    name="kimi-code",
    system_prompt="You are a coding agent in a terminal. Look before you change anything, make the smallest change that works, and "
    "check it by running it. Independent calls go into one message. Finish by calling submit.",
    tools=ToolModule(names={"bash": "Shell", "view": "ReadFile", "create": "WriteFile", "edit": "StrReplaceFile", "delegate": "Task"}),
    context=ContextModule(strategy="summarise"),
    skills=(DEBUGGING,),
    subagents=SubagentModule(max_parallel=4),
)

CLAUDE_CODE_1 = HarnessConfig(
    name="claude-code-1",
    system_prompt="You are a command-line coding assistant. Be brief. Use tools to act, text only to talk. Finish by calling submit.",
    tools=ToolModule(
        interface="xml", names={"bash": "Bash", "view": "View", "create": "Replace", "edit": "Edit", "delegate": "dispatch_agent"}
    ),
    context=ContextModule(strategy="summarise", threshold=0.92, reasoning="until_user"),
    subagents=SubagentModule(max_parallel=3, max_total=9),
)
"""An early version: calls as XML tags, one kind of sub-agent, no skills."""

CLAUDE_CODE_2 = HarnessConfig(
    name="claude-code-2",
    system_prompt="You are a coding assistant that works on its own until the task is done. Plan briefly, verify with the tools, and "
    "read a skill when its description fits. Finish by calling submit.",
    tools=ToolModule(
        max_observation_chars=30_000,
        names={"bash": "Bash", "view": "Read", "create": "Write", "edit": "Edit", "delegate": "Task", "skill": "Skill"},
    ),
    context=ContextModule(strategy="summarise", threshold=0.9, reasoning="tool_use"),
    skills=(DEBUGGING, EVIDENCE, DATA),
    memory=MemoryModule(),
    subagents=SubagentModule(max_parallel=8, max_total=32),
)
"""A later version: native calls, skills, memory notes, many sub-agents."""

CODEX = HarnessConfig(
    name="codex",
    system_prompt="You are an agent that edits code in a sandboxed workspace. Keep going until the request is resolved; do not ask "
    "back. Finish by calling submit.",
    tools=ToolModule(names={"bash": "shell", "edit": "apply_patch", "view": "view_image"}, max_observation_chars=10_000),
    context=ContextModule(strategy="summarise", threshold=0.9),
)

OPENCLAW = HarnessConfig(
    name="openclaw",
    system_prompt="You are a personal assistant with access to your user's apps. Check what is there before you act, act once, and "
    "check the effect. Keep what will matter later as a note. Finish by calling submit.",
    tools=ToolModule(
        transport="mcp",
        names={"bash": "exec", "view": "read", "create": "write", "remember": "memory_write", "delegate": "sessions_spawn"},
    ),
    context=ContextModule(strategy="drop_oldest"),
    skills=(EVIDENCE,),
    memory=MemoryModule(max_notes=40),
    subagents=SubagentModule(max_parallel=4),
)

HERMES = HarnessConfig(
    name="hermes",
    system_prompt="You are an agent that calls functions. Think first, then call. Finish by calling submit.",
    tools=ToolModule(
        interface="json",
        names={
            "bash": "terminal",
            "view": "read_file",
            "create": "write_file",
            "edit": "patch",
            "python": "execute_code",
            "remember": "memory",
            "delegate": "delegate_task",
            "skill": "skill_view",
        },
    ),
    context=ContextModule(strategy="summarise", threshold=0.5),
    skills=(DEBUGGING, EVIDENCE),
    memory=MemoryModule(),
    subagents=SubagentModule(max_parallel=3),
)

OPENCODE = HarnessConfig(
    name="opencode",
    system_prompt="You are a coding agent. Answer shortly, follow the conventions of the code around you. Finish by calling submit.",
    tools=ToolModule(names={"view": "read", "create": "write", "delegate": "task"}),
    context=ContextModule(strategy="drop_oldest", threshold=0.85),
    skills=(DEBUGGING,),
    subagents=SubagentModule(max_parallel=4),
)

PI = HarnessConfig(
    name="pi",
    system_prompt=_LEAN,
    tools=ToolModule(names={"view": "read", "create": "write"}),
    context=ContextModule(strategy="summarise"),
)
"""Four tools and a short prompt, on purpose."""

DEEPSEEK = HarnessConfig(
    name="deepseek",
    system_prompt="Reason as long as it helps, then act. Reasoning between calls is kept. Finish by calling submit.",
    context=ContextModule(strategy="drop_all", reasoning="tool_use"),
)
DEEPSEEK_MINIMAL = HarnessConfig(
    name="deepseek-minimal",
    system_prompt=_LEAN,
    tools=ToolModule(interface="fence", max_observation_chars=16_000),
    context=ContextModule(strategy="drop_oldest", reasoning="until_user"),
)
DEEPSEEK_CODE = HarnessConfig(
    name="deepseek-code",
    system_prompt="Write Python that calls the tools as functions; combine several calls in one cell where you can. Call submit last.",
    tools=ToolModule(interface="code", max_observation_chars=16_000),
    context=ContextModule(strategy="drop_all", reasoning="tool_use"),
)
"""Programmatic tool calls."""

PRESETS: dict[str, HarnessConfig] = {
    h.name: h
    for h in (
        LAPTOP,
        ENDPOINT,
        MINIMAL,
        KIMI_CODE,
        CLAUDE_CODE_1,
        CLAUDE_CODE_2,
        CODEX,
        OPENCLAW,
        HERMES,
        OPENCODE,
        PI,
        DEEPSEEK,
        DEEPSEEK_MINIMAL,
        DEEPSEEK_CODE,
    )
}
"""By name, for configurations and the command line."""
