"""`ninefold grow`: its options, and the whole way over a real Prefect server and Dask cluster, killed and taken up again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from environments.errors import InputError, UnknownSeedError
from flows import cli
from flows.config import load_config
from flows.grow_options import graph_options, parse_seeds
from flows.steps.graph import load_graph
from flows.workspace import Workspace

ROOT = Path(__file__).parents[2]
SMALL = """
[corpus]
packages = ["networkx"]
foldoc = false
python_manual = false
linux_manual = false
embeddings = false
min_documents = 100

[orchestration]
min_free_disk_mb = 100
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NINEFOLD_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    return tmp_path


def ninefold(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, ["grow", *arguments])


# --- options -------------------------------------------------------------------------------------------------------


def test_seeds_come_from_a_list_or_a_file(tmp_path: Path) -> None:
    assert parse_seeds("statistics, graph algorithms,,Graph Algorithm") == ["statistics", "graph algorithms"]
    file = tmp_path / "seeds.txt"
    file.write_text("# fields\nstatistics\n\ngraph algorithms, directed  # keeps its comma\n")
    assert parse_seeds(str(file)) == ["statistics", "graph algorithms, directed"]


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("", InputError, "no seeds are given"),
        (" , ", InputError, "no seeds are given"),
        ("nowhere.txt", InputError, "no file of seeds at nowhere.txt"),
        ("statistics,!!", UnknownSeedError, "'!!' is no name"),
        ("x" * 5000, UnknownSeedError, "is no name"),
        ("stat\0istics", UnknownSeedError, "is no name"),
    ],
)
def test_bad_seeds_are_refused_with_the_fix(text: str, error: type[Exception], said: str, home: Path) -> None:
    with pytest.raises(error, match=said):
        parse_seeds(text)
    result = ninefold("--seeds", text, "--dry-run")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "  fix: " in result.stderr


def test_a_binary_file_is_no_list_of_seeds(tmp_path: Path) -> None:
    file = tmp_path / "seeds.bin"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        parse_seeds(str(file))


def test_options_are_the_highest_layer_but_the_seed(home: Path) -> None:
    options = graph_options(seeds="statistics", nodes=9, depth=2, searches=50, tokens=700, seconds=1.5, endpoint="http://h/v1", model="m")
    config = load_config("laptop", None, 3, options)
    assert config.graph.model_dump(include={"seeds", "max_nodes", "max_level", "max_searches", "max_tokens", "max_wall_s"}) == {
        "seeds": ("statistics",),
        "max_nodes": 9,
        "max_level": 2,
        "max_searches": 50,
        "max_tokens": 700,
        "max_wall_s": 1.5,
    }
    assert (config.graph.brain.kind, config.graph.brain.endpoint, config.graph.brain.model) == ("language-model", "http://h/v1", "m")
    assert graph_options() == {}
    assert graph_options(start="first") == {"graph": {"seeds": [], "continue_from": "first"}}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--nodes", "0"), "bad value for 'graph.max_nodes' in the command line"),
        (("--brain", "clever"), "bad value for 'graph.brain.kind' in the command line"),
        (("--endpoint", "http://127.0.0.1:1/v1"), "a language-model brain needs endpoint and model"),
        (("--brain", "embedded", "--model", "m"), "the embedded brain has no endpoint or model"),
        (("--from", "nothing", "--seeds", ""), "no seeds are given"),
    ],
)
def test_wrong_options_are_refused(arguments: tuple[str, ...], said: str, home: Path) -> None:
    result = ninefold(*arguments, "--dry-run")
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_a_dry_run_plans_in_the_workspace_that_is_named(home: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    result = ninefold("--seeds", "statistics", "--nodes", "33", "--workspace", str(elsewhere), "--name", "trial", "--dry-run")
    assert result.exit_code == 0, result.output
    assert "max_nodes = 33" in result.output
    assert 'seeds = ["statistics"]' in result.output
    assert f"run trial in {elsewhere}" in result.output
    assert not elsewhere.exists()


# --- the whole way -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    root = tmp_path_factory.mktemp("grown")
    (root / "small.toml").write_text(SMALL)
    return Workspace(root)


def command(workspace: Workspace, *arguments: str) -> dict[str, Any]:
    return {
        "args": [sys.executable, "-m", "flows.cli", *arguments, "--config", str(workspace.root / "small.toml")],
        "cwd": ROOT,
        "env": {**os.environ, "NINEFOLD_HOME": str(workspace.root), "PYTHONPATH": str(ROOT)},
    }


def grown(workspace: Workspace, *arguments: str) -> str:
    done = subprocess.run(**command(workspace, "grow", *arguments), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    said: str = done.stdout
    return said


@pytest.mark.slow
@pytest.mark.prefect
@pytest.mark.dask
def test_a_growth_is_killed_taken_up_again_enlarged_and_continued(workspace: Workspace) -> None:
    wanted = ("--seeds", "graph algorithms,quantum zucchini husbandry", "--nodes", "90")
    process = subprocess.Popen(
        **command(workspace, "grow", *wanted, "--name", "killed"),
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    stage = workspace.run("killed").stages / "grow"
    try:
        deadline = time.monotonic() + 200
        while not any(p.read_bytes().count(b"\n") >= 8 for p in stage.glob("readings-*.jsonl")):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # The session this test started: the command and its cluster.
        process.wait()
    assert not (stage / "done.json").exists()
    (journal,) = stage.glob("readings-*.jsonl")
    kept = journal.read_bytes()
    said = grown(workspace, *wanted, "--name", "killed", "--resume")
    assert journal.read_bytes().startswith(kept[: kept.rindex(b"\n") + 1])  # Nothing finished was read again.
    assert "graph: 90 nodes (2 seeds, " in said
    assert "seed without a document: quantum zucchini husbandry" in said
    assert "stopped: the budget of 90 nodes is spent: " in said

    straight = grown(workspace, *wanted, "--name", "straight")
    run, other = workspace.run("killed"), workspace.run("straight")
    for table in ("nodes", "edges"):
        assert _rows(run, table) == _rows(other, table)
    assert _figures(said) == _figures(straight)

    hint = said.splitlines()[-1].removeprefix("next: ninefold ").split()
    planned = subprocess.run(**_hinted(workspace, *hint, "--dry-run"), capture_output=True, text=True, timeout=60, check=True).stdout
    assert "up to date  grow" in planned

    further = grown(workspace, "--from", "killed", "--nodes", "105", "--name", "further")
    assert "graph: 105 nodes (2 seeds, " in further
    earlier, later = load_graph(run), load_graph(workspace.run("further"))
    assert {c.concept_id for c in earlier} < {c.concept_id for c in later}


def _hinted(workspace: Workspace, *arguments: str) -> dict[str, Any]:
    made = command(workspace)
    return {**made, "args": [sys.executable, "-m", "flows.cli", *arguments]}


def _rows(run: Any, table: str) -> list[dict[str, Any]]:
    import duckdb

    rows = duckdb.sql(f"SELECT * EXCLUDE (run, found_run, created_at) FROM '{run.part(table, 'grow')}'")
    return [dict(zip(rows.columns, row, strict=True)) for row in rows.fetchall()]


def _figures(said: str) -> list[str]:
    return [line for line in said.splitlines() if line.startswith(("graph:", "  ", "stopped:"))]
