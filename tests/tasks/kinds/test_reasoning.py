"""reasoning-gym's generators as tasks, and the audit that says which."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("reasoning_gym")

from environments.errors import VerifierError
from environments.resources import Resources
from environments.vault import Vault
from environments.verifiers.reasoning_scorer import score
from tasks.kinds.draft import Material
from tasks.kinds.reasoning import REASONING, datasets, draft_of, unsound
from tasks.kinds.reasoning_audit import audit, config_of, entry_of, refused, render
from tests.tasks.kinds.knowledge_play import assert_sound

SAMPLE = ("base_conversion", "word_sorting", "caesar_cipher", "lcm", "count_primes", "number_sequence")
EMPTY = Material(("n",), ("n",), ())


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    with Resources(Vault(Path(tmp_path_factory.mktemp("reasoning")) / "vault")) as made:
        yield made


@pytest.mark.parametrize("dataset", SAMPLE)
def test_tasks_of_a_dataset_are_sound(dataset: str, resources: Resources) -> None:
    made = [d for seed in range(6) if (d := draft_of(dataset, random.Random(seed), 2 + seed % 2)) is not None]
    assert made
    for draft in made[:3]:
        assert unsound(draft, None) == ""
        assert_sound(draft, resources)


def test_the_same_seed_draws_the_same_task_at_every_level() -> None:
    for level in REASONING.levels:
        made = [REASONING.draft(random.Random(seed), EMPTY, level) for seed in range(4)]
        assert made == [REASONING.draft(random.Random(seed), EMPTY, level) for seed in range(4)]
        assert any(made)


def test_levels_follow_the_curricula() -> None:
    assert config_of("chain_sum", 1) != config_of("chain_sum", 3)
    assert config_of("chain_sum", 1)["max_terms"] <= config_of("chain_sum", 3)["max_terms"]


@pytest.mark.parametrize(
    "dataset", ["chain_sum", "lcm", "game_of_life_halting", "coin_flip", "complex_arithmetic", "countdown", "graph_color"]
)
def test_the_committed_audit_is_what_an_audit_finds(dataset: str) -> None:
    assert audit(dataset) == refused().get(dataset, "")


def test_the_audit_is_of_the_installed_version_and_leaves_most_datasets() -> None:
    text = files("tasks.kinds").joinpath("reasoning_refused.toml").read_text()
    assert text == render(refused(), version("reasoning_gym"))
    assert not set(datasets()) & set(refused())
    assert len(datasets()) > 50


def test_a_refused_dataset_or_spoiled_entry_is_unsound() -> None:
    draft = next(d for seed in range(9) if (d := draft_of("chain_sum", random.Random(seed), 3)) is not None)
    assert "refused" in unsound(replace(draft, payload={**draft.payload, "dataset": "coin_flip"}), None)
    entry = {**draft.payload["entry"], "answer": " "}
    assert unsound(replace(draft, payload={**draft.payload, "entry": entry}), None) != ""


def test_an_entry_without_an_answer_is_refused() -> None:
    with pytest.raises(VerifierError, match="no answer"):
        entry_of("graph_color", {}, 0)
    entry = entry_of("lcm", {}, 0)
    assert score("lcm", entry, entry["answer"]) == 1
    assert score("lcm", entry, entry["answer"] + "0") < 1
