"""Small, sound tasks of the three families over a corpus of two documents."""

from __future__ import annotations

import json
from typing import Any

from environments.protocols import Document, Hit, Outcome
from environments.resources import Resources
from environments.task import Budgets, Domain, InitialState, Message, Provenance, TaskSpec, ToolCall, VerifierRef
from environments.vault import Vault
from environments.verifiers import ENTRIES

BUDGETS = Budgets(steps=8, output_tokens=300, wall_s=60, submissions=1)
FAMILY_DOMAIN: dict[str, Domain] = {"search": "general", "assistant": "agent", "coding": "coding"}
DOUBLE = "def solve(n):\n    return 2 * n + 7\n"


class TwoDocuments:
    """A corpus as small as they come."""

    content_hash = "two"
    documents = (
        Document("a", "shutil.copyfile", "shutil.copyfile(src, dst, length=65536) copies in chunks.", "python", "PSF-2.0"),
        Document("b", "textwrap.wrap", "textwrap.wrap(text, width=70) breaks lines.", "python", "PSF-2.0"),
    )

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        found = [d for d in self.documents if any(word in d.title for word in query.split())] or list(self.documents)
        return [Hit(d.document_id, d.title, d.text[:40], 1.0) for d in found[:limit]]

    def open(self, document_id: str) -> Document:
        return next(d for d in self.documents if d.document_id == document_id)


def message(tool: str, **arguments: str) -> Message:
    return Message(role="assistant", calls=(ToolCall(tool=tool, arguments=dict(arguments)),))


def make_task(
    vault: Vault,
    family: str,
    prompt: str,
    payload: Any,
    kind: str,
    reference: list[Message],
    tools: tuple[str, ...],
    initial_state: InitialState | None = None,
    budgets: Budgets = BUDGETS,
) -> TaskSpec:
    return TaskSpec(
        family=family,
        domain=FAMILY_DOMAIN[family],
        kind="t",
        level=1,
        prompt=(Message(role="user", content=prompt),),
        initial_state=initial_state or InitialState(),
        tools=tools,
        budgets=budgets,
        hidden_verifier=VerifierRef(kind=kind, sha256=vault.put(payload), entry=ENTRIES.get(kind, "planted:Weak")),
        reference_sha256=vault.put_reference(reference),
        provenance=Provenance(node_ids=(), branch="b", document_ids=(), material_hashes=(), synthesizer="t", synthesizer_version="1"),
        licence="PSF-2.0",
    )


def search_task(vault: Vault, *, kind: str = "exact_number", answer: int = 113, addend: int = 43, budgets: Budgets = BUDGETS) -> TaskSpec:
    prompt = f"Find the default of `width` in `textwrap.wrap`. Add {addend} to it."
    reference = [message("search", query="textwrap.wrap"), message("open", result="1", find="width"), message("submit", answer=str(answer))]
    return make_task(
        vault, "search", prompt, {"answer": str(answer)}, kind, reference, ("search", "open", "record", "submit"), budgets=budgets
    )


def settings_rows(**settings: str) -> tuple[dict[str, Any], ...]:
    return tuple({"name": name, "value": value} for name, value in sorted(settings.items()))


def settings_task(vault: Vault, *, kind: str = "final_state", budgets: Budgets = BUDGETS) -> TaskSpec:
    before = settings_rows(depth="3", length="10", width="70")
    after = settings_rows(depth="3", length="10", width="113")
    reference = [message("get", name="width"), message("set", name="width", value="113"), message("submit")]
    return make_task(
        vault,
        "assistant",
        "Raise `width` by 43.",
        {"tables": {"settings": list(after)}, "initial": {"settings": list(before)}},
        kind,
        reference,
        ("get", "set", "submit"),
        InitialState(tables={"settings": before}),
        budgets,
    )


def coding_task(
    vault: Vault,
    *,
    kind: str = "hidden_tests",
    source: str = DOUBLE,
    inputs: tuple[int, ...] = (11, 20, 35, 50, 123, 400),
    outputs: tuple[Any, ...] | None = None,
    public: tuple[tuple[int, Any], ...] = ((2, 11), (3, 13)),
    payload: dict[str, Any] | None = None,
) -> TaskSpec:
    outputs = tuple(2 * n + 7 for n in inputs) if outputs is None else outputs
    payload = payload or {"entry": "solve", "inputs": [[n] for n in inputs], "outputs": list(outputs)}
    examples = tuple({"arguments": json.dumps([n]), "result": json.dumps(value)} for n, value in public)
    reference = [message("run_tests", source=source), message("submit", source=source)]
    prompt = "Write solve(n), as in solve(2) is 11 and solve(3) is 13."
    state = InitialState(tables={"examples": examples})
    return make_task(vault, "coding", prompt, payload, kind, reference, ("run_tests", "submit"), state)


def make_resources(vault: Vault) -> Resources:
    return Resources(vault, corpus=TwoDocuments())


__all__ = [
    "BUDGETS",
    "DOUBLE",
    "Outcome",
    "coding_task",
    "make_resources",
    "make_task",
    "message",
    "search_task",
    "settings_rows",
    "settings_task",
]
