"""Recombining harnesses: each task group meets modules drawn from several presets (Kimi K3 report, section 4.2.1).

A group's samples share one harness, else their rewards could not be compared. The draw depends on the seed and the group
alone, so that a resumed run meets the same harnesses.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from environments.errors import ConfigError
from environments.harness.config import HarnessConfig, Interface
from environments.task import Frozen, content_hash

MODULES = ("system_prompt", "tools", "context", "skills", "memory", "subagents")


class Constraints(Frozen):
    """What the policy, the tasks and the machine allow."""

    interfaces: tuple[Interface, ...] = Field(
        default=("native", "json", "xml", "fence"), min_length=1, description="bash and code need a sandbox that serves tools"
    )
    mcp: bool = Field(default=True, description="Calls may go through a Model Context Protocol session")
    memory: bool = Field(default=False, description="There is a place for notes")
    subagents: bool = Field(default=True, description="Sub-agents may be started")
    names: bool = Field(default=True, description="Tools may be shown under other names than the policy was trained on")


class HarnessSampler:
    """Draws a harness for a group: every module from a preset of its own, or a preset as it is.

    Raises:
        ConfigError: there is no preset, or no tool interface of theirs is allowed.
    """

    def __init__(self, presets: Sequence[HarnessConfig], constraints: Constraints | None = None, seed: int = 0, recombine: bool = True):
        self.presets = tuple(presets)
        self.constraints = constraints or Constraints()
        self.seed = seed
        self.recombine = recombine
        self._tools = [p for p in self.presets if self._allowed(p)]
        if not self._tools:
            known = ", ".join(sorted({p.tools.interface for p in self.presets})) or "nothing"
            raise ConfigError(
                f"no preset has an allowed tool interface: there is {known}, allowed is {', '.join(self.constraints.interfaces)}",
                "allow one of these, or name other presets",
            )

    def _allowed(self, preset: HarnessConfig) -> bool:
        tools = preset.tools
        return tools.interface in self.constraints.interfaces and (self.constraints.mcp or tools.transport == "direct")

    def draw(self, group: str) -> HarnessConfig:
        """The harness of a group. Its name tells where each module comes from."""
        rng = random.Random(f"{self.seed}:{group}")
        tools = rng.choice(self._tools)
        sources = {m: rng.choice(self.presets) if self.recombine else tools for m in MODULES} | {"tools": tools}
        parts = {module: getattr(source, module) for module, source in sources.items()}
        if not self.constraints.names:
            parts["tools"] = parts["tools"].model_copy(update={"names": {}})
        if not self.constraints.memory:
            parts["memory"] = None
        if not self.constraints.subagents:
            parts["subagents"] = None
        if tools.tools.interface in ("bash", "code"):  # their code cannot reach the harness's own tools
            parts |= {"skills": (), "memory": None, "subagents": None}
        # Names of several presets meet here: a harness tool takes its name from the preset that brings it.
        own = {"skill": "skills", "remember": "memory", "delegate": "subagents"}
        names = {t: n for t, n in parts["tools"].names.items() if t not in own}
        for tool, module in own.items():
            name = sources[module].tools.names.get(tool, tool)
            if self.constraints.names and parts[module] and name != tool and name not in names.values():
                names[tool] = name
        parts["tools"] = parts["tools"].model_copy(update={"names": names})
        different = {m: s.name for m, s in sources.items() if s.name != tools.name}
        name = tools.name + "".join(f"+{m}={s}" for m, s in different.items())
        return HarnessConfig(name=name, **parts)


def usage(harnesses: Iterable[HarnessConfig], counts: Mapping[str, int] | None = None) -> dict[str, Counter[str]]:
    """How often each option of each module was used.

    Args:
        counts: episodes by harness hash; each harness counts once without it.
    """
    out: dict[str, Counter[str]] = {}
    for harness in harnesses:
        n = 1 if counts is None else counts.get(harness.sha256, 0)
        for module, option in options(harness).items():
            out.setdefault(module, Counter())[option] += n
    return out


def options(harness: HarnessConfig) -> dict[str, str]:
    """What a harness chose, by module."""
    return {
        "interface": harness.tools.interface,
        "transport": harness.tools.transport,
        "declaration": harness.tools.declaration,
        "context": harness.context.strategy,
        "reasoning": harness.context.reasoning,
        "skills": ",".join(s.name for s in harness.skills) or "none",
        "memory": "notes" if harness.memory else "none",
        "subagents": str(harness.subagents.max_parallel) if harness.subagents else "none",
        "system_prompt": content_hash(harness.system_prompt)[:8] if harness.system_prompt else "none",
    }
