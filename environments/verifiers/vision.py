"""`vision`: the rewards that the Kimi K2.5 report names for pictures, and paths that are walked.

- `count`: absolute difference, 1 - |n - truth| / truth, at least 0.
- `ocr`: normalised edit distance, 1 - Levenshtein / longer length.
- `grounding`: F1 with soft IoU: boxes are matched one to one for the largest sum of IoU, which stands for the true positives.
- `points`: as grounding, with exp(-d^2 / (2 sigma^2)) of the distance d in pixels for the IoU.
- `values`: mean of 1 - |value - truth| / slack, each at least 0.
- `path`: moves U, D, L, R are walked on the hidden grid; shortest length / length when they reach the goal, else 0.

The report gives no formulas; these are our reading. The reward is a part of the verdict; it passes from `enough` on.
"""

from __future__ import annotations

import copy
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.optimize import linear_sum_assignment

from environments.errors import VerifierError
from environments.protocols import Outcome
from environments.task import TaskSpec
from environments.verdict import Verdict
from environments.verifiers.fixture import VerifierFixture

MAX_CHARS = 4_000
MAX_ITEMS = 100
Box = Sequence[float]


def count_reward(given: int, truth: int) -> float:
    """Absolute difference, relative to a truth of at least 1."""
    return max(0.0, 1.0 - abs(given - truth) / truth)


def ocr_reward(given: str, truth: str) -> float:
    """1 for equal texts, 0 where nothing is common; blanks count as one."""
    given, truth = " ".join(given.split()), " ".join(truth.split())
    if not given and not truth:
        return 1.0
    row = list(range(len(truth) + 1))
    for i, a in enumerate(given, 1):
        above, row[0] = row[0], i
        for j, b in enumerate(truth, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (a != b))
    return 1.0 - row[-1] / max(len(given), len(truth))


def iou(a: Box, b: Box) -> float:
    """Intersection over union of two boxes (left, top, right, bottom)."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(0.0, width) * max(0.0, height)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union > 0 else 0.0


def soft_f1(given: Sequence[Box], truth: Sequence[Box], alike: Callable[[Box, Box], float]) -> float:
    """F1 whose true positives are the largest sum of likeness over one-to-one matches."""
    if not given or not truth:
        return float(not given and not truth)
    likeness = np.array([[alike(g, t) for t in truth] for g in given])
    rows, columns = linear_sum_assignment(likeness, maximize=True)
    return float(min(1.0, 2 * likeness[rows, columns].sum() / (len(given) + len(truth))))


def grounding_reward(given: Sequence[Box], truth: Sequence[Box]) -> float:
    """Soft F1 of boxes."""
    return soft_f1(given, truth, iou)


def points_reward(given: Sequence[Box], truth: Sequence[Box], sigma: float) -> float:
    """Soft F1 of points; `sigma` in pixels."""
    return soft_f1(given, truth, lambda a, b: math.exp(-((a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2) / (2 * sigma * sigma)))


def values_reward(given: Sequence[float], truth: Sequence[float], slack: float) -> float:
    """Mean closeness in order; another number of values gives 0."""
    if len(given) != len(truth) or not truth:
        return 0.0
    return sum(max(0.0, 1.0 - abs(g - t) / slack) for g, t in zip(given, truth, strict=True)) / len(truth)


def path_reward(moves: str, grid: Sequence[str], shortest: int) -> float:
    """Walk from S to G over a grid whose walls are #."""
    at = next((r, row.index("S")) for r, row in enumerate(grid) if "S" in row)
    for move in moves:
        dr, dc = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}[move]
        at = at[0] + dr, at[1] + dc
        if not (0 <= at[0] < len(grid) and 0 <= at[1] < len(grid[0])) or grid[at[0]][at[1]] == "#":
            return 0.0
    return min(1.0, shortest / len(moves)) if moves and grid[at[0]][at[1]] == "G" else 0.0


