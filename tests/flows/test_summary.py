"""The summary is computed from the tables, with null for what was not measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from environments.errors import CorruptArtifactError
from environments.records import EvaluationRow, TaskRow
from environments.tables import write_rows
from flows import summary as module
from flows.console import print_summary
from flows.workspace import RunDirectory, Workspace


def evaluation(policy: str, domain: str, effort: str, rate: float, level: int = 0) -> EvaluationRow:
    fixed = {"run": "r", "checkpoint_id": "c", "tasks": 10, "samples": 20, "pass_low": 0.0, "pass_high": 1.0, "budget": 60.0}
    tokens = {"mean_tokens": 40.5, "mean_effort_tokens": 30.0}
    cell = {"policy": policy, "domain": domain, "effort": effort, "level": level, "pass_rate": rate, "pass_unbudgeted": rate}
    return EvaluationRow.model_validate(fixed | tokens | cell)


def task(task_id: str, status: str) -> TaskRow:
    fixed = {
        "run": "r",
        "family": "search",
        "domain": "general",
        "kind": "lookup",
        "level": 1,
        "branch": "b",
        "split": "",
        "reject_reason": "",
    }
    verifier = {"verifier_kind": "exact_number", "verifier_sha256": "", "verifier_version": 1}
    other = {"prompt": "p", "spec_json": "{}", "synthesizer": "s", "synthesizer_version": "1", "licence": "MIT"}
    return TaskRow.model_validate(fixed | verifier | other | {"task_id": task_id, "status": status})


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = Workspace(tmp_path).run("r")
    rows = [
        evaluation("cold_start", "general", "max", 0.40),
        evaluation("expert-general-max", "general", "max", 0.80),
        evaluation("student", "general", "max", 0.76),
        evaluation("student", "general", "max", 0.10, level=3),
        evaluation("expert-general-max", "coding", "max", 0.99),
        evaluation("cold_start", "agent", "low", 0.50),
        evaluation("expert-agent-low", "agent", "low", 0.54),
        evaluation("student", "agent", "low", 0.60),
    ]
    write_rows(run.tables / "evaluations" / "evaluate.parquet", EvaluationRow, rows)
    statuses = ["synthesis", "validation", "probe", "split", "published", "published"]
    write_rows(run.tables / "tasks" / "tasks.parquet", TaskRow, [task(str(i), s) for i, s in enumerate(statuses)])
    run.finish("corpus", "k", [], {"documents": 12}, 3.5)
    return run


def test_cells_come_from_the_rows_of_their_own_domain_and_effort(run: RunDirectory) -> None:
    summary = module.write_summary(run)
    assert json.loads(run.summary.read_text()) == summary == module.read_summary(run)
    assert set(summary) == {"funnel", "experts", "student", "recovered_mean", "wall_s", "versions"}
    experts = {(c["domain"], c["effort"]): c for c in summary["experts"]}
    student = {(c["domain"], c["effort"]): c for c in summary["student"]}
    assert len(experts) == len(student) == 9
    assert experts["general", "max"] == {
        "domain": "general",
        "effort": "max",
        "sft_pass": 0.4,
        "expert_pass": 0.8,
        "mean_tokens": 40.5,
        "budget": 60.0,
    }
    assert student["general", "max"]["pass"] == 0.76
    assert student["general", "max"]["recovered"] == pytest.approx(0.9)
    assert experts["coding", "max"]["expert_pass"] is None
    assert student["agent", "low"]["recovered"] is None  # the teacher gained .04: less than counts
    assert summary["recovered_mean"] == pytest.approx(0.9)
    assert summary["wall_s"] == {"corpus": 3.5}


def test_the_funnel_counts_tasks_by_the_stage_they_reached(run: RunDirectory) -> None:
    funnel = module.funnel(run)
    assert funnel == {"nodes": 0, "documents": 12, "materials": 0, "candidates": 6, "valid": 4, "after_probes": 3, "published": 2}


@pytest.mark.parametrize(
    ("sft", "teacher", "student", "share"), [(0.2, 0.6, 0.7, 1.25), (0.2, 0.6, 0.1, -0.25), (0.2, 0.24, 0.9, None), (None, 0.6, 0.7, None)]
)
def test_the_recovered_share_is_unclipped_and_null_without_a_gain(
    sft: float | None, teacher: float, student: float, share: float | None
) -> None:
    assert module.recovered_share(sft, teacher, student) == (pytest.approx(share) if share is not None else None)


def test_a_corrupt_part_and_a_damaged_summary_are_named(run: RunDirectory) -> None:
    part = run.tables / "evaluations" / "evaluate.parquet"
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(CorruptArtifactError, match=r"evaluate\.parquet"):
        module.summarise(run)
    run.summary.write_text('{"experts": []}')
    with pytest.raises(CorruptArtifactError, match=r"summary\.json"):
        module.read_summary(run)


def test_plain_output_names_figures_and_the_commands_that_open_the_rest(run: RunDirectory, capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(module.summarise(run), run, Workspace(run.root.parent.parent))
    said = capsys.readouterr().out
    assert "6 candidates -> 4 valid -> 3 after probes -> 2 published" in said
    assert "0.400 ->  0.800" in said
    assert "recovered  0.900" in said
    assert all(word in said for word in (str(run.report), "ninefold catalog", "ninefold serve"))
    assert "\x1b" not in said
