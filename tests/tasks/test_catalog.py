"""The catalogue is typed, commented, whole, and answers the questions its views are named after."""

from __future__ import annotations

import datetime
import math
import re
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from environments import records as r
from environments.errors import CorruptArtifactError, DiskFullError, InfrastructureError, InputError
from environments.tables import arrow_schema, write_rows
from tasks import catalog
from tasks.catalog import build_catalog, load_run, open_catalog
from tests.tasks.synthetic import synthetic_rows, write_run

QUERIES = sorted((Path(__file__).parents[2] / "docs" / "queries").glob("*.sql"))


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """Two synthetic runs and their catalogue; tests only read it."""
    root = tmp_path_factory.mktemp("workspace")
    write_run(root, "one")
    write_run(root, "two", nodes=30, tasks=60, seed=1)
    build_catalog(root)
    return root


@pytest.fixture
def opened(workspace):
    with open_catalog(workspace) as connection:
        yield connection


def test_all_rows_of_all_runs_are_there(opened):
    for model, rows in synthetic_rows("one").items():
        assert opened.execute(f"SELECT count(*) FROM {model.TABLE} WHERE run = 'one'").fetchone() == (len(rows),), model.TABLE
    assert opened.execute("SELECT DISTINCT run FROM nodes ORDER BY run").fetchall() == [("one",), ("two",)]
    row = synthetic_rows("one")[r.RolloutRow][0]
    got = opened.execute("SELECT * FROM rollouts WHERE trajectory_id = ?", [row.trajectory_id]).fetchone()
    assert got == tuple(row.model_dump().values())


def test_types_are_those_of_the_models_with_and_without_parts(tmp_path):
    (tmp_path / "runs" / "empty").mkdir(parents=True)
    build_catalog(tmp_path)
    with open_catalog(tmp_path) as connection:
        for model in r.ROW_MODELS:
            assert connection.execute(f"SELECT count(*) FROM {model.TABLE}").fetchone() == (0,)
        columns = dict(connection.execute("SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'rollouts'").fetchall())
        for (view,) in connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall():
            assert connection.execute(f"SELECT * FROM {view}").fetchall() == []
        segments = dict(connection.execute("SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 'segments'").fetchall())
    assert (segments["token_ids"], segments["logprobs"], segments["parent_id"]) == ("BIGINT[]", "DOUBLE[]", "BIGINT")
    assert columns["score"] == "DOUBLE"
    assert columns["within_budget"] == "BOOLEAN"
    assert columns["transcript"] == "VARCHAR"


def test_every_table_view_column_and_macro_has_a_comment(opened):
    for kind, name in (("tables", "table_name"), ("views", "view_name")):
        found = opened.execute(f"SELECT {name}, comment FROM duckdb_{kind}() WHERE schema_name = 'main' AND NOT internal").fetchall()
        assert len(found) >= 10
        assert [n for n, comment in found if not comment] == []
    columns = opened.execute(
        "SELECT table_name, column_name, comment FROM duckdb_columns() WHERE schema_name = 'main' AND NOT internal"
    ).fetchall()
    assert [c for c in columns if not c[2]] == []
    assert ("rollouts", "wall_s", "Seconds from setup to verdict") in columns
    macros = opened.execute("SELECT function_name, comment FROM duckdb_functions() WHERE schema_name = 'main' AND NOT internal").fetchall()
    assert {m for m, comment in macros if comment} >= {"pass_at_k", "search_materials", "search_tasks"}


def test_pass_at_k_is_the_unbiased_estimate(opened):
    for n in range(1, 9):
        for c in range(n + 1):
            for k in range(1, n + 1):
                (got,) = opened.execute("SELECT pass_at_k(?, ?, ?)", [n, c, k]).fetchone()
                assert got == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k)), (n, c, k)
    assert opened.execute("SELECT pass_at_k(3, 1, 4), pass_at_k(3, 4, 1), pass_at_k(NULL, 1, 1)").fetchone() == (None, None, None)


