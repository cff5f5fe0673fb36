"""Office workflow over a settings store: copy, swap and rotate current values, change nothing else.

The prompt quotes the documented defaults, but somebody may have changed one since, and under load the store may lose a write
without a word. So acting on the documentation is quick and often wrong, reading first is better, and reading back is safe.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from environments.families.assistant import LOST_WRITES
from environments.families.search import short_title
from environments.task import Budgets, InitialState, Message
from tasks.facts import Fact, askable
from tasks.kinds.draft import STYLES, Demonstration, Draft, KindSpec, Material, call

_PROMPTS = {
    1: ("Copy the current value of `{a}` into `{b}`.", "Set `{b}` to what `{a}` is now."),
    2: ("Swap the current values of `{a}` and `{b}`.", "Exchange what `{a}` and `{b}` are now."),
    3: (
        "Rotate: `{a}` gets the current value of `{b}`, `{b}` that of `{c}`, `{c}` that of `{a}`.",
        "Move current values on: `{b}` to `{a}`, `{c}` to `{b}`, `{a}` to `{c}`.",
    ),
}
ROWS = 6
CHANGED = 0.5
"""Share of the stores in which one of the values to move is no longer the documented one."""
LOST = 0.3
"""Share of the stores that lose the first write to one of the settings to change."""


def draft(rng: random.Random, material: Material, level: int) -> Draft | None:
    """Level 1: copy one value. Level 2: swap two. Level 3: rotate three."""
    facts = material.facts
    settings: dict[str, Fact] = {}
    for fact in rng.sample(facts, len(facts)):
        if len(settings) < ROWS:
            settings.setdefault(fact.parameter, fact)
    named = askable(settings.values())
    names = [f.parameter for f in rng.sample(named, min(max(level, 2), len(named)))]
    before = {n: f.value for n, f in settings.items()}
    if len(names) < max(2, level) or len({before[n] for n in names}) < len(names):
        return None
    documented = ", ".join(f"`{n}`={before[n]}" for n in names[: level if level > 1 else 1])
    # (from, to): each target gets what the source held at the start.
    moves = [(names[0], names[1])] if level == 1 else [(names[(i + 1) % level], names[i]) for i in range(level)]
    others = sorted({f.value for f in askable(facts)} - {before[n] for n in names})
    if others and rng.random() < CHANGED:
        before[rng.choice(moves)[0]] = rng.choice(others)
    lost = rng.choice(moves)[1] if rng.random() < LOST else None
    after = before | {target: before[source] for source, target in moves}
    request = rng.choice(_PROMPTS[level]).format(**dict(zip("abc", names, strict=False)))
    prompt = f"Documented for `{short_title(settings[names[0]].title)}` and others: {documented}. {request}"
    order = sorted(settings)
    state: dict[str, tuple[dict[str, str], ...]] = {"settings": tuple({"name": n, "value": before[n]} for n in order)}
    if lost is not None:
        state[LOST_WRITES] = ({"name": lost},)
    return Draft(
        kind="settings",
        family="assistant",
        domain="agent",
        level=level,
        prompt=prompt,
        tools=("get", "set", "submit"),
        budgets=Budgets(steps=14, output_tokens=320, wall_s=60, submissions=1),
        verifier_kind="final_state",
        payload={
            "initial": {"settings": [{"name": n, "value": before[n]} for n in order]},
            "tables": {"settings": [{"name": n, "value": after[n]} for n in order]},
        },
        passages=tuple(settings[n] for n in order),
        demonstrations=tuple(_demonstration(style, moves, before, {n: f.value for n, f in settings.items()}, lost) for style in STYLES),
        initial_state=InitialState(tables=state),
    )


def _demonstration(
    style: str, moves: Sequence[tuple[str, str]], before: dict[str, str], documented: dict[str, str], lost: str | None
) -> Demonstration:
    """none: write what is documented. short: read, then write. long: also read every write back, and repeat what was lost.

    Whoever reads begins with what will be overwritten first, and reads every other source just before its value is written.

    The first two are right only in stores where nothing was changed or lost; replay keeps those that are.
    """
    known = documented if style == "none" else before
    first = moves[0][1]
    messages: list[Message] = [call("get", name=first)] if style != "none" and len(moves) > 1 else []
    for source, target in moves:
        if style != "none" and source != first:
            messages.append(call("get", name=source))
        write = call("set", name=target, value=known[source])
        messages.append(write)
        if style == "long":
            messages += [call("get", name=target), *([write] if target == lost else [])]
    return Demonstration(style, (*messages, call("submit")))


SETTINGS = KindSpec("settings", "assistant", "agent", (1, 2, 3), draft, default=True)
