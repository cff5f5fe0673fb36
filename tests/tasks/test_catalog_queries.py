"""What the report asks: the preferred metric, honest gaps, and the right episodes to read."""

from __future__ import annotations

import pytest

from environments import records as r
from environments.tables import write_rows
from tasks import catalog_queries as ask
from tasks.catalog import load_run
from tests.tasks.synthetic import synthetic_rows, write_run


@pytest.fixture(scope="module")
def connection(tmp_path_factory):
    with load_run(write_run(tmp_path_factory.mktemp("workspace"))) as opened:
        yield opened


def metric(stage, step, name, value):
    return r.MetricRow(run="x", stage=stage, step=step, name=name, value=value)


def test_learning_curves_take_the_preferred_metric_and_leave_out_what_is_not_finite(tmp_path):
    rows = [metric("expert-agent-low", s, "reward", 9.0) for s in range(3)]
    rows += [metric("expert-agent-low", 0, "pass_rate", 0.25), metric("expert-agent-low", 10, "pass_rate", float("nan"))]
    rows += [metric("expert-agent-low", 20, "pass_rate", 0.75), metric("cold_start", 5, "pass_rate", 0.5)]
    write_rows(tmp_path / "x" / "tables" / "metrics" / "a.parquet", r.MetricRow, rows)
    with load_run(tmp_path / "x") as opened:
        assert ask.learning_curves(opened) == ("pass rate", {("agent", "low"): [(0, 0.25), (20, 0.75)]})


def test_learning_curves_fall_back_to_the_recorded_rewards(tmp_path):
    run = write_run(tmp_path, only=[r.RolloutRow, r.RewardRow])
    rows = synthetic_rows()
    rewards = {w.trajectory_id: w.reward for w in rows[r.RewardRow]}
    mine = [o for o in rows[r.RolloutRow] if (o.domain, o.effort, o.step) == ("coding", "max", 50)]
    with load_run(run) as opened:
        shown, curves = ask.learning_curves(opened)
    assert shown == "mean reward of the recorded episodes"
    assert len(curves) == 9
    assert dict(curves["coding", "max"])[50] == pytest.approx(sum(rewards[o.trajectory_id] for o in mine) / len(mine))


def test_without_rows_everything_is_empty(tmp_path):
    (tmp_path / "x").mkdir()
    with load_run(tmp_path / "x") as opened:
        assert ask.run_row(opened) is None
        assert ask.funnel(opened) is None
        assert ask.learning_curves(opened)[1] == {}
        assert ask.graph(opened) == ([], [])
        empty = [ask.reject_reasons, ask.published_by_level, ask.expert_gain, ask.recovered_share, ask.tokens_by_effort, ask.pass_by_policy]
        empty += [ask.validation_by_check, ask.probes_by_class, ask.checkpoints]
        assert [f.__name__ for f in empty if f(opened) != []] == []


def test_traces_to_read_are_the_students_when_it_acted(connection, tmp_path):
    best = ask.traces(connection, "best_traces", per_domain=2)
    assert len(best) == 6
    assert {t["actor"] for t in best} == {"student"}
    assert {t["status"] for t in best} == {"pass"}
    assert {t["status"] for t in ask.traces(connection, "worst_traces")} == {"fail"}
    rows = synthetic_rows()
    student = next(c.checkpoint_id for c in rows[r.CheckpointRow] if c.stage == "mopd")
    run = write_run(tmp_path, only=[r.TaskRow, r.CheckpointRow])
    write_rows(run / "tables" / "rollouts" / "a.parquet", r.RolloutRow, [o for o in rows[r.RolloutRow] if o.checkpoint_id != student])
    with load_run(run) as opened:
        assert all(t["actor"].startswith("expert-") for t in ask.traces(opened, "best_traces"))
    with pytest.raises(ValueError, match="neither"):
        ask.traces(connection, "tasks; DROP TABLE tasks")


def test_policies_are_compared_at_effort_max_on_their_own_domain(connection):
    found = {(p["policy"], p["domain"]): p for p in ask.pass_by_policy(connection)}
    cells = {(e.policy, e.domain, e.effort): e.pass_rate for e in synthetic_rows()[r.EvaluationRow] if e.level == 0}
    assert len(found) == 18
    assert found["expert", "agent"]["pass_rate"] == cells["expert-agent-max", "agent", "max"]
    assert found["student", "coding"]["pass_rate"] == cells["student", "coding", "max"]
    assert found["copy", "general"]["trivial"] is True
    assert found["cold_start", "general"]["trivial"] is False


def test_graph_counts_tasks_by_node(connection):
    nodes, edges = ask.graph(connection)
    rows = synthetic_rows()
    assert len(nodes) == len(rows[r.NodeRow])
    assert len(edges) == len(rows[r.EdgeRow])
    assert sum(n["candidates"] for n in nodes) == len(rows[r.TaskNodeRow])
    assert sum(n["published"] for n in nodes) == sum(t.status == "published" for t in rows[r.TaskRow])


def test_reject_reasons_fold_ids_together(tmp_path):
    task = synthetic_rows()[r.TaskRow][0]
    reasons = [
        "passage: 0123456789abcdef0 occurs in training task 00ff00ff00ff00ff",
        "passage: fedcba98765432100 occurs in training task 1122334455667788",
    ]
    tasks = [task.model_copy(update={"status": "split", "task_id": str(i), "reject_reason": reason}) for i, reason in enumerate(reasons)]
    write_rows(tmp_path / "x" / "tables" / "tasks" / "a.parquet", r.TaskRow, tasks)
    with load_run(tmp_path / "x") as opened:
        assert ask.reject_reasons(opened) == [{"stage": "split", "reason": "passage: … occurs in training task …", "tasks": 2}]
