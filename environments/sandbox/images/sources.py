"""What a layer can be made of: a folder, an OCI layout, a list of Python requirements."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import stat
import subprocess
import tempfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from environments.errors import MissingDependencyError
from environments.sandbox.images.layers import ImageError, LayerWriter, clean_path
from environments.task import canonical_json

PACKAGES = "opt/ninefold/python"
"""Where requirements are in an image; `Image.env` puts it on PYTHONPATH."""
_PIP_S = 1800.0


class _Source(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DirectorySource(_Source):
    """The files below a folder."""

    kind: Literal["directory"] = "directory"
    path: Path
    at: str = Field(default="", description="Where they are in the image, relative to its root")


class OciSource(_Source):
    """An image of an OCI layout, each of its layers as one of ours."""

    kind: Literal["oci"] = "oci"
    path: Path
    ref: str | None = Field(default=None, description="`org.opencontainers.image.ref.name`, where the layout holds several")


class RequirementsSource(_Source):
    """Python packages with all they depend on, resolved by pip once; later builds take them from the store."""

    kind: Literal["requirements"] = "requirements"
    requirements: tuple[str, ...] = Field(min_length=1)
    pip_options: tuple[str, ...] = Field(default=(), description="For example --no-index --find-links FOLDER")

    @field_validator("requirements")
    @classmethod
    def _no_options(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for line in value:
            if line.strip() != line or not line or line.startswith("-") or "\n" in line:
                raise ValueError(f"{line!r} is not a requirement; options belong in pip_options")
        return tuple(sorted(set(value)))


Source = Annotated[DirectorySource | OciSource | RequirementsSource, Field(discriminator="kind")]


def add_directory(source: DirectorySource, writer: LayerWriter) -> None:
    """Every file, link and empty folder below `source.path`.

    Raises:
        ImageError: no such folder, or something in it that is none of these.
    """
    top = source.path
    if not top.is_dir():
        raise ImageError(f"{top} is not a folder", "name the folder that the image should hold")
    prefix = clean_path(source.at, "DirectorySource.at")
    add_files(top, prefix, writer, sorted(_walk(top)))


def add_files(top: Path, prefix: str, writer: LayerWriter, paths: Iterable[str]) -> None:
    """Add `paths`, relative to `top`, at `prefix`."""
    for relative in paths:
        path = clean_path(f"{prefix}/{relative}" if prefix else relative, str(top))
        here = top / relative
        status = here.lstat()
        if stat.S_ISLNK(status.st_mode):
            writer.link(path, os.readlink(here))
        elif stat.S_ISDIR(status.st_mode):
            writer.folder(path)
        elif stat.S_ISREG(status.st_mode):
            # Not through a link that took the file's place in the meantime.
            with os.fdopen(os.open(here, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
                writer.file(path, file, status.st_size, executable=bool(status.st_mode & 0o111))
        else:
            raise ImageError(f"{here} is neither a file, a folder nor a link", "remove it from the folder")


def _walk(top: Path) -> Iterable[str]:
    """Files, links and empty folders. A folder with something in it goes without saying, so that one laid over a link of a
    lower layer (`lib` to `usr/lib`) does not hide it."""
    for folder, folders, files in os.walk(top):
        here = Path(folder).relative_to(top)
        for name in files:
            yield str(here / name)
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in links:
            yield str(here / name)
        if not folders and not files and folder != str(top):
            yield str(here)


def requirements_key(source: RequirementsSource, python: str) -> str:
    """What the outcome of resolving depends on besides the index: the requirements, the options and the interpreter."""
    return hashlib.sha256(canonical_json([source.model_dump(mode="json"), _interpreter(python)]).encode()).hexdigest()


@cache
def _interpreter(python: str) -> str:
    """Version, platform and C library of an interpreter: what wheels are chosen by."""
    text = "import platform, sys, sysconfig; print(sys.version_info[:3], sysconfig.get_platform(), platform.libc_ver())"
    said = _run([python, "-I", "-c", text])
    if said.returncode:
        raise MissingDependencyError(f"{python} is not a working Python: {_last_line(said.stderr)}", "name an interpreter with pip")
    return said.stdout.strip()


def add_requirements(source: RequirementsSource, python: str, writer: LayerWriter) -> tuple[str, ...]:
    """Install with the interpreter's own pip; returns what was resolved, as `name==version`.

    Byte code is compiled to be taken as it is (PEP 552, unchecked), because a read-only image can never be written to.

    Raises:
        ImageError: a requirement that does not resolve or build; pip's last line is quoted.
        MissingDependencyError: the interpreter has no pip.
    """
    with tempfile.TemporaryDirectory(prefix="ninefold-pip-") as folder:
        target = Path(folder, "packages")
        quiet = ["--no-compile", "--no-input", "--disable-pip-version-check", "--no-warn-script-location", "--no-color"]
        said = _run([python, "-m", "pip", "install", *quiet, "--target", str(target), *source.pip_options, "--", *source.requirements])
        if said.returncode:
            if "No module named pip" in said.stderr:
                raise MissingDependencyError(f"{python} has no pip", f"{python} -m ensurepip")
            wanted = ", ".join(source.requirements)
            raise ImageError(f"pip could not install {wanted}: {_last_line(said.stderr)}", "correct the requirements or pip_options")
        target.mkdir(exist_ok=True)
        for script in target.glob("bin/*"):  # pip names its own interpreter, which is not where the sandbox has one
            data = script.read_bytes()
            if data.startswith(b"#!") and b"python" in data.partition(b"\n")[0]:
                script.write_bytes(b"#!/usr/bin/env python3\n" + data.partition(b"\n")[2])
        # A file that does not compile is an old one that nobody imports; pip ignores them too.
        compile_all = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "-s", str(target), "-p", f"/{PACKAGES}"]
        _run([python, "-I", *compile_all, str(target)])
        resolved = sorted(f"{d.name}=={d.version}" for d in importlib.metadata.distributions(path=[str(target)]))
        add_files(target, PACKAGES, writer, sorted(_walk(target)))
        return tuple(resolved)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_PIP_S, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise MissingDependencyError(f"{command[0]} does not start ({error.strerror})", "name an interpreter with pip") from error
    except subprocess.TimeoutExpired as error:
        raise ImageError(f"pip took more than {_PIP_S:.0f} s", "check the package index") from error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["it said nothing"])[-1].removeprefix("ERROR: ")[:500]
