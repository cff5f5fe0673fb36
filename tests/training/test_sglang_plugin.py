"""The CPU platform plugin's own parts, without a server: keyed noise and the stand-in for torchvision."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from scipy import stats

PLUGIN = Path("training") / "sglang_cpu" / "plugin"


@pytest.fixture
def seeded(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(repo_root / PLUGIN))
    from ninefold_sglang_cpu import seeded

    yield seeded
    for name in [name for name in sys.modules if name.partition(".")[0] == "ninefold_sglang_cpu"]:
        del sys.modules[name]


def test_noise_is_uniform_over_seeds_positions_and_tokens(seeded: ModuleType) -> None:
    seeds, positions, vocabulary = 64, 32, 50
    noise = torch.stack(
        [seeded.uniform_noise(torch.arange(seeds), torch.full((seeds,), position), vocabulary) for position in range(positions)]
    )
    assert noise.shape == (positions, seeds, vocabulary)
    assert noise.min() > 0
    assert noise.max() < 1
    assert stats.kstest(noise.flatten().numpy(), "uniform").pvalue > 1e-3
    # Neighbouring seeds, positions and tokens must not be correlated.
    for axis in range(3):
        first, second = noise.narrow(axis, 0, noise.shape[axis] - 1), noise.narrow(axis, 1, noise.shape[axis] - 1)
        correlation = torch.corrcoef(torch.stack([first.flatten(), second.flatten()]))[0, 1]
        assert abs(correlation) < 0.02


def test_a_draw_depends_on_seed_and_position_alone(seeded: ModuleType) -> None:
    logprobs = torch.randn(5, 40, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    seeds, positions = torch.tensor([7, 2**61, 0, 9, 7]), torch.tensor([3, 4, 5, 6, 3])
    together = seeded.sample_with_seed(logprobs, seeds, positions)
    assert together.shape == (5, 1)
    for row in range(5):
        alone = seeded.sample_with_seed(logprobs[row : row + 1], seeds[row : row + 1], positions[row : row + 1])
        assert alone.item() == together[row].item()


def test_draws_follow_the_distribution_and_never_take_the_impossible(seeded: ModuleType) -> None:
    probabilities = torch.tensor([0.5, 0.25, 0.0, 0.2, 0.05])
    draws = 20_000
    picks = seeded.sample_with_seed(probabilities.log().expand(draws, -1), torch.arange(draws), torch.full((draws,), 11))[:, 0]
    counts = torch.bincount(picks, minlength=5)
    assert counts[2] == 0
    possible = probabilities > 0
    assert stats.chisquare(counts[possible].numpy(), (probabilities[possible].double() * draws).numpy(), sum_check=False).pvalue > 1e-3


def test_torchvision_is_stood_in_for_and_says_so_when_called(repo_root: Path) -> None:
    program = """
import importlib.util
assert importlib.util.find_spec("torchvision") is None, "this environment has torchvision"
from ninefold_sglang_cpu.absent import provide_absent_torchvision
provide_absent_torchvision()
provide_absent_torchvision()
import torchvision.transforms as T
from torchvision.transforms.functional import InterpolationMode
assert InterpolationMode.BICUBIC == "InterpolationMode.BICUBIC"
class Mine(T.Compose): pass
try:
    T.Resize(3)
except ImportError as error:
    assert "Resize needs torchvision" in str(error)
else:
    raise SystemExit("a placeholder was called without complaint")
from transformers.utils import is_torchvision_available
assert not is_torchvision_available()
import transformers.image_utils
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(repo_root / PLUGIN)},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


def test_the_plugin_is_inert_under_another_platform(seeded: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from ninefold_sglang_cpu import activate

    monkeypatch.delenv("SGLANG_PLATFORM", raising=False)
    assert activate() is None
    seeded.register()  # would fail to import sglang here if it did anything
