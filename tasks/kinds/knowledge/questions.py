"""Knowledge questions from retrieved documents: single facts, chains, comparison, aggregation and time.

Level 1 asks for one fact that two independent passages state. Level 2 computes from two or three statements (years between, the
first or last, a chain over two documents). Level 3 orders or counts four to eight.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from environments.answers.form import AnswerForm
from environments.answers.names import plain, same_name
from environments.errors import InputError
from environments.families.reading import ReadingEnvironment
from environments.families.search import excerpt
from environments.protocols import SearchSource
from environments.task import Budgets, Message
from kg.concept import Passage
from tasks.kinds.draft import Demonstration, Draft, KindSpec, Material, call
from tasks.kinds.knowledge.answerers import ExtractiveReader, FromQuestion, MostFrequent, filter_question
from tasks.kinds.knowledge.plans import Plan, compute, key
from tasks.kinds.knowledge.statements import Statement, statements
from tasks.kinds.knowledge.support import NEEDED, independent_passages

_ASKED = {"introduced": "was {} introduced (first made, released or founded)", "added_in": "was {} added"}
_SAY = "Give the answer alone, or in <answer></answer>."
_SEVERAL = "Separate the names by semicolons; write them as they stand in the question."
NEIGHBOURS = 24
"""Further documents read around the material, for questions that need several."""
_GUESSED = ("0", "1", "-1", "2", "10", "42", "100")
"""Answers that need no reading often enough: no question may have one of them."""
TOOLS = ("search", "read", "submit")


def pool(material: Material) -> list[Statement]:
    """What the material's documents state, then what documents that the corpus finds for its concepts and packages state."""
    found = {(s.document_id, s.relation): s for d in material.documents for s in statements(d)}
    if material.source is not None:
        queries = [*material.names, *(f"{d.title.split('.')[0]} versionadded" for d in material.documents[:2] if " " not in d.title)]
        queries += [f"{word} {name}" for name in material.names[:2] for word in ("developed", "released")]
        for query in queries:
            for hit in material.source.search(query, NEIGHBOURS):
                for s in statements(material.source.open(hit.document_id)):
                    found.setdefault((s.document_id, s.relation), s)
    names: dict[str, set[str]] = {}
    for s in found.values():
        names.setdefault(plain(s.subject), set()).add(s.document_id)
    return [s for s in found.values() if len(names[plain(s.subject)]) == 1]


def reading(statement: Passage, source: SearchSource, subject: str) -> tuple[int, str] | None:
    """(number of the result, word to read around) with which the environment shows the passage; None when it does not."""
    hits = source.search(subject, ReadingEnvironment.RESULTS)
    at = next((i for i, h in enumerate(hits, 1) if h.document_id == statement.document_id), None)
    if at is None:
        return None
    text = source.open(statement.document_id).text
    for word in ("", *([statement.value] if isinstance(statement, Statement) else [])):
        window = ReadingEnvironment.WINDOW_CHARS
        shown = excerpt(text, word, window) if word else text[:window]
        if plain(statement.quote)[-60:] in plain(shown):
            return at, word
    return None


def draft(rng: random.Random, material: Material, level: int) -> Draft | None:
    """One question of the level's kinds, chosen among those that the material supports."""
    if material.source is None:
        return None
    held = sorted(pool(material), key=lambda s: (s.document_id, s.relation))
    own = {d.document_id for d in material.documents}
    makers = [_single] if level == 1 else [_gap, _extreme, _hop] if level == 2 else [_order, _before, _count]
    for make in rng.sample(makers, len(makers)):
        made = make(rng, held, own, material.source)
        if made is not None:
            return _draft(material.source, level, *made)
    return None


Made = tuple[str, Plan, list[Statement], list[Passage]]


def _single(rng: random.Random, held: list[Statement], own: set[str], source: SearchSource) -> Made | None:
    candidates = [s for s in held if s.document_id in own and s.relation in ("introduced", "creator")]
    for s in rng.sample(candidates, len(candidates)):
        passages = independent_passages(s, source)
        if len(passages) >= NEEDED:
            asked = (
                f"In which year {_ASKED['introduced'].format(_q(s))}?"
                if s.relation == "introduced"
                else f"Who or which organisation made {_q(s)}?"
            )
            return asked, Plan(op="value"), [s], passages[1:]
    return None


