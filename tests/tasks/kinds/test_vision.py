"""Vision tasks: pixels give the answer, every reward equals an independent computation and keeps its bounds, exploits fail."""

from __future__ import annotations

import base64
import functools
import io
import itertools
import math
import random
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from environments.families import make_environment
from environments.resources import Resources
from environments.task import ToolCall
from environments.verifiers import judge_payload
from environments.verifiers import vision as judge
from environments.verifiers.vision import FIXTURES, VisionVerifier
from tasks.kinds.draft import Draft
from tasks.kinds.vision import draft
from tasks.kinds.vision.pictures import PICTURES
from tests.tasks.kinds import play

BOXES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 20), st.integers(1, 20)).map(
        lambda b: [b[0], b[1], b[0] + b[2], b[1] + b[3]]
    ),
    max_size=4,
)
POINTS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(list), max_size=4)


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    with play.resources(tmp_path_factory.mktemp("vision")) as made:
        yield made


def made(kind: str, level: int) -> Draft:
    return next(d for seed in range(80) if (d := draft(random.Random(seed), play.MATERIAL, level, kind)) is not None)


@pytest.mark.sandbox
@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("kind", sorted(PICTURES))
def test_the_pixels_give_the_answer(kind: str, level: int, resources: Resources) -> None:
    found = made(kind, level)
    verdict = play.verdict_of(found, found.demonstrations[0].messages, resources)
    assert verdict.score == 1, verdict
    assert found == made(kind, level)


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.parametrize("kind", sorted(PICTURES))
def test_the_gate_finds_it_sound(kind: str, resources: Resources) -> None:
    play.assert_sound(made(kind, 1), resources)


@pytest.mark.sandbox
def test_crop_and_zoom_come_back_as_pictures(resources: Resources) -> None:
    found = made("small_print", 2)
    with make_environment(play.task_of(found, resources), resources) as environment:
        environment.setup()
        answer = environment.step(
            ToolCall(tool="python", arguments={"code": "from picture import load\nload().crop(10, 20, 60, 50).zoom(4)"})
        )
    assert not isinstance(answer, str)
    shown = Image.open(io.BytesIO(base64.b64decode(answer.images[0].data))).convert("RGB")
    whole = Image.open(io.BytesIO(base64.b64decode(found.initial_state.files["picture.png.b64"])))
    assert shown.tobytes() == whole.crop((10, 20, 60, 50)).resize((200, 120), Image.Resampling.NEAREST).tobytes()


def by_trying_all(given_items: list[list[int]], truth: list[list[int]], alike: Callable[[list[int], list[int]], float]) -> float:
    if not given_items or not truth:
        return float(not given_items and not truth)
    few, many = sorted((given_items, truth), key=len)
    best = max(sum(alike(a, b) for a, b in zip(few, chosen, strict=True)) for chosen in itertools.permutations(many, len(few)))
    precision, recall = best / len(given_items), best / len(truth)
    return 2 * precision * recall / (precision + recall) if best else 0.0


def iou_by_cells(a: list[int], b: list[int]) -> float:
    left = {(x, y) for x in range(a[0], a[2]) for y in range(a[1], a[3])}
    right = {(x, y) for x in range(b[0], b[2]) for y in range(b[1], b[3])}
    return len(left & right) / len(left | right)


@settings(max_examples=40, deadline=None)
@given(BOXES, BOXES)
def test_grounding_reward(guess: list[list[int]], truth: list[list[int]]) -> None:
    reward = judge.grounding_reward(guess, truth)
    assert reward == pytest.approx(by_trying_all(guess, truth, iou_by_cells))
    assert 0 <= reward <= 1
    assert judge.grounding_reward(truth, truth) == pytest.approx(1)
    assert judge.grounding_reward([*truth, [90, 90, 95, 95]], truth) < 1


@settings(max_examples=40, deadline=None)
@given(POINTS, POINTS, st.floats(0.5, 20))
def test_points_reward(guess: list[list[int]], truth: list[list[int]], sigma: float) -> None:
    reward = judge.points_reward(guess, truth, sigma)
    assert reward == pytest.approx(by_trying_all(guess, truth, lambda a, b: math.exp(-(math.dist(a, b) ** 2) / 2 / sigma**2)))
    assert 0 <= reward <= 1


@functools.cache
def distance(a: str, b: str) -> int:
    if not a or not b:
        return len(a or b)
    return min(distance(a[1:], b) + 1, distance(a, b[1:]) + 1, distance(a[1:], b[1:]) + (a[0] != b[0]))


@settings(max_examples=60, deadline=None)
@given(st.text("abc", max_size=7), st.text("abc", max_size=7))
def test_ocr_reward(a: str, b: str) -> None:
    reward = judge.ocr_reward(a, b)
    assert reward == pytest.approx(1 - distance(a, b) / max(len(a), len(b), 1))
    assert 0 <= reward <= 1
    assert reward == judge.ocr_reward(b, a)
    assert (reward == 1) == (a == b)


@given(st.integers(0, 10**6), st.integers(1, 500))
def test_count_reward(n: int, truth: int) -> None:
    reward = judge.count_reward(n, truth)
    assert 0 <= reward <= 1
    assert (reward == 1) == (n == truth)
    assert reward == pytest.approx(max(0, (truth - abs(n - truth)) / truth))


@given(st.lists(st.floats(-500, 500), min_size=1, max_size=5), st.floats(1, 50), st.floats(-60, 60))
def test_values_reward(truth: list[float], slack: float, off: float) -> None:
    reward = judge.values_reward([v + off for v in truth], truth, slack)
    assert reward == pytest.approx(max(0, 1 - abs(off) / slack), abs=1e-6)
    assert 0 <= reward <= 1
    assert judge.values_reward(truth[1:], truth, slack) == 0


@given(st.text("UDLR", min_size=1, max_size=12))
def test_path_reward(moves: str) -> None:
    grid = ["S.#", "..G"]
    reward = judge.path_reward(moves, grid, 3)
    at = (0, 0)
    legal = True
    for m in moves:
        at = (at[0] + (m == "D") - (m == "U"), at[1] + (m == "R") - (m == "L"))
        legal &= at in {(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)}
    assert reward == (min(1.0, 3 / len(moves)) if legal and at == (1, 2) else 0)


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda f: f"{f.case}-{f.name}")
def test_fixture(fixture: judge.VerifierFixture, resources: Resources) -> None:
    task = play.task_of(made("maze", 1), resources)
    for _ in range(fixture.runs):
        verdict = judge_payload(task, fixture.outcome, fixture.payload, resources)
        assert (verdict.status, verdict.score) == (
            fixture.status,
            None if fixture.score is None else pytest.approx(fixture.score, abs=1e-8),
        )


def test_fixture_fails_every_mutation(resources: Resources) -> None:
    task, full, verifier = play.task_of(made("maze", 1), resources), FIXTURES[0], VisionVerifier()
    for name, payload in verifier.mutations(full.payload):
        assert verifier.verify(task, full.outcome, payload).status == "fail", name
    for name, outcome in verifier.wrong_outcomes(full.outcome, full.payload):
        assert verifier.verify(task, outcome, full.payload).status == "fail", name


def test_garbage_is_no_answer() -> None:
    for text in ("", "[", "[[1]]", "[" * 5_000, "[[1e999, 0]]", "[[true, 1]]", "[[5,5,1,1]]", "-3", "\ufffd", "[[1,2]]" * 50):
        for payload in ({"reward": "grounding", "truth": [[0, 0, 9, 9]]}, {"reward": "points", "truth": [[900, 900]], "sigma": 2.0}):
            assert judge.reward_of(text, payload) == 0
