"""Imports point one way and libraries stay in their places, over every module of the packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repo.imports import FOLDERS, violations

FORBIDDEN_NAMES = {"util", "utils", "helper", "helpers", "common", "manager", "managers", "misc"}


def _modules(root: Path) -> list[Path]:
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


def test_every_module_keeps_the_direction_and_the_places(repo_root: Path) -> None:
    modules = _modules(repo_root)
    assert len(modules) > 20
    broken = [line for path in modules for line in violations(path.relative_to(repo_root).as_posix(), path.read_text())]
    assert not broken, "\n" + "\n".join(broken)


def test_module_names_say_what_is_in_them(repo_root: Path) -> None:
    nameless = [path for path in _modules(repo_root) if FORBIDDEN_NAMES.intersection((path.stem, path.parent.name))]
    assert not nameless


@pytest.mark.parametrize(
    ("path", "source", "message"),
    [
        ("kg/grow.py", "from tasks.dataset import publish", "kg may not import tasks"),
        ("environments/task.py", "import training.sft", "environments may not import training"),
        ("kernels/logprob.py", "def f():\n    import environments", "ninefold_kernels may not import environments"),
        ("training/sft.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from flows import cli", "may not import flows"),
        ("tasks/x.py", "import importlib\nm = importlib.import_module('training.model')", "may not import training"),
        ("kg/deep/x.py", "from ..grow import grow\nfrom ... import flows", ""),
        ("tasks/dataset.py", "from prefect import task", "prefect belongs to flows/*"),
        ("training/sft.py", "def f():\n    import dask.distributed", "dask belongs to flows/*"),
        ("flows/steps/x.py", "import deepspeed", "deepspeed belongs to training/*"),
        ("kg/grow.py", "def f():\n    import torch", "torch belongs to"),
        ("environments/search/embeddings.py", "import torch", "within a function"),
        ("tasks/dataset.py", "import duckdb", "duckdb belongs to tasks/catalog*"),
        ("flows/report/x.py", "from playwright.sync_api import sync_playwright", "playwright belongs to environments/*"),
        ("training/x.py", "import kernels", "kernels belongs to nobody"),
    ],
)
def test_the_checker_sees_what_is_wrong(path: str, source: str, message: str) -> None:
    found = violations(path, source)
    if message:
        assert len(found) == 1
        assert message in found[0]
    else:
        assert found == []


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("flows/x.py", "import prefect, dask, training.sft, tasks, kg, environments, ninefold_kernels"),
        ("environments/search/embeddings.py", "def load():\n    import torch\n    from transformers import AutoModel"),
        ("tasks/catalog_views.py", "import duckdb"),
        ("training/deepspeed.py", "import deepspeed"),
        ("kernels/logprob.py", "import torch\nfrom ninefold_kernels import reference"),
        ("environments/task.py", "from . import errors"),
    ],
)
def test_the_checker_lets_through_what_is_right(path: str, source: str) -> None:
    assert violations(path, source) == []