def test_views_agree_with_the_rows(opened):
    rows = synthetic_rows("one")
    tasks = rows[r.TaskRow]
    published = sum(t.status == "published" for t in tasks)
    after_probes = sum(t.status in ("published", "split") for t in tasks)
    got = opened.execute(
        "SELECT nodes, candidates, after_probes, published, train + validation + heldout FROM funnel WHERE run = 'one'"
    ).fetchone()
    assert got == (240, 360, after_probes, published, published)

    cells = {(e.policy, e.domain, e.effort): e for e in rows[r.EvaluationRow] if e.level == 0}
    gains = opened.execute("SELECT domain, effort, sft_pass, expert_pass, gain FROM expert_gain WHERE run = 'one'").fetchall()
    assert len(gains) == 9
    for domain, effort, before, after, gain in gains:
        assert before == cells["cold_start", domain, effort].pass_rate
        assert after == cells[f"expert-{domain}-{effort}", domain, effort].pass_rate
        assert gain == pytest.approx(after - before)
    shares = opened.execute("SELECT domain, effort, recovered FROM recovered_share WHERE run = 'one' ORDER BY ALL").fetchall()
    assert len(shares) == 9
    assert [(d, e) for d, e, share in shares if share is None] == [("coding", "low")]
    assert all(share == pytest.approx(0.9) for *_, share in shares if share is not None)

    hacked = {p.task_id for p in rows[r.ProbeRow] if p.succeeded}
    assert opened.execute("SELECT sum(hacked_tasks), sum(published_hackable) FROM hackable_tasks WHERE run = 'one'").fetchone() == (
        len(hacked),
        0,
    )
    failing = sum(not v.ok for v in rows[r.ValidationRow])
    assert opened.execute("SELECT sum(failing_tasks) FROM validation_failures WHERE run = 'one'").fetchone() == (failing,)


def test_lineage_leads_from_a_checkpoint_to_nodes_and_passages(opened):
    rows = synthetic_rows("one")
    student = next(c for c in rows[r.CheckpointRow] if c.stage == "mopd")
    got = opened.execute(
        "SELECT task_id, node_id, material_sha256, prefect_run_url FROM lineage WHERE run = 'one' AND checkpoint_id = ?",
        [student.checkpoint_id],
    ).fetchall()
    fed = {c.task_id for c in rows[r.CheckpointTaskRow] if c.checkpoint_id == student.checkpoint_id}
    nodes = {(t.task_id, t.node_id) for t in rows[r.TaskNodeRow]}
    passages = {(t.task_id, t.material_sha256) for t in rows[r.TaskMaterialRow]}
    assert {g[0] for g in got} == fed
    assert all((task, node) in nodes and (task, passage) in passages for task, node, passage, _ in got)
    assert {g[3] for g in got} == {"http://127.0.0.1:4200/runs/flow-run/test"}
    chain = opened.execute(
        "SELECT ancestor_id FROM ancestry WHERE run = 'one' AND checkpoint_id = ? ORDER BY generation", [student.checkpoint_id]
    ).fetchall()
    assert chain == [(student.checkpoint_id,), (student.parent_id,)]


def test_traces_are_ranked(opened):
    worst = opened.execute(
        "SELECT malformed_calls, status FROM worst_traces"
        " WHERE run = 'one' AND stage = 'expert' AND effort = 'low' AND domain = 'agent' ORDER BY rank"
    ).fetchall()
    assert all(status == "fail" for _, status in worst)
    assert [m for m, _ in worst] == sorted((m for m, _ in worst), reverse=True)
    assert opened.execute("SELECT DISTINCT status FROM best_traces").fetchall() == [("pass",)]


def test_search_finds_digits_and_identifiers(opened):
    titles = opened.execute("SELECT title FROM search_materials('117')").fetchall()
    rows = [
        m
        for m in synthetic_rows("one")[r.MaterialRow] + synthetic_rows("two", nodes=30, tasks=60, seed=1)[r.MaterialRow]
        if " 117." in m.passage or m.title.endswith(" 117")
    ]
    assert rows
    assert {t for (t,) in titles} == {m.title for m in rows}
    assert len(opened.execute("SELECT * FROM search_materials('max_iter')").fetchall()) > 200
    assert opened.execute("SELECT * FROM search_materials('iter')").fetchall() == [], "an identifier is one word"
    assert opened.execute("SELECT prompt FROM search_tasks('\"Test task 59\" 59') LIMIT 1").fetchone()[0].startswith("Test task 59")