def _tuples(text: str, width: int, boxes: bool = False) -> list[list[float]] | None:
    """A JSON list of at most MAX_ITEMS lists of `width` finite numbers."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or len(found) > MAX_ITEMS:
        return None
    for item in found:
        if not isinstance(item, list) or len(item) != width:
            return None
        if not all(isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) < 1e6 for x in item):
            return None
        if boxes and not (item[0] <= item[2] and item[1] <= item[3]):
            return None
    return found


def reward_of(text: str, payload: dict[str, Any]) -> float:
    """The reward of an answer; 0 for what does not read as one."""
    kind, truth, text = payload["reward"], payload["truth"], text.strip()
    if kind == "count":
        return count_reward(int(text), truth) if re.fullmatch(r"\d{1,6}", text) else 0.0
    if kind == "ocr":
        return ocr_reward(text, truth) if len(text) <= 4 * len(truth) else 0.0
    if kind in ("grounding", "points"):
        items = _tuples(text, 4 if kind == "grounding" else 2, kind == "grounding")
        if items is None:
            return 0.0
        return grounding_reward(items, truth) if kind == "grounding" else points_reward(items, truth, payload["sigma"])
    if kind == "values":
        items = _tuples(f"[[{text}]]", len(truth))
        return values_reward(items[0], truth, payload["slack"]) if items else 0.0
    if kind == "path":
        return path_reward(text, truth, payload["shortest"]) if re.fullmatch(r"[UDLR]{1,500}", text) else 0.0
    raise VerifierError(f"there is no vision reward {kind!r:.40}", "use count, ocr, grounding, points, values or path")


class VisionVerifier:
    """Payload: `{"reward", "truth", "enough", ...}`: `sigma` of points, `slack` of values, `shortest` of a path."""

    kind: str = "vision"
    version: int = 1
    bounded: ClassVar[bool] = True

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict:
        """Raises VerifierError when the payload lacks reward, truth or enough."""
        if not isinstance(payload, dict) or not payload.get("truth") or not {"reward", "enough"} <= payload.keys():
            raise VerifierError("the payload of vision lacks reward, truth or enough", "synthesise the task again")
        text = outcome.submission
        reward = reward_of(text, payload) if isinstance(text, str) and len(text) <= MAX_CHARS else 0.0
        score = 1.0 if reward >= payload["enough"] else min(reward, 1 - 1e-9)
        return Verdict.decide(score, parts={payload["reward"]: reward}, evidence={"submitted": str(text)[:80]})

    def mutations(self, payload: Any) -> list[tuple[str, Any]]:
        """Other truths: larger, doubled, one item off."""
        truth, kind = payload["truth"], payload["reward"]
        if kind == "count":
            others: dict[str, Any] = {"one_more": truth + 1, "double": truth * 2, "one": 1 if truth > 1 else 3}
        elif kind == "ocr":
            others = {"changed": f"{truth}~~", "reversed": f"~{truth[::-1]}", "constant": "x" * len(truth)}
        elif kind == "path":
            walls = [row.replace("S", "@").replace("G", "S").replace("@", "G") for row in truth]
            others = {"turned": walls, "walled": ["S" + "#" * 8, "#" * 8 + "G"], "far": ["S" + "." * 400 + "G"]}
        elif kind == "values":
            others = {"shifted": [v + 2 * payload["slack"] for v in truth], "longer": [*truth, 1.0], "zero": [-1e5] * len(truth)}
        else:
            others = {
                "shifted": [[x + 2_000 for x in item] for item in truth],
                "one": [[-5.0] * len(truth[0])],
                "more": truth + [[9e3] * len(truth[0])] * 3,
            }
        return [(name, {**copy.deepcopy(payload), "truth": other}) for name, other in others.items()]

    def wrong_outcomes(self, outcome: Outcome, payload: Any) -> list[tuple[str, Outcome]]:
        """Nothing, a sentence around the answer, and twice the answer."""
        text = outcome.submission or ""
        texts = {"nothing": None, "sentence": f"The answer, as far as I can see, is {text}.", "twice": f"{text}{text}", "empty": ""}
        return [(name, Outcome(said, {}, outcome.tool_calls)) for name, said in texts.items()]


_COUNT: dict[str, Any] = {"reward": "count", "truth": 10, "enough": 1.0}
_BOXES: dict[str, Any] = {"reward": "grounding", "truth": [[0, 0, 10, 10], [20, 0, 30, 10]], "enough": 0.9}
FIXTURES: tuple[VerifierFixture, ...] = (
    VerifierFixture("count", "full", _COUNT, Outcome("10"), "pass", 1.0),
    VerifierFixture("boxes in another order", "full", _BOXES, Outcome("[[20,0,30,10],[0,0,10,10]]"), "pass", 1.0),
    VerifierFixture("one box", "partial", _BOXES, Outcome("[[0,0,10,10]]"), "fail", 2 / 3),
    VerifierFixture("off by two", "partial", _COUNT, Outcome("12"), "fail", 0.8),
    VerifierFixture("far off", "zero", _COUNT, Outcome("500"), "fail", 0.0),
    VerifierFixture("nothing", "zero", _COUNT, Outcome(None), "fail", 0.0),
    VerifierFixture("not boxes", "malformed", _BOXES, Outcome("[[0,0,NaN,10]]"), "fail", 0.0),
    VerifierFixture("payload of no reward", "malformed", {**_COUNT, "reward": "x"}, Outcome("10"), "no-verdict", None),
    VerifierFixture("repeated", "determinism", _COUNT, Outcome("10"), "pass", 1.0, runs=5),
)
