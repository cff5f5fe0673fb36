"""Plans: what a question asks of its statements, and the answer computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from environments.answers.dates import PartialDate, parse_date
from environments.answers.form import AnswerForm, version
from environments.errors import InputError
from environments.task import Frozen
from tasks.kinds.knowledge.statements import Statement

Op = Literal["value", "hop", "gap", "order", "first", "last", "before", "count_before"]


class Plan(Frozen):
    """How the answer follows from the statements, in their order."""

    op: Op
    bound: str = ""
    """Of `before` and `count_before`: the date or version; those strictly before it count."""


def key(statement: Statement) -> tuple[object, ...]:
    """What statements of one relation are ordered by: the year, or the version's numbers."""
    return ordinal(statement.value, statement.kind)


def ordinal(value: str, kind: str) -> tuple[object, ...]:
    """As `key`, of a bare value. Raises InputError for one that has no order."""
    if kind == "date" and (date := parse_date(value)) is not None:
        return (date.year,)
    if kind == "version" and (read := version(value)) is not None:
        return read[0]
    raise InputError(f"{value!r:.60} ({kind}) has no order", "compare dates or versions")


def compute(plan: Plan, statements: Sequence[Statement]) -> AnswerForm:
    """The answer that the plan draws from the statements.

    Raises:
        InputError: they do not support it (two share a place in an order, none or all lie before the bound).
    """
    if not statements:
        raise InputError("a plan needs statements", "give at least one")
    first = statements[0]
    if plan.op in ("value", "hop"):
        return _form(statements[-1].kind, statements[-1].value)
    keys = [key(s) for s in statements]
    if plan.op == "gap":
        years = [parse_date(s.value) or PartialDate(0) for s in statements]
        if len(years) != 2 or years[0].year == years[1].year:
            raise InputError("a gap needs two different years", "choose other statements")
        return AnswerForm(kind="number", values=((str(abs(years[0].year - years[1].year)),),))
    if plan.op in ("before", "count_before"):
        named = [s.subject for s, k in zip(statements, keys, strict=True) if k < ordinal(plan.bound, first.kind)]
        if not 0 < len(named) < len(statements):
            raise InputError("the bound does not part the statements", "choose another")
        if plan.op == "before":
            return AnswerForm(kind="text", shape="set", values=tuple((n,) for n in named))
        return AnswerForm(kind="number", values=((str(len(named)),),))
    if len(set(keys)) < len(keys):
        raise InputError("two statements share a place in the order", "choose other statements")
    ranked = sorted(statements, key=key)
    if plan.op == "order":
        return AnswerForm(kind="text", shape="list", values=tuple((s.subject,) for s in ranked))
    return _form(first.kind, ranked[0 if plan.op == "first" else -1].value)


def _form(kind: str, value: str) -> AnswerForm:
    if kind == "date":  # asked for as a year
        value = str(value)[:4]
    return AnswerForm.model_validate({"kind": kind, "values": [[value]]})