def _hop(rng: random.Random, held: list[Statement], own: set[str], source: SearchSource) -> Made | None:
    candidates = [s for s in held if s.relation == "creator" and s.document_id in own]
    for s in rng.sample(candidates, len(candidates)):
        for hit in source.search(s.value, 4):
            second = next(
                (t for t in statements(source.open(hit.document_id)) if t.relation == "introduced" and t.document_id != s.document_id), None
            )
            if second is not None and same_name(second.title, s.value) and reading(second, source, second.subject) is not None:
                return f"In which year was the organisation that made {_q(s)} founded?", Plan(op="hop"), [s, second], []
    return None


def _comparable(rng: random.Random, held: list[Statement], own: set[str], count: int, distinct: bool) -> list[Statement] | None:
    groups: dict[tuple[str, str], list[Statement]] = {}
    for s in held:
        if s.relation in _ASKED:
            groups.setdefault((s.relation, s.scope), []).append(s)
    able = [g for g in groups.values() if len(g) >= count and any(s.document_id in own for s in g)]
    if not able:
        return None
    group = rng.choice(able)
    chosen: list[Statement] = [rng.choice([s for s in group if s.document_id in own])]
    for s in rng.sample(group, len(group)):
        if len(chosen) < count and s not in chosen and (not distinct or key(s) not in {key(c) for c in chosen}):
            chosen.append(s)
    rng.shuffle(chosen)
    return chosen if len(chosen) == count else None


def _gap(rng: random.Random, held: list[Statement], own: set[str], source: SearchSource) -> Made | None:
    chosen = _comparable(rng, [s for s in held if s.relation == "introduced"], own, 2, True)
    if chosen is None:
        return None
    return f"How many years lie between the introductions of {_q(chosen[0])} and {_q(chosen[1])}?", Plan(op="gap"), chosen, []


def _extreme(rng: random.Random, held: list[Statement], own: set[str], source: SearchSource) -> Made | None:
    chosen = _comparable(rng, held, own, 3, True)
    if chosen is None:
        return None
    op, word = rng.choice((("first", "earliest"), ("last", "latest")))
    unit, verb = ("year", "introduced") if chosen[0].relation == "introduced" else ("version", "added")
    return f"In which {unit} was the {word} of these {verb}: {_list(chosen)}?", Plan.model_validate({"op": op}), chosen, []


def _order(rng: random.Random, held: list[Statement], own: set[str], source: SearchSource) -> Made | None:
    chosen = _comparable(rng, held, own, 4, True)
    if chosen is None:
        return None
    verb = "introduced" if chosen[0].relation == "introduced" else "added"
    return f"Order these from the first to the last that was {verb}: {_list(chosen)}. {_SEVERAL}", Plan(op="order"), chosen, []


def _parted(rng: random.Random, held: list[Statement], own: set[str], count: int, low: int) -> tuple[list[Statement], str] | None:
    chosen = _comparable(rng, held, own, count, False)
    if chosen is None:
        return None
    bounds = {s.value[:4] if s.kind == "date" else s.value: sum(key(o) < key(s) for o in chosen) for s in chosen}
    able = sorted(b for b, n in bounds.items() if low <= n < count)
    return (chosen, rng.choice(able)) if able else None


def _before(rng: random.Random, held: list[Statement], own: set[str], source: SearchSource) -> Made | None:
    parted = _parted(rng, held, own, 6, 2)
    if parted is None:
        return None
    chosen, bound = parted
    verb, unit = ("introduced", "") if chosen[0].relation == "introduced" else ("added", "version ")
    return f"Which of these were {verb} before {unit}{bound}: {_list(chosen)}? {_SEVERAL}", Plan(op="before", bound=bound), chosen, []


def _count(rng: random.Random, held: list[Statement], own: set[str], source: SearchSource) -> Made | None:
    parted = _parted(rng, held, own, 8, 3)
    if parted is None:
        return None
    chosen, bound = parted
    verb, unit = ("introduced", "") if chosen[0].relation == "introduced" else ("added", "version ")
    return f"How many of these were {verb} before {unit}{bound}: {_list(chosen)}?", Plan(op="count_before", bound=bound), chosen, []


