"""`constrained_tests`: the hidden tests must pass, and the source must keep every stated constraint.

Constraints on the text are checked on its syntax tree, out here; those on its behaviour by running it: what it prints, and
whether its answers depend on what was asked before. Nothing of it is asked about itself.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

from environments.errors import VerifierError
from environments.protocols import Outcome
from environments.task import TaskSpec
from environments.verdict import Verdict
from environments.verifiers.equality import same_value
from environments.verifiers.fixture import VerifierFixture
from environments.verifiers.hidden_tests import MAX_SOURCE, HiddenTests

_DETOURS = frozenset(
    {"eval", "exec", "compile", "__import__", "globals", "locals", "vars", "getattr", "setattr", "__builtins__", "builtins", "__dict__"}
)
"""Ways to use a name without writing it."""
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)

Check = Callable[[ast.Module, ast.FunctionDef, Any], bool]


def _names(tree: ast.AST) -> set[str]:
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} | {
        n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute)
    }
    return used | {alias.name for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom)) for alias in n.names}


def _has(tree: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    return any(isinstance(node, kinds) for node in ast.walk(tree))


def _parameters(function: ast.FunctionDef) -> list[ast.arg]:
    a = function.args
    return [*a.posonlyargs, *a.args, *([a.vararg] if a.vararg else []), *a.kwonlyargs, *([a.kwarg] if a.kwarg else [])]


STATIC: dict[str, Check] = {
    "no_imports": lambda tree, function, _: not _has(tree, (ast.Import, ast.ImportFrom)),
    "no_loops": lambda tree, function, _: not _has(tree, _LOOPS),
    "no_comprehensions": lambda tree, function, _: not _has(tree, _COMPREHENSIONS),
    "no_classes": lambda tree, function, _: not _has(tree, (ast.ClassDef,)),
    "docstring": lambda tree, function, least: len(ast.get_docstring(function) or "") >= least,
    "type_hints": lambda tree, function, _: function.returns is not None and all(p.annotation for p in _parameters(function)),
    "parameters": lambda tree, function, names: [p.arg for p in _parameters(function)] == names,
    "no_names": lambda tree, function, names: not _names(tree) & set(names),
    "max_lines": lambda tree, function, most: len(ast.unparse(tree).splitlines()) <= most,
}
"""Constraints on the text: (tree, the entry's definition, value) -> kept."""
RUN = ("silent", "stateless")
"""Constraints on behaviour: prints nothing; answers the same in the opposite order."""


class ConstrainedTests(HiddenTests):
    """Payload: that of `hidden_tests` and `constraints`: `{name: value}`, with the names of `STATIC` and `RUN`."""

    kind: str = "constrained_tests"

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict:
        """Raises as `HiddenTests.verify`, and VerifierError for a constraint that there is not."""
        constraints = payload.get("constraints") if isinstance(payload, dict) else None
        if not isinstance(constraints, dict) or not constraints:
            raise VerifierError("the payload of constrained_tests states no constraints", "synthesise the task again")
        if unknown := constraints.keys() - STATIC.keys() - set(RUN):
            raise VerifierError(f"there is no constraint {sorted(unknown)[0]!r:.60}", f"use {', '.join((*STATIC, *RUN))}")
        tests = super().verify(task, outcome, payload)
        if tests.score is None or not outcome.submission or len(outcome.submission) > MAX_SOURCE:
            return tests
        kept = {**self._static(outcome.submission, payload["entry"], constraints), **self._run(outcome.submission, payload, constraints)}
        parts = {"tests": tests.score, **{name: float(value) for name, value in kept.items()}}
        evidence = {**tests.evidence, "broken_constraints": sorted(name for name, value in kept.items() if not value)}
        score = tests.score * sum(kept.values()) / len(kept)
        return Verdict.decide(
            1.0 if tests.status == "pass" and all(kept.values()) else min(score, 1 - 1e-9), parts=parts, evidence=evidence
        )

    def _static(self, source: str, entry: str, constraints: Mapping[str, Any]) -> dict[str, bool]:
        wanted = {name: value for name, value in constraints.items() if name in STATIC}
        try:
            tree = ast.parse(source)
            named = _names(tree)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return dict.fromkeys(wanted, False)
        definitions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == entry]
        # One plain definition, not replaced later: else what is read here would not be what runs.
        rebound = any(isinstance(n, ast.Name) and n.id == entry and not isinstance(n.ctx, ast.Load) for n in ast.walk(tree))
        if len(definitions) != 1 or definitions[0].decorator_list or rebound or named & _DETOURS:
            return dict.fromkeys(wanted, False)
        return {name: bool(STATIC[name](tree, definitions[0], value)) for name, value in wanted.items()}

    def _run(self, source: str, payload: Any, constraints: Mapping[str, Any]) -> dict[str, bool]:
        kept: dict[str, bool] = {}
        if not any(name in constraints for name in RUN):
            return kept
        inputs, limits = payload["inputs"], (payload.get("timeout_s", 1.0), payload.get("memory_mb", 256))
        there = self.pool.call(source, payload["entry"], inputs, *limits)
        if "silent" in constraints:
            kept["silent"] = not there.stdout
        if "stateless" in constraints:
            back = self.pool.call(source, payload["entry"], inputs[::-1], *limits)
            kept["stateless"] = same_value(there.outputs, back.outputs[::-1]) and there.errors == back.errors[::-1]
        return kept

    def mutations(self, payload: Any) -> list[tuple[str, Any]]:
        """Those of the tests, and a constraint that nothing keeps."""
        return [
            *super().mutations(payload),
            ("impossible_constraint", {**payload, "constraints": {**payload["constraints"], "max_lines": 0}}),
        ]

    def wrong_outcomes(self, outcome: Outcome, payload: Any) -> list[tuple[str, Outcome]]:
        """Those of the tests, and the reference with one constraint broken each."""
        source, entry = outcome.submission or "", payload["entry"]
        broken = {
            "no_imports": f"import os\n{source}",
            "no_loops": f"{source}\nfor _ in ():\n    pass\n",
            "no_comprehensions": f"{source}\n_x = [i for i in ()]\n",
            "no_classes": f"{source}\nclass _X:\n    pass\n",
            "silent": f"print('loud')\n{source}",
            "max_lines": source + "".join(f"_{i} = {i}\n" for i in range(payload["constraints"].get("max_lines") or 0)),
            "parameters": source.replace(f"def {entry}(", f"def {entry}(*_more, ", 1),
        }
        wrong = [(f"breaks:{name}", text) for name, text in broken.items() if name in payload["constraints"]]
        return [
            *super().wrong_outcomes(outcome, payload),
            *((name, Outcome(text, outcome.tables, outcome.tool_calls)) for name, text in wrong),
        ]


