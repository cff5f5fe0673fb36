"""What a task is: frozen, content-hashed, and free of anything an agent must not see."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Domain = Literal["general", "agent", "coding"]
Effort = Literal["low", "high", "max"]
DOMAINS: tuple[Domain, ...] = ("general", "agent", "coding")
EFFORTS: tuple[Effort, ...] = ("low", "high", "max")

FAMILY_DOMAIN: dict[str, Domain] = {
    "search": "general",
    "reasoning": "general",
    "professional": "general",
    "vision": "general",
    "assistant": "agent",
    "execution": "agent",
    "writing": "agent",
    "coding": "coding",
    "kernel": "coding",
    "web": "coding",
    "security": "coding",
}
"""Every family and the domain whose experts train on it."""


class Frozen(BaseModel):
    """Base of all models that cross a boundary."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces: equal values give equal text."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def content_hash(value: Any) -> str:
    """sha256 (hex) of `canonical_json(value)`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


Option = Literal["", "tools", "effort", "tool_choice", "response_format"]
"""Option messages (Kimi K3 report, appendix F): tool declarations and the effort stand before the input, or, for tools loaded
later, between messages; tool choice and response format follow the input and hold for one answer. None changes what is before it."""


class ToolCall(Frozen):
    """One call of a tool by an agent. `index` numbers parallel calls within a message."""

    tool: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    index: int = 0
    malformed: str = Field(default="", exclude_if=lambda text: not text)
    """What the agent wrote where no arguments could be read; such a call is refused. Empty for every other call."""


class Image(Frozen):
    """A picture within a message."""

    data: str
    """base64 of the file."""
    media_type: Literal["image/png", "image/jpeg"] = "image/png"


class Message(Frozen):
    """One message. Assistant messages may carry thinking and calls; tool messages name the call they answer."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str = ""
    calls: tuple[ToolCall, ...] = ()
    tool: str = ""
    index: int = 0
    images: tuple[Image, ...] = Field(default=(), exclude_if=lambda images: not images)
    option: Option = Field(default="", exclude_if=lambda option: not option)
    """Of a system message that is an option message: what it sets. Empty for all others."""


class ToolParameter(Frozen):
    """One typed parameter of a tool."""

    name: str
    type: Literal["string", "integer", "number", "boolean", "array", "object"] = "string"
    description: str = ""
    required: bool = True


class ToolSpec(Frozen):
    """A tool as an agent sees it."""

    name: str
    description: str
    parameters: tuple[ToolParameter, ...] = ()


class InitialState(Frozen):
    """Where an episode starts: files by path, tables by name (a row is a dict of plain values), and the world's seed."""

    files: dict[str, str] = Field(default_factory=dict)
    tables: dict[str, tuple[dict[str, str | int | float | bool | None], ...]] = Field(default_factory=dict)
    world_seed: int = 0


class Budgets(Frozen):
    """What one episode may spend."""

    steps: int
    """Assistant messages."""
    output_tokens: int
    """Tokens the policy may sample in all."""
    wall_s: float
    """Seconds of wall time, environment and generation together."""
    submissions: int
    """Final submissions (calls of `submit`)."""


class VerifierRef(Frozen):
    """Names a verifier without containing it. The payload lies in the vault (`environments.vault`)."""

    kind: str
    """Registry key, for example `exact_number`, `final_state`, `hidden_tests`."""
    sha256: str
    """Of the payload: expected answer, expected state or tests."""
    entry: str
    """`module:Class` of the verifier's code."""
    version: int = 1
    image_digest: str | None = None
    visibility: Literal["public", "hidden"] = "hidden"


class Provenance(Frozen):
    """Where a task came from."""

    node_ids: tuple[str, ...]
    branch: str
    """Graph branch; splits never cut one."""
    document_ids: tuple[str, ...]
    material_hashes: tuple[str, ...]
    """sha256 of each supporting passage's text."""
    synthesizer: str
    synthesizer_version: str


class TaskSpec(Frozen):
    """A task. Everything here may be shown to an agent; what may not lies in the vault under `sha256`."""

    family: str
    domain: Domain
    kind: str
    """Task type within the family, for example `two_hop_sum`."""
    level: int
    """Difficulty level, 1 is the easiest."""
    prompt: tuple[Message, ...]
    initial_state: InitialState = InitialState()
    tools: tuple[str, ...]
    budgets: Budgets
    public_verifier: VerifierRef | None = None
    hidden_verifier: VerifierRef
    reference_sha256: str
    """Of the reference solution (a list of assistant messages) in the vault."""
    provenance: Provenance
    licence: str

    @cached_property
    def task_id(self) -> str:
        """sha256 (hex, 16 characters) of the whole content."""
        return content_hash(self)[:16]
