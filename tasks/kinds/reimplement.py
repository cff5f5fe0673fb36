"""Reimplement a documented function of a real package, judged by hidden differential tests.

The package's own function, taken out of it (`tasks.standalone`), says in a sandbox what the answer to each hidden input is. The
package itself cannot be imported where the agent's source runs; that is checked there. A function whose tests a
trivial program would pass becomes no task.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import Any

from environments.sandbox import CodePool
from environments.task import Budgets, InitialState, canonical_json
from environments.verifiers.equality import same_value
from kg.concept import Passage
from tasks.inputs import variations
from tasks.kinds.draft import Demonstration, Draft, KindSpec, Material, call
from tasks.standalone import Documented, documented, plain

HIDDEN = 24
TRIED = 160
"""Inputs that the reference is asked about, to choose the hidden ones from."""
MIN_HIDDEN = 10
PUBLIC = 4
MAX_SHARE = 0.4
"""Share of the hidden tests that may have one and the same answer, so that a constant is never nearly right."""
MAX_TRIVIAL = 0.7
"""Share of the hidden tests that a trivial program may pass at most."""
MIN_DOC_CHARS = 25
TIMEOUT_S = 2.0
_LINES_BY_LEVEL = {1: 8, 2: 25}
"""Lines of the standalone source up to which a function is of the level; longer ones are of level 3."""

TRIVIAL: tuple[str, ...] = (
    *(f"a[{i}] if len(a) > {i} else None" for i in range(3)),
    *("list(a)", "a[0][0]", "a[0][-1]", "a[-1][0]", "[a[0]]", "len(a[0])", "str(a[0])", "list(a[0])", "sorted(a[0])", "a[0][::-1]"),
    *("sorted(set(a[0]))", "list(dict.fromkeys(a[0]))", "sum(a[0])", "min(a[0])", "max(a[0])", "abs(a[0])", "not a[0]", "bool(a[0])"),
    *("a[0].lower()", "a[0].upper()", "a[0].strip()", "a[0].title()", "a[0].split()", "a[0].capitalize()", "isinstance(a[0], int)"),
    *("isinstance(a[0], str)", "isinstance(a[0], (list, dict))", "a[0] + a[1]", "a[1] + a[0]", "a[0] * a[1]", "a[0] - a[1]"),
    *("a[0] // a[1]", "a[0] % a[1]", "a[0] == a[1]", "a[0] in a[1]", "a[1] in a[0]", "a[0] < a[1]", "a[1][a[0]]", "a[0][a[1]]"),
)
"""Expressions of the arguments `a` that take no understanding."""


@dataclass(frozen=True)
class Refused:
    """A function that became no task, and why."""

    title: str
    reason: str


@cache
def _pool() -> CodePool:
    return CodePool()


def level_of(function: Documented) -> int:
    """Difficulty by the length of the standalone source."""
    return next((level for level, lines in _LINES_BY_LEVEL.items() if function.lines <= lines), 3)


def trivial_sources(examples: list[tuple[list[Any], Any]], outputs: list[Any]) -> list[str]:
    """Programs that pass weak tests: expressions of the arguments, constants, and a table of the public examples."""
    commonest = Counter(canonical_json(v) for v in [*outputs, *(r for _, r in examples)]).most_common(3)
    constants = ["None", "0", "1", "True", "False", "''", "[]", *(f"__import__('json').loads({text!r})" for text, _ in commonest)]
    table = {repr(arguments): result for arguments, result in examples}
    last = next(reversed(table.values()), None)
    return [
        *(f"def solve(*a):\n    return {text}\n" for text in dict.fromkeys([*constants, *TRIVIAL])),
        f"TABLE = {table!r}\ndef solve(*a):\n    return TABLE.get(repr(list(a)), {last!r})\n",
    ]


def draft_function(rng: random.Random, function: Documented, passage: Passage, pool: CodePool) -> Draft | Refused:
    """A task from one function, or why there is none. About 60 calls of the pool.

    Raises:
        SandboxError: the pool failed; nothing is known about the function.
    """

    def refused(reason: str) -> Refused:
        return Refused(function.title, reason)

    if len(function.doc) < MIN_DOC_CHARS:
        return refused("its documentation says too little")
    hidden_from = pool.call(
        "import importlib.util\ndef solve(n):\n    return importlib.util.find_spec(n) is None\n", "solve", [[function.top]]
    )
    if hidden_from.outputs != [True]:
        return refused(f"{function.top} can be imported where submissions run")
    seeds = [list(e.arguments) for e in function.examples]
    said = pool.call(function.source, "solve", seeds, TIMEOUT_S)
    right = [
        (seed, e.result)
        for seed, e, got, error in zip(seeds, function.examples, said.outputs, said.errors, strict=True)
        if not error and same_value(got, e.result)
    ]
    if len(right) < len(seeds):
        return refused(f"{len(seeds) - len(right)} of {len(seeds)} documented examples do not come out as documented: {said.error[:100]}")
    public = right[:PUBLIC]
    tests = _tests(rng, function, right, pool)
    if len(tests) < MIN_HIDDEN:
        return refused(f"only {len(tests)} inputs with steady, plain and varied answers")
    inputs, outputs = [given for given, _ in tests], [result for _, result in tests]
    for source in trivial_sources(public, outputs):
        got = pool.call(source, "solve", inputs, TIMEOUT_S)
        share = sum(not error and same_value(o, v) for o, v, error in zip(got.outputs, outputs, got.errors, strict=True)) / len(tests)
        if share > MAX_TRIVIAL:
            return refused(f"{share:.0%} of its tests are passed by {source.splitlines()[-1].strip()[:60]}")
    return _drafted(function, passage, public, inputs, outputs)


def _tests(rng: random.Random, function: Documented, right: list[tuple[list[Any], Any]], pool: CodePool) -> list[tuple[list[Any], Any]]:
    """Inputs with the reference's answers: the same twice, plain, and not too often the same one."""
    tried = variations(rng, [seed for seed, _ in right], TRIED)
    first = pool.call(function.source, "solve", tried, TIMEOUT_S)
    # In the other order: an answer that depends on what was asked before is no answer.
    again = pool.call(function.source, "solve", tried[::-1], TIMEOUT_S)
    found: list[tuple[list[Any], Any]] = []
    counts: Counter[str] = Counter()
    for given, a, b, e, f in zip(tried, first.outputs, again.outputs[::-1], first.errors, again.errors[::-1], strict=True):
        if e or f or not same_value(a, b) or not plain(a) or len(canonical_json(a)) > 2_000:
            continue
        key = canonical_json(a)
        if counts[key] < max(1, int(HIDDEN * MAX_SHARE)):
            counts[key] += 1
            found.append((given, a))
    # Rare answers first, so that the hidden tests show more than the commonest case.
    found.sort(key=lambda test: counts[canonical_json(test[1])])
    chosen = found[:HIDDEN]
    commonest = max(Counter(canonical_json(v) for _, v in chosen).values(), default=0)
    return chosen if commonest <= MAX_SHARE * len(chosen) or len(chosen) < MIN_HIDDEN else []


