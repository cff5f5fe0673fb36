"""`atomic_facts`: a report on numbered claims, each judged true or false alone; the wording around the judgements is not read.

The submission names every claim once, as `3: true` or `3 - false`, in any order. The score is the lower of the two F1 figures, that
of the true claims and that of the false ones. So whoever says yes (or no) to everything scores 0, whatever the share of true claims.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from environments.answers.declared import declared_answer
from environments.errors import VerifierError
from environments.protocols import Outcome
from environments.task import TaskSpec
from environments.verdict import Verdict
from environments.verifiers.fixture import VerifierFixture

MAX_FACTS = 40
_JUDGED = re.compile(r"(?:claim\s*|fact\s*|#)?(\d{1,3})\s*[.:)=-]*\s*[*_]*(true|false|yes|no|supported|refuted)\b", re.IGNORECASE)


def judgements(text: str) -> dict[int, bool] | None:
    """Claim number -> verdict, in order of reading; None when one claim is judged both ways."""
    found: dict[int, bool] = {}
    for number, word in _JUDGED.findall(text):
        value = word.lower() in ("true", "yes", "supported")
        if found.setdefault(int(number), value) != value:
            return None
    return found


def f1(said: dict[int, bool], facts: list[bool], value: bool) -> tuple[float, float, float]:
    """(precision, recall, F1) of the claims that are said to be `value`; claims beyond the list count as wrong."""
    named = {n for n, v in said.items() if v is value}
    wanted = {i for i, v in enumerate(facts, 1) if v is value}
    hits = len(named & wanted)
    return hits / len(named) if named else 0.0, hits / len(wanted), 2 * hits / (len(named) + len(wanted))


class AtomicFacts:
    """Payload: `{"facts": [true, false, ...]}` in the prompt's order, both values among them."""

    kind: str = "atomic_facts"
    version: int = 1
    bounded: ClassVar[bool] = True

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict:
        """Raises VerifierError when the payload holds no true or no false claim."""
        facts = payload.get("facts") if isinstance(payload, dict) else None
        if not isinstance(facts, list) or not 2 <= len(facts) <= MAX_FACTS or {type(f) for f in facts} != {bool} or len(set(facts)) < 2:
            raise VerifierError("the payload of atomic_facts holds no true and false claims", "synthesise the task again")
        seen = "nothing" if outcome.submission is None else str(outcome.submission)[:80]
        answer = declared_answer(outcome.submission)
        said = judgements(answer) if answer is not None else None
        if not said:
            return Verdict.decide(0.0, evidence={"submitted": seen, "judged": 0})
        precision, recall, true = f1(said, facts, True)
        *_, false = f1(said, facts, False)
        parts = {"precision": precision, "recall": recall, "f1_true": true, "f1_false": false}
        parts |= {f"fact_{i}": float(said.get(i) is fact) for i, fact in enumerate(facts, 1)}
        return Verdict.decide(min(true, false), parts=parts, evidence={"submitted": seen, "judged": len(said)})

    def mutations(self, payload: Any) -> list[tuple[str, Any]]:
        """Wrong payloads; the reference must fail against each."""
        facts = payload["facts"]
        changed = {f"flipped_{i}": [*facts[:i], not f, *facts[i + 1 :]] for i, f in enumerate(facts)}
        changed |= {"all_flipped": [not f for f in facts], "longer": [*facts, True]}
        return [(name, {"facts": wrong}) for name, wrong in changed.items() if len(set(wrong)) == 2]

    def wrong_outcomes(self, outcome: Outcome, payload: Any) -> list[tuple[str, Outcome]]:
        """The reference's outcome with one fault each; all must fail."""
        facts = payload["facts"]
        said = {
            "all_true": [True] * len(facts),
            "all_false": [False] * len(facts),
            "last_left_out": facts[:-1],
            "one_more": [*facts, True],
            "first_flipped": [not facts[0], *facts[1:]],
        }
        texts: dict[str, str | None] = {name: render(values) for name, values in said.items()}
        texts |= {"nothing": None, "both_ways": render(facts) + "\n" + render([not f for f in facts])}
        return [(name, Outcome(text, outcome.tables, outcome.tool_calls)) for name, text in texts.items()]


def render(facts: list[bool]) -> str:
    """A report in the declared form."""
    return "\n".join(f"{i}: {'true' if fact else 'false'}" for i, fact in enumerate(facts, 1))


_PAYLOAD = {"facts": [True, False, False, True]}
FIXTURES: tuple[VerifierFixture, ...] = (
    VerifierFixture("plain", "full", _PAYLOAD, Outcome("1: true\n2: false\n3: false\n4: true"), "pass", 1.0),
    VerifierFixture("other wording and order", "full", _PAYLOAD, Outcome("Claim 4 - yes, 2) No; 3: FALSE. #1: supported"), "pass", 1.0),
    VerifierFixture("marked", "full", _PAYLOAD, Outcome("I looked.<answer>1: true 2: false 3: false 4: true</answer>"), "pass", 1.0),
    VerifierFixture("one wrong", "partial", _PAYLOAD, Outcome("1: true 2: false 3: true 4: true"), "fail", 2 / 3),
    VerifierFixture("yes to everything", "zero", _PAYLOAD, Outcome("1: true 2: true 3: true 4: true"), "fail", 0.0),
    VerifierFixture("no to everything", "zero", _PAYLOAD, Outcome("1: false 2: false 3: false 4: false"), "fail", 0.0),
    VerifierFixture("nothing", "zero", _PAYLOAD, Outcome(None), "fail", 0.0),
    VerifierFixture("empty", "malformed", _PAYLOAD, Outcome(""), "fail", 0.0),
    VerifierFixture("both ways", "malformed", _PAYLOAD, Outcome("1: true 1: false 2: false 3: false 4: true"), "fail", 0.0),
    VerifierFixture("prose", "malformed", _PAYLOAD, Outcome("All of it is true."), "fail", 0.0),
    VerifierFixture("payload without false claims", "malformed", {"facts": [True, True]}, Outcome("1: true"), "no-verdict", None),
    VerifierFixture("payload of another shape", "malformed", [True], Outcome("1: true"), "no-verdict", None),
    VerifierFixture("repeated", "determinism", _PAYLOAD, Outcome("1: true 2: false 3: false 4: true"), "pass", 1.0, runs=5),
)
