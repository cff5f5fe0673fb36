"""A test suite run in a fresh sandbox over given files, read back as one outcome a test.

The tree, the tests and the configuration are written by us for each run; what an agent left behind is in it only as the
source files that the caller passes. A test that said nothing is not there, and what is not there did not pass.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from environments.sandbox.base import WORKSPACE, Backend, SandboxConfig
from environments.sandbox.images import ImageStore, RequirementsSource
from environments.sandbox.images.sources import PACKAGES

IMAGES = "NINEFOLD_IMAGES"
"""Variable that names the folder of built images."""
OUTPUT_KB = 4096
_NOISE_CHARS = 600


@dataclass(frozen=True)
class Suite:
    """How a tree's tests are run."""

    paths: tuple[str, ...]
    """Test files, relative to the tree."""
    roots: tuple[str, ...] = ("",)
    """Folders of the tree that imports start from."""
    requirements: tuple[str, ...] = ("pytest>=8,<10",)
    """What must be installed beside the tree; never the package itself."""
    plugins: tuple[str, ...] = ()
    """Plugins of the requirements to load; none loads by itself."""
    options: tuple[str, ...] = ()
    timeout_s: float = 300.0
    memory_mb: int = 1024


@dataclass(frozen=True)
class SuiteRun:
    """What one run said."""

    outcomes: dict[str, str] = field(default_factory=dict)
    """`passed`, `failed`, `skipped` or `xfailed` by test id; two different claims about one test count as failed."""
    broken: dict[str, str] = field(default_factory=dict)
    """Files that could not be collected, with the end of what was said."""
    finished: bool = False
    """Whether the session came to its own end."""
    timed_out: bool = False
    noise: str = ""
    """The end of what was printed."""

    @property
    def passed(self) -> frozenset[str]:
        """Tests that passed."""
        return frozenset(name for name, outcome in self.outcomes.items() if outcome == "passed")

    def reason(self) -> str:
        """Why nothing can be made of the run; empty when it came to its end."""
        if self.timed_out:
            return "the tests did not end in time"
        return "" if self.finished else f"the test session did not come to its end: {self.noise[-200:]}"


def image_store() -> ImageStore:
    """The store that suites take their requirements from: $NINEFOLD_IMAGES, else a cache folder that sandboxes can reach."""
    named = os.environ.get(IMAGES)
    # A sandbox of root runs as `nobody`, who cannot enter root's home.
    default = Path("/var/cache/ninefold/images") if os.geteuid() == 0 else Path.home() / ".cache" / "ninefold" / "images"
    folder = Path(named) if named else default
    folder.mkdir(parents=True, exist_ok=True)
    if not named and os.geteuid() == 0:
        folder.parent.chmod(0o755)  # whatever the umask
    return ImageStore(folder)


@cache
def sandbox_config(requirements: tuple[str, ...], memory_mb: int = 1024) -> SandboxConfig:
    """A sandbox with the requirements installed; they are resolved once a machine.

    Raises:
        ImageError: a requirement that cannot be installed (without an index: one that the store lacks).
    """
    image = image_store().build([RequirementsSource(requirements=requirements)])
    env = {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "TZ": "UTC"}
    return image.config(SandboxConfig(memory_mb=memory_mb, processes=128, workspace_mb=128, output_kb=OUTPUT_KB, env=env))


def run_suite(
    backend: Backend, suite: Suite, files: Mapping[str, bytes], hash_seed: int = 0, paths: Sequence[str] | None = None
) -> SuiteRun:
    """Write `files` into a fresh sandbox and run the suite there.

    Args:
        paths: run only these test files, or test ids.

    Raises:
        SandboxError: the sandbox failed, not the tests.
        ImageError: the requirements cannot be installed.
    """
    config = sandbox_config(suite.requirements, suite.memory_mb)
    nonce = secrets.token_hex(16)
    request = {
        "nonce": nonce,
        "packages": [f"/{PACKAGES}"],
        "roots": [f"{WORKSPACE}/{root}".rstrip("/") for root in suite.roots],
        "paths": list(suite.paths if paths is None else paths),
        "plugins": list(suite.plugins),
        "options": list(suite.options),
    }
    with backend.create(config) as box:
        for path, data in files.items():
            box.write(path, data)
        command = ["python3", "-s", "-S", "-P", "-c", _program()]
        done = box.exec(command, stdin=json.dumps(request), timeout_s=suite.timeout_s, env={"PYTHONHASHSEED": str(hash_seed)})
    return _read(done.stdout, nonce, done.timed_out, done.stderr)


@cache
def _program() -> str:
    return Path(__file__).with_name("suite_inside.py").read_text()


def _read(stdout: str, nonce: str, timed_out: bool, noise: str) -> SuiteRun:
    outcomes: dict[str, str] = {}
    broken: dict[str, str] = {}
    finished = False
    for line in stdout.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if not isinstance(record, dict) or record.get("nonce") != nonce:
            continue
        if "end" in record:
            finished = True
        elif "broken" in record:
            broken[str(record["broken"])] = str(record.get("why", ""))
        elif isinstance(record.get("id"), str):
            name, outcome = record["id"], str(record.get("outcome"))
            outcomes[name] = outcome if outcomes.get(name, outcome) == outcome else "failed"
    return SuiteRun(outcomes, broken, finished and not timed_out, timed_out, noise[-_NOISE_CHARS:])
