"""The whole chain at its smallest size: real Prefect server, Dask cluster, sandboxes, DeepSpeed, Chromium. No learning is claimed here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

CONFIG = """
[corpus]
packages = ["scipy", "networkx"]
foldoc = false
python_manual = false
linux_manual = false
embeddings = false
min_documents = 500

[graph]
seeds = ["statistics", "interpolation", "graph algorithms"]
max_nodes = 120

[synthesis]
tasks = { general = 36, agent = 36, coding = 18 }

[orchestration]
shards = 3

[training]
rows = 32
rl_tasks_per_domain = 12

[training.policy]
layers = 2
intermediate_size = 128

[training.sft]
tokens = 60000
renamed_copies = 1

[training.expert]
prompts = 2
samples = 2
steps_max = { general = 2, agent = 2, coding = 2 }
branch_step = 1
steps_other = { general = 2, agent = 2, coding = 2 }
checkpoint_every = 1

[training.mopd]
prompts_per_cell = 1
steps = 2

[training.effort]
tasks_per_domain = 6
samples = 1

[training.evaluation]
tasks_per_domain = 6
samples = 1
cross_tasks = 3
bootstrap = 50
"""

pytestmark = [
    pytest.mark.prefect,
    pytest.mark.dask,
    pytest.mark.sandbox,
    pytest.mark.deepspeed,
    pytest.mark.chromium,
    pytest.mark.timeout(900),
]


def ninefold(workspace: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a workspace of its own."""
    env = {**os.environ, "NINEFOLD_HOME": str(workspace)}
    env.pop("PREFECT_API_URL", None)
    return subprocess.run(
        [str(Path(sys.executable).with_name("ninefold")), *arguments], cwd=workspace, env=env, capture_output=True, text=True, timeout=800
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workspace = tmp_path_factory.mktemp("workspace")
    (workspace / "small.toml").write_text(CONFIG)
    done = ninefold(workspace, "run", "--name", "small", "--config", "small.toml")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "nodes" in done.stdout
    assert "student" in done.stdout
    return workspace


def test_summary_holds_what_the_readme_promises(finished: Path) -> None:
    summary = json.loads((finished / "runs/small/summary.json").read_text())
    assert {"funnel", "experts", "student", "recovered_mean", "wall_s", "versions"} <= summary.keys()
    assert len(summary["experts"]) == 9
    assert len(summary["student"]) == 9
    assert all(row.keys() >= {"domain", "effort", "sft_pass", "expert_pass", "mean_tokens", "budget"} for row in summary["experts"])
    assert all(row.keys() >= {"domain", "effort", "pass", "mean_tokens", "recovered"} for row in summary["student"])
    funnel = summary["funnel"]
    assert funnel["nodes"] >= 60
    assert funnel["candidates"] >= funnel["valid"] > 0


def test_lineage_from_the_student_back_to_graph_nodes(finished: Path) -> None:
    with duckdb.connect(str(finished / "catalog.duckdb"), read_only=True) as catalog:
        rows = catalog.execute(
            "SELECT count(DISTINCT n.node_id), count(DISTINCT t.task_id) "
            "FROM checkpoints c JOIN checkpoint_tasks f USING (run, checkpoint_id) "
            "JOIN tasks t ON t.run = c.run AND t.task_id = f.task_id JOIN task_nodes tn ON tn.run = t.run AND tn.task_id = t.task_id "
            "JOIN nodes n ON n.run = tn.run AND n.node_id = tn.node_id WHERE c.stage = 'mopd' AND t.split = 'train'"
        ).fetchone()
        evaluated = catalog.execute("SELECT count(DISTINCT policy) FROM evaluations").fetchone()
        leaked = catalog.execute("SELECT count(*) FROM checkpoint_tasks JOIN tasks USING (run, task_id) WHERE split <> 'train'").fetchone()
    assert rows is not None
    assert rows[0] > 0
    assert rows[1] > 0
    assert evaluated == (14,)  # cold start, nine experts, student, three trivial policies
    assert leaked == (0,)


@pytest.mark.chromium
def test_report_opens_in_a_browser(finished: Path, browser: Any) -> None:
    problems: list[str] = []
    page = browser.new_page()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto((finished / "runs/small/report.html").as_uri())
    text = page.inner_text("body")
    page.close()
    assert not problems
    assert "small" in text
    assert "coding" in text


def test_a_second_run_redoes_nothing(finished: Path) -> None:
    sealed = {p: p.stat().st_mtime_ns for p in (finished / "runs/small").rglob("done.json")}
    again = ninefold(finished, "run", "--name", "small", "--config", "small.toml", "--resume")
    assert again.returncode == 0, again.stderr[-2000:]
    assert sealed == {p: p.stat().st_mtime_ns for p in (finished / "runs/small").rglob("done.json")}


def test_an_existing_run_needs_resume(finished: Path) -> None:
    refused = ninefold(finished, "run", "--name", "small", "--config", "small.toml")
    assert refused.returncode == 2
    assert "--resume" in refused.stdout + refused.stderr
