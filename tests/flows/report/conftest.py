"""A report over synthetic rows, and a real browser."""

from __future__ import annotations

import json

import pytest

from flows.report import write_report
from tests.tasks.synthetic import HOSTILE, write_run

SUMMARY = {
    "funnel": {"documents": 23_456},
    "wall_s": {"corpus": 40.2, "grow": 55.0, "cold_start": 180.0, "expert-coding-max": 61.0},
    "versions": {"duckdb": "1.5.5", "python": HOSTILE},
}


@pytest.fixture(scope="session")
def report(tmp_path_factory):
    """`report.html` of a whole synthetic run, with hostile text in tasks, traces, nodes and versions."""
    run = write_run(tmp_path_factory.mktemp("workspace"))
    (run / "summary.json").write_text(json.dumps(SUMMARY))
    return write_report(run)
