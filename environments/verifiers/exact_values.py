"""`exact_values`: the submission is a list of documented values, in order, separated by commas.

A value is compared as a number where both spell one (`1e-3` is `0.001`, `10` is `10.0`), else as text without its quotes and
surrounding blanks. Partial credit is the share of values in their place; only all of them pass.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from environments.errors import VerifierError
from environments.protocols import Outcome
from environments.task import TaskSpec
from environments.verdict import Verdict
from environments.verifiers.fixture import VerifierFixture

_NUMBER = re.compile(r"[+-]?(?:[0-9]{1,40}(?:\.[0-9]{0,40})?|\.[0-9]{1,40})(?:[eE][+-]?[0-9]{1,3})?")
MAX_CHARS = 2000
"""Longer submissions fail unread."""


def same_text(got: str, expected: str) -> bool:
    """Whether two spelled values are the same value."""
    got, expected = (text.strip().strip("'\"`").strip() for text in (got, expected))
    if _NUMBER.fullmatch(got) and _NUMBER.fullmatch(expected):
        return float(got) == float(expected)
    return got == expected


class ExactValues:
    """Payload: `{"values": ["2e-12", "100"]}`."""

    kind: str = "exact_values"
    version: int = 1
    bounded: ClassVar[bool] = True

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict:
        """Raises VerifierError when the payload holds no values."""
        values = payload.get("values") if isinstance(payload, dict) else None
        if not isinstance(values, list) or not values or not all(isinstance(v, str) and v.strip() for v in values):
            raise VerifierError("the payload of exact_values holds no values", "synthesise the task again")
        text = outcome.submission
        seen = "nothing" if text is None else str(text)[:80]
        given = text.split(",") if isinstance(text, str) and text.strip() and len(text) <= MAX_CHARS else []
        if len(given) != len(values):
            return Verdict.decide(0.0, evidence={"submitted": seen, "values": len(given)})
        right = [same_text(g, v) for g, v in zip(given, values, strict=True)]
        parts = {f"value_{i}": float(ok) for i, ok in enumerate(right, 1)}
        return Verdict.decide(
            1.0 if all(right) else sum(right) / len(right), parts=parts, evidence={"submitted": seen, "values": len(given)}
        )

    def mutations(self, payload: Any) -> list[tuple[str, Any]]:
        """Wrong payloads; the reference must fail against each."""
        values = list(payload["values"])
        changed = [("zero", ["0"] * len(values)), ("constant", ["x"] * len(values)), ("longer", [*values, "1"])]
        changed += [(f"partial_{i}", [*values[:i], f"{v}1", *values[i + 1 :]]) for i, v in enumerate(values)]
        return [(name, {"values": wrong}) for name, wrong in changed if not _equal(wrong, values)]

    def wrong_outcomes(self, outcome: Outcome, payload: Any) -> list[tuple[str, Outcome]]:
        """The reference's outcome with one fault each; all must fail."""
        values = list(payload["values"])
        wrong = {
            "reversed": values[::-1],
            "first_only": values[:1],
            "one_more": [*values, values[0]],
            "last_changed": [*values[:-1], f"{values[-1]}1"],
        }
        texts = {name: ",".join(v) for name, v in wrong.items() if not _equal(v, values)}
        return [(name, Outcome(text, outcome.tables, outcome.tool_calls)) for name, text in {**texts, "nothing": None}.items()]


def _equal(left: list[str], right: list[str]) -> bool:
    return len(left) == len(right) and all(map(same_text, left, right))


_PAYLOAD = {"values": ["2e-12", "100", "'lm'"]}
FIXTURES: tuple[VerifierFixture, ...] = (
    VerifierFixture("plain", "full", _PAYLOAD, Outcome("2e-12,100,lm"), "pass", 1.0),
    VerifierFixture("blanks and quotes", "full", _PAYLOAD, Outcome(' 2e-12 , 100, "lm"\n'), "pass", 1.0),
    VerifierFixture("other spelling", "full", _PAYLOAD, Outcome("0.000000000002,100.0,lm"), "pass", 1.0),
    VerifierFixture("one wrong", "partial", _PAYLOAD, Outcome("2e-12,100,cg"), "fail", 2 / 3),
    VerifierFixture("wrong order", "partial", _PAYLOAD, Outcome("100,2e-12,lm"), "fail", 1 / 3),
    VerifierFixture("all wrong", "zero", _PAYLOAD, Outcome("1,2,3"), "fail", 0.0),
    VerifierFixture("nothing", "zero", _PAYLOAD, Outcome(None), "fail", 0.0),
    VerifierFixture("empty", "malformed", _PAYLOAD, Outcome(""), "fail", 0.0),
    VerifierFixture("too few", "malformed", _PAYLOAD, Outcome("2e-12,100"), "fail", 0.0),
    VerifierFixture("sentence", "malformed", {"values": ["100"]}, Outcome("It is 100"), "fail", 0.0),
    VerifierFixture("not a number", "malformed", {"values": ["100"]}, Outcome("nan"), "fail", 0.0),
    VerifierFixture("payload without values", "malformed", {"values": []}, Outcome("100"), "no-verdict", None),
    VerifierFixture("payload of another shape", "malformed", ["100"], Outcome("100"), "no-verdict", None),
    VerifierFixture("repeated", "determinism", _PAYLOAD, Outcome("2e-12,100,lm"), "pass", 1.0, runs=5),
)
