"""`summary.json`: the figures of a run for machines, computed from its tables and stage records, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from environments.errors import CorruptArtifactError
from environments.records import EvaluationRow, MaterialRow, NodeRow, Row, TaskRow, ValidationRow
from environments.tables import read_rows
from environments.task import DOMAINS, EFFORTS
from flows.stages import STAGES, expert
from flows.workspace import RunDirectory, versions, write_json

R = TypeVar("R", bound=Row)

MIN_TEACHER_GAIN = 0.05
"""Below this gain of the teacher a recovered share is noise over noise: null."""
AFTER_VALIDATION = frozenset({"probe", "split", "published"})
AFTER_PROBES = frozenset({"split", "published"})
"""Statuses of tasks (stage that rejected them, or published) that passed validation, and probes."""


def rows_of(run: RunDirectory, model: type[R]) -> list[R]:
    """All rows of a run's table. Raises CorruptArtifactError naming the part that does not read."""
    return [row for part in sorted((run.tables / model.TABLE).glob("*.parquet")) for row in read_rows(part, model)]


FUNNEL = ("documents", "nodes", "materials", "candidates", "valid", "after_probes", "published")
"""Its figures from the widest on."""


def funnel(run: RunDirectory) -> dict[str, int]:
    """How many nodes, documents of the corpus, passages, candidates, valid tasks, tasks after probes and published tasks."""
    corpus = run.finished("corpus")
    statuses = [row.status for row in rows_of(run, TaskRow)]
    return {
        "nodes": len({row.node_id for row in rows_of(run, NodeRow)}),
        "documents": int(corpus.result.get("documents", 0)) if corpus else 0,
        "materials": len({row.material_sha256 for row in rows_of(run, MaterialRow)}),
        "candidates": len(statuses),
        "valid": sum(status in AFTER_VALIDATION for status in statuses),
        "after_probes": sum(status in AFTER_PROBES for status in statuses),
        "published": statuses.count("published"),
    }


def funnel_words(summary: Mapping[str, Any]) -> list[str]:
    """The funnel's figures in the order of the pipeline, whatever the order of the file."""
    counts: Mapping[str, int] = summary["funnel"]
    return [f"{counts[name]:,} {name.replace('_', ' ')}" for name in FUNNEL if name in counts]


def recovered_share(sft: float | None, teacher: float | None, student: float | None) -> float | None:
    """(student - cold start) / (teacher - cold start), unclipped; None when the teacher gained less than `MIN_TEACHER_GAIN`."""
    if sft is None or teacher is None or student is None or teacher - sft < MIN_TEACHER_GAIN:
        return None
    return (student - sft) / (teacher - sft)


def summarise(run: RunDirectory) -> dict[str, Any]:
    """The content of `summary.json`. What was not measured is null.

    Raises:
        CorruptArtifactError: a table's part does not read.
    """
    cells = {(row.policy, row.domain, row.effort): row for row in rows_of(run, EvaluationRow) if row.level == 0}
    experts: list[dict[str, Any]] = []
    student: list[dict[str, Any]] = []
    for domain in DOMAINS:
        for effort in EFFORTS:
            sft = cells.get(("cold_start", domain, effort))
            teacher = cells.get((expert(domain, effort), domain, effort))
            pupil = cells.get(("student", domain, effort))
            passes = [row.pass_rate if row else None for row in (sft, teacher, pupil)]
            experts.append(
                {
                    "domain": domain,
                    "effort": effort,
                    "sft_pass": passes[0],
                    "expert_pass": passes[1],
                    "mean_tokens": teacher.mean_tokens if teacher else None,
                    "budget": teacher.budget if teacher else None,
                }
            )
            student.append(
                {
                    "domain": domain,
                    "effort": effort,
                    "pass": passes[2],
                    "mean_tokens": pupil.mean_tokens if pupil else None,
                    "recovered": recovered_share(passes[0], passes[1], passes[2]),
                }
            )
    recovered = [cell["recovered"] for cell in student if cell["recovered"] is not None]
    return {
        "funnel": funnel(run),
        "experts": experts,
        "student": student,
        "recovered_mean": sum(recovered) / len(recovered) if recovered else None,
        "wall_s": {name: record.wall_s for name in STAGES if (record := run.finished(name))},
        "versions": versions(),
    }


def write_summary(run: RunDirectory) -> dict[str, Any]:
    """Compute and write `runs/<name>/summary.json`."""
    summary = summarise(run)
    write_json(run.summary, summary)
    return summary


def read_summary(run: RunDirectory) -> dict[str, Any]:
    """Read `summary.json` back. Raises CorruptArtifactError when it is missing or not what we write."""
    try:
        summary = json.loads(run.summary.read_text())
        if not isinstance(summary, dict) or len(summary["experts"]) != 9 or len(summary["student"]) != 9:
            raise ValueError("not nine cells")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptArtifactError(
            f"{run.summary} is missing or damaged ({type(error).__name__})", "run `ninefold report --name ...` to write it anew"
        ) from error
    return summary


def lines(summary: Mapping[str, Any]) -> list[str]:
    """The summary as plain text lines."""
    out = ["funnel: " + " -> ".join(funnel_words(summary))]
    out += ["experts (pass@1 within the budget, before -> after):"]
    out += [
        f"  {c['domain']:<8} {c['effort']:<5} {_share(c['sft_pass'])} -> {_share(c['expert_pass'])}"
        f"  tokens {_number(c['mean_tokens'])} of budget {_number(c['budget'])}"
        for c in summary["experts"]
    ]
    out += ["student against its teachers:"]
    for cell, teacher in zip(summary["student"], summary["experts"], strict=True):
        shares = f"{_share(cell['pass'])} against {_share(teacher['expert_pass'])}"
        tokens = _number(cell["mean_tokens"])
        out.append(f"  {cell['domain']:<8} {cell['effort']:<5} {shares}  recovered {_share(cell['recovered'])}  tokens {tokens}")
    out.append(f"recovered on average: {_share(summary['recovered_mean'])}")
    out.append("seconds: " + _walls(summary["wall_s"]))
    return out


def _share(value: float | None) -> str:
    return f"{value:6.3f}" if value is not None else "   n/a"


def _number(value: float | None) -> str:
    return f"{value:6.1f}" if value is not None else "   n/a"


def _walls(walls: Mapping[str, float]) -> str:
    experts = [s for name, s in walls.items() if name.startswith("expert-")]
    parts = [f"{name} {s:.0f}" for name, s in walls.items() if not name.startswith("expert-")]
    return ", ".join([*parts, *([f"experts {sum(experts):.0f} (all nine)"] if experts else [])]) or "none yet"


def validated(run: RunDirectory) -> set[str]:
    """Ids of tasks all of whose validation checks came out as expected."""
    verdicts: dict[str, bool] = {}
    for row in rows_of(run, ValidationRow):
        verdicts[row.task_id] = verdicts.get(row.task_id, True) and row.ok
    return {task_id for task_id, ok in verdicts.items() if ok}


def tasks_by_reason(rows: Sequence[TaskRow]) -> dict[str, int]:
    """Rejected tasks by stage and reason."""
    counts: dict[str, int] = {}
    for row in rows:
        if row.status != "published":
            reason = f"{row.status}: {row.reject_reason}"
            counts[reason] = counts.get(reason, 0) + 1
    return counts
