"""Knowledge and research tasks: statements, support, plans, soundness in the gate, and the filter of answerers."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from environments.answers.form import AnswerForm
from environments.errors import InputError
from environments.policies.openai import OpenAIChatPolicy
from environments.policies.scripted import ScriptedPolicy
from environments.protocols import Document
from environments.resources import Resources
from environments.task import Message
from environments.vault import Vault
from tasks.kinds.draft import Draft, KindSpec, Material
from tasks.kinds.knowledge.answerers import ExtractiveReader, FromQuestion, MostFrequent, PolicyAnswerer, filter_question
from tasks.kinds.knowledge.questions import KNOWLEDGE, rendered
from tasks.kinds.knowledge.statements import Statement, statements
from tasks.kinds.knowledge.support import independent_passages, near_copy
from tasks.kinds.research import RESEARCH
from tests.environments.policies.chat_server import Answer, completion, ok, serve
from tests.tasks.kinds.knowledge_play import DOCUMENTS, SHELF, Shelf, assert_sound, material

KNOWN = tuple(s for d in DOCUMENTS for s in statements(d))


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    with Resources(Vault(Path(tmp_path_factory.mktemp("knowledge")) / "vault")) as made:
        yield made


def drafts(kind: KindSpec, level: int, *ids: str, count: int = 6) -> list[Draft]:
    found = (kind.draft(random.Random(seed), material(*ids), level) for seed in range(count))
    return [d for d in found if d is not None]


@pytest.mark.parametrize("kind", [KNOWLEDGE, RESEARCH], ids=lambda k: k.name)
@pytest.mark.parametrize("level", [1, 2, 3])
def test_drafts_are_supported_sound_and_decided_by_their_seed(kind: KindSpec, level: int, resources: Resources) -> None:
    made = drafts(kind, level)
    assert made == drafts(kind, level)
    assert len({d.prompt for d in made}) > 1
    assert kind.check is not None
    said = [kind.check(draft, SHELF) for draft in made]
    assert "" in said
    assert all(why == "" or why.endswith("answers it without the material") for why in said)  # a guess is easy on so small a shelf
    for draft in made:
        assert_sound(draft, resources)


def test_every_plan_occurs() -> None:
    seen = {d.payload["plan"]["op"] for level in (1, 2, 3) for d in drafts(KNOWLEDGE, level, "d00", "x1", "d02", count=40)}
    assert seen == {"value", "hop", "gap", "order", "first", "last", "before", "count_before"}


def test_a_single_fact_needs_two_independent_passages() -> None:
    (lonely,) = (s for s in statements(SHELF.open("d09")) if s.relation == "introduced")
    assert len(independent_passages(lonely, SHELF)) == 1
    assert drafts(KNOWLEDGE, 1, "d09") == []
    draft = drafts(KNOWLEDGE, 1)[0]
    assert len({p.document_id for p in draft.passages}) > 1
    alone = Shelf(tuple(d for d in DOCUMENTS if d.source != "history"))
    assert KNOWLEDGE.check is not None
    assert "independent" in KNOWLEDGE.check(draft, alone)


def test_a_near_copy_is_no_second_passage() -> None:
    original = SHELF.open("d09")
    copy = Document("z", "Mirror", "Juno is a programming language developed by Jo Kerr in 1995 for numerical work.", "mirror", "MIT")
    (said,) = (s for s in statements(original) if s.relation == "introduced")
    assert near_copy(original.text, copy.text)
    assert len(independent_passages(said, Shelf((*DOCUMENTS, copy)))) == 1


@pytest.mark.parametrize("level", [1, 2, 3])
def test_a_changed_document_or_answer_is_found_out(level: int) -> None:
    assert KNOWLEDGE.check is not None
    for draft in drafts(KNOWLEDGE, level):
        chosen = next(p for p in draft.passages if isinstance(p, Statement))
        other = Shelf(tuple(replace(d, text="Nothing.") if d.document_id == chosen.document_id else d for d in DOCUMENTS))
        assert "does not state" in KNOWLEDGE.check(draft, other)
        form = dict(draft.payload["form"], values=[["1066"]], shape="one")
        assert KNOWLEDGE.check(replace(draft, payload={**draft.payload, "form": form}), SHELF) == "the statements give another answer"


def test_a_claim_whose_passage_says_otherwise_is_found_out() -> None:
    assert RESEARCH.check is not None
    for draft in drafts(RESEARCH, 1):
        claims = [dict(c) for c in draft.payload["claims"]]
        claims[0]["truth"] = not claims[0]["truth"]
        payload = {"facts": [c["truth"] for c in claims], "claims": claims}
        assert "otherwise" in RESEARCH.check(replace(draft, payload=payload), SHELF)
        assert {True, False} == set(draft.payload["facts"])


@pytest.mark.parametrize("kind", [KNOWLEDGE, RESEARCH], ids=lambda k: k.name)
def test_without_support_there_is_no_draft(kind: KindSpec) -> None:
    empty = Material(("n",), ("n",), (Document("q", "Q", "Nothing is known.", "s", "MIT"),), Shelf(()))
    assert all(kind.draft(random.Random(0), m, level) is None for m in (empty, Material(("n",), ("n",), ())) for level in kind.levels)


def test_the_filter_keeps_what_needs_the_material() -> None:
    without = (MostFrequent(KNOWN), FromQuestion(), FromQuestion("reversed", reverse=True))
    kept = 0
    for level in (1, 2, 3):
        for draft in drafts(KNOWLEDGE, level, "d00", "x1", "d02"):
            form = AnswerForm.model_validate(draft.payload["form"])
            documents = [SHELF.open(p.document_id) for p in draft.passages]
            said = filter_question(draft.prompt, form, documents, without, (ExtractiveReader(),))
            assert said.answers
            assert said.accepted == (said.reason == "")
            kept += said.accepted
            blind = filter_question(draft.prompt, form, (), without, (ExtractiveReader(),))
            assert not blind.accepted
    assert kept >= 12


def test_the_filter_rejects_what_is_known_or_not_found_and_says_who() -> None:
    form = AnswerForm(kind="date", values=(("1961",),))
    knows = PolicyAnswerer(ScriptedPolicy(Message(role="assistant", content="I know it.\nAnswer: 1961")), "knows")
    said = filter_question("In which year was `Alfa` introduced?", form, (), (FromQuestion(), knows), (ExtractiveReader(),))
    assert (said.accepted, said.reason) == (False, "knows answers it without the material")
    assert said.answers[-1] == ("knows", "I know it.\nAnswer: 1961")
    said = filter_question(
        "In which year was `Zulu` introduced?", form, DOCUMENTS, (FromQuestion(), FromQuestion("b")), (ExtractiveReader(),)
    )
    assert said.reason == "nobody answers it with the material"
    with pytest.raises(InputError):
        filter_question("?", form, (), (FromQuestion(),), (ExtractiveReader(),))


def test_an_answer_in_prose_or_with_another_spelling_passes() -> None:
    for draft in drafts(KNOWLEDGE, 2):
        form = AnswerForm.model_validate(draft.payload["form"])
        assert form.score(rendered(form))[0] == 1
        assert form.score(rendered(form) + "1")[0] < 1


def test_an_endpoint_answers_with_the_material_only() -> None:
    """A real HTTP policy against a scripted server that reads the documents it is sent."""

    def answer(request: dict[str, Any]) -> Answer:
        asked = request["messages"][-1]["content"]
        found = re.search(r"Ada Byrne in (\d{4})", asked)
        return ok(completion({"role": "assistant", "content": f"Answer: {found.group(1)}" if found else "I do not know."}))

    with serve(answer) as server:
        reader = PolicyAnswerer(OpenAIChatPolicy(server.url, "m", retries=0), "endpoint")
        form = AnswerForm(kind="date", values=(("1961",),))
        question = "In which year was `Alfa` introduced?"
        said = filter_question(question, form, [SHELF.open("d00")], (reader, FromQuestion()), (reader,))
        assert said.accepted
        assert said.answers[0] == ("endpoint", "I do not know.")
        assert said.answers[-1] == ("endpoint+material", "Answer: 1961")
