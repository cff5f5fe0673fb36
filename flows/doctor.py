"""`ninefold doctor`: one line a check, `ok` or the fix."""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from environments.errors import NinefoldError
from flows.workspace import Workspace, free_disk_mb

MIN_DISK_MB = 2000
"""A laptop run writes well under 1 GB; the corpus and logs of a few runs fit."""
DEBIAN = {
    "dict-foldoc": "usr/share/dictd/foldoc.index",
    "python3-doc": "usr/share/doc/python3.*/html/_sources",
    "linux-doc": "usr/share/doc/linux-doc-*/html/_sources",
}
"""Packages whose documents the corpus also reads, and where they lie."""


@dataclass(frozen=True)
class Finding:
    """What a check found. A check that is not `needed` for the laptop profile does not fail `doctor`."""

    name: str
    ok: bool
    detail: str
    fix: str = ""
    needed: bool = True

    def line(self) -> str:
        """One line for a person."""
        return (
            f"ok    {self.name}: {self.detail}"
            if self.ok
            else f"{'FIX ' if self.needed else 'note'}  {self.name}: {self.detail}. Fix: {self.fix}"
        )


class _ProblemError(Exception):
    def __init__(self, detail: str, fix: str, needed: bool = True) -> None:
        super().__init__(detail, fix, needed)
        self.detail, self.fix, self.needed = detail, fix, needed


def check_all(port: int) -> Iterator[Finding]:
    """Run every check; a check that crashes is a finding, not a crash."""
    for name, check in CHECKS.items():
        try:
            yield Finding(name, True, check(port))
        except _ProblemError as problem:
            yield Finding(name, False, problem.detail, problem.fix, problem.needed)
        except NinefoldError as error:
            yield Finding(name, False, error.message, error.fix)
        except Exception as error:  # noqa: BLE001 - the boundary that the docstring names
            yield Finding(
                name, False, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", "run `make setup` again"
            )


def _python(_port: int) -> str:
    if sys.prefix == sys.base_prefix:
        raise _ProblemError(
            f"{sys.version.split()[0]} outside a virtual environment", "make setup, then .venv/bin/ninefold doctor", needed=False
        )
    return f"{sys.version.split()[0]} in {sys.prefix}"


def _backends(_port: int) -> str:
    """The strongest sandbox for agents' tools; what keeps a stronger one from working is told, and needed by nobody."""
    from environments.sandbox.backends import choose

    return choose()[1]


def _sandbox(_port: int) -> str:
    from environments.sandbox import CodePool

    with CodePool(workers=1) as pool:
        result = pool.call("def solve(n):\n    return n + 1", "solve", [[41]], timeout_s=5.0)
    if result.outputs != [42]:
        raise _ProblemError(
            f"a sandboxed call gave {result.outputs} ({result.error})",
            "apt-get install bubblewrap, and allow user namespaces: sysctl kernel.unprivileged_userns_clone=1",
        )
    return "bubblewrap runs a function"


def _chromium(_port: int) -> str:
    path = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)
    if path is not None:
        done = subprocess.run([path, "--version", "--no-sandbox"], capture_output=True, text=True, timeout=30, check=False)
        if done.returncode == 0:
            return done.stdout.strip()
    browsers = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache" / "ms-playwright"))
    if any(browsers.glob("chromium*")):
        return f"Playwright's own in {browsers}"
    raise _ProblemError(
        "no Chromium found (only the browser tests need it)", "apt-get install chromium, or `playwright install chromium`", needed=False
    )


def _documents(_port: int) -> str:
    from environments.search.sources import DEFAULT_PACKAGES, STDLIB

    present = {distribution.metadata["Name"].lower() for distribution in metadata.distributions()}
    found = [name for name in DEFAULT_PACKAGES if name == STDLIB or name.lower() in present]
    if len(found) < len(DEFAULT_PACKAGES) / 2:
        raise _ProblemError(f"documentation of {len(found)} of {len(DEFAULT_PACKAGES)} packages is installed", "make setup")
    missing = [package for package, path in DEBIAN.items() if not any(Path("/").glob(path))]
    more = f"; more with: apt-get install {' '.join(missing)}" if missing else ""
    return f"{len(found)} packages and {len(DEBIAN) - len(missing)} of {len(DEBIAN)} Debian sources{more}"


def _torch(_port: int) -> str:
    import torch

    if not bool(torch.isfinite(torch.ones(2, 2) @ torch.ones(2, 2)).all()):
        raise _ProblemError("a matrix product is not finite", "reinstall torch: `make setup`")
    return f"{torch.__version__} on {torch.cuda.get_device_name(0) if torch.cuda.is_available() else 'cpu'}"


def _deepspeed(_port: int) -> str:
    return metadata.version("deepspeed")


def _sglang(_port: int) -> str:
    python = Path(__file__).resolve().parent.parent / ".venv-sglang" / "bin" / "python"
    if not python.exists():
        raise _ProblemError(
            f"no environment at {python.parent.parent} (only the sglang engine needs it)", "make setup-sglang", needed=False
        )
    done = subprocess.run(
        [str(python), "-c", "import importlib.metadata as m; print(m.version('sglang'))"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode != 0:
        raise _ProblemError("its environment is broken", "rm -rf .venv-sglang && make setup-sglang", needed=False)
    return done.stdout.strip()


def _disk(_port: int) -> str:
    root = Workspace().root
    free = free_disk_mb(root)
    if free < MIN_DISK_MB:
        raise _ProblemError(f"{free} MB free in {root}", f"free {MIN_DISK_MB - free} MB, or set NINEFOLD_HOME to a larger disk")
    if not os.access(root, os.W_OK):
        raise _ProblemError(f"{root} is not writable", "set NINEFOLD_HOME to a folder of yours")
    return f"{free:,} MB free in {root}"


def _duckdb(_port: int) -> str:
    version = metadata.version("duckdb")
    importlib.import_module("duckdb_extensions").import_extension("fts")
    return f"{version}, full-text search loads offline"


def _dask(_port: int) -> str:
    return f"distributed {metadata.version('distributed')}"


def _ports(port: int) -> str:
    from flows.server import check_port

    check_port(port)
    return f"{port} is free for `ninefold serve`"


CHECKS: dict[str, Callable[[int], str]] = {
    "python": _python,
    "disk": _disk,
    "sandbox": _sandbox,
    "sandbox backends": _backends,
    "documents": _documents,
    "torch": _torch,
    "deepspeed": _deepspeed,
    "dask": _dask,
    "duckdb": _duckdb,
    "chromium": _chromium,
    "sglang": _sglang,
    "port": _ports,
}
