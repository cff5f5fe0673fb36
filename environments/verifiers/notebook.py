"""`notebook`: named results, separated by commas, in order; numbers within the tolerance that the task states, names as they are.

Partial credit is the share of results that are right; only all of them pass. Answers of another length score 0.
"""

from __future__ import annotations

import copy
import re
from decimal import Decimal
from typing import Any, ClassVar

from environments.errors import VerifierError
from environments.protocols import Outcome
from environments.task import TaskSpec
from environments.verdict import Verdict
from environments.verifiers.fixture import VerifierFixture

_NUMBER = re.compile(r"[+-]?\d{1,60}(?:\.\d{1,30})?")
MAX_CHARS = 2_000


def _right(got: str, wanted: dict[str, str]) -> bool:
    got = got.strip()
    if "text" in wanted:
        return got.strip("'\"`").casefold() == wanted["text"].casefold()
    return bool(_NUMBER.fullmatch(got)) and abs(Decimal(got) - Decimal(wanted["number"])) <= Decimal(wanted["within"])


class NotebookVerifier:
    """Payload: `{"results": [{"number": "1.25", "within": "0.001"} or {"text": "north"}, ...]}`."""

    kind: str = "notebook"
    version: int = 1
    bounded: ClassVar[bool] = True

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict:
        """Raises VerifierError when the payload holds no results."""
        wanted = payload.get("results") if isinstance(payload, dict) else None
        if not wanted:
            raise VerifierError("the payload of notebook holds no results", "synthesise the task again")
        text = outcome.submission
        given = text.split(",") if isinstance(text, str) and text.strip() and len(text) <= MAX_CHARS else []
        if len(given) != len(wanted):
            return Verdict.decide(0.0, evidence={"submitted": str(text)[:80], "results": len(given)})
        right = [_right(g, w) for g, w in zip(given, wanted, strict=True)]
        parts = {f"result_{i}": float(ok) for i, ok in enumerate(right, 1)}
        return Verdict.decide(1.0 if all(right) else sum(right) / len(right), parts=parts, evidence={"submitted": str(text)[:80]})

    def mutations(self, payload: Any) -> list[tuple[str, Any]]:
        """Each result changed, and one more wanted."""
        mutated = []
        for i, wanted in enumerate(payload["results"]):
            changed = copy.deepcopy(payload)
            if "text" in wanted:
                changed["results"][i]["text"] += "~"
            else:
                changed["results"][i]["number"] = str(Decimal(wanted["number"]) + 3 * Decimal(wanted["within"]) + 1)
            mutated.append((f"result_{i}", changed))
        return [*mutated, ("one_more", {"results": [*payload["results"], {"text": "x"}]}), ("fewer", {"results": [{"text": "x"}]})]

    def wrong_outcomes(self, outcome: Outcome, payload: Any) -> list[tuple[str, Outcome]]:
        """One result more, one changed, a sentence around it, nothing."""
        text = outcome.submission or ""
        texts = {"one_more": f"{text},1", "last_changed": f"{text}9", "sentence": f"It is {text}.", "nothing": None}
        return [(name, Outcome(said, {}, outcome.tool_calls)) for name, said in texts.items()]


_PAYLOAD = {"results": [{"number": "1.25", "within": "0.001"}, {"text": "north"}]}
FIXTURES: tuple[VerifierFixture, ...] = (
    VerifierFixture("exact", "full", _PAYLOAD, Outcome("1.25,north"), "pass", 1.0),
    VerifierFixture("within", "full", _PAYLOAD, Outcome(" 1.2509 , North\n"), "pass", 1.0),
    VerifierFixture("outside", "partial", _PAYLOAD, Outcome("1.2511,north"), "fail", 0.5),
    VerifierFixture("both wrong", "zero", _PAYLOAD, Outcome("2,south"), "fail", 0.0),
    VerifierFixture("nothing", "zero", _PAYLOAD, Outcome(None), "fail", 0.0),
    VerifierFixture("nan", "malformed", _PAYLOAD, Outcome("nan,x"), "fail", 0.0),
    VerifierFixture("too many", "malformed", _PAYLOAD, Outcome("1.25,north,1"), "fail", 0.0),
    VerifierFixture("payload without results", "malformed", {"results": []}, Outcome("1"), "no-verdict", None),
    VerifierFixture("repeated", "determinism", _PAYLOAD, Outcome("1.25,north"), "pass", 1.0, runs=5),
)
