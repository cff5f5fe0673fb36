"""A trace as rows of the catalogue's tables, and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NamedTuple, get_args

from pydantic import TypeAdapter

from environments.errors import CorruptArtifactError
from environments.harness.config import HarnessConfig
from environments.harness.sampler import options
from environments.records import CallRow, HarnessRow, RolloutRow, SegmentRow, SubagentRow
from environments.task import DOMAINS, EFFORTS, Message, canonical_json
from environments.trace import Segment, StopReason, SubagentRecord, ToolRecord, Trace
from environments.verdict import Verdict

_MESSAGES = TypeAdapter(tuple[Message, ...])


class TraceRows(NamedTuple):
    """The rows of one or more traces, beside those of `rollouts`."""

    segments: list[SegmentRow]
    calls: list[CallRow]
    subagents: list[SubagentRow]


def trace_rows(run: str, traces: Sequence[Trace]) -> TraceRows:
    """Everything of traces that the tables `segments`, `tool_calls` and `subagents` hold."""
    rows = TraceRows([], [], [])
    for trace in traces:
        key = trace.trajectory_id
        for segment in trace.segments:
            said = _MESSAGES.dump_json(segment.messages).decode() if segment.messages else ""
            rows.segments.append(
                SegmentRow(
                    run=run,
                    trajectory_id=key,
                    segment_id=segment.segment_id,
                    parent_id=segment.parent_id,
                    fork=segment.fork,
                    token_ids=list(segment.tokens),
                    logprobs=list(segment.logprobs),
                    versions=list(segment.versions),
                    loss_mask=list(segment.loss_mask),
                    malformed=list(segment.malformed or ()),
                    messages_json=said,
                )
            )
        for position, record in enumerate(trace.tool_records):
            rows.calls.append(
                CallRow(
                    run=run,
                    trajectory_id=key,
                    position=position,
                    arguments_json=canonical_json(record.arguments),
                    **record.model_dump(exclude={"arguments"}),
                )
            )
        rows.subagents.extend(SubagentRow(run=run, trajectory_id=key, **s.model_dump()) for s in trace.subagents)
    return rows


def harness_row(run: str, harness: HarnessConfig) -> HarnessRow:
    """What a harness is made of."""
    return HarnessRow(run=run, harness_sha256=harness.sha256, name=harness.name, config_json=canonical_json(harness), **options(harness))


def read_trace(rollout: RolloutRow, rows: TraceRows) -> Trace:
    """The trace of an episode from its rows, which may be in any order. What no table holds (timings by phase) is empty.

    Raises:
        CorruptArtifactError: rows are missing or contradict each other.
    """
    key = rollout.trajectory_id
    try:
        segments = tuple(
            Segment(
                segment_id=s.segment_id,
                parent_id=s.parent_id,
                fork=s.fork,
                messages=_MESSAGES.validate_json(s.messages_json) if s.messages_json else (),
                tokens=tuple(s.token_ids),
                logprobs=tuple(s.logprobs),
                versions=tuple(s.versions),
                loss_mask=tuple(s.loss_mask),
                malformed=tuple(s.malformed) or None,
            )
            for s in sorted(rows.segments, key=lambda s: s.segment_id)
        )
        records = tuple(
            ToolRecord(arguments=json.loads(c.arguments_json), **c.model_dump(include=set(ToolRecord.model_fields) - {"arguments"}))
            for c in sorted(rows.calls, key=lambda c: c.position)
        )
        if not segments:
            raise ValueError("no segment")
        return Trace(
            trajectory_id=key,
            task_id=rollout.task_id,
            domain=next(d for d in DOMAINS if d == rollout.domain),
            effort=next((e for e in EFFORTS if e == rollout.effort), None),
            harness_sha256=rollout.harness_sha256,
            policy=rollout.policy,
            teacher=rollout.teacher or None,
            trainable=any(s.tokens for s in segments),
            segments=segments,
            tool_records=records,
            stop=next(s for s in get_args(StopReason) if s == rollout.stop),
            output_tokens=rollout.output_tokens,
            thinking_tokens=rollout.thinking_tokens,
            malformed_calls=rollout.malformed_calls,
            subagents=tuple(
                SubagentRecord(**s.model_dump(exclude={"run", "trajectory_id"})) for s in sorted(rows.subagents, key=lambda s: s.segment_id)
            ),
            timings={"total": rollout.wall_s},
            verdict=Verdict(
                status=rollout.status,
                score=rollout.score,
                evidence=json.loads(rollout.evidence) if rollout.evidence else {},
            )
            if rollout.status != "infrastructure"
            else None,
        )
    except (ValueError, StopIteration) as error:
        raise CorruptArtifactError(f"the rows of episode {key} are no whole trace ({error!s:.120})", "run the stage again") from error
