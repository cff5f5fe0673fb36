"""Scripted solutions replayed through the real environment; only those that the verifier passes teach the cold start."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from environments.families import make_environment
from environments.harness.config import HarnessConfig, effort_message
from environments.harness.episode import Episode
from environments.harness.xtml import Xtml
from environments.resources import Resources
from environments.task import EFFORTS, Domain, Effort, Message, TaskSpec
from environments.verifiers import judge
from tasks.kinds import STYLE_EFFORT, Demonstration
from tasks.kinds.function import renumbered


@dataclass(frozen=True)
class Verified:
    """A demonstration with the world's answers in place."""

    task_id: str
    style: str
    messages: tuple[Message, ...]


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
    return Verified(task.task_id, demonstration.style, tuple(episode.messages))


def texts(verified: Verified) -> list[str]:
    """Everything a tokenizer should know of a demonstration."""
    return [
        part
        for m in verified.messages
        for part in (m.content, m.thinking, *(str(v) for c in m.calls for v in c.arguments.values()))
        if part
    ]


def balanced(
    verified: Iterable[Verified], domain_of: Mapping[str, Domain], shares: Mapping[Domain, Mapping[Effort, float]], copies: int
) -> Iterator[tuple[Verified, int]]:
    """Each domain's demonstrations, repeated `copies` times on average, its styles in proportion to the shares of their efforts.

    A style that often fails has few verified demonstrations. Left as they come, they would hardly show in the cold start, and an
    expert can only choose what it sometimes does.

    Args:
        domain_of: domain by task id.
        shares: weights of the styles of each domain, by the effort a style stands for.

    Yields:
        A demonstration and how often it came before.
    """
    pools: dict[Domain, dict[Effort, list[Verified]]] = {}
    for v in verified:
        pools.setdefault(domain_of[v.task_id], {}).setdefault(STYLE_EFFORT[v.style], []).append(v)
    for domain, styles in pools.items():
        total = copies * sum(map(len, styles.values()))
        weight = sum(shares[domain][effort] for effort in styles)
        for effort, pool in styles.items():
            for i in range(round(total * shares[domain][effort] / weight)):
                yield pool[i % len(pool)], i // len(pool)


def encode(verified: Verified, codec: Xtml, rng: random.Random, effort_share: float, effort_fit: float) -> tuple[list[int], list[int]]:
    """Tokens and loss mask: 1 to imitate, 0 for context.

    With probability `effort_share` an effort message is shown: with probability `effort_fit` the one that fits the style, else
    any. So the cold start follows the message more often than not; distillation makes that its teachers' ways of working.
    """
    tokens: list[int] = []
    mask: list[int] = []

    def append(ids: Sequence[int], kind: int = 0) -> None:
        tokens.extend(ids)
        mask.extend([kind] * len(ids))

    shown: Effort | None = None
    if rng.random() < effort_share:
        shown = STYLE_EFFORT[verified.style] if rng.random() < effort_fit else rng.choice(EFFORTS)
    for message in verified.messages:
        if message.role == "user" and shown is not None:
            append(codec.encode(effort_message(shown)))
            shown = None
        if message.role == "assistant":
            append(codec.generation_prefix)
            append(codec.assistant_body(message), 1)
        else:
            append(codec.encode(message))
    return tokens, mask


LEXICON = 30_000
"""Words to rename with, at most."""
PROGRAM_WORDS = ("def", "return", "solve")
"""Words that stay what they are in every world."""
_WORD = re.compile(r"[A-Za-z]{3,}")
_NUMBER = re.compile(r"\d[\d.]*(?:e-?\d+)?")


def lexicon(passages: Iterable[str]) -> list[str]:
    """The words of identifiers, the commonest first, to rename with.

    Words that also occur in held-out tasks are among them, in worlds where they mean something else: a policy must have met
    a token to copy it, and learns nothing about a held-out task from it.
    """
    counts = Counter(w for text in passages for w in set(_WORD.findall(text)) if len(w) <= 12)
    return [w for w, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:LEXICON]]


BLENDED = 0.4
"""Share of the new words that are no words: the head of one and the tail of another. They cannot be guessed, only copied."""


def _word(words: Sequence[str], rng: random.Random) -> str:
    """A word of the lexicon, its chance falling with the root of its rank: names have rare parts too; or a blend of two."""

    def draw() -> str:
        return words[int(len(words) * rng.random() ** 2)]

    return draw()[: rng.randint(2, 5)] + draw()[-rng.randint(2, 5) :] if rng.random() < BLENDED else draw()


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
            mapping.setdefault(word, _word(words, rng))
    for value in (v for text in spoken for v in text.split(",")):
        for word in _WORD.findall(value):
            mapping.setdefault(word, _word(words, rng))
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
    return Verified(verified.task_id, verified.style, messages)


def _number_like(value: str, rng: random.Random) -> str:
    """Another number of the same shape: digits replaced, the first one not by zero."""
    new = [str(rng.randint(0, 9)) if ch.isdigit() else ch for ch in value]
    if value[0] != "0":
        new[0] = str(rng.randint(1, 9))
    return "".join(new)
