"""`exact_number`: the submission is one whole number, as text.

Counts as the same number: surrounding blanks, a plus sign, leading zeros, a fraction of zeros (`487`, ` +487 `, `0487`,
`487.0`). Does not: anything else around it, thousands separators, exponents, digits outside ASCII, code.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from environments.errors import VerifierError
from environments.protocols import Outcome
from environments.task import TaskSpec
from environments.verdict import Verdict
from environments.verifiers.fixture import VerifierFixture

_NUMBER = re.compile(r"([+-]?[0-9]{1,400})(?:\.0{1,40})?")


def parse_number(text: str | None) -> int | None:
    """The whole number that `text` spells, or None."""
    if not isinstance(text, str):
        return None
    match = _NUMBER.fullmatch(text.strip(" \t\r\n"))
    return int(match.group(1)) if match else None


class ExactNumber:
    """Payload: `{"answer": "487"}`."""

    kind: str = "exact_number"
    version: int = 1
    bounded: ClassVar[bool] = True

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict:
        """Raises VerifierError when the payload holds no number."""
        expected = parse_number(payload.get("answer")) if isinstance(payload, dict) else None
        if expected is None:
            raise VerifierError("the payload of exact_number holds no whole number", "synthesise the task again")
        got = parse_number(outcome.submission)
        seen = "nothing" if outcome.submission is None else str(outcome.submission)[:80]
        return Verdict.decide(1.0 if got == expected else 0.0, evidence={"submitted": seen, "a_number": got is not None})

    def mutations(self, payload: Any) -> list[tuple[str, Any]]:
        """Wrong payloads; the reference must fail against each."""
        value = int(parse_number(payload["answer"]) or 0)
        return [
            (name, {"answer": str(wrong)})
            for name, wrong in (("zero", 0), ("constant", 1), ("partial", value + 1), ("negated", -value))
            if wrong != value
        ]

    def wrong_outcomes(self, outcome: Outcome, payload: Any) -> list[tuple[str, Outcome]]:
        """The reference's outcome with one fault each; all must fail."""
        value = int(parse_number(payload["answer"]) or 0)
        texts = {"off_by_one": str(value + 1), "trailing_digit": f"{value}0", "a_list": f"{value} {value + 1}", "nothing": None}
        if value:
            texts["negated"] = str(-value)
        return [(name, Outcome(text, outcome.tables, outcome.tool_calls)) for name, text in texts.items() if parse_number(text) != value]


_PAYLOAD = {"answer": "487"}
FIXTURES: tuple[VerifierFixture, ...] = (
    VerifierFixture("plain", "full", _PAYLOAD, Outcome("487"), "pass", 1.0),
    VerifierFixture("blanks and sign", "full", _PAYLOAD, Outcome(" +487\n"), "pass", 1.0),
    VerifierFixture("zero fraction", "full", _PAYLOAD, Outcome("487.0"), "pass", 1.0),
    VerifierFixture("minus zero", "full", {"answer": "0"}, Outcome("-0"), "pass", 1.0),
    VerifierFixture("other number", "zero", _PAYLOAD, Outcome("488"), "fail", 0.0),
    VerifierFixture("fraction", "zero", _PAYLOAD, Outcome("487.5"), "fail", 0.0),
    VerifierFixture("nothing", "zero", _PAYLOAD, Outcome(None), "fail", 0.0),
    VerifierFixture("empty", "malformed", _PAYLOAD, Outcome(""), "fail", 0.0),
    VerifierFixture("sentence", "malformed", _PAYLOAD, Outcome("The answer is 487"), "fail", 0.0),
    VerifierFixture("two numbers", "malformed", _PAYLOAD, Outcome("486 487"), "fail", 0.0),
    VerifierFixture("code", "malformed", _PAYLOAD, Outcome("480+7"), "fail", 0.0),
    VerifierFixture("other digits", "malformed", _PAYLOAD, Outcome("４８７"), "fail", 0.0),
    VerifierFixture("payload without a number", "malformed", {"answer": "many"}, Outcome("487"), "no-verdict", None),
    VerifierFixture("payload of another shape", "malformed", ["487"], Outcome("487"), "no-verdict", None),
    VerifierFixture("repeated", "determinism", _PAYLOAD, Outcome("487"), "pass", 1.0, runs=5),
)
