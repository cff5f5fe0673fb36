"""reasoning-gym's generators as tasks: the dataset's own scorer is the verifier, and our audit says which may be used."""

from __future__ import annotations

import functools
import json
import random

from environments.errors import VerifierError
from environments.task import Budgets
from environments.verifiers.reasoning_scorer import score
from kg.concept import Passage
from tasks.kinds.draft import Demonstration, Draft, KindSpec, Material, call
from tasks.kinds.reasoning_audit import config_of, entry_of, passes_trivially, refused

LICENCE = "Apache-2.0"
MAX_QUESTION_CHARS = 6_000
_SAY = "\n\nSubmit the answer alone, or put it between <answer> and </answer>."


@functools.cache
def datasets() -> tuple[str, ...]:
    """Datasets that the audit lets through, by name."""
    from reasoning_gym.factory import DATASETS

    return tuple(sorted(set(DATASETS) - set(refused())))


def draft(rng: random.Random, material: Material, level: int) -> Draft | None:
    """An instance of a dataset drawn at random; the material decides nothing but lineage.

    None when the dataset cannot make one at that level, or a trivial answer passes it.
    """
    dataset = rng.choice(datasets())
    return draft_of(dataset, rng, level)


def draft_of(dataset: str, rng: random.Random, level: int) -> Draft | None:
    """As `draft`, of a named dataset."""
    config = config_of(dataset, level)
    try:
        entry, other = (entry_of(dataset, config, rng.randrange(2**31)) for _ in range(2))
        answer = entry["answer"].strip()
        sound = (
            score(dataset, entry, answer) == 1 and score(dataset, other, answer) < 1 and score(dataset, entry, other["answer"].strip()) < 1
        )
    except Exception:  # noqa: BLE001 - the named boundary: a generator that fails at this level makes no task
        return None
    question = entry["question"]
    if not sound or len(question) > MAX_QUESTION_CHARS or "<answer>" in answer or passes_trivially(dataset, entry):
        return None
    passage = Passage(f"reasoning_gym/{dataset}", dataset, "reasoning_gym", LICENCE, question)
    return Draft(
        kind="reasoning",
        family="reasoning",
        domain="general",
        level=level,
        prompt=question + _SAY,
        tools=("submit",),
        budgets=Budgets(steps=4, output_tokens=16_000, wall_s=120, submissions=1),
        verifier_kind="reasoning_scorer",
        payload={"dataset": dataset, "config": json.loads(json.dumps(config, default=str)), "entry": entry, "other": other},
        passages=(passage,),
        demonstrations=(Demonstration("short", (call("submit", answer=f"<answer>{answer}</answer>"),)),),
    )


def unsound(draft: Draft, source: object) -> str:
    """Why a draft's instance is not to be trusted; empty when its scorer takes the reference and nothing trivial."""
    dataset, entry = draft.payload["dataset"], draft.payload["entry"]
    if dataset in refused():
        return f"{dataset} is refused: {refused()[dataset]}"
    try:
        if score(dataset, entry, entry["answer"].strip()) != 1:
            return "the scorer rejects its own answer"
        kind = passes_trivially(dataset, entry)
    except VerifierError as error:
        return str(error)
    return f"{kind} passes" if kind else ""


REASONING = KindSpec("reasoning", "reasoning", "general", (1, 2, 3), draft, unsound)
"""Not for the laptop policy."""
