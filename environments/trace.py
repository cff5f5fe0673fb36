"""What happened in one episode: messages and the exact tokens.

A trace is a tree of segments: context management and sub-agents fork it. Each segment holds the tokens the policy saw
and sampled, so that a transcript is never tokenised again.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from environments.task import Domain, Effort, Frozen, Message
from environments.verdict import Verdict

StopReason = Literal["submitted", "finished", "steps", "output_tokens", "context", "wall", "submissions", "infrastructure", "aborted"]
"""`finished`: the agent ended its turn without a call. `infrastructure`: a machine part failed; such a trace has no score."""


Fork = Literal["root", "context", "subagent"]
"""Where a segment begins: with the episode, where the context was managed, or with a sub-agent."""


class ToolRecord(Frozen):
    """One executed (or refused) call."""

    step: int
    tool: str
    arguments: dict[str, Any]
    result: str
    error: str = ""
    """Class name of the AgentError, empty when the call was valid."""
    wall_s: float = 0.0
    conversation: int = 0
    """0 is the main agent, others are its sub-agents."""


class Segment(Frozen):
    """A stretch of context without a fork. The four token columns have equal length."""

    segment_id: int = 0
    parent_id: int | None = None
    fork: Fork = "root"
    messages: tuple[Message, ...] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Natural log; 0.0 where the token was not sampled."""
    versions: tuple[int, ...] = ()
    """Policy version that sampled the token; -1 where it was not sampled."""
    loss_mask: tuple[int, ...] = ()
    """1 where the policy sampled the token, 0 for prompt and observations."""
    malformed: tuple[int, ...] | None = None
    """1 on sampled tokens of refused calls, for behaviour regularisation (MiMo V2.6 report, eq. 5); None where there are none."""
    sampling_masks: tuple[tuple[int, ...], ...] | None = None
    """Token ids that top-p / top-k kept at each sampled position."""
    expert_routing: tuple[tuple[int, ...], ...] | None = None


class SubagentRecord(Frozen):
    """One sub-agent, with the signals that PARL rewards (Kimi K2.5 report): it was instantiated, it finished."""

    segment_id: int
    """Its first segment."""
    step: int
    """Step of the main agent that started it."""
    prompt: str
    result: str
    stop: StopReason
    finished: bool
    """It ended by itself, within its budgets."""
    steps: int
    output_tokens: int


class Trace(Frozen):
    """One episode of one policy on one task."""

    trajectory_id: str
    task_id: str
    domain: Domain
    effort: Effort | None
    harness_sha256: str
    policy: str
    """Checkpoint hash, endpoint model or scripted policy's name."""
    teacher: str | None = None
    trainable: bool
    """True when the tokens are exact (token-level policies)."""
    segments: tuple[Segment, ...]
    tool_records: tuple[ToolRecord, ...] = ()
    stop: StopReason
    output_tokens: int
    thinking_tokens: int
    malformed_calls: int = 0
    subagents: tuple[SubagentRecord, ...] = ()
    timings: dict[str, float] = Field(default_factory=dict)
    """Seconds by phase: `generate`, `environment`, `verify`."""
    verdict: Verdict | None = None