def _draft(source: SearchSource, level: int, question: str, plan: Plan, chosen: list[Statement], others: list[Passage]) -> Draft | None:
    try:
        form = compute(plan, chosen)
    except InputError:
        return None
    answer = rendered(form)
    if len(form.values) == 1 and (plain(answer) in plain(question) or any(form.score(text)[0] == 1 for text in _GUESSED)):
        return None
    messages: list[Message] = []
    for s in chosen:
        at = reading(s, source, s.subject)
        if at is None:
            return None
        messages += [call("search", query=s.subject), call("read", result=str(at[0]), **({"find": at[1]} if at[1] else {}))]
    return Draft(
        kind="knowledge",
        family="search",
        domain="general",
        level=level,
        prompt=f"{question} {_SAY}",
        tools=TOOLS,
        budgets=Budgets(steps=2 * len(chosen) + 8, output_tokens=2_000, wall_s=120, submissions=1),
        verifier_kind="typed_answer",
        payload={"form": form.model_dump(mode="json"), "plan": plan.model_dump(mode="json")},
        passages=(*chosen, *others),
        demonstrations=(Demonstration("short", (*messages, call("submit", answer=answer))),),
    )


def rendered(form: AnswerForm) -> str:
    """The preferred spelling of an answer."""
    return "; ".join(spellings[0] for spellings in form.values)


def unsupported(draft: Draft, source: SearchSource) -> str:
    """Why a draft's answer is not to be trusted, or its passages not to be found; empty when it is sound.

    Every statement is read again from its document, the answer is computed again, and one that is not computed needs independent
    passages.
    """
    chosen = [p for p in draft.passages if isinstance(p, Statement)]
    for s in chosen:
        try:
            document = source.open(s.document_id)
        except KeyError:
            return f"document {s.document_id} is gone"
        if s not in statements(document):
            return f"its document does not state the {s.relation} of {s.subject}"
        if reading(s, source, s.subject) is None:
            return f"the tools do not show the passage on {s.subject}"
    plan = Plan.model_validate(draft.payload["plan"])
    try:
        form = compute(plan, chosen)
    except InputError as error:
        return str(error)
    if form != AnswerForm.model_validate(draft.payload["form"]):
        return "the statements give another answer"
    if plan.op == "value" and len(independent_passages(chosen[0], source)) < NEEDED:
        return f"fewer than {NEEDED} independent passages state it"
    return ""


def _q(s: Statement) -> str:
    return f"`{s.subject}`"


def _list(chosen: Sequence[Statement]) -> str:
    return "; ".join(map(_q, chosen))


def unsound(draft: Draft, source: SearchSource) -> str:
    """Why a draft is not to be trusted, or too easy: unsupported, or answered without its material, or by nobody with it."""
    if why := unsupported(draft, source):
        return why
    documents = tuple(source.open(d) for d in dict.fromkeys(p.document_id for p in draft.passages))
    guessers = (MostFrequent(_commonly_stated(source)), FromQuestion(), FromQuestion("from-question-reversed", reverse=True))
    form = AnswerForm.model_validate(draft.payload["form"])
    return filter_question(draft.prompt, form, documents, guessers, (ExtractiveReader(),)).reason


_STATED: dict[str, tuple[Statement, ...]] = {}
"""By corpus: parsing a corpus's statements again for each draft would cost more than the rest of it."""


def _commonly_stated(source: SearchSource) -> tuple[Statement, ...]:
    """Statements that a reader of the corpus would remember: those of the documents that its commonest wordings find."""
    if source.content_hash not in _STATED:
        queries = ("added in version", "first released", "introduced in", "developed by", "written by")
        found = dict.fromkeys(hit.document_id for query in queries for hit in source.search(query, 40))
        _STATED[source.content_hash] = tuple(s for document_id in found for s in statements(source.open(document_id)))
    return _STATED[source.content_hash]


KNOWLEDGE = KindSpec("knowledge", "search", "general", (1, 2, 3), draft, unsound)