def _drafted(
    function: Documented, passage: Passage, public: list[tuple[list[Any], Any]], inputs: list[list[Any]], outputs: list[Any]
) -> Draft:
    name = function.title.rsplit(".", 1)[-1]
    as_list = " Return its items as a list." if function.wrapper else ""
    examples = "\n".join(f"solve({', '.join(map(repr, given))}) is {result!r}" for given, result in public)
    prompt = (
        f"Write `solve({function.parameters})`, which does what `{name}` of {function.package} {function.version} is documented to do."
        f"{as_list} {function.top} cannot be imported; arguments arrive in order, tuples as lists.\n\n{function.doc}\n\n{examples}"
    )
    return Draft(
        kind="reimplement",
        family="coding",
        domain="coding",
        level=level_of(function),
        prompt=prompt,
        tools=("run_tests", "submit"),
        budgets=Budgets(steps=8, output_tokens=4_000, wall_s=300, submissions=1),
        verifier_kind="hidden_tests",
        payload={"entry": "solve", "inputs": inputs, "outputs": outputs, "timeout_s": TIMEOUT_S},
        passages=(passage,),
        demonstrations=(
            Demonstration("look", (call("run_tests", source=function.source), call("submit"))),
            Demonstration("guess", (call("submit", source=function.source),)),
        ),
        initial_state=InitialState(
            tables={"examples": tuple({"arguments": canonical_json(given), "result": canonical_json(result)} for given, result in public)}
        ),
    )


def draft(rng: random.Random, material: Material, level: int) -> Draft | None:
    """A task from a function that one of the material's documents is about."""
    for document in rng.sample(material.documents, len(material.documents)):
        name = document.title.rsplit(".", 1)[-1]
        if not name.isidentifier():
            continue
        for function in documented(document.source, name=name):
            # A title may name the function where it is offered or where it is defined; the documentation tells it from a namesake.
            if level_of(function) == level and function.doc[:80] in document.text:
                passage = Passage.of(document, function.doc[:400])
                made = draft_function(rng, function, passage, _pool())
                if isinstance(made, Draft):
                    return made
    return None


REIMPLEMENT = KindSpec("reimplement", "coding", "coding", (1, 2, 3), draft)
