"""Office workflow over a settings store that holds documented defaults: copy, swap and rotate values, change nothing else."""

from __future__ import annotations

import random
from collections.abc import Sequence

from environments.task import Budgets, InitialState, Message
from tasks.facts import Fact, askable
from tasks.kinds.draft import STYLES, Demonstration, Draft, KindSpec, call

_PROMPTS = {
    1: ("Copy the value of `{a}` into `{b}`.", "Set `{b}` to what `{a}` is."),
    2: ("Swap the values of `{a}` and `{b}`.", "Exchange `{a}` with `{b}`."),
    3: (
        "Rotate: `{b}` gets the value of `{a}`, `{c}` that of `{b}`, `{a}` that of `{c}`.",
        "Move values on: `{a}` to `{b}`, `{b}` to `{c}`, `{c}` to `{a}`.",
    ),
}
ROWS = 6


def draft(rng: random.Random, facts: Sequence[Fact], level: int) -> Draft | None:
    """Level 1: copy one value. Level 2: swap two. Level 3: rotate three."""
    settings: dict[str, Fact] = {}
    for fact in rng.sample(list(facts), len(facts)):
        if len(settings) < ROWS:
            settings.setdefault(fact.parameter, fact)
    named = askable(settings.values())
    names = [f.parameter for f in rng.sample(named, min(level if level > 1 else 2, len(named)))]
    before = {n: f.value for n, f in settings.items()}
    if len(names) < max(2, level) or len({before[n] for n in names}) < len(names):
        return None
    # (from, to): each target gets what the source held at the start.
    moves = [(names[0], names[1])] if level == 1 else [(names[i], names[(i + 1) % level]) for i in range(level)]
    after = before | {target: before[source] for source, target in moves}
    title = settings[names[0]].title
    request = rng.choice(_PROMPTS[level]).format(**dict(zip("abc", names, strict=False)))
    prompt = f"Settings as documented for `{title}` and its neighbours. {request}"
    demonstrations = []
    for style in STYLES:
        messages: list[Message] = [call("get", name=source) for source, _ in moves]
        note = "" if style == "none" else ";".join(f"{target}={before[source]}" for source, target in moves)
        for source, target in moves:
            messages.append(call("set", note, name=target, value=before[source]))
            note = ""
        if style == "long":  # look again before declaring the work done
            messages += [call("get", name=target) for _, target in moves]
        demonstrations.append(Demonstration(style, (*messages, call("submit"))))
    order = sorted(settings)
    return Draft(
        kind="settings",
        family="assistant",
        domain="agent",
        level=level,
        prompt=prompt,
        tools=("get", "set", "submit"),
        budgets=Budgets(steps=12, output_tokens=320, wall_s=60, submissions=1),
        verifier_kind="final_state",
        verifier_entry="environments.verifiers.final_state:FinalState",
        payload={
            "initial": {"settings": [{"name": n, "value": before[n]} for n in order]},
            "tables": {"settings": [{"name": n, "value": after[n]} for n in order]},
        },
        facts=tuple(settings[n] for n in order),
        demonstrations=tuple(demonstrations),
        initial_state=InitialState(tables={"settings": tuple({"name": n, "value": before[n]} for n in order)}),
    )


SETTINGS = KindSpec("settings", "assistant", "agent", (1, 2, 3), draft)
