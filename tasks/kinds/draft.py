"""What every task type produces."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from environments.protocols import Document, SearchSource
from environments.task import Budgets, Domain, Effort, InitialState, Message, ToolCall
from kg.concept import Passage
from tasks.facts import Fact, defaults

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
    payload: dict[str, Any]
    passages: tuple[Passage, ...]
    """What it was written from; facts where the type is about facts."""
    demonstrations: tuple[Demonstration, ...]
    initial_state: InitialState = field(default_factory=InitialState)


@dataclass(frozen=True)
class Material:
    """What one task is written from: the sampled nodes and the documents that were retrieved for them."""

    nodes: tuple[str, ...]
    """Concept ids; the first is the one that was drawn, others are related to it."""
    names: tuple[str, ...]
    """Their concepts' names."""
    documents: tuple[Document, ...]
    source: SearchSource | None = None
    """The whole corpus, for types that look further than their own documents."""

    @cached_property
    def facts(self) -> tuple[Fact, ...]:
        """The documented defaults that the documents state."""
        return tuple(fact for document in self.documents for fact in defaults(document))


@dataclass(frozen=True)
class KindSpec:
    """A task type: how it drafts, and at which levels."""

    name: str
    family: str
    domain: Domain
    levels: tuple[int, ...]
    draft: Callable[[random.Random, Material, int], Draft | None]
    """(random source, material, level) -> a draft, or None when the material does not support one."""
    check: Callable[[Draft, SearchSource], str] | None = None
    """Why a draft cannot be solved, or is too easy, with the tools that it offers; empty when it can."""
    default: bool = False
    """Whether it is written where the configuration names no types: those that the laptop policy can learn."""


def call(tool: str, thinking: str = "", **arguments: str) -> Message:
    """An assistant message with one call."""
    return Message(role="assistant", thinking=thinking, calls=(ToolCall(tool=tool, arguments=dict(arguments)),))
