"""Audit of reasoning-gym's datasets: which of their scorers cannot be trusted, and why.

A dataset is refused when it runs the answer as code, cannot be drawn again, cannot be stored as JSON, rejects its own reference,
is slow, or when an answer that needs no work passes too often. The result for the version we pin is package data
(`reasoning_refused.toml`); `python -m tasks.kinds.reasoning_audit` writes it again.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import re
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import Any

from environments.errors import VerifierError
from environments.verifiers.reasoning_scorer import score

ENTRIES = 24
"""Instances of each dataset that an audit looks at."""
TRIVIAL_SHARE = 0.25
"""A dataset is refused when one trivial answer passes more of its instances; below that the single instance is."""
HARDEST = 3
"""Highest level that tasks are drawn at."""
SLOW_S = 2.0
"""For one draw or one score."""
CONSTANTS = (
    "",
    " ",
    "0",
    "1",
    "-1",
    "2",
    "10",
    "42",
    "100",
    "yes",
    "no",
    "Yes",
    "No",
    "True",
    "False",
    "true",
    "false",
    "A",
    "B",
    "zzz",
    "None",
    "[]",
    "{}",
    "nan",
    "inf",
)
_RUNS_CODE = re.compile(r"(?<!def )\b(?:eval|exec|parse_expr|sympify)\(")
_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?(?!\w)")


def runs_answers(dataset: str) -> bool:
    """Whether the module of a scorer of its own evaluates text as code; the base class's scorer only compares."""
    from reasoning_gym.factory import DATASETS

    cls = DATASETS[dataset][0]
    return "score_answer" in vars(cls) and _RUNS_CODE.search(inspect.getsource(sys.modules[cls.__module__])) is not None


