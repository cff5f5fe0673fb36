"""`hidden_tests`: the submitted source must give the expected value for every hidden input.

Only source and inputs go into the sandbox; what comes back are plain values, compared here with their types (`True` is not `1`,
`1.0` is not `1`, a tuple does not count). So there is nothing inside to read, patch, print or skip.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from environments.errors import VerifierError
from environments.protocols import Outcome
from environments.sandbox import CodePool
from environments.task import TaskSpec
from environments.verdict import Verdict
from environments.verifiers.equality import same_value
from environments.verifiers.fixture import VerifierFixture

MAX_SOURCE = 200_000
"""Characters of source that are looked at; longer submissions fail."""

_CORRUPT = """
_honest = {entry}
_count = [0]
def {entry}(*arguments):
    _count[0] += 1
    value = _honest(*arguments)
    return [value, 0] if _count[0] == {at} else value
"""


class HiddenTests:
    """Payload: `{"entry": "solve", "inputs": [[argument, ...], ...], "outputs": [value, ...], "timeout_s"?: 1.0, "memory_mb"?: 256}`."""

    kind: str = "hidden_tests"
    version: int = 1
    bounded: ClassVar[bool] = True

    def __init__(self, pool: CodePool) -> None:
        self.pool = pool

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict:
        """Raises VerifierError for an unusable payload (no tests is not a pass), SandboxError when the sandbox failed."""
        if not isinstance(payload, dict) or not isinstance(payload.get("entry"), str) or not isinstance(payload.get("inputs"), list):
            raise VerifierError("the payload of hidden_tests lacks entry or inputs", "synthesise the task again")
        inputs, outputs = payload["inputs"], payload.get("outputs")
        if not inputs or not isinstance(outputs, list) or len(outputs) != len(inputs):
            raise VerifierError("the payload of hidden_tests has no test, or not one output an input", "synthesise the task again")
        source = outcome.submission
        if source is None or not source.strip() or len(source) > MAX_SOURCE:
            return Verdict.decide(
                0.0, evidence={"tests": len(inputs), "right": 0, "error": "no source" if not source else "blank or too long"}
            )
        result = self.pool.call(source, payload["entry"], inputs, payload.get("timeout_s", 1.0), payload.get("memory_mb", 256))
        answered = zip(outputs, result.outputs, result.errors, strict=False)
        right = [not error and same_value(expected, got) for expected, got, error in answered]
        right += [False] * (len(outputs) - len(right))
        evidence = {
            "tests": len(inputs),
            "right": sum(right),
            "first_wrong": right.index(False) if False in right else -1,
            "error": result.error,
            "error_kind": result.error_kind,
            "stdout": result.stdout[:200],
        }
        return Verdict.decide(1.0 if all(right) else sum(right) / len(right), evidence=evidence)

    def mutations(self, payload: Any) -> list[tuple[str, Any]]:
        """Payloads that expect something else: all zero, all the same, and one output each (first, middle, last) off."""
        outputs = payload["outputs"]
        mutated = [("zero", [0] * len(outputs)), ("constant", [outputs[0]] * len(outputs))]
        for i in sorted({0, len(outputs) // 2, len(outputs) - 1}):
            changed = copy.deepcopy(outputs)
            changed[i] = [changed[i], "off"]
            mutated.append((f"partial:{i}", changed))
        return [(name, {**payload, "outputs": wrong}) for name, wrong in mutated if not same_value(wrong, outputs)]

    def wrong_outcomes(self, outcome: Outcome, payload: Any) -> list[tuple[str, Outcome]]:
        """The reference's source spoiled at one hidden test each (first, last), cut in half, and returning nothing."""
        source, entry, count = outcome.submission or "", payload["entry"], len(payload["inputs"])
        texts = {f"wrong_at:{at}": source + _CORRUPT.format(entry=entry, at=at) for at in sorted({1, count})}
        texts["returns_nothing"] = f"{source}\n_honest = {entry}\ndef {entry}(*arguments):\n    _honest(*arguments)\n"
        texts["no_entry"] = f"{source}\ndel {entry}\n"
        return [(name, Outcome(text, outcome.tables, outcome.tool_calls)) for name, text in texts.items()]


_PAYLOAD = {"entry": "solve", "inputs": [[1], [2], [5], [-3]], "outputs": [2, 4, 10, -6]}
_RIGHT = "def solve(x):\n    return 2 * x\n"
FIXTURES: tuple[VerifierFixture, ...] = (
    VerifierFixture("right", "full", _PAYLOAD, Outcome(_RIGHT), "pass", 1.0),
    VerifierFixture("right, and prints", "full", _PAYLOAD, Outcome("def solve(x):\n    print('FAILED')\n    return 2 * x\n"), "pass", 1.0),
    VerifierFixture("wrong", "zero", _PAYLOAD, Outcome("def solve(x):\n    return 0\n"), "fail", 0.0),
    VerifierFixture("nothing", "zero", _PAYLOAD, Outcome(None), "fail", 0.0),
    VerifierFixture("half", "partial", _PAYLOAD, Outcome("def solve(x):\n    return abs(2 * x) if x != 5 else 1 / 0\n"), "fail", 0.5),
    VerifierFixture("floats for integers", "zero", _PAYLOAD, Outcome("def solve(x):\n    return 2.0 * x\n"), "fail", 0.0),
    VerifierFixture("empty", "malformed", _PAYLOAD, Outcome(""), "fail", 0.0),
    VerifierFixture("not Python", "malformed", _PAYLOAD, Outcome("def solve(x) return 2 * x"), "fail", 0.0),
    VerifierFixture("no such function", "malformed", _PAYLOAD, Outcome("def other(x):\n    return 2 * x\n"), "fail", 0.0),
    VerifierFixture("leaves before it answers", "malformed", _PAYLOAD, Outcome("import os\nos._exit(0)\n"), "fail", 0.0),
    VerifierFixture("no tests", "malformed", {"entry": "solve", "inputs": [], "outputs": []}, Outcome(_RIGHT), "no-verdict", None),
    VerifierFixture("outputs missing", "malformed", {"entry": "solve", "inputs": [[1]]}, Outcome(_RIGHT), "no-verdict", None),
    VerifierFixture(
        "repeated", "determinism", _PAYLOAD, Outcome("def solve(x):\n    return [k for k in {'a', 'b', 'c'}][0]\n"), "fail", 0.0, runs=5
    ),
)
