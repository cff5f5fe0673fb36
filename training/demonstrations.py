"""Scripted solutions replayed through the real environment; only those that the verifier passes teach the cold start."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from environments.families import make_environment
from environments.harness.config import EFFORT_LINES, HarnessConfig
from environments.harness.episode import Episode
from environments.harness.xtml import Xtml
from environments.resources import Resources
from environments.task import EFFORTS, Message, TaskSpec
from environments.verifiers import judge
from tasks.kinds import Demonstration


@dataclass(frozen=True)
class Verified:
    """A demonstration with the world's answers in place. `masked`: assistant messages not to be imitated, by their order."""

    task_id: str
    style: str
    messages: tuple[Message, ...]
    masked: tuple[int, ...]


def replay(task: TaskSpec, demonstration: Demonstration, resources: Resources, harness: HarnessConfig) -> Verified | None:
    """Run a script; None when the verifier does not pass what it leaves behind."""
    episode = Episode(make_environment(task, resources), harness)
    episode.start()
    for message in demonstration.messages:
        if episode.stop is not None:
            return None
        episode.act(message)
    outcome = episode.finalize()
    if judge(task, outcome, resources).status != "pass":
        return None
    return Verified(task.task_id, demonstration.style, tuple(episode.messages), demonstration.masked)


def texts(verified: Verified) -> list[str]:
    """Everything a tokenizer should know of a demonstration."""
    return [part for m in verified.messages for part in (m.content, m.thinking, *(str(v) for c in m.calls for v in c.arguments.values())) if part]


def encode(verified: Verified, codec: Xtml, rng: random.Random, effort_share: float) -> tuple[list[int], list[int]]:
    """Tokens and loss mask. With probability `effort_share` an effort message of a *random* level is shown.

    The level says nothing about the demonstration's length, so the cold start learns to read past it, not to obey it;
    obeying is what distillation must teach.
    """
    tokens: list[int] = []
    mask: list[int] = []

    def append(ids: Sequence[int], learn: bool) -> None:
        tokens.extend(ids)
        mask.extend([int(learn)] * len(ids))

    shown = rng.choice(EFFORTS) if rng.random() < effort_share else None
    spoken = 0
    for message in verified.messages:
        if message.role == "user" and shown is not None:
            append(codec.encode(Message(role="system", content=EFFORT_LINES[shown])), False)
            shown = None
        if message.role == "assistant":
            append(codec.generation_prefix, False)
            append(codec.assistant_body(message), spoken not in verified.masked)
            spoken += 1
        else:
            append(codec.encode(message), False)
    return tokens, mask
