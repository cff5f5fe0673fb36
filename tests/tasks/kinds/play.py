"""Runs drafts of the kinds in this folder for real: their environments, the process sandbox, the gate's checks and exploits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from environments.hardening import HardeningConfig, probe, replay, validate
from environments.protocols import Document
from environments.resources import Resources
from environments.sandbox import ProcessBackend
from environments.task import Message, TaskSpec
from environments.vault import Vault
from environments.verdict import Verdict
from tasks.kinds.draft import Draft, Material
from tasks.synthesis import to_task

MATERIAL = Material(
    ("node",),
    ("sparse matrices",),
    (Document("d1", "scipy.sparse", "Sparse matrices store only non-zero entries.", "scipy", "BSD-3-Clause"),),
)


@contextmanager
def resources(folder: Path) -> Iterator[Resources]:
    with Resources(Vault(folder / "vault"), sandboxes=ProcessBackend()) as made:
        yield made


def task_of(draft: Draft, resources: Resources) -> TaskSpec:
    return to_task(draft, "node", "branch", resources.vault)


def verdict_of(draft: Draft, messages: tuple[Message, ...], resources: Resources) -> Verdict:
    return replay(task_of(draft, resources), messages, resources).verdict


def assert_sound(draft: Draft, resources: Resources, exploits: tuple[str, ...] | None = None) -> None:
    """The gate's validation, and the exploits: the reference passes and nothing else does."""
    task = task_of(draft, resources)
    config = HardeningConfig(reference_runs=2, exploits=exploits)
    rows = validate(task, resources, config)
    assert [(r.check_name, r.observed, r.detail) for r in rows if not r.ok] == []
    found = probe(task, resources, config)
    assert found
    assert [(p.exploit, p.transcript) for p in found if p.succeeded] == []


def spoiled(draft: Draft, **changes: object) -> Draft:
    return replace(draft, **changes)  # type: ignore[arg-type]
