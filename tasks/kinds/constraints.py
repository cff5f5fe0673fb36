"""Multi-constraint coding: a documented function written again, under several requirements that are checked by machine.

Behaviour and hidden tests are those of `reimplement`. Requirements are drawn from those that a rewritten reference really keeps, so
each task can be solved; the package's own text must break at least one of them.
"""

from __future__ import annotations

import ast
import random
from dataclasses import replace
from functools import cache
from typing import Any

from environments.protocols import Outcome
from environments.sandbox import CodePool
from environments.verifiers.constrained_tests import STATIC, ConstrainedTests
from environments.verifiers.equality import same_value
from kg.concept import Passage
from tasks.kinds.draft import Demonstration, Draft, KindSpec, Material, call
from tasks.kinds.reimplement import TIMEOUT_S, Refused, draft_function
from tasks.standalone import Documented, documented

DOCSTRING_CHARS = 30
COUNT_BY_LEVEL = {1: 3, 2: 4, 3: 6}
"""Requirements beside the behaviour."""
_SHORTCUTS = (
    "sorted",
    "sum",
    "set",
    "zip",
    "map",
    "filter",
    "enumerate",
    "reversed",
    "max",
    "min",
    "any",
    "all",
    "join",
    "split",
    "itertools",
)
_SAID = {
    "no_imports": "Import nothing.",
    "no_loops": "Use no for or while statement.",
    "no_comprehensions": "Use no comprehension and no generator expression.",
    "no_classes": "Define no class.",
    "docstring": "Give `solve` a docstring of at least {value} characters.",
    "type_hints": "Annotate every parameter of `solve` and what it returns.",
    "parameters": "The parameters of `solve` are called, in this order: {value}.",
    "no_names": "Do not use these names, not even as attributes: {value}.",
    "max_lines": "Use at most {value} lines, as `ast.unparse` lays the module out.",
    "silent": "Print nothing.",
    "stateless": "An answer must not depend on earlier calls.",
}


@cache
def _pool() -> CodePool:
    return CodePool()


def said(constraints: dict[str, Any]) -> str:
    """The requirements as the solver reads them. `eval` and its like are out wherever the text is checked."""
    lines = [_SAID[name].format(value=", ".join(value) if isinstance(value, list) else value) for name, value in constraints.items()]
    lines.append("Define `solve` once and without a decorator; use neither eval, exec, getattr nor anything else that hides a name.")
    return "\n".join(f"- {line}" for line in lines)


def rewritten(function: Documented) -> str:
    """The reference with the named function itself as `solve`, annotated and with a docstring; empty where it has no plain form.

    It is recursive under its old name only through helpers, so that name must not be used in its own text.
    """
    name = function.title.rsplit(".", 1)[-1]
    tree = ast.parse(function.source)
    own = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == name]
    if len(own) != 1 or own[0].decorator_list or function.wrapper:
        return ""
    body = [n for n in tree.body if not (isinstance(n, ast.FunctionDef) and n.name == "solve")]
    if any(isinstance(n, ast.Name) and n.id == name for part in body for n in ast.walk(part)):
        return ""
    made = own[0]
    made.name = "solve"
    a = made.args
    for parameter in [*a.posonlyargs, *a.args, *a.kwonlyargs, *([a.vararg] if a.vararg else []), *([a.kwarg] if a.kwarg else [])]:
        parameter.annotation = ast.Name("object", ast.Load())
    made.returns = ast.Name("object", ast.Load())
    first = " ".join(function.doc.split())[:200]
    made.body.insert(0, ast.Expr(ast.Constant(first.ljust(DOCSTRING_CHARS, "."))))
    return ast.unparse(ast.fix_missing_locations(ast.Module(body, []))) + "\n"


def _choices(source: str, original: str, names: list[str]) -> dict[str, Any]:
    """Every constraint with a value that `source` may keep and that says something."""
    tree = ast.parse(source)
    lines = len(ast.unparse(tree).splitlines())
    return {
        **dict.fromkeys(("no_imports", "no_loops", "no_comprehensions", "no_classes", "type_hints", "silent", "stateless"), True),
        "docstring": DOCSTRING_CHARS,
        "parameters": names,
        "no_names": [n for n in _SHORTCUTS if n not in original][:4],
        "max_lines": lines + 2,
    }


def constrained(rng: random.Random, function: Documented, passage: Passage, level: int, pool: CodePool) -> Draft | Refused:
    """A task from one function, or why there is none.

    Raises:
        SandboxError: the pool failed.
    """
    made = draft_function(rng, function, passage, pool)
    if isinstance(made, Refused):
        return made
    source = rewritten(function)
    if not source:
        return Refused(function.title, "its reference cannot be written as one plain function")
    definition = next(n for n in ast.parse(source).body if isinstance(n, ast.FunctionDef) and n.name == "solve")
    a = definition.args
    names = [p.arg for p in [*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else []), *a.kwonlyargs, *([a.kwarg] if a.kwarg else [])]]
    kept = {
        n: v for n, v in _choices(source, function.source, names).items() if n not in STATIC or STATIC[n](ast.parse(source), definition, v)
    }
    # The two that no plain answer keeps by chance, then as many others as the level wants.
    always = {n: kept.pop(n) for n in ("docstring", "type_hints")}
    chosen = always | {n: kept[n] for n in rng.sample(sorted(kept), min(len(kept), COUNT_BY_LEVEL[level] - len(always)))}
    payload = {**made.payload, "constraints": chosen}
    got = pool.call(source, "solve", payload["inputs"], TIMEOUT_S)
    if not all(not e and same_value(o, v) for o, v, e in zip(got.outputs, payload["outputs"], got.errors, strict=True)):
        return Refused(function.title, "its reference answers otherwise as one plain function")
    drafted = replace(
        made,
        kind="constraints",
        level=level,
        prompt=f"{made.prompt}\n\nBesides:\n{said(chosen)}",
        verifier_kind="constrained_tests",
        payload=payload,
        demonstrations=(
            Demonstration("look", (call("run_tests", source=source), call("submit"))),
            Demonstration("guess", (call("submit", source=source),)),
        ),
    )
    return (
        drafted
        if sound(drafted, source, function.source, pool)
        else Refused(function.title, "its requirements do not tell the two texts apart")
    )


def sound(drafted: Draft, source: str, original: str, pool: CodePool) -> bool:
    """Whether the rewritten reference passes the verifier and the package's own text does not."""
    verifier: Any = ConstrainedTests(pool)
    verdicts = [verifier.verify(None, Outcome(text), drafted.payload).status for text in (source, original)]
    return verdicts == ["pass", "fail"]


def draft(rng: random.Random, material: Material, level: int) -> Draft | None:
    """A task from a function that one of the material's documents is about."""
    for document in rng.sample(material.documents, len(material.documents)):
        name = document.title.rsplit(".", 1)[-1]
        for function in documented(document.source, name=name) if name.isidentifier() else ():
            if function.doc[:80] in document.text:
                passage = Passage.of(document, function.doc[:400])
                made = constrained(rng, function, passage, level, _pool())
                if isinstance(made, Draft):
                    return made
    return None


CONSTRAINTS = KindSpec("constraints", "coding", "coding", (1, 2, 3), draft)