@pytest.mark.parametrize("query", QUERIES, ids=lambda p: p.stem)
def test_shipped_queries_run(query, opened):
    text = query.read_text()
    assert text.startswith("-- "), "each query says what it answers"
    result = opened.execute(text)
    names, rows = [d[0] for d in result.description], result.fetchall()
    assert rows
    assert len(set(names)) == len(names)
    empty = [n for i, n in enumerate(names) if all(row[i] is None for row in rows)]
    assert empty == []


def test_there_is_a_query_for_every_view(opened):
    text = "".join(q.read_text() for q in QUERIES)
    views = {v for (v,) in opened.execute("SELECT view_name FROM duckdb_views() WHERE schema_name = 'main' AND NOT internal").fetchall()}
    assert {v for v in views if v not in text} == set()


@pytest.mark.parametrize("damage", ["cut", "text", "columns", "type"])
def test_a_corrupt_part_is_named_or_skipped(tmp_path, damage):
    run = write_run(tmp_path, nodes=20, tasks=30)
    part = run / "tables" / "tasks" / "a.parquet"
    if damage == "cut":
        part.write_bytes(part.read_bytes()[:-20])
    elif damage == "text":
        part.write_text("not parquet")
    else:
        table = pq.read_table(part)
        index = table.column_names.index("level")
        other = pa.array(["x"] * table.num_rows) if damage == "type" else table["level"]
        pq.write_table(table.set_column(index, "level" if damage == "type" else "difficulty", other), part)
    with pytest.raises(CorruptArtifactError, match=r"tasks/a.parquet.*Fix: delete it"):
        build_catalog(tmp_path)
    assert list(tmp_path.glob(".catalog*")) == [], "nothing half-built is left"
    assert not (tmp_path / "catalog.duckdb").exists()

    warnings: list[str] = []
    build_catalog(tmp_path, skip_corrupt=True, warnings=warnings)
    assert len(warnings) == 1
    assert "a.parquet" in warnings[0]
    with open_catalog(tmp_path) as connection:
        assert connection.execute("SELECT count(*) FROM tasks").fetchone() == (15,)
        assert connection.execute("SELECT file FROM parts WHERE problem <> ''").fetchall() == [("runs/synthetic/tables/tasks/a.parquet",)]


def test_a_part_of_an_older_version_gets_the_default(tmp_path):
    run = write_run(tmp_path, nodes=20, tasks=30)
    part = run / "tables" / "rollouts" / "a.parquet"
    pq.write_table(pq.read_table(part).drop_columns("evidence"), part)
    build_catalog(tmp_path)
    with open_catalog(tmp_path) as connection:
        assert connection.execute("SELECT count(*) FROM rollouts WHERE evidence = ''").fetchone()[0] > 0


def test_folders_named_like_partitions_add_no_columns(tmp_path):
    rows = synthetic_rows("kind=x", nodes=10, tasks=10)[r.NodeRow]
    write_rows(tmp_path / "runs" / "kind=x [1]*" / "tables" / "nodes" / "a.parquet", r.NodeRow, rows)
    build_catalog(tmp_path)
    with open_catalog(tmp_path) as connection:
        assert connection.execute("SELECT * FROM nodes LIMIT 0").to_arrow_table().schema.names == arrow_schema(r.NodeRow).names


def test_errors_name_what_is_missing(tmp_path):
    with pytest.raises(InputError, match=r"holds no runs.*ninefold run"):
        build_catalog(tmp_path)
    with pytest.raises(InputError, match=r"no catalogue at .*ninefold catalog"):
        open_catalog(tmp_path)
    with pytest.raises(InputError, match="no run at"):
        load_run(tmp_path / "runs" / "x")
    (tmp_path / "catalog.duckdb").write_text("not a database at all, but long enough to be read as a header" * 100)
    with pytest.raises(CorruptArtifactError, match=r"catalog.duckdb.*rebuild it"):
        open_catalog(tmp_path)


