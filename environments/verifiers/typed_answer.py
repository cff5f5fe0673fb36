"""`typed_answer`: an answer of a declared form (number, quantity, date, name, version, text, yes or no; one, a set or a list).

The submission may hold prose around one `<answer>...</answer>` or end with `Answer: ...` (`environments.answers.declared`). Only an
answer that is right in full passes; where the form declares partial credit, a set or list that is right in part scores its F1.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ValidationError

from environments.answers.declared import declared_answer
from environments.answers.form import AnswerForm
from environments.errors import VerifierError
from environments.protocols import Outcome
from environments.task import TaskSpec
from environments.verdict import Verdict
from environments.verifiers.fixture import VerifierFixture


class TypedAnswer:
    """Payload: `{"form": AnswerForm}`; other keys are the kind's own and not read."""

    kind: str = "typed_answer"
    version: int = 1
    bounded: ClassVar[bool] = True

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict:
        """Raises VerifierError when the payload holds no form."""
        form = form_of(payload)
        seen = "nothing" if outcome.submission is None else str(outcome.submission)[:80]
        answer = declared_answer(outcome.submission)
        if answer is None:
            return Verdict.decide(0.0, evidence={"submitted": seen, "declared": False})
        score, items = form.score(answer)
        return Verdict.decide(score, evidence={"submitted": seen, "declared": True, "items": items})

    def mutations(self, payload: Any) -> list[tuple[str, Any]]:
        """Wrong payloads; the reference must fail against each."""
        form = form_of(payload)
        changed = {f"partial_{i}": (*form.values[:i], (_other(form),), *form.values[i + 1 :]) for i in range(min(len(form.values), 5))}
        if form.shape != "one":
            changed["longer"] = (*form.values, (_other(form),))
            if len(form.values) > 1:
                changed["shorter"] = form.values[:-1]
        return [(name, {"form": {**form.model_dump(mode="json"), "values": values}}) for name, values in changed.items()]

    def wrong_outcomes(self, outcome: Outcome, payload: Any) -> list[tuple[str, Outcome]]:
        """The reference's outcome with one fault each; all must fail."""
        form = form_of(payload)
        first = [spellings[0] for spellings in form.values]
        texts: dict[str, str | None] = {
            "nothing": None,
            "other": _other(form),
            "hedged": f"{first[0]} or {_other(form)}",
            "unclosed": "<answer>",
        }
        if form.shape != "one":
            texts |= {"one_more": "; ".join([*first, _other(form)]), "first_changed": "; ".join([_other(form), *first[1:]])}
            if len(first) > 1:
                texts |= {"first_only": first[0], "twice_the_first": "; ".join([first[0], *first[:-1]])}
            if form.shape == "list" and len(first) > 1:
                texts["reversed"] = "; ".join(first[::-1])
        return [(name, Outcome(text, outcome.tables, outcome.tool_calls)) for name, text in texts.items()]


def form_of(payload: Any) -> AnswerForm:
    """The payload's form. Raises VerifierError when there is none, or one that cannot be read."""
    try:
        return AnswerForm.model_validate(payload["form"])
    except (TypeError, KeyError, ValidationError) as error:
        raise VerifierError(f"the payload of typed_answer holds no form: {error!s:.120}", "synthesise the task again") from error


def _other(form: AnswerForm) -> str:
    """An answer of the right kind that none of the expected is."""
    pool = {
        "number": ("7919", "-3.25"),
        "quantity": ("7919 kilometer", "7919 second"),
        "date": ("1066", "1067"),
        "version": ("7919.1", "7920.1"),
        "boolean": ("no", "yes"),
    }.get(form.kind, ("qqxyzzy", "qqplugh"))
    return next(o for o in pool if not any(form.same(o, s) for spellings in form.values for s in spellings))


def _form(kind: str, *values: str | list[str], **more: Any) -> dict[str, Any]:
    return {"form": {"kind": kind, "values": [[v] if isinstance(v, str) else v for v in values], **more}}


_SET = _form("name", ["Ada"], ["ALGOL 60", "Algol-60"], ["C"], shape="set")
_PARTIAL = _form("name", "Ada", "Pascal", "C", shape="set", partial=True)
_LIST = _form("name", "Ada", "Pascal", "C", shape="list")
FIXTURES: tuple[VerifierFixture, ...] = (
    VerifierFixture("number in words", "full", _form("number", "12000"), Outcome("twelve thousand"), "pass", 1.0),
    VerifierFixture("number in prose", "full", _form("number", "12000"), Outcome("There were many.\nAnswer: 12,000"), "pass", 1.0),
    VerifierFixture("other unit", "full", _form("quantity", "2.5 MHz"), Outcome("2500 kHz"), "pass", 1.0),
    VerifierFixture("longer date", "full", _form("date", "1987-04"), Outcome("<answer>2 April 1987</answer>"), "pass", 1.0),
    VerifierFixture("initials", "full", _form("name", "Niklaus Wirth"), Outcome("Prof. N. Wirth"), "pass", 1.0),
    VerifierFixture("version", "full", _form("version", "1.4"), Outcome("v1.4.0"), "pass", 1.0),
    VerifierFixture("set in any order", "full", _SET, Outcome("C, algol 60; Ada".replace(",", ";")), "pass", 1.0),
    VerifierFixture("half a set", "zero", _SET, Outcome("Ada; C"), "fail", 0.0),
    VerifierFixture("half a set with partial credit", "partial", _PARTIAL, Outcome("Ada; C; B"), "fail", 2 / 3),
    VerifierFixture("list in order", "full", _LIST, Outcome("1. Ada\n2. Pascal\n3. C"), "pass", 1.0),
    VerifierFixture("list out of order", "zero", _LIST, Outcome("Pascal, Ada, C"), "fail", 0.0),
    VerifierFixture("wrong", "zero", _form("date", "1987"), Outcome("1988"), "fail", 0.0),
    VerifierFixture("less precise", "zero", _form("date", "1987-04"), Outcome("1987"), "fail", 0.0),
    VerifierFixture("nothing", "zero", _form("number", "3"), Outcome(None), "fail", 0.0),
    VerifierFixture("empty", "malformed", _form("number", "3"), Outcome(""), "fail", 0.0),
    VerifierFixture("two answers", "malformed", _form("number", "3"), Outcome("<answer>3</answer> <answer>4</answer>"), "fail", 0.0),
    VerifierFixture("hedged", "malformed", _form("number", "3"), Outcome("3 or 4"), "fail", 0.0),
    VerifierFixture("not a number", "malformed", _form("number", "3"), Outcome("nan"), "fail", 0.0),
    VerifierFixture("payload without a form", "malformed", {}, Outcome("3"), "no-verdict", None),
    VerifierFixture("payload that reads as nothing", "malformed", _form("number", "many"), Outcome("3"), "no-verdict", None),
    VerifierFixture("repeated", "determinism", _SET, Outcome("Ada; C; ALGOL 60"), "pass", 1.0, runs=5),
)
