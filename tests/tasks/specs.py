"""A small maker of TaskSpecs for tests: every part that splits and datasets look at can be set."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from environments.task import Budgets, Domain, Message, Provenance, TaskSpec, VerifierRef

_FAMILY = {"general": "search", "agent": "assistant", "coding": "coding"}


def make_task(
    number: int,
    *,
    domain: Domain = "general",
    kind: str = "test_kind",
    branch: str = "b0",
    level: int = 1,
    materials: Sequence[str] | None = None,
    documents: Sequence[str] | None = None,
    licence: str = "BSD-3-Clause",
    text: str = "",
) -> TaskSpec:
    """Test task `number`. Its material and document are its own unless given."""
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    return TaskSpec(
        family=_FAMILY[domain],
        domain=domain,
        kind=kind,
        level=level,
        prompt=(Message(role="user", content=text or f"Test task {number}"),),
        tools=("submit",),
        budgets=Budgets(steps=4, output_tokens=64, wall_s=5.0, submissions=1),
        hidden_verifier=VerifierRef(kind="exact_number", sha256=digest, entry="environments.verifiers:ExactNumber"),
        reference_sha256=digest,
        provenance=Provenance(
            node_ids=(f"n{number}",),
            branch=branch,
            document_ids=tuple(documents if documents is not None else [f"d{number}"]),
            material_hashes=tuple(materials if materials is not None else [f"m{number}"]),
            synthesizer="test",
            synthesizer_version="1",
        ),
        licence=licence,
    )
