"""Office workflow over a settings store that holds a function's documented defaults: raise the named ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

from environments.task import Budgets, InitialState, Message
from tasks.facts import Fact, askable
from tasks.kinds.draft import Demonstration, Draft, KindSpec, call
from tasks.kinds.scratchpad import STYLES, add

_ONE = ("Settings of `{f}`: raise `{p}` by {k}.", "Increase `{p}` of `{f}` by {k}.", "`{f}` needs {k} more of `{p}`. Change the setting.")
_TWO = ("Settings of `{f}`: raise `{p}` by {k} and `{q}` by {j}.", "Increase `{p}` of `{f}` by {k}, then `{q}` by {j}.")
ADDENDS = {1: (2, 9), 2: (11, 99), 3: (100, 999)}
ROWS = 5


def draft(rng: random.Random, facts: Sequence[Fact], level: int) -> Draft | None:
    """Level 1 and 2: one setting by a number of one or two digits. Level 3: two settings by three."""
    named = askable(facts)
    if not named:
        return None
    first = rng.choice(named)
    settings: dict[str, Fact] = {f.parameter: f for f in facts if f.title == first.title}
    for f in rng.sample(list(facts), len(facts)):  # neighbours' defaults fill the store up, so that names must be read
        if len(settings) >= ROWS:
            break
        settings.setdefault(f.parameter, f)
    if len(settings) < 2:
        return None
    names = [first.parameter]
    if level == 3:
        others = askable(f for n, f in settings.items() if n != first.parameter)
        if not others:
            return None
        names.append(rng.choice(others).parameter)
    raises = {n: rng.randint(*ADDENDS[level]) for n in names}
    values = {n: f.value for n, f in settings.items()}
    after = {n: v + raises.get(n, 0) for n, v in values.items()}
    words = {"f": first.title, "p": names[0], "q": names[-1], "k": raises[names[0]], "j": raises[names[-1]]}
    prompt = rng.choice(_TWO if level == 3 else _ONE).format(**words)
    demonstrations = []
    for style in STYLES:
        messages: list[Message] = []
        for n in names:
            messages += [call("get", name=n), call("set", add(values[n], raises[n], style), name=n, value=str(after[n]))]
        demonstrations.append(Demonstration(style, (*messages, call("submit"))))
    order = sorted(values)
    return Draft(
        kind="settings",
        family="assistant",
        domain="agent",
        level=level,
        prompt=prompt,
        tools=("get", "set", "submit"),
        budgets=Budgets(steps=8, output_tokens=320, wall_s=60, submissions=1),
        verifier_kind="final_state",
        verifier_entry="environments.verifiers.final_state:FinalState",
        payload={
            "initial": {"settings": [{"name": n, "value": values[n]} for n in order]},
            "tables": {"settings": [{"name": n, "value": after[n]} for n in order]},
        },
        facts=tuple(settings[n] for n in order),
        demonstrations=tuple(demonstrations),
        initial_state=InitialState(tables={"settings": tuple({"name": n, "value": values[n]} for n in order)}),
    )


SETTINGS = KindSpec("settings", "assistant", "agent", (1, 2, 3), draft)
