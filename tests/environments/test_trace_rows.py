"""Traces survive the way into the tables and back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from environments.errors import CorruptArtifactError
from environments.harness.config import ENDPOINT, HarnessConfig, SubagentModule
from environments.harness.loop import run_messages
from environments.harness.presets import PRESETS
from environments.policies import ScriptedPolicy
from environments.records import CallRow, HarnessRow, RolloutRow, SegmentRow, SubagentRow
from environments.resources import Resources
from environments.tables import read_rows, write_rows
from environments.task import canonical_json
from environments.trace import Segment, Trace
from environments.trace_rows import TraceRows, harness_row, read_trace, trace_rows
from environments.vault import Vault
from tests.environments.small_tasks import make_resources, message, settings_task


@pytest.fixture
def resources(tmp_path: Path) -> Iterator[Resources]:
    with make_resources(Vault(tmp_path / "vault")) as made:
        yield made


def rollout_row(trace: Trace) -> RolloutRow:
    verdict = trace.verdict
    return RolloutRow(
        run="r",
        trajectory_id=trace.trajectory_id,
        task_id=trace.task_id,
        stage="evaluation",
        policy=trace.policy,
        checkpoint_id="",
        domain=trace.domain,
        effort=trace.effort or "",
        step=-1,
        teacher=trace.teacher or "",
        stop=trace.stop,
        output_tokens=trace.output_tokens,
        thinking_tokens=trace.thinking_tokens,
        tool_calls=len(trace.tool_records),
        malformed_calls=trace.malformed_calls,
        status=verdict.status if verdict else "infrastructure",
        score=verdict.score if verdict else None,
        evidence=canonical_json(verdict.evidence) if verdict else "",
        within_budget=None,
        transcript="",
        harness_sha256=trace.harness_sha256,
        wall_s=trace.timings["total"],
    )


def stored(rows: TraceRows, folder: Path) -> TraceRows:
    """As read back from Parquet."""
    parts: list[Any] = []
    for model, mine in ((SegmentRow, rows.segments), (CallRow, rows.calls), (SubagentRow, rows.subagents)):
        parts.append(read_rows(write_rows(folder / f"{model.TABLE}.parquet", model, mine), model))  # type: ignore[type-var, arg-type]
    return TraceRows(*parts)


def test_a_trace_with_sub_agents_refusals_and_forks_comes_back(resources: Resources, tmp_path: Path) -> None:
    harness = HarnessConfig(name="h", subagents=SubagentModule())
    lines = [message("delegate", prompts=["a", "b"]), message("gett", name="width")]
    trace = run_messages(ScriptedPolicy(message("get", nam="x"), *lines[:1]), settings_task(resources.vault), resources, harness, "low")
    tokens = Segment(
        segment_id=9,
        parent_id=0,
        fork="context",
        tokens=(1, 2, 3),
        logprobs=(0.0, -0.1, -0.7),
        versions=(-1, 3, 4),
        loss_mask=(0, 1, 1),
        malformed=(0, 0, 1),
    )
    total = {"total": trace.timings["total"]}
    trace = trace.model_copy(update={"segments": (*trace.segments, tokens), "trainable": True, "timings": total})
    back = read_trace(rollout_row(trace), stored(trace_rows("r", [trace]), tmp_path))
    verdict = trace.verdict
    assert verdict is not None
    assert back == trace.model_copy(update={"verdict": verdict.model_copy(update={"parts": {}})})  # parts are in no table
    assert len(back.subagents) == 2
    assert back.tool_records[0].error == "BadArgumentsError"


def test_an_episode_without_its_segments_is_a_typed_error(resources: Resources) -> None:
    trace = run_messages(ScriptedPolicy(), settings_task(resources.vault), resources, ENDPOINT)
    with pytest.raises(CorruptArtifactError, match=trace.trajectory_id):
        read_trace(rollout_row(trace), TraceRows([], [], []))


@pytest.mark.parametrize("harness", PRESETS.values(), ids=lambda h: h.name)
def test_a_harness_row_holds_the_whole_harness(harness: HarnessConfig, tmp_path: Path) -> None:
    (row,) = read_rows(write_rows(tmp_path / "h.parquet", HarnessRow, [harness_row("r", harness)]), HarnessRow)
    assert HarnessConfig.model_validate_json(row.config_json).sha256 == row.harness_sha256 == harness.sha256