def test_a_full_disk_keeps_the_old_catalogue(tmp_path, monkeypatch):
    write_run(tmp_path, nodes=10, tasks=10)
    before = build_catalog(tmp_path).read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(catalog.os, "replace", full)
    with pytest.raises(DiskFullError, match="old one is untouched"):
        build_catalog(tmp_path)
    assert (tmp_path / "catalog.duckdb").read_bytes() == before
    assert list(tmp_path.glob(".catalog*")) == []


def test_left_over_files_of_a_killed_build_go_after_an_hour(tmp_path):
    write_run(tmp_path, nodes=10, tasks=10)
    old, new = tmp_path / ".catalog.duckdb.dead.tmp", tmp_path / ".catalog.duckdb.alive.tmp"
    old.touch()
    new.touch()
    long_ago = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC).timestamp()
    catalog.os.utime(old, (long_ago, long_ago))
    build_catalog(tmp_path)
    assert (old.exists(), new.exists()) == (False, True)


def test_without_the_extension_all_but_search_works(tmp_path, monkeypatch):
    write_run(tmp_path, nodes=10, tasks=10)
    monkeypatch.setattr(catalog, "_load_fts", lambda connection: False)
    warnings: list[str] = []
    build_catalog(tmp_path, warnings=warnings)
    assert [w for w in warnings if "no full-text search" in w and "pip install" in w] == warnings
    assert len(warnings) == 1
    with open_catalog(tmp_path) as connection:
        assert connection.execute("SELECT candidates FROM funnel").fetchone() == (10,)
        with pytest.raises(duckdb.CatalogException):
            connection.execute("SELECT * FROM search_materials('x')")


def test_nothing_is_fetched_from_a_network(opened):
    settings = dict(opened.execute("SELECT name, value FROM duckdb_settings() WHERE name LIKE 'auto%extensions'").fetchall())
    assert settings == {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}


READER = """
import sys
from pathlib import Path
from tasks.catalog import open_catalog
held = open_catalog(Path(sys.argv[1]))
print(held.execute("SELECT count(*) FROM nodes").fetchone()[0], flush=True)
sys.stdin.readline()
print(held.execute("SELECT count(*) FROM nodes").fetchone()[0], flush=True)
held.close()
print(open_catalog(Path(sys.argv[1])).execute("SELECT count(*) FROM nodes").fetchone()[0], flush=True)
"""


def test_another_process_reads_while_a_rebuild_swaps(tmp_path):
    write_run(tmp_path, "one", nodes=12, tasks=10)
    build_catalog(tmp_path)
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(tmp_path)], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        timer = threading.Timer(60, reader.kill)
        timer.start()
        assert reader.stdout.readline() == "12\n"
        write_run(tmp_path, "two", nodes=20, tasks=10)
        build_catalog(tmp_path)  # while the reader holds the old one open
        rest, _ = reader.communicate("\n")
        timer.cancel()
    assert rest.split() == ["12", "32"], "the old state while held, the new one when opened again"


def test_a_writer_elsewhere_is_an_infrastructure_failure(tmp_path):
    write_run(tmp_path, nodes=10, tasks=10)
    path = build_catalog(tmp_path)
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); sys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout.readline() == "held\n"
        with pytest.raises(InfrastructureError, match="open for writing elsewhere"):
            open_catalog(path)
        writer.communicate("\n")


def test_a_run_in_memory_has_the_same_views(workspace, opened):
    with load_run(workspace / "runs" / "two") as connection:
        for view in ("funnel", "expert_gain", "recovered_share", "hackable_tasks"):
            here = connection.execute(f"SELECT * FROM {view} ORDER BY ALL").fetchall()
            assert here == opened.execute(f"SELECT * FROM {view} WHERE run = 'two' ORDER BY ALL").fetchall()
            assert here


def test_every_statement_of_the_guide_runs(opened):
    guide = (Path(__file__).parents[2] / "docs" / "catalog.md").read_text()
    statements = [s for block in re.findall(r"```sql\n(.*?)```", guide, re.S) for s in block.split(";") if s.strip()]
    assert len(statements) >= 8
    for statement in statements:
        opened.execute(statement).fetchall()
