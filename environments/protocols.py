"""The signatures every part agrees on: Policy, Engine, Verifier, SearchSource, Brain. The sandbox's is `environments.sandbox.base`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from environments.task import Image, Message, TaskSpec, ToolSpec
from environments.verdict import Verdict

# --- policies and engines ------------------------------------------------------------------------------------------


@runtime_checkable
class MessagePolicy(Protocol):
    """Turns messages into the next assistant message (an endpoint, a script). Its traces are not trainable."""

    name: str

    def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        """The next assistant message.

        Raises:
            EngineError: the endpoint is dead or answers garbage (infrastructure, not the agent).
        """
        ...


@dataclass(frozen=True)
class GenerateRequest:
    """One token-level request. `key` = (trajectory, position) seeds the sampling, whatever it is batched with."""

    request_id: str
    prefix: Sequence[int]
    max_new_tokens: int
    stop_tokens: frozenset[int]
    key: tuple[int, int] = (0, 0)
    """(trajectory seed, index of the first new token within the trajectory)."""
    temperature: float = 1.0


@dataclass(frozen=True)
class Generation:
    """What was sampled: `tokens`, their natural-log probabilities and the policy version of each."""

    request_id: str
    tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    finish: str
    """`stop`, `length` or `abort`."""


@dataclass(frozen=True)
class Load:
    """Load figures of an engine. `kv_use` is the share of cache slots in use, 0 to 1."""

    running: int
    queued: int
    kv_use: float


class Engine(Protocol):
    """A token-level generation engine."""

    version: int

    def generate(self, requests: Sequence[GenerateRequest]) -> list[Generation]:
        """Generate for all requests, in their order. Raises EngineError when the engine is dead."""
        ...

    def score(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-probability of each token given those before it; the first token scores 0.0."""
        ...

    def abort(self, request_ids: Sequence[str] | None = None) -> None:
        """Stop the given requests (all when None); `generate` returns what they have so far."""
        ...

    def update_weights(self, state: Mapping[str, Any], version: int) -> None:
        """Swap the weights without a restart. Cached prefixes of older versions are dropped."""
        ...

    def load(self) -> Load:
        """Current load figures."""
        ...


# --- environments --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observation:
    """What a tool returns when text alone does not say it all."""

    text: str = ""
    images: tuple[Image, ...] = ()
    failed: bool = False
    """The call was valid, but what it asked for could not be done (no such file, no match): no AgentError, yet no success."""


# --- memory --------------------------------------------------------------------------------------------------------


class Memory(Protocol):
    """Where notes are kept that persist between the episodes of a task."""

    def notes(self, task_id: str) -> Sequence[str]:
        """The notes of a task, oldest first."""
        ...

    def add(self, task_id: str, note: str) -> None:
        """Keep a note."""
        ...


# --- verifiers -----------------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What an episode leaves behind for the verifier: the declared artefacts only."""

    submission: str | None = None
    """The last `submit` payload; None when the agent submitted nothing."""
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """Final state of the world's tables."""
    tool_calls: int = 0
    files: dict[str, bytes] = field(default_factory=dict)
    """Declared files of the sandbox's workspace, by path within it; one that the agent never made is absent."""


class Verifier(Protocol):
    """Judges an outcome against a hidden payload. A crash is turned into no-verdict by `environments.verifiers.judge`."""

    kind: str
    version: int

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict: ...


# --- search and brains ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Document:
    """One document of a corpus."""

    document_id: str
    title: str
    text: str
    source: str
    """Package or dictionary it comes from."""
    licence: str
    links: tuple[str, ...] = ()
    """Titles it cross-references; empty when the corpus is stripped of markup."""


@dataclass(frozen=True)
class Hit:
    """One search result, best first; `score` is only comparable within one query."""

    document_id: str
    title: str
    snippet: str
    score: float


class SearchSource(Protocol):
    """Anything that can be searched and opened."""

    content_hash: str

    def search(self, query: str, limit: int = 10) -> list[Hit]: ...
    def open(self, document_id: str) -> Document:
        """Raises KeyError when there is no such document."""
        ...


@dataclass(frozen=True)
class Evidence:
    """A quoted passage that supports a proposal."""

    document_id: str
    quote: str


@dataclass(frozen=True)
class Proposal:
    """A concept a brain found from a node."""

    name: str
    relation: str
    """Of the found concept to the node: `narrower`, `broader`, `equivalent` or `related`."""
    confidence: float
    evidence: tuple[Evidence, ...]
    domain: str = "general"


@dataclass(frozen=True)
class Refusal:
    """A proposal that a brain's own tools refused, kept beside those of the graph."""

    name: str
    relation: str
    reason: str


@dataclass(frozen=True)
class Reading:
    """What a brain made of one node: proposals, the searches it ran, and whether the concept is atomic."""

    proposals: tuple[Proposal, ...]
    queries: tuple[str, ...]
    documents: tuple[str, ...]
    atomic: bool
    reason: str
    refused: tuple[Refusal, ...] = ()
    searches: int = 0
    """Searches it ran, counted by whoever asked for the reading."""
    tokens: int = 0
    """Tokens a language model read and wrote for it, as its endpoint counted them."""


class Brain(Protocol):
    """Reads for a node: embedded (no model) or a language model working through tools."""

    name: str

    def read(self, concept: str, ancestors: Sequence[str], source: SearchSource) -> Reading:
        """What the corpus says about a concept whose ancestors' names are given, nearest first.

        Raises:
            InputError: the corpus is damaged or the endpoint refuses us; no other node would fare better.
            InfrastructureError: the endpoint failed; the node can be read again later.
        """
        ...
