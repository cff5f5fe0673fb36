"""Deep-research questions: a set of atomic claims, some near-true, each checkable alone against one passage."""

from __future__ import annotations

import random

from environments.answers.dates import parse_date
from environments.answers.form import version
from environments.answers.names import same_name
from environments.protocols import SearchSource
from environments.task import Budgets, Frozen, Message
from environments.verifiers.atomic_facts import render
from tasks.kinds.draft import Demonstration, Draft, KindSpec, Material, call
from tasks.kinds.knowledge.questions import TOOLS, pool, reading
from tasks.kinds.knowledge.statements import Statement, statements

CLAIMS = {1: 4, 2: 6, 3: 10}
"""Claims of a question by level."""
_TEXT = {
    "introduced": "{s} was introduced (first made, released or founded) in {v}.",
    "creator": "{s} was made by {v}.",
    "added_in": "{s} was added in version {v}.",
    "clock": "{s} runs at {v}.",
}


class Claim(Frozen):
    """One atomic binary fact. The passage of the same place in the draft decides it."""

    subject: str
    relation: str
    value: str
    truth: bool

    @property
    def text(self) -> str:
        """As the question spells it."""
        return _TEXT[self.relation].format(s=f"`{self.subject}`", v=self.value)


def near_miss(rng: random.Random, statement: Statement, others: list[Statement]) -> str | None:
    """A false value close to the true one: a year one to three off, or the value of another subject in the same relation."""
    if statement.kind == "date":
        return str(int(statement.value[:4]) + rng.choice((-3, -2, -1, 1, 2, 3)))
    same = {o.value for o in others if (o.relation, o.scope) == (statement.relation, statement.scope)}
    wrong = sorted(v for v in same if not _equal(statement, v))
    return rng.choice(wrong) if wrong else None


def _equal(statement: Statement, value: str) -> bool:
    if statement.kind == "version":
        return version(value) == version(statement.value)
    if statement.kind == "date":
        left, right = parse_date(value), parse_date(statement.value)
        return left is not None and right is not None and left.year == right.year
    return same_name(value, statement.value)


def draft(rng: random.Random, material: Material, level: int) -> Draft | None:
    """Claims on as many subjects as the level says; from a third to two thirds of them are false."""
    source, count = material.source, CLAIMS[level]
    if source is None:
        return None
    held = sorted(pool(material), key=lambda s: (s.document_id, s.relation))
    own = {d.document_id for d in material.documents}
    order = rng.sample(held, len(held))
    order.sort(key=lambda s: s.document_id not in own)
    chosen: list[Statement] = []
    for s in order:
        if len(chosen) < count and all(s.subject != c.subject for c in chosen) and reading(s, source, s.subject) is not None:
            chosen.append(s)
    if len(chosen) < count or chosen[0].document_id not in own:
        return None
    rng.shuffle(chosen)
    false = set(rng.sample(range(count), rng.randint(-(-count // 3), count * 2 // 3)))
    claims: list[Claim] = []
    for i, s in enumerate(chosen):
        value = near_miss(rng, s, held) if i in false else s.value[:4] if s.kind == "date" else s.value
        if value is None:
            return None
        claims.append(Claim(subject=s.subject, relation=s.relation, value=value, truth=i not in false))
    messages: list[Message] = []
    for s in chosen:
        at = reading(s, source, s.subject)
        assert at is not None  # chosen for it
        messages += [call("search", query=s.subject), call("read", result=str(at[0]), **({"find": at[1]} if at[1] else {}))]
    report = render([c.truth for c in claims])
    return Draft(
        kind="research",
        family="search",
        domain="general",
        level=level,
        prompt="Find out from the documentation which of these claims are true.\n"
        + "\n".join(f"{i}. {c.text}" for i, c in enumerate(claims, 1))
        + "\nJudge every claim on a line of its own, as `1: true` or `1: false`.",
        tools=TOOLS,
        budgets=Budgets(steps=2 * count + 8, output_tokens=4_000, wall_s=180, submissions=1),
        verifier_kind="atomic_facts",
        payload={"facts": [c.truth for c in claims], "claims": [c.model_dump(mode="json") for c in claims]},
        passages=tuple(chosen),
        demonstrations=(Demonstration("short", (*messages, call("submit", answer=report))),),
    )


def unsupported(draft: Draft, source: SearchSource) -> str:
    """Why a draft's claims are not decided by its passages; empty when each is, by the document as it stands."""
    claims = [Claim.model_validate(c) for c in draft.payload["claims"]]
    if len(claims) != len(draft.passages) or [c.truth for c in claims] != draft.payload["facts"]:
        return "claims, passages and truth values do not match"
    for claim, s in zip(claims, draft.passages, strict=True):
        if not isinstance(s, Statement) or (s.subject, s.relation) != (claim.subject, claim.relation):
            return f"the claim on {claim.subject} has no statement"
        try:
            if s not in statements(source.open(s.document_id)):
                return f"its document does not state the {s.relation} of {s.subject}"
        except KeyError:
            return f"document {s.document_id} is gone"
        if _equal(s, claim.value) != claim.truth:
            return f"the passage on {claim.subject} decides the claim otherwise"
        if reading(s, source, s.subject) is None:
            return f"the tools do not show the passage on {s.subject}"
    return ""


RESEARCH = KindSpec("research", "search", "general", (1, 2, 3), draft, unsupported)
"""Not for the laptop policy."""
