"""Search questions: look documented defaults up and add to them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from environments.task import Budgets, Message
from tasks.facts import Fact, askable
from tasks.kinds.draft import Demonstration, Draft, KindSpec, call
from tasks.kinds.scratchpad import STYLES, add

_ONE = (
    "How much is the documented default of `{p}` in `{f}` plus {k}?",
    "Find the default of `{p}` in `{f}`. Add {k} to it.",
    "`{f}` runs with its default `{p}`, then {k} more. What is the total?",
)
_TWO = (
    "Add the documented defaults of `{p}` in `{f}` and `{q}` in `{g}`, and {k} more.",
    "What do the default `{p}` of `{f}`, the default `{q}` of `{g}` and {k} sum to?",
)
ADDENDS = {1: (2, 9), 2: (11, 99), 3: (11, 99)}


def draft(rng: random.Random, facts: Sequence[Fact], level: int) -> Draft | None:
    """Level 1 and 2: one look-up and an addend of one or two digits. Level 3: two look-ups and an addend of two."""
    facts = askable(facts)
    if not facts:
        return None
    chosen = [rng.choice(facts)]
    if level == 3:
        others = [f for f in facts if f.title != chosen[0].title]
        if not others:
            return None
        chosen.append(rng.choice(others))
    k = rng.randint(*ADDENDS[level])
    names = {"p": chosen[0].parameter, "f": chosen[0].title, "q": chosen[-1].parameter, "g": chosen[-1].title, "k": k}
    prompt = rng.choice(_TWO if level == 3 else _ONE).format(**names)
    answer = sum(f.value for f in chosen) + k
    demonstrations = []
    for style in STYLES:
        messages: list[Message] = []
        thought = ""
        for fact in chosen:
            messages += [call("search", thought, query=fact.title), call("open", result="1", find=fact.parameter)]
            thought = "" if style == "none" else f"{fact.parameter}={fact.value}"
        steps = [thought] if thought else []
        if level == 3 and style != "none":
            steps.append(add(chosen[0].value, chosen[1].value, style))
        steps.append(add(answer - k, k, style))
        demonstrations.append(Demonstration(style, (*messages, call("submit", ";".join(s for s in steps if s), answer=str(answer)))))
    return Draft(
        kind="lookup",
        family="search",
        domain="general",
        level=level,
        prompt=prompt,
        tools=("search", "open", "submit"),
        budgets=Budgets(steps=8, output_tokens=320, wall_s=60, submissions=1),
        verifier_kind="exact_number",
        verifier_entry="environments.verifiers.exact_number:ExactNumber",
        payload={"answer": str(answer)},
        facts=tuple(chosen),
        demonstrations=tuple(demonstrations),
    )


LOOKUP = KindSpec("lookup", "search", "general", (1, 2, 3), draft)
