"""Splits never cut a branch, never leak, and never lose a task."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.errors import ConfigError
from tasks.split import SPLITS, split_tasks
from tests.tasks.specs import make_task


def number_answer(task):
    """A key of its own for each task: the number in its prompt."""
    return {task.prompt[0].content}


def test_shares_are_met_for_every_domain(tasks):
    result = split_tasks(tasks, number_answer, shares={"train": 0.5, "validation": 0.25, "heldout": 0.25}, seed=3)
    for domain in ("general", "agent", "coding"):
        got = [sum(t.domain == domain for t in result.by_split()[s]) for s in SPLITS]
        assert got == [10, 5, 5]
    assert not result.dropped


def test_every_domain_reaches_every_split_when_branches_are_uneven():
    sizes = [40, 9, 7, 5, 3, 2]
    uneven = [
        make_task(100 * d + 10_000 * b + i, domain=domain, branch=f"{domain}{b}")
        for d, domain in enumerate(("general", "coding"))
        for b, n in enumerate(sizes)
        for i in range(n)
    ]
    result = split_tasks(uneven, number_answer)
    for domain in ("general", "coding"):
        shares = {s: sum(t.domain == domain for t in result.by_split()[s]) / 66 for s in SPLITS}
        assert shares["train"] == pytest.approx(0.8, abs=0.05)
        assert shares["validation"] > 0.03
        assert shares["heldout"] > 0.06


def test_order_does_not_matter_and_the_seed_does(tasks):
    first = split_tasks(tasks, number_answer, seed=1)
    assert split_tasks(tasks[::-1], number_answer, seed=1) == first
    assert any(split_tasks(tasks, number_answer, seed=s).branches != first.branches for s in range(2, 6))


HALVES = {"train": 0.5, "validation": 0.0, "heldout": 0.5}


def test_reasons_name_what_leaked_and_where():
    a = [make_task(i, branch="a") for i in range(4)]
    leaking = [make_task(10, branch="b", materials=["m1"]), make_task(11, branch="b", documents=["d2"])]
    b = [*leaking, make_task(12, branch="b"), make_task(13, branch="b")]
    answers = {a[3].task_id: {"487"}, b[2].task_id: {"487"}}
    # Conflicts make one split cheaper, but two branches and two wanted splits leave no choice: an empty split costs more.
    result = split_tasks(a + b, lambda t: answers.get(t.task_id, set()), shares=HALVES, protect_train=True)
    assert len(result.heldout) == 1
    assert result.branches[result.heldout[0].provenance.branch] == "heldout"
    assert sorted(d.reason.split(":")[0] for d in result.dropped) == ["answer", "document", "passage"]
    train_ids = {t.task_id for t in result.train}
    assert all(d.split == "heldout" and d.reason.split("train task ")[1] in train_ids for d in result.dropped)


def test_the_cheaper_side_of_a_conflict_goes():
    """One held-out task against many training tasks goes; many held-out tasks against one training task stay."""
    popular = [make_task(i, branch="a", documents=["popular"]) for i in range(30)]
    rare = [make_task(100, branch="a", documents=["rare"])]
    other = [make_task(200, branch="b", documents=["popular"])] + [make_task(201 + i, branch="b", documents=["rare"]) for i in range(20)]
    shares = {"train": 0.6, "validation": 0.0, "heldout": 0.4}
    result = split_tasks(popular + rare + other, lambda t: set(), shares=shares)
    assert result.branches == {"a": "train", "b": "heldout"}
    assert {d.task.task_id for d in result.dropped} == {rare[0].task_id, other[0].task_id}
    assert (len(result.train), len(result.heldout)) == (30, 20)
    kept = split_tasks(popular + rare + other, lambda t: set(), shares=shares, protect_train=True)
    assert (len(kept.train), len(kept.heldout)) == (31, 0)


def test_shared_documents_all_over_the_graph_leave_every_split_usable():
    rng = random.Random(0)
    domains = ("general", "agent", "coding")
    tasks = [
        make_task(i, domain=domains[i % 3], branch=f"b{rng.randrange(60)}", materials=[], documents=[f"d{rng.randrange(1200)}"])
        for i in range(1500)
    ]
    result = split_tasks(tasks, number_answer)
    for domain in domains:
        counts = {s: sum(t.domain == domain for t in members) for s, members in result.by_split().items()}
        assert counts["heldout"] >= 25
        assert counts["validation"] >= 15
        assert counts["train"] >= 250


def test_branches_that_share_passages_are_kept_together():
    pairs = [make_task(100 * b + i, branch=f"b{b:02d}", materials=[f"shared{b // 2}"]) for b in range(12) for i in range(5)]
    result = split_tasks(pairs, number_answer, shares={"train": 0.5, "validation": 0.0, "heldout": 0.5})
    assert len(result.dropped) <= 5, "greedy placement ignores shared passages"


def test_a_task_given_twice_is_kept_once(tasks):
    result = split_tasks([*tasks, tasks[0]], number_answer)
    assert [d.task for d in result.dropped] == [tasks[0]]
    assert "duplicate" in result.dropped[0].reason
    assert sum(len(v) for v in result.by_split().values()) == len(tasks)


@pytest.mark.parametrize("shares", [{"train": 0.5}, {"train": 1.5, "heldout": -0.5}, {"train": 0.5, "test": 0.5}, {"train": float("nan")}])
def test_bad_shares_are_named(shares, tasks):
    with pytest.raises(ConfigError, match="Fix: "):
        split_tasks(tasks, number_answer, shares=shares)


def test_no_tasks_give_empty_splits():
    assert split_tasks([], number_answer).by_split() == {"train": (), "validation": (), "heldout": ()}


names = st.integers(0, 8)
task_parts = st.tuples(
    st.sampled_from(["general", "agent", "coding"]),
    st.integers(0, 6),
    st.lists(names, max_size=2),
    st.lists(names, max_size=2),
    st.sets(st.integers(0, 9), max_size=2),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(task_parts, max_size=40), st.integers(0, 5), st.booleans(), st.booleans())
def test_nothing_leaks_and_nothing_is_lost(parts, seed, twice, protect):
    tasks, answers = [], {}
    for i, (domain, branch, materials, documents, answer) in enumerate(parts):
        task = make_task(
            i, domain=domain, branch=f"b{branch}", materials=[f"m{m}" for m in materials], documents=[f"d{d}" for d in documents]
        )
        tasks.append(task)
        answers[task.task_id] = {str(a) for a in answer}
    given_tasks = tasks + tasks[:2] if twice else tasks
    result = split_tasks(
        given_tasks,
        lambda t: answers[t.task_id],
        shares={"train": 0.6, "validation": 0.2, "heldout": 0.2},
        seed=seed,
        protect_train=protect,
    )

    ends_up = [t.task_id for s in result.by_split().values() for t in s] + [d.task.task_id for d in result.dropped]
    assert sorted(ends_up) == sorted(t.task_id for t in given_tasks)

    def facts(task):
        p = task.provenance
        return {("a", a) for a in answers[task.task_id]} | {("m", m) for m in p.material_hashes} | {("d", d) for d in p.document_ids}

    trained = set().union(*[facts(t) for t in result.train], set())
    where = {}
    for split, members in result.by_split().items():
        for task in members:
            assert where.setdefault(task.provenance.branch, split) == split, "a branch was cut"
            assert split == "train" or not facts(task) & trained
    for drop in result.dropped:
        assert drop.reason
        if not drop.reason.startswith("duplicate"):
            kept = result.train if drop.split != "train" else result.validation + result.heldout
            assert any(facts(drop.task) & facts(t) for t in kept), "dropped without need"
            assert not (protect and drop.split == "train")
