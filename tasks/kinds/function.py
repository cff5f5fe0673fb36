"""Programming from documentation and executed examples: which expression of n and two numbers is it?"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from environments.families.search import excerpt, short_title
from environments.task import Budgets, InitialState, Message, canonical_json
from tasks.facts import integers
from tasks.kinds.draft import Demonstration, Draft, KindSpec, Material, call

FORMS = ("n * A + B", "n * B + A", "A * B + n", "(n + A) * B")
"""Candidate expressions; a level takes the first so many."""
WEIGHTS = (5, 3, 2, 2)
"""How common they are: the first guess is not blind."""
FORMS_BY_LEVEL = {1: 2, 2: 3, 3: 4}
HIDDEN_INPUTS = 8
_PROMPTS = (
    "Write solve(n): n, the default `{p}` of `{f}` ({doc}) and k={b}, each used once. {e}.",
    "Documented in `{f}`: {doc}. Write solve(n) from n, the default `{p}` and k={b}. {e}.",
)


def source_of(form: str, a: int, b: int) -> str:
    """Python source of `solve` for one form."""
    return f"def solve(n):\n    return {form.replace('A', str(a)).replace('B', str(b))}"


def evaluate(form: str, a: int, b: int, n: int) -> int:
    """The form's value; forms are ours, never an agent's."""
    return int(eval(form, {"__builtins__": {}}, {"n": n, "A": a, "B": b}))


def draft(rng: random.Random, material: Material, level: int) -> Draft | None:
    """The level sets how many forms are possible; two executed examples tell them apart."""
    usable = integers(material.facts)
    if not usable:
        return None
    fact = rng.choice(usable)
    forms = FORMS[: FORMS_BY_LEVEL[level]]
    form, a, b = rng.choices(forms, WEIGHTS[: len(forms)])[0], int(fact.value), rng.randint(11, 99)
    public = sorted(rng.sample(range(2, 10), 2))
    values = {f: [evaluate(f, a, b, n) for n in public] for f in forms}
    if b == a or a in public or len({tuple(v) for v in values.values()}) < len(forms):
        return None
    hidden = sorted(rng.sample(range(10, 1000), HIDDEN_INPUTS))
    examples = ", ".join(f"solve({n}) is {v}" for n, v in zip(public, values[form], strict=True))
    documented = excerpt(fact.quote, fact.parameter, 40).strip("(), *")
    prompt = rng.choice(_PROMPTS).format(p=fact.parameter, f=short_title(fact.title), b=b, e=examples, doc=documented)
    demonstrations = _demonstrations(source_of(form, a, b), [source_of(f, a, b) for f in forms])
    return Draft(
        kind="function",
        family="coding",
        domain="coding",
        level=level,
        prompt=prompt,
        tools=("run_tests", "submit"),
        budgets=Budgets(steps=6, output_tokens=320, wall_s=60, submissions=1),
        verifier_kind="hidden_tests",
        payload={"entry": "solve", "inputs": [[n] for n in hidden], "outputs": [evaluate(form, a, b, n) for n in hidden]},
        passages=(fact,),
        demonstrations=demonstrations,
        initial_state=InitialState(
            tables={
                "examples": tuple(
                    {"arguments": canonical_json([n]), "result": canonical_json(v)} for n, v in zip(public, values[form], strict=True)
                )
            }
        ),
    )


_EXAMPLE_OR_NUMBER = re.compile(r"solve\((\d+)\) is -?\d+(, not -?\d+)?|(?<![\w.])\d+(?!\w|\.\d)")
_RETURNED = re.compile(r"return (.+)")


def renumbered(messages: Sequence[Message], rng: random.Random) -> list[Message]:
    """The same demonstration with two other numbers of as many digits, every executed example computed anew.

    Args:
        messages: a whole conversation over a task of this type; tool results follow the calls that they answer.
    """
    sources = [str(c.arguments["source"]) for m in messages for c in m.calls if "source" in c.arguments]
    taken = {match[1] for m in messages for match in _EXAMPLE_OR_NUMBER.finditer(m.content) if match[1]}
    mapping: dict[str, str] = {}
    for number in dict.fromkeys(re.findall(r"\d+", " ".join(sources))):
        low, high = max(2, 10 ** (len(number) - 1)), 10 ** len(number) - 1
        mapping[number] = rng.choice([v for v in map(str, rng.sample(range(low, high + 1), min(30, high + 1 - low))) if v not in taken])
        taken.add(mapping[number])

    def swap(text: str, tested: str = "") -> str:
        def new(match: re.Match[str]) -> str:
            if not match[1]:
                return mapping.get(match[0], match[0])
            expected = _computed(right, int(match[1]))
            return (
                f"solve({match[1]}) is {_computed(tested, int(match[1]))}, not {expected}"
                if match[2]
                else f"solve({match[1]}) is {expected}"
            )

        return _EXAMPLE_OR_NUMBER.sub(new, text)

    right = swap(sources[-1])
    tested, out = right, []
    for message in messages:
        calls = tuple(c.model_copy(update={"arguments": {k: swap(str(v)) for k, v in c.arguments.items()}}) for c in message.calls)
        tested = str(calls[-1].arguments.get("source", tested)) if calls else tested
        out.append(message.model_copy(update={"content": swap(message.content, tested), "calls": calls}))
    return out


def _computed(source: str, n: int) -> int:
    """What `solve(n)` of a source of ours returns; never run on an agent's."""
    returned = _RETURNED.search(source)
    assert returned is not None
    return evaluate(returned[1], 0, 0, n)


def _demonstrations(right: str, candidates: Sequence[str]) -> tuple[Demonstration, ...]:
    """guess: no test. look: test the commonest form, then decide. search: test from the commonest on until one passes.

    The first is the reference. What passed is handed in as it was tested.
    """
    tested = candidates[: candidates.index(right) + 1]
    search = (*(call("run_tests", source=source) for source in tested), call("submit"))
    looked = search if len(tested) == 1 else (search[0], call("submit", source=right))
    return (Demonstration("guess", (call("submit", source=right),)), Demonstration("look", looked), Demonstration("search", search))


FUNCTION = KindSpec("function", "coding", "coding", (1, 2, 3), draft, default=True)
