"""Judges by kind, and the one place where a judge's failure becomes a typed outcome."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

from environments.errors import CorruptArtifactError, InfrastructureError, MissingDependencyError, VerifierError
from environments.protocols import Outcome, Verifier
from environments.resources import Resources
from environments.task import TaskSpec
from environments.verdict import Verdict
from environments.verifiers.fixture import VerifierFixture

VERIFIER_TIMEOUT_S = 60.0
"""Patience with a registered verifier that does not declare itself `bounded`."""

ENTRIES: dict[str, str] = {
    "atomic_facts": "environments.verifiers.atomic_facts:AtomicFacts",
    "constrained_tests": "environments.verifiers.constrained_tests:ConstrainedTests",
    "exact_number": "environments.verifiers.exact_number:ExactNumber",
    "exact_values": "environments.verifiers.exact_values:ExactValues",
    "final_state": "environments.verifiers.final_state:FinalState",
    "general_agent": "environments.verifiers.general_agent:GeneralAgentVerifier",
    "hidden_tests": "environments.verifiers.hidden_tests:HiddenTests",
    "notebook": "environments.verifiers.notebook:NotebookVerifier",
    "professional": "environments.verifiers.professional:ProfessionalVerifier",
    "reasoning_scorer": "environments.verifiers.reasoning_scorer:ReasoningScorer",
    "repository_tests": "environments.verifiers.repository_tests:RepositoryTests",
    "typed_answer": "environments.verifiers.typed_answer:TypedAnswer",
    "vision": "environments.verifiers.vision:VisionVerifier",
}
"""`VerifierRef.entry` by kind. A module is imported when a task of its kind is judged."""
_NEEDS: dict[str, Callable[[Resources], object]] = {
    "constrained_tests": lambda resources: resources.pool,
    "hidden_tests": lambda resources: resources.pool,
    "repository_tests": lambda resources: resources.sandboxes,
}
"""What a verifier is made with, where it needs something."""
_registry: dict[str, Callable[[Resources], Verifier]] = {}
"""Those that `register` added."""


def fixtures_of(kind: str) -> tuple[VerifierFixture, ...]:
    """What the verifier of a kind must say of full, zero, partial, malformed and repeated outcomes. Raises KeyError."""
    module, _, _ = ENTRIES[kind].partition(":")
    fixtures: tuple[VerifierFixture, ...] = importlib.import_module(module).FIXTURES
    return fixtures


def register(kind: str, factory: Callable[[Resources], Verifier]) -> None:
    """Add a verifier. It must ship fixtures of its own; see `environments.verifiers.fixture`."""
    _registry[kind] = factory


def verifier_for(kind: str, resources: Resources) -> Verifier:
    """The verifier of a kind.

    Raises:
        VerifierError: there is none.
    """
    if kind in _registry:
        return _registry[kind](resources)
    if kind not in ENTRIES:
        raise VerifierError(f"there is no verifier {kind!r:.60}", f"use one of: {', '.join(sorted({*_registry, *ENTRIES}))}")
    module, _, name = ENTRIES[kind].partition(":")
    made = getattr(importlib.import_module(module), name)
    verifier: Verifier = made(_NEEDS[kind](resources)) if kind in _NEEDS else made()
    return verifier


def judge(task: TaskSpec, outcome: Outcome, resources: Resources) -> Verdict:
    """Judge an outcome against the task's hidden payload.

    A bad outcome is a fail. A verifier that is missing, crashes, hangs, lacks its payload or returns something that is not
    a score gives *no-verdict*, with the error's class and text as evidence.

    Raises:
        InfrastructureError: the sandbox failed; neither the agent nor the verifier did.
        MissingDependencyError: the verifier needs something that is not installed.
    """
    try:
        payload = resources.vault.get(task.hidden_verifier.sha256)
    except CorruptArtifactError as error:
        return _no_verdict(error)
    return judge_payload(task, outcome, payload, resources)


def judge_payload(task: TaskSpec, outcome: Outcome, payload: Any, resources: Resources) -> Verdict:
    """As `judge`, against a payload that is already here; hardening judges against spoiled ones."""
    try:
        verifier = verifier_for(task.hidden_verifier.kind, resources)
        said: object = _run(verifier, task, outcome, payload)
        if isinstance(said, Verdict):
            return Verdict.model_validate(said.model_dump())  # a verdict built around validation must not slip through
        return Verdict.decide(said)
    except (InfrastructureError, MissingDependencyError):
        raise
    except Exception as error:  # noqa: BLE001 - the named boundary: a verifier's failure is an outcome, not a crash
        return _no_verdict(error)


def _no_verdict(error: Exception) -> Verdict:
    return Verdict(status="no-verdict", evidence={"reason": str(error)[:300], "error": type(error).__name__})


def _run(verifier: Verifier, task: TaskSpec, outcome: Outcome, payload: Any) -> object:
    if getattr(verifier, "bounded", False):
        return verifier.verify(task, outcome, payload)
    box: list[tuple[bool, Any]] = []

    def work() -> None:
        try:
            box.append((True, verifier.verify(task, outcome, payload)))
        except Exception as error:  # noqa: BLE001 - raised again by the caller
            box.append((False, error))

    thread = threading.Thread(target=work, daemon=True, name=f"verify-{verifier.kind}")
    thread.start()
    thread.join(getattr(verifier, "timeout_s", VERIFIER_TIMEOUT_S))
    if not box:
        raise VerifierError(f"the verifier {verifier.kind} did not answer in time", "bound its work, or raise its `timeout_s`")
    ok, value = box[0]
    if not ok:
        raise value
    return value