def entry_of(dataset: str, config: dict[str, Any], seed: int) -> dict[str, Any]:
    """One instance as plain JSON: question, answer and metadata.

    Raises:
        VerifierError: it holds what JSON cannot, or has no answer.
    """
    from reasoning_gym.factory import create_dataset

    drawn = create_dataset(dataset, **{**config, "seed": seed, "size": 1})[0]
    if not isinstance(drawn.get("answer"), str) or not drawn["answer"].strip():
        raise VerifierError(f"{dataset} gives no answer as text", "refuse the dataset")
    try:
        made: dict[str, Any] = json.loads(json.dumps({k: drawn[k] for k in ("question", "answer", "metadata")}, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise VerifierError(f"an entry of {dataset} is not JSON: {error}", "refuse the dataset") from error
    return made


def config_of(dataset: str, level: int) -> dict[str, Any]:
    """The dataset's configuration at a level: its curriculum's, level 1 the lowest, or the plain one where there is none.

    A curriculum that makes no valid configuration falls back to the plain one.
    """
    from reasoning_gym.factory import create_curriculum, has_curriculum

    if not has_curriculum(dataset):
        return {}
    curriculum = create_curriculum(dataset)
    for name, attribute in curriculum.attributes.items():
        curriculum.set_attr_level(name, min(level - 1, len(attribute.levels) - 1))
    try:
        made = curriculum.generate_configuration()
        if hasattr(made, "validate"):
            made.validate()
    except (AssertionError, TypeError, ValueError):
        return {}
    return {k: v for k, v in vars(made).items() if k not in ("seed", "size")}


def trivial_answers(question: str) -> Iterator[tuple[str, str]]:
    """(kind, answer): what an agent could hand in without solving the question."""
    yield from ((f"the constant {text!r}", text) for text in CONSTANTS)
    yield "the question echoed", question
    numbers = list(dict.fromkeys(_NUMBER.findall(question)))
    yield from ((f"number {i} of the question", n) for i, n in enumerate(numbers[:12], 1))
    whole = [int(n) for n in numbers[:12] if "." not in n]
    if len(whole) > 1:
        product = 1
        for number in whole:
            product *= number
        for name, value in (
            ("sum", sum(whole)),
            ("product", product),
            ("difference", whole[0] - whole[1]),
            ("maximum", max(whole)),
            ("count", len(whole)),
        ):
            yield f"the {name} of the question's numbers", str(value)
    yield "every number at once", " ".join(map(str, range(-100, 1_000)))
    yield "a very long answer", "9" * 5_000
    words = list(dict.fromkeys(re.findall(r"[^\s,.;:?!()\[\]\"']+", question)))
    yield "the question's words at once", ", ".join(words)[:4_000]


def passes_trivially(dataset: str, entry: dict[str, Any]) -> str:
    """The first trivial answer that gets the full score; empty when none does."""
    return next((kind for kind, answer in trivial_answers(entry["question"]) if score(dataset, entry, answer.strip()) == 1), "")


def audit(dataset: str, entries: int = ENTRIES) -> str:
    """Why a dataset is refused; empty when it may be used."""
    if runs_answers(dataset):
        return "its scorer runs text as code"
    if dataset == "composite":
        return "a mixture of the other datasets"
    try:
        return _attacked(dataset, entries)
    except Exception as error:  # noqa: BLE001 - the named boundary: a dataset that cannot be drawn or scored is refused, not a crash
        return f"it fails: {error!s:.140}"


def _attacked(dataset: str, entries: int) -> str:
    drawn: list[dict[str, Any]] = []
    for seed in range(entries):
        started = time.thread_time()
        drawn.append(entry_of(dataset, {}, seed))
        if time.thread_time() - started > SLOW_S:
            return "drawing an instance is slow"
    started = time.thread_time()
    entry_of(dataset, config_of(dataset, HARDEST), 0)
    if time.thread_time() - started > SLOW_S:
        return f"drawing an instance of level {HARDEST} is slow"
    if entry_of(dataset, {}, 0) != drawn[0]:
        return "the same seed draws another instance"
    passed: Counter[str] = Counter()
    for i, entry in enumerate(drawn):
        answer = entry["answer"].strip()
        started = time.thread_time()
        if score(dataset, entry, answer) != 1:
            return "its scorer rejects its own answer"
        if time.thread_time() - started > SLOW_S:
            return "its scorer is slow"
        for kind, text in trivial_answers(entry["question"]):
            passed[kind] += score(dataset, entry, text.strip()) == 1
        other = drawn[(i + 1) % len(drawn)]["answer"].strip()
        passed["another instance's answer"] += other != answer and score(dataset, entry, other) == 1
        passed["the answer among others"] += other != answer and score(dataset, entry, f"{other}\n{answer}\n{other}") == 1
    kind, count = passed.most_common(1)[0]
    return f"{kind} passes {count} of {len(drawn)} instances" if count > TRIVIAL_SHARE * len(drawn) else ""


@cache
def refused() -> dict[str, str]:
    """Refused datasets with the reason, as committed."""
    text = resources.files("tasks.kinds").joinpath("reasoning_refused.toml").read_text()
    return dict(tomllib.loads(text)["refused"])


def render(found: dict[str, str], version: str) -> str:
    """The committed list as TOML."""
    lines = [
        f"# Refused datasets of reasoning_gym {version}: python -m tasks.kinds.reasoning_audit",
        f"version = {json.dumps(version)}",
        "",
        "[refused]",
    ]
    return "\n".join([*lines, *(f"{name} = {json.dumps(reason)}" for name, reason in sorted(found.items()))]) + "\n"


def main() -> None:
    """Audit every dataset; print the list as TOML."""
    from importlib.metadata import version

    from reasoning_gym.factory import DATASETS

    with contextlib.redirect_stdout(sys.stderr):  # some generators print
        found = {name: reason for name in sorted(DATASETS) if (reason := audit(name))}
    sys.stdout.write(render(found, version("reasoning_gym")))


if __name__ == "__main__":
    main()
