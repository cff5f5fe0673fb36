"""What every task type produces."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.task import Budgets, Domain, Effort, InitialState, Message, ToolCall
from tasks.facts import Fact

STYLES = ("long", "short", "none")
"""How much a demonstration of a reading or bookkeeping task writes down before it acts; the first is the reference."""
STYLE_EFFORT: dict[str, Effort] = {"none": "low", "guess": "low", "short": "high", "look": "high", "long": "max", "search": "max"}
"""The effort that a style of demonstration stands for."""


@dataclass(frozen=True)
class Demonstration:
    """A scripted solution in one style."""

    style: str
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Draft:
    """A candidate before it becomes a TaskSpec. The first demonstration is the reference solution."""

    kind: str
    family: str
    domain: Domain
    level: int
    prompt: str
    tools: tuple[str, ...]
    budgets: Budgets
    verifier_kind: str
    verifier_entry: str
    payload: dict[str, Any]
    facts: tuple[Fact, ...]
    demonstrations: tuple[Demonstration, ...]
    initial_state: InitialState = field(default_factory=InitialState)


@dataclass(frozen=True)
class KindSpec:
    """A task type: how it drafts, and at which levels."""

    name: str
    family: str
    domain: Domain
    levels: tuple[int, ...]
    draft: Callable[[random.Random, Sequence[Fact], int], Draft | None]
    """(random source, facts of a node, level) -> a draft, or None when the facts do not support one."""


def call(tool: str, thinking: str = "", **arguments: str) -> Message:
    """An assistant message with one call."""
    return Message(role="assistant", thinking=thinking, calls=(ToolCall(tool=tool, arguments=dict(arguments)),))
