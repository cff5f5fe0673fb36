"""From draws to candidates over real documents: checked by replay, repeatable, and refused with a reason."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from environments.harness.config import LAPTOP
from environments.protocols import Document, Hit, SearchSource
from environments.resources import Resources
from environments.task import DOMAINS
from environments.vault import Vault
from tasks.demonstrations import load
from tasks.kinds import KINDS, Material
from tasks.kinds.lookup import unreachable
from tasks.sampling import Draw, SynthesisConfig, sample
from tasks.synthesis import Candidate, synthesize
from tests.tasks.real_material import corpus, graph
from tests.tasks.real_material import resources as make_resources
from training.demonstrations import replay

GRAPH = graph()


@pytest.fixture(scope="module")
def draws() -> list[Draw]:
    return sample(GRAPH, corpus(), SynthesisConfig(tasks=dict.fromkeys(DOMAINS, 12)), seed=1)


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    with make_resources(tmp_path_factory.mktemp("synthesis")) as made:
        yield made


@pytest.fixture(scope="module")
def candidates(draws: list[Draw], resources: Resources) -> list[Candidate]:
    found = [synthesize(d, GRAPH, corpus(), resources.vault, "run", seed=1) for d in draws]
    made = [c for c in found if c is not None]
    assert len(made) >= 0.9 * len(draws)
    return made


@pytest.mark.sandbox
def test_stored_demonstrations_of_accepted_candidates_pass(candidates: list[Candidate], resources: Resources) -> None:
    tasks = {c.task.task_id: c.task for c in candidates if not c.reject_reason}
    stored = dict(load(resources.vault, tasks))
    assert set(stored) == set(tasks)
    for task_id, demonstrations in stored.items():
        assert resources.vault.get_reference(tasks[task_id].reference_sha256) == list(demonstrations[0].messages)
        for demonstration in demonstrations:  # quick ways of working are right in quiet settings stores only
            passed = replay(tasks[task_id], demonstration, resources, LAPTOP) is not None
            assert passed or (tasks[task_id].kind, demonstration.style) in {("settings", "none"), ("settings", "short")}, demonstration
    assert {t.domain for t in tasks.values()} == set(DOMAINS)


def test_most_candidates_are_accepted_and_refusals_are_known(candidates: list[Candidate]) -> None:
    reasons = [c.reject_reason for c in candidates if c.reject_reason]
    assert len(reasons) <= len(candidates) // 3
    assert set(reasons) <= {"search does not find the document first", "the document's excerpt does not show the value"}


def test_a_candidate_names_where_it_comes_from(candidates: list[Candidate], draws: list[Draw]) -> None:
    drawn = {d.node: set(d.documents) for d in draws}
    for candidate in candidates:
        provenance = candidate.task.provenance
        (node,) = provenance.node_ids
        assert provenance.branch == GRAPH.branch_of(node)
        assert set(provenance.document_ids) <= drawn[node]
        assert set(provenance.material_hashes) == {m.material_sha256 for m in candidate.materials}
        for material in candidate.materials:
            assert material.material_sha256 == hashlib.sha256(material.passage.encode()).hexdigest()
            assert material.document_id in provenance.document_ids
            assert material.passage in " ".join(corpus().open(material.document_id).text.split())
            assert material.licence
            assert material.licence in candidate.task.licence


def test_nothing_hidden_is_in_a_task(candidates: list[Candidate], resources: Resources) -> None:
    for candidate in candidates:
        shown = candidate.task.model_dump_json()
        assert "demonstrations" not in shown
        if candidate.task.family == "coding":
            hidden = resources.vault.get(candidate.task.hidden_verifier.sha256)
            assert str(hidden["outputs"]) not in shown
            assert not any(f'"result":"{o}"' in shown for o in hidden["outputs"])


def test_the_same_draw_gives_the_same_task_and_another_seed_another(candidates: list[Candidate], draws: list[Draw], tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    again = [c for d in draws[:12] if (c := synthesize(d, graph(), corpus(), vault, "run", seed=1)) is not None]
    assert [c.task.task_id for c in again] == [c.task.task_id for c in candidates[: len(again)]]
    other = [c for d in draws[:12] if (c := synthesize(d, GRAPH, corpus(), vault, "run", seed=2)) is not None]
    assert [c.task.task_id for c in other] != [c.task.task_id for c in again]


@dataclass
class Twisted:
    """The corpus, seen through a fault."""

    source: SearchSource
    fault: str
    content_hash: str = "twisted"

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        hits = self.source.search(query, limit)
        return [] if self.fault == "hidden" or len(hits) < 2 else hits[::-1]

    def open(self, document_id: str) -> Document:
        return self.source.open(document_id)


@pytest.mark.parametrize("fault", ["hidden", "second"])
def test_a_question_whose_document_cannot_be_found_is_refused(
    fault: str, draws: list[Draw], candidates: list[Candidate], tmp_path: Path
) -> None:
    accepted = {c.task.task_id for c in candidates if not c.reject_reason}
    searching = [d for d in draws if KINDS[d.kind].family == "search"]
    seen = 0
    for draw in searching:
        candidate = synthesize(draw, GRAPH, Twisted(corpus(), fault), Vault(tmp_path), "run", seed=1)
        if candidate is not None and candidate.task.task_id in accepted:
            assert candidate.reject_reason == "search does not find the document first"
            seen += 1
    assert seen


def test_a_question_whose_excerpt_does_not_show_the_value_is_refused(draws: list[Draw], monkeypatch: pytest.MonkeyPatch) -> None:
    """What the passage shows while drafting is not what the tool shows afterwards."""
    lookup = next(d for d in draws if d.kind == "lookup")
    material = Material((lookup.node,), ("",), tuple(corpus().open(d) for d in lookup.documents), corpus())
    draft = next(
        d for i in range(50) if (d := KINDS["lookup"].draft(random.Random(i), material, lookup.level)) and not unreachable(d, corpus())
    )
    monkeypatch.setattr("tasks.kinds.lookup.excerpt", lambda *_: "not found")
    assert unreachable(draft, corpus()) == "the document's excerpt does not show the value"


def test_a_narrow_view_leaves_nothing_to_ask(draws: list[Draw], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.families.search.SearchEnvironment.WINDOW_CHARS", 2)
    made = [synthesize(draw, GRAPH, corpus(), Vault(tmp_path), "run", seed=1) for draw in draws if KINDS[draw.kind].family == "search"]
    assert made
    assert not any(made)


def test_a_node_whose_documents_state_nothing_gives_no_task(tmp_path: Path) -> None:
    draw = Draw(node="b0n0", kind=next(iter(KINDS)), level=1, index=0, documents=())
    assert synthesize(draw, GRAPH, corpus(), Vault(tmp_path), "run", seed=1) is None
    assert list(tmp_path.iterdir()) == []
