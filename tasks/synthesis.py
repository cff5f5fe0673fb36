"""From a draw to a candidate task: facts of the node's documents become a prompt, a verifier and demonstrations.

Embedded synthesis: no language model. Every answer is computed from values that the documents state; whether the task can
be done with the tools it offers is then checked by execution, in validation.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from environments.protocols import SearchSource
from environments.records import MaterialRow
from environments.task import Message, Provenance, TaskSpec, VerifierRef
from environments.vault import Vault
from environments.verifiers import ENTRIES
from kg import ConceptGraph
from kg.rows import material_row
from tasks.distribution import Cell
from tasks.kinds import KINDS, Draft, Material
from tasks.sampling import Draw

SYNTHESIZER = "embedded"
VERSION = "3"
ATTEMPTS = 20
"""Random drafts tried before a draw is given up: some numbers collide or leave two readings of the examples."""


@dataclass(frozen=True)
class Candidate:
    """A task, the passages it was written from, and why synthesis rejected it (empty: it did not)."""

    task: TaskSpec
    materials: tuple[MaterialRow, ...]
    reject_reason: str = ""


class Brain(Protocol):
    """Who picks the type that material supports, and writes the task. Answers are never its own: types compute them."""

    name: str

    def write(self, rng: random.Random, material: Material, offers: Sequence[Cell]) -> Draft | None:
        """A draft of one of the offered types, the most wanted first; None when the material supports none of them."""


class EmbeddedBrain:
    """Takes the first offer that the material supports; the type's own wording."""

    name = SYNTHESIZER

    def write(self, rng: random.Random, material: Material, offers: Sequence[Cell]) -> Draft | None:
        for offer in offers:
            draft = KINDS[offer.kind].draft
            if (written := next((d for _ in range(ATTEMPTS) if (d := draft(rng, material, offer.level)) is not None), None)) is not None:
                return written
        return None


def synthesize(
    draw: Draw, graph: ConceptGraph, source: SearchSource, vault: Vault, run: str, seed: int, brain: Brain | None = None
) -> Candidate | None:
    """Write one task; hidden payload, reference and demonstrations go to the vault.

    Returns:
        None when the nodes' facts do not support the type at that level.
    """
    shape = "" if draw.shape == "single" else f"/{draw.shape}"
    rng = random.Random(f"{seed}/{draw.node}/{draw.kind}/{draw.level}/{draw.index}{shape}")
    nodes = (draw.node, *draw.related)
    material = Material(nodes, tuple(graph.concept(n).name for n in nodes), tuple(source.open(d) for d in draw.documents), source)
    brain = brain or EmbeddedBrain()
    draft = brain.write(rng, material, [draw.cell])
    if draft is None:
        return None
    kind = KINDS[draft.kind]
    task = to_task(draft, draw.node, graph.branch_of(draw.node), vault, draw.related, brain.name)
    vault.put_demonstrations(
        task.task_id,
        [{"style": d.style, "messages": [m.model_dump(mode="json") for m in d.messages]} for d in draft.demonstrations],
    )
    materials = tuple(material_row(run, passage) for passage in draft.passages)
    return Candidate(task, materials, kind.check(draft, source) if kind.check else "")


def to_task(draft: Draft, node: str, branch: str, vault: Vault, related: tuple[str, ...] = (), synthesizer: str = SYNTHESIZER) -> TaskSpec:
    """A draft as a TaskSpec, its hidden parts stored in the vault."""
    return TaskSpec(
        family=draft.family,
        domain=draft.domain,
        kind=draft.kind,
        level=draft.level,
        prompt=(Message(role="user", content=draft.prompt),),
        initial_state=draft.initial_state,
        tools=draft.tools,
        budgets=draft.budgets,
        hidden_verifier=VerifierRef(kind=draft.verifier_kind, sha256=vault.put(draft.payload), entry=ENTRIES[draft.verifier_kind]),
        reference_sha256=vault.put_reference(list(draft.demonstrations[0].messages)),
        provenance=Provenance(
            node_ids=(node, *related),
            branch=branch,
            document_ids=tuple(dict.fromkeys(f.document_id for f in draft.passages)),
            material_hashes=tuple(dict.fromkeys(f.sha256 for f in draft.passages)),
            synthesizer=synthesizer,
            synthesizer_version=VERSION,
        ),
        licence="; ".join(sorted({f.licence for f in draft.passages})),
    )
