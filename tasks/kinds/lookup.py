"""Search questions: look documented defaults up, in one document or in two, and report them in order."""

from __future__ import annotations

import random
from collections.abc import Sequence

from environments.task import Budgets, Message
from tasks.facts import Fact, askable
from tasks.kinds.draft import STYLES, Demonstration, Draft, KindSpec, call

_PROMPTS = (
    "What are the documented defaults of {names}? Answer with the values, in this order, separated by commas.",
    "Look up {names}. Report the default values in this order, with commas between them.",
    "Which defaults does the documentation give for {names}? Values only, comma-separated, in order.",
)


def _spoken(facts: Sequence[Fact]) -> str:
    """`a` and `b` of `f`, then `c` of `g`."""
    by_title: dict[str, list[str]] = {}
    for fact in facts:
        by_title.setdefault(fact.title, []).append(f"`{fact.parameter}`")
    return ", then ".join(f"{' and '.join(names)} of `{title}`" for title, names in by_title.items())


def draft(rng: random.Random, facts: Sequence[Fact], level: int) -> Draft | None:
    """Level 1: two values of one document. Level 2: one each of two documents. Level 3: two of one and one of another."""
    by_title: dict[str, list[Fact]] = {}
    for fact in askable(facts):
        by_title.setdefault(fact.title, []).append(fact)
    wanted = {1: (2,), 2: (1, 1), 3: (2, 1)}[level]
    chosen: list[Fact] = []
    for count in wanted:
        able = [title for title, found in by_title.items() if len(found) >= count and title not in {f.title for f in chosen}]
        if not able:
            return None
        chosen += rng.sample(by_title[rng.choice(able)], count)
    values = [f.value for f in chosen]
    demonstrations = []
    for style in STYLES:
        messages: list[Message] = []
        notes: list[str] = []
        title = ""
        for fact in chosen:
            if fact.title != title:
                messages.append(call("search", query=fact.title))
            title = fact.title
            messages.append(call("open", result="1", find=fact.parameter))
            notes.append(f"{fact.parameter}={fact.value}" if style == "long" else fact.value)
        thinking = "" if style == "none" else ";".join(notes)
        demonstrations.append(Demonstration(style, (*messages, call("submit", thinking, answer=",".join(values)))))
    return Draft(
        kind="lookup",
        family="search",
        domain="general",
        level=level,
        prompt=rng.choice(_PROMPTS).format(names=_spoken(chosen)),
        tools=("search", "open", "submit"),
        budgets=Budgets(steps=9, output_tokens=320, wall_s=60, submissions=1),
        verifier_kind="exact_values",
        verifier_entry="environments.verifiers.exact_values:ExactValues",
        payload={"values": values},
        facts=tuple(chosen),
        demonstrations=tuple(demonstrations),
    )


LOOKUP = KindSpec("lookup", "search", "general", (1, 2, 3), draft)
