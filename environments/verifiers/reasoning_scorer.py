"""`reasoning_scorer`: a reasoning-gym dataset's own scorer, run outside the agent's reach on the entry that lies in the vault.

The submission may hold prose around one `<answer>...</answer>` or end with `Answer: ...` (`environments.answers.declared`). What
the scorer says is the score; only a full 1 passes. Datasets that this project may use: `tasks.kinds.reasoning_audit`.
"""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

from environments.answers.declared import declared_answer
from environments.errors import MissingDependencyError, VerifierError
from environments.protocols import Outcome
from environments.task import TaskSpec
from environments.verdict import Verdict
from environments.verifiers.fixture import VerifierFixture

SCORER_TIMEOUT_S = 10.0


@functools.cache
def dataset_scorer(name: str) -> Any:
    """`score_answer(answer, entry)` of a dataset.

    Raises:
        MissingDependencyError: reasoning-gym is not installed.
        VerifierError: it has no such dataset.
    """
    try:
        from reasoning_gym.factory import get_score_answer_fn
    except ImportError as error:
        raise MissingDependencyError("reasoning_gym is not installed", "pip install reasoning_gym") from error
    try:
        return get_score_answer_fn(name)
    except ValueError as error:
        raise VerifierError(f"reasoning_gym has no dataset {name!r:.60}", "install the version that the task was made with") from error


def score(dataset: str, entry: dict[str, Any], answer: str) -> float:
    """The scorer's word on an answer, in [0, 1].

    A scorer that trips over an answer which is not the reference has refused it: 0.

    Raises:
        VerifierError: it says something that is not a score, or trips over its own reference.
    """
    scorer = dataset_scorer(dataset)
    try:
        said = scorer(answer=answer, entry=entry)
    except Exception as error:
        if answer == entry.get("answer"):
            raise VerifierError(f"the scorer of {dataset} fails on its own answer: {error!r:.120}", "refuse the dataset") from error
        return 0.0
    if isinstance(said, bool) or not isinstance(said, (int, float)) or not math.isfinite(said) or not 0 <= said <= 1:
        raise VerifierError(f"the scorer of {dataset} returned {said!r:.60}", "refuse the dataset")
    return float(said)


class ReasoningScorer:
    """Payload: `{"dataset": "chain_sum", "entry": {"question", "answer", "metadata"}, "other": {...}}`; `other` is another entry."""

    kind: str = "reasoning_scorer"
    version: int = 1
    bounded: ClassVar[bool] = False
    timeout_s: float = SCORER_TIMEOUT_S

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict:
        """Raises VerifierError when the payload holds no entry."""
        if not isinstance(payload, dict) or not isinstance(payload.get("entry"), dict) or "answer" not in payload["entry"]:
            raise VerifierError("the payload of reasoning_scorer holds no entry", "synthesise the task again")
        seen = "nothing" if outcome.submission is None else str(outcome.submission)[:80]
        answer = declared_answer(outcome.submission)
        if answer is None:
            return Verdict.decide(0.0, evidence={"submitted": seen, "declared": False})
        return Verdict.decide(score(str(payload.get("dataset")), payload["entry"], answer), evidence={"submitted": seen, "declared": True})

    def mutations(self, payload: Any) -> list[tuple[str, Any]]:
        """Wrong payloads; the reference must fail against each."""
        return [("other_entry", {**payload, "entry": payload["other"]})] if payload.get("other") else []

    def wrong_outcomes(self, outcome: Outcome, payload: Any) -> list[tuple[str, Outcome]]:
        """The reference's outcome with one fault each; all must fail."""
        texts: dict[str, str | None] = {"nothing": None, "the_question": payload["entry"]["question"], "unclosed": "<answer>"}
        if payload.get("other"):
            texts["other_answer"] = str(payload["other"]["answer"])
        return [(name, Outcome(text, outcome.tables, outcome.tool_calls)) for name, text in texts.items()]


_PAYLOAD = {
    "dataset": "chain_sum",
    "entry": {"question": "What is 4 + 3?", "answer": "7", "metadata": {}},
    "other": {"question": "What is 4 + 5?", "answer": "9", "metadata": {}},
}
FIXTURES: tuple[VerifierFixture, ...] = (
    VerifierFixture("plain", "full", _PAYLOAD, Outcome("7"), "pass", 1.0),
    VerifierFixture("blanks", "full", _PAYLOAD, Outcome("  7\n"), "pass", 1.0),
    VerifierFixture("marked in prose", "full", _PAYLOAD, Outcome("4 and 3 are <answer> 7 </answer>, I think."), "pass", 1.0),
    VerifierFixture("last line", "full", _PAYLOAD, Outcome("First 4, then 3.\nAnswer: 7"), "pass", 1.0),
    VerifierFixture("wrong", "zero", _PAYLOAD, Outcome("8"), "fail", 0.0),
    VerifierFixture("nothing", "zero", _PAYLOAD, Outcome(None), "fail", 0.0),
    VerifierFixture("empty", "malformed", _PAYLOAD, Outcome(""), "fail", 0.0),
    VerifierFixture("two answers", "malformed", _PAYLOAD, Outcome("<answer>7</answer><answer>8</answer>"), "fail", 0.0),
    VerifierFixture("too long", "malformed", _PAYLOAD, Outcome("7" * 9_000), "fail", 0.0),
    VerifierFixture("payload without an entry", "malformed", {"dataset": "chain_sum"}, Outcome("7"), "no-verdict", None),
    VerifierFixture("no such dataset", "malformed", {**_PAYLOAD, "dataset": "no_such"}, Outcome("7"), "no-verdict", None),
    VerifierFixture("repeated", "determinism", _PAYLOAD, Outcome("7"), "pass", 1.0, runs=5),
)
