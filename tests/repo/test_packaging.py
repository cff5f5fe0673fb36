"""What pyproject.toml says is what the tree holds, and the packages live beside Hugging Face's `kernels`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests.repo.imports import FOLDERS

PLUGIN = "training/sglang_cpu/plugin"
"""A distribution of its own, carried as data."""


@pytest.fixture(scope="module")
def project(repo_root: Path) -> dict[str, Any]:
    return tomllib.loads((repo_root / "pyproject.toml").read_text())


def _package_folders(root: Path) -> dict[str, Path]:
    """Package name to folder, for every folder that holds Python modules."""
    found = {}
    for folder, name in FOLDERS.items():
        for path in (root / folder).rglob("*.py"):
            relative = path.parent.relative_to(root)
            if not relative.as_posix().startswith(PLUGIN):
                found[".".join((name, *relative.parts[1:]))] = path.parent
    return found


def test_every_package_is_listed_and_every_listed_one_exists(repo_root: Path, project: dict[str, Any]) -> None:
    listed = project["tool"]["setuptools"]["packages"]
    assert sorted(listed) == sorted(_package_folders(repo_root))
    assert len(set(listed)) == len(listed)


def test_only_kernels_is_without_an_init(repo_root: Path) -> None:
    bare = {name for name, folder in _package_folders(repo_root).items() if not (folder / "__init__.py").exists()}
    assert bare == {"ninefold_kernels"}


def test_every_data_file_is_packaged(repo_root: Path, project: dict[str, Any]) -> None:
    patterns: dict[str, list[str]] = project["tool"]["setuptools"]["package-data"]
    folders = _package_folders(repo_root)
    lost = []
    for folder, name in FOLDERS.items():
        for path in (repo_root / folder).rglob("*"):
            relative = path.relative_to(repo_root).as_posix()
            in_plugin = relative.startswith(PLUGIN)
            if not path.is_file() or "__pycache__" in relative or (path.suffix in (".py", ".pyc") and not in_plugin):
                continue
            if in_plugin and ("/build/" in relative or ".egg-info/" in relative):
                continue
            # A file belongs to the nearest package above it, or to one further up whose pattern names the folder.
            covered = any(
                fnmatch(path.relative_to(folders[package]).as_posix(), pattern.replace("**/", "*"))
                for package, own_patterns in patterns.items()
                if (package == name or package.startswith(f"{name}.")) and package in folders and path.is_relative_to(folders[package])
                for pattern in own_patterns
            )
            if not covered and path.name != "py.typed":
                lost.append(relative)
    assert not lost


def test_the_console_script_is_there(project: dict[str, Any]) -> None:
    module, _, attribute = project["project"]["scripts"]["ninefold"].partition(":")
    program = f"import importlib; assert callable(getattr(importlib.import_module({module!r}), {attribute!r}))"
    subprocess.run([sys.executable, "-c", program], check=True, cwd="/", timeout=120)


@pytest.mark.slow
def test_a_built_wheel_holds_every_module_and_data_file(repo_root: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for folder in FOLDERS:
        shutil.copytree(repo_root / folder, source / folder, ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        if (repo_root / name).exists():
            shutil.copy(repo_root / name, source)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)],
        check=True,
        timeout=300,
    )
    (wheel,) = tmp_path.glob("ninefold-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    for folder, package in FOLDERS.items():
        for path in (source / folder).rglob("*"):
            inside = path.relative_to(source / folder).as_posix()
            if path.is_file() and "/build/" not in f"/{inside}" and "egg-info" not in inside:
                assert f"{package}/{inside}" in held


@pytest.mark.slow
def test_imports_beside_hugging_faces_kernels_package(repo_root: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    install = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), "kernels"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    if install.returncode:
        pytest.skip(f"the package `kernels` could not be installed: {install.stderr[-300:]}")
    program = """
import sys, kernels, ninefold_kernels.logprob, environments, kg, tasks, training, flows
assert kernels.__file__.startswith(sys.argv[1]), kernels.__file__
assert hasattr(kernels, "get_kernel")
assert ninefold_kernels.logprob.__file__.startswith(sys.argv[2]), ninefold_kernels.logprob.__file__
import transformers
"""
    # Once from the checkout, where our folder `kernels` is first on the path, and once from elsewhere.
    for directory in (repo_root, tmp_path):
        subprocess.run(
            [sys.executable, "-c", program, str(target), str(repo_root / "kernels")],
            cwd=directory,
            env=os.environ | {"PYTHONPATH": str(target)},
            check=True,
            timeout=180,
        )
