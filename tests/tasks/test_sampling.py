"""Draws: the target distribution, every node in its turn, and no document in two branches."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from environments.protocols import Document, Hit
from environments.task import DOMAINS
from kg import Concept, ConceptGraph
from tasks.distribution import Cell
from tasks.facts import askable, defaults
from tasks.kinds import KINDS
from tasks.node_sets import Shape
from tasks.sampling import Draw, Sampler, SynthesisConfig, retrieve, sample, targets
from tests.tasks.real_material import corpus, graph

CONFIG = SynthesisConfig(tasks=dict.fromkeys(DOMAINS, 40))


@pytest.fixture(scope="module")
def concepts() -> ConceptGraph:
    return graph()


@pytest.fixture(scope="module")
def draws(concepts: ConceptGraph) -> list[Draw]:
    return sample(concepts, corpus(), CONFIG, seed=3)


def test_each_domain_meets_its_target_in_equal_parts_by_type_and_level(draws: list[Draw]) -> None:
    by_domain = Counter(KINDS[d.kind].domain for d in draws)
    assert by_domain == dict.fromkeys(DOMAINS, 40)
    for domain in DOMAINS:
        cells = Counter((d.kind, d.level) for d in draws if KINDS[d.kind].domain == domain)
        expected = {(k.name, level) for k in KINDS.values() if k.default and k.domain == domain for level in k.levels}
        assert set(cells) == expected
        assert max(cells.values()) - min(cells.values()) <= 1


def test_targets_and_levels_are_configurable(concepts: ConceptGraph) -> None:
    config = SynthesisConfig(tasks={"general": 7, "agent": 0, "coding": 3}, levels=(1,))
    found = sample(concepts, corpus(), config, seed=0)
    assert Counter(KINDS[d.kind].domain for d in found) == {"general": 7, "coding": 3}
    assert {d.level for d in found} == {1}


def test_nodes_not_covered_yet_come_first(draws: list[Draw]) -> None:
    """Within a type and level no node is drawn again before every able one was."""
    cells: dict[tuple[str, int], list[Draw]] = defaultdict(list)
    for draw in draws:
        cells[draw.kind, draw.level].append(draw)
    for found in cells.values():
        counts = Counter(d.node for d in found)
        assert max(counts.values()) - min(counts.values()) <= 1
        first = [d.node for d in found[: len(counts)]]
        assert len(set(first)) == len(first)


def test_every_node_with_material_is_covered(concepts: ConceptGraph, draws: list[Draw]) -> None:
    assert {d.node for d in draws} == set(retrieve(concepts, corpus(), CONFIG))


def test_draws_name_one_task_each_and_depend_on_the_seed_alone(concepts: ConceptGraph, draws: list[Draw]) -> None:
    assert len({(d.node, d.kind, d.level, d.index) for d in draws}) == len(draws)
    assert sample(concepts, corpus(), CONFIG, seed=3) == draws
    assert sample(graph(), corpus(), CONFIG, seed=3) == draws
    assert sample(concepts, corpus(), CONFIG, seed=4) != draws


def test_no_document_is_used_by_two_branches(concepts: ConceptGraph, draws: list[Draw]) -> None:
    branches: dict[str, set[str]] = defaultdict(set)
    for draw in draws:
        for document_id in draw.documents:
            branches[document_id].add(concepts.branch_of(draw.node))
    assert len(branches) > 20
    assert all(len(b) == 1 for b in branches.values())
    # It was at stake: nodes of different branches quote the same documents.
    quoted: dict[str, set[str]] = defaultdict(set)
    for concept in concepts:
        for passage in concept.evidence:
            quoted[passage.document_id].add(concepts.branch_of(concept.concept_id))
    assert any(len(b) > 1 for b in quoted.values())


def test_documents_are_few_usable_and_the_nodes_own_come_first(concepts: ConceptGraph) -> None:
    config = SynthesisConfig(documents=2)
    found = retrieve(concepts, corpus(), config)
    for node, documents in found.items():
        assert 0 < len(documents) <= 2
        assert all(askable(defaults(corpus().open(d))) for d in documents)
        own = [p.document_id for p in concepts.concept(node).evidence]
        if set(own) & set(documents):
            assert documents[0] in own


class _Silent:
    """A corpus that finds nothing and opens nothing."""

    content_hash = "silent"

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        return []

    def open(self, document_id: str) -> Document:
        raise KeyError(document_id)


def test_a_graph_without_material_gives_no_draws(concepts: ConceptGraph) -> None:
    assert retrieve(concepts, _Silent(), CONFIG) == {}
    assert sample(concepts, _Silent(), CONFIG, seed=0) == []
    assert sample(ConceptGraph(), corpus(), CONFIG, seed=0) == []
    lonely = ConceptGraph()
    lonely.restore_node(Concept("s", "zzzz qqqq", seed=True))
    assert sample(lonely, corpus(), CONFIG, seed=0) == []


@pytest.mark.parametrize("shape", ["siblings", "chain", "cross"])
def test_sets_bring_the_material_of_all_their_nodes(concepts: ConceptGraph, shape: Shape) -> None:
    config = SynthesisConfig(tasks={"general": 0, "agent": 9, "coding": 0}, shapes={shape: 1.0}, documents=4)
    sampler = Sampler(concepts, corpus(), config, seed=2)
    found, lacking = sampler.draw(targets(config))
    assert len(found) == 9
    assert not lacking
    for draw in found:
        assert draw.related
        for node in (draw.node, *draw.related):
            assert set(sampler.documents[node]) & set(draw.documents)
        apart = {concepts.branch_of(node) for node in (draw.node, *draw.related)}
        assert len(apart) == 2 if shape == "cross" else len(apart) <= 2


def test_no_node_outside_the_chosen_levels_is_drawn_and_what_is_lacking_is_said(concepts: ConceptGraph) -> None:
    levels = concepts.levels()
    config = SynthesisConfig(tasks=dict.fromkeys(DOMAINS, 12), node_levels=(2,), shapes={"single": 1, "siblings": 1, "chain": 1})
    found, lacking = Sampler(concepts, corpus(), config, seed=0).draw(targets(config))
    assert found
    assert {levels[node] for draw in found for node in (draw.node, *draw.related)} == {2}
    assert {one.cell.shape for one in lacking} == {"chain"}, "an ancestor is never at its descendant's level"
    assert {one.reason for one in lacking} == {"no node with material has others for a set of shape chain"}
    assert sum(one.wanted for one in lacking) + len(found) == 36
    nowhere = SynthesisConfig(node_levels=(9,))
    found, lacking = Sampler(concepts, corpus(), nowhere, seed=0).draw(targets(nowhere))
    assert found == []
    assert {one.reason for one in lacking} == {"no node at the chosen levels has material"}
    assert sum(one.wanted for one in lacking) == sum(nowhere.tasks.values())


def test_a_second_drawing_goes_on_where_the_first_ended(concepts: ConceptGraph) -> None:
    cell = Cell("settings", 1)
    whole = Sampler(concepts, corpus(), CONFIG, seed=5).draw({cell: 30})[0]
    sampler = Sampler(concepts, corpus(), CONFIG, seed=5)
    assert sampler.draw({cell: 11})[0] + sampler.draw({cell: 19})[0] == whole
    assert sampler.draw({cell: 0}) == ([], [])


def test_a_cell_begins_with_nodes_that_other_cells_left_uncovered(concepts: ConceptGraph) -> None:
    sampler = Sampler(concepts, corpus(), CONFIG, seed=6)
    able = {d.node for d in Sampler(concepts, corpus(), CONFIG, seed=6).draw({Cell("settings", 1): 100})[0]}
    half = len(able) // 2
    first = {d.node for d in sampler.draw({Cell("lookup", 1): half})[0]}
    second = [d.node for d in sampler.draw({Cell("settings", 1): len(able)})[0]]
    fresh = len(able - first)
    assert fresh
    assert set(second[:fresh]) == able - first
