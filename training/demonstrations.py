"""Scripted solutions replayed through the real environment; only those that the verifier passes teach the cold start."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from environments.families import make_environment
from environments.harness.config import EFFORT_LINES, HarnessConfig
from environments.harness.episode import Episode
from environments.harness.xtml import Xtml
from environments.resources import Resources
from environments.task import EFFORTS, Message, TaskSpec
from environments.verifiers import judge
from tasks.kinds import Demonstration
from tasks.kinds.function import renumbered


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
    return [
        part
        for m in verified.messages
        for part in (m.content, m.thinking, *(str(v) for c in m.calls for v in c.arguments.values()))
        if part
    ]


def encode(verified: Verified, codec: Xtml, rng: random.Random, effort_share: float) -> tuple[list[int], list[int]]:
    """Tokens and loss mask: 1 to imitate, 0 for context, -1 for failed tries, which are not to be learned at all.

    With probability `effort_share` an effort message of a *random* level is shown.

    The level says nothing about the demonstration's length, so the cold start learns to read past it, not to obey it;
    obeying is what distillation must teach.
    """
    tokens: list[int] = []
    mask: list[int] = []

    def append(ids: Sequence[int], kind: int = 0) -> None:
        tokens.extend(ids)
        mask.extend([kind] * len(ids))

    shown = rng.choice(EFFORTS) if rng.random() < effort_share else None
    spoken = 0
    for message in verified.messages:
        if message.role == "user" and shown is not None:
            append(codec.encode(Message(role="system", content=EFFORT_LINES[shown])))
            shown = None
        if message.role == "assistant":
            append(codec.generation_prefix)
            append(codec.assistant_body(message), -1 if spoken in verified.masked else 1)
            spoken += 1
        else:
            append(codec.encode(message))
    return tokens, mask


LEXICON = 3_000
"""Words to rename with."""
PROGRAM_WORDS = ("def", "return", "solve")
"""Words that stay what they are in every world."""
_WORD = re.compile(r"[A-Za-z]{3,}")
_NUMBER = re.compile(r"\d[\d.]*(?:e-?\d+)?")


def lexicon(passages: Iterable[str]) -> list[str]:
    """The common words of identifiers, to rename with, in a stable order.

    Words that also occur in held-out tasks are among them, in worlds where they mean something else: a policy must have met
    a token to copy it, and learns nothing about a held-out task from it.
    """
    counts = Counter(w for text in passages for w in set(_WORD.findall(text)) if len(w) <= 12 and w.islower())
    return sorted(w for w, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:LEXICON])


def rename(verified: Verified, words: Sequence[str], rng: random.Random) -> Verified:
    """The same demonstration in a world with other names and values, consistently replaced.

    A few hundred functions are soon known by heart, and a policy that remembers answers need not read. In renamed worlds only
    what stands in the context helps. Without words to rename with it stays as it is.
    """
    if not words:
        return verified
    prompt = next(m.content for m in verified.messages if m.role == "user")
    spoken = [str(v) for m in verified.messages for c in m.calls for k, v in c.arguments.items() if k in ("answer", "value")]
    mapping: dict[str, str] = {word: word for word in PROGRAM_WORDS}
    for quoted in re.findall(r"`([^`]+)`", prompt):
        for word in _WORD.findall(quoted):
            mapping.setdefault(word, rng.choice(words))
    for value in (v for text in spoken for v in text.split(",")):
        for word in _WORD.findall(value):
            mapping.setdefault(word, rng.choice(words))
        if len(value) > 1 and _NUMBER.fullmatch(value):
            mapping.setdefault(value, _number_like(value, rng))
    bounds = {True: (r"(?<![A-Za-z])", r"(?![A-Za-z])"), False: (r"(?<![\w.])", r"(?![\w.]*\d)")}  # of words, and of numbers
    parts = [re.escape(k).join(bounds[k.isalpha()]) for k in sorted(mapping, key=len, reverse=True)]
    pattern = re.compile("|".join(parts))

    def swap(text: str) -> str:
        return pattern.sub(lambda m: mapping[m[0]], text)

    def changed(m: Message) -> Message:
        calls = tuple(
            c.model_copy(update={"arguments": {k: swap(v) if isinstance(v, str) else v for k, v in c.arguments.items()}}) for c in m.calls
        )
        return m.model_copy(update={"content": swap(m.content), "thinking": swap(m.thinking), "calls": calls})

    head = next(i for i, m in enumerate(verified.messages) if m.role == "user")
    world: Sequence[Message] = verified.messages[head:]
    if any("source" in c.arguments for m in world for c in m.calls):  # numbers of programs decide what they return
        world = renumbered(world, rng)
    messages = (*verified.messages[:head], *map(changed, world))
    return Verified(verified.task_id, verified.style, messages, verified.masked)


def _number_like(value: str, rng: random.Random) -> str:
    """Another number of the same shape: digits replaced, the first one not by zero."""
    new = [str(rng.randint(0, 9)) if ch.isdigit() else ch for ch in value]
    if value[0] != "0":
        new[0] = str(rng.randint(1, 9))
    return "".join(new)
