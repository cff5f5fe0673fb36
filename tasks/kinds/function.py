"""Programming from documentation and executed examples: which expression of n and two numbers is it?"""

from __future__ import annotations

import random
from collections.abc import Sequence

from environments.families.search import excerpt
from environments.task import Budgets, InitialState, canonical_json
from tasks.facts import Fact, integers
from tasks.kinds.draft import Demonstration, Draft, KindSpec, call

FORMS = ("n * A + B", "n * B + A", "(n + A) * B", "(n + B) * A", "n * A - B", "n * B - A", "A * B + n", "A * B - n", "A - n * B")
"""Candidate expressions; a level takes the first so many."""
FORMS_BY_LEVEL = {1: 3, 2: 6, 3: 9}
HIDDEN_INPUTS = 8
MAX_TRIES = 3
_PROMPTS = (
    "Write solve(n): n, the default `{p}` of `{f}` ({doc}) and {b}, each used once. {e}.",
    "Documented in `{f}`: {doc}. Write solve(n) from n, the default `{p}` and {b}. {e}.",
)


def source_of(form: str, a: int, b: int) -> str:
    """Python source of `solve` for one form."""
    return f"def solve(n):\n    return {form.replace('A', str(a)).replace('B', str(b))}"


def evaluate(form: str, a: int, b: int, n: int) -> int:
    """The form's value; forms are ours, never an agent's."""
    return int(eval(form, {"__builtins__": {}}, {"n": n, "A": a, "B": b}))


def draft(rng: random.Random, facts: Sequence[Fact], level: int) -> Draft | None:
    """The level sets how many forms are possible; two executed examples tell them apart."""
    usable = integers(facts)
    if not usable:
        return None
    fact = rng.choice(usable)
    forms = FORMS[: FORMS_BY_LEVEL[level]]
    form, a, b = rng.choice(forms), int(fact.value), rng.randint(11, 99)
    public = sorted(rng.sample(range(2, 10), 2))
    values = {f: [evaluate(f, a, b, n) for n in public] for f in forms}
    if b == a or len({tuple(v) for v in values.values()}) < len(forms):
        return None
    hidden = sorted(rng.sample(range(10, 1000), HIDDEN_INPUTS))
    examples = ", ".join(f"solve({n}) is {v}" for n, v in zip(public, values[form], strict=True))
    documented = excerpt(fact.passage, fact.parameter, 40).strip("(), *")
    prompt = rng.choice(_PROMPTS).format(p=fact.parameter, f=fact.title, b=b, e=examples, doc=documented)
    right = source_of(form, a, b)
    demonstrations = []
    for tries in (1, 0, *range(2, MAX_TRIES + 1)):  # the first is the reference: one test, no detours
        wrong = rng.sample([f for f in forms if f != form], min(max(tries - 1, 0), len(forms) - 1))
        messages = [call("run_tests", source=source_of(f, a, b)) for f in wrong]
        messages += [call("run_tests", source=right)] * bool(tries)
        demonstrations.append(Demonstration(f"tries{tries}", (*messages, call("submit", source=right)), tuple(range(len(wrong)))))
    return Draft(
        kind="function",
        family="coding",
        domain="coding",
        level=level,
        prompt=prompt,
        tools=("run_tests", "submit"),
        budgets=Budgets(steps=6, output_tokens=320, wall_s=60, submissions=1),
        verifier_kind="hidden_tests",
        verifier_entry="environments.verifiers.hidden_tests:HiddenTests",
        payload={"entry": "solve", "inputs": [[n] for n in hidden], "outputs": [evaluate(form, a, b, n) for n in hidden]},
        facts=(fact,),
        demonstrations=tuple(demonstrations),
        initial_state=InitialState(
            tables={
                "examples": tuple(
                    {"arguments": canonical_json([n]), "result": canonical_json(v)} for n, v in zip(public, values[form], strict=True)
                )
            }
        ),
    )


FUNCTION = KindSpec("function", "coding", "coding", (1, 2, 3), draft)