_PAYLOAD = {
    "entry": "solve",
    "inputs": [[1], [2], [5]],
    "outputs": [2, 4, 10],
    "constraints": {
        "no_imports": True,
        "docstring": 8,
        "type_hints": True,
        "parameters": ["x"],
        "no_names": ["sum"],
        "silent": True,
        "stateless": True,
    },
}
_HEAD = 'def solve(x: int) -> int:\n    """Twice the number."""\n'
_RIGHT = f"{_HEAD}    return 2 * x\n"
FIXTURES: tuple[VerifierFixture, ...] = (
    VerifierFixture("right", "full", _PAYLOAD, Outcome(_RIGHT), "pass", 1.0),
    VerifierFixture("wrong", "zero", _PAYLOAD, Outcome(f"{_HEAD}    return 0\n"), "fail", 0.0),
    VerifierFixture("no hints", "partial", _PAYLOAD, Outcome(_RIGHT.replace(" -> int", "")), "fail", 6 / 7),
    VerifierFixture("an import", "partial", _PAYLOAD, Outcome(f"import math\n{_RIGHT}"), "fail", 6 / 7),
    VerifierFixture("loud", "partial", _PAYLOAD, Outcome(f"print(1)\n{_RIGHT}"), "fail", 6 / 7),
    VerifierFixture("a forbidden name", "partial", _PAYLOAD, Outcome(f"{_HEAD}    return sum([x, x])\n"), "fail", 6 / 7),
    VerifierFixture("a detour", "partial", _PAYLOAD, Outcome(f"{_HEAD}    return eval('su' + 'm')([x, x])\n"), "fail", 2 / 7),
    VerifierFixture("defined twice", "partial", _PAYLOAD, Outcome(f"{_RIGHT}def solve(x): return 2 * x\n"), "fail", 2 / 7),
    VerifierFixture("nothing", "zero", _PAYLOAD, Outcome(None), "fail", 0.0),
    VerifierFixture("not Python", "malformed", _PAYLOAD, Outcome("def solve(x) return"), "fail", 0.0),
    VerifierFixture("no constraints", "malformed", {**_PAYLOAD, "constraints": {}}, Outcome(_RIGHT), "no-verdict", None),
    VerifierFixture("unknown constraint", "malformed", {**_PAYLOAD, "constraints": {"nice": True}}, Outcome(_RIGHT), "no-verdict", None),
    VerifierFixture("repeated", "determinism", _PAYLOAD, Outcome(_RIGHT), "pass", 1.0, runs=3),
)
