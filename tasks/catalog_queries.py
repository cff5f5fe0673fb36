"""What the report asks of one run's tables (`tasks.catalog.load_run`). Every function returns plain values.

A connection here holds exactly one run; a stage that has not run gives an empty list, never a made-up zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from environments.records import RolloutRow
from environments.tables import R

Rows = list[dict[str, Any]]

REWARD_METRICS = ("pass_within_budget", "pass_rate", "reward_mean", "mean_reward", "outcome_reward", "reward")
"""Names of a metric that may serve as an expert's learning curve, the preferred first."""


def rows(connection: duckdb.DuckDBPyConnection, sql: str, parameters: Sequence[object] = ()) -> Rows:
    """The result of a query as dicts."""
    result = connection.execute(sql, list(parameters))
    names = [d[0] for d in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def run_row(connection: duckdb.DuckDBPyConnection) -> dict[str, Any] | None:
    """The run's own row, the latest when several were written; None before the first."""
    found = rows(connection, "SELECT * FROM runs ORDER BY finished_at DESC, started_at DESC LIMIT 1")
    return found[0] if found else None


def funnel(connection: duckdb.DuckDBPyConnection) -> dict[str, Any] | None:
    """The view `funnel`; None when neither a node nor a task was written."""
    found = rows(connection, "SELECT * EXCLUDE (run) FROM funnel WHERE nodes > 0 OR candidates > 0")
    return found[0] if found else None


def reject_reasons(connection: duckdb.DuckDBPyConnection, limit: int = 12) -> Rows:
    """Why candidates were not published: stage, reason (digits and ids folded together), tasks."""
    return rows(
        connection,
        """SELECT status AS stage, regexp_replace(reject_reason, '[0-9a-f]{12,}|[0-9]+', '…', 'g') AS reason, count(*) AS tasks
        FROM tasks WHERE status <> 'published' GROUP BY ALL ORDER BY tasks DESC, stage, reason LIMIT ?""",
        [limit],
    )


def published_by_level(connection: duckdb.DuckDBPyConnection) -> Rows:
    """Published tasks by domain and level."""
    return rows(connection, "SELECT domain, level, count(*) AS tasks FROM tasks WHERE status = 'published' GROUP BY ALL ORDER BY ALL")


def learning_curves(connection: duckdb.DuckDBPyConnection) -> tuple[str, dict[tuple[str, str], list[tuple[int, float]]]]:
    """What the curves show, and by (domain, effort) the points (optimizer step, value 0 to 1).

    The first metric of `REWARD_METRICS` that any expert wrote; without one, the mean reward of the recorded episodes.
    """
    found = {r["name"] for r in rows(connection, "SELECT DISTINCT name FROM metrics WHERE stage LIKE 'expert-%'")}
    metric = next((m for m in REWARD_METRICS if m in found), None)
    if metric is None:
        points = rows(
            connection, "SELECT domain, effort, step, mean_reward AS value FROM reward_by_step WHERE stage = 'expert' ORDER BY step"
        )
        shown = "mean reward of the recorded episodes"
    else:
        points = rows(
            connection,
            """SELECT split_part(stage, '-', 2) AS domain, split_part(stage, '-', 3) AS effort, step, avg(value) AS value
            FROM metrics WHERE stage LIKE 'expert-%' AND name = ? AND isfinite(value) GROUP BY ALL ORDER BY step""",
            [metric],
        )
        shown = metric.replace("_", " ")
    curves: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for p in points:
        curves.setdefault((p["domain"], p["effort"]), []).append((p["step"], p["value"]))
    return shown, curves


def expert_gain(connection: duckdb.DuckDBPyConnection) -> Rows:
    """The view `expert_gain`: nine rows after a whole run."""
    return rows(connection, "SELECT * EXCLUDE (run) FROM expert_gain")


def recovered_share(connection: duckdb.DuckDBPyConnection) -> Rows:
    """The view `recovered_share`: nine rows after a whole run."""
    return rows(connection, "SELECT * EXCLUDE (run) FROM recovered_share")


def tokens_by_effort(connection: duckdb.DuckDBPyConnection) -> Rows:
    """The view `tokens_by_effort`."""
    return rows(connection, "SELECT * EXCLUDE (run) FROM tokens_by_effort")


def pass_by_policy(connection: duckdb.DuckDBPyConnection) -> Rows:
    """Trivial policies, cold start, experts on their own domain, student: pass rate by domain.

    Policies that were asked for an effort are shown at effort max.
    """
    return rows(
        connection,
        """SELECT CASE WHEN policy LIKE 'expert-%' THEN 'expert' ELSE policy END AS policy, checkpoint_id = '' AS trivial, domain,
            max(pass_rate) AS pass_rate, max(pass_low) AS pass_low, max(pass_high) AS pass_high, max(tasks) AS tasks
        FROM evaluations
        WHERE level = 0 AND (checkpoint_id = '' OR effort IN ('max', '') AND policy IN ('cold_start', 'student')
            OR policy = 'expert-' || domain || '-max')
        GROUP BY ALL ORDER BY trivial DESC, policy, domain""",
    )


def validation_by_check(connection: duckdb.DuckDBPyConnection) -> Rows:
    """Each validation check: how often run, how often as expected, and what came when it was not."""
    return rows(
        connection,
        """SELECT check_name, count(*) AS tasks, count(*) FILTER (ok) AS as_expected, any_value(expected) AS expected,
            string_agg(DISTINCT observed, ', ' ORDER BY observed) FILTER (NOT ok) AS instead, sum(wall_s) AS wall_s
        FROM validations GROUP BY check_name ORDER BY as_expected / tasks, check_name""",
    )


def probes_by_class(connection: duckdb.DuckDBPyConnection) -> Rows:
    """Each exploit class over all domains, as the view `hackable_tasks`, the most successful first."""
    return rows(
        connection,
        """SELECT exploit_class, sum(probed_tasks)::BIGINT AS tasks, sum(hacked_tasks)::BIGINT AS hacked,
            sum(published_hackable)::BIGINT AS published_hackable
        FROM hackable_tasks GROUP BY ALL ORDER BY hacked / tasks DESC, exploit_class""",
    )


def traces(connection: duckdb.DuckDBPyConnection, view: str, per_domain: int = 2) -> Rows:
    """Episodes to read from `best_traces` or `worst_traces`: of the student when it acted, else of experts or the cold start.

    Held-out episodes come before training ones, and the efforts take turns.
    """
    if view not in ("best_traces", "worst_traces"):
        raise ValueError(f"{view!r} is neither best_traces nor worst_traces")
    return rows(
        connection,
        f"""SELECT * FROM {view}
        QUALIFY row_number() OVER (PARTITION BY domain ORDER BY actor = 'student' DESC, actor LIKE 'expert-%' DESC,
            actor = 'cold_start' DESC, stage = 'evaluation' DESC, rank, effort = 'max' DESC, effort = 'low' DESC,
            actor, trajectory_id) <= ?
        ORDER BY domain, actor, effort, rank, trajectory_id""",
        [per_domain],
    )


RANKED = {"best": "best_traces", "worst": "worst_traces"}


def episodes_named(connection: duckdb.DuckDBPyConnection, wanted: str) -> list[RolloutRow]:
    """At most four episodes whose id begins with `wanted`, one that is it first; or the `best` or `worst` one to read."""
    columns = ", ".join(RolloutRow.model_fields)
    if wanted in RANKED:
        found = connection.execute(
            f"SELECT {columns} FROM {RANKED[wanted]} "
            "ORDER BY actor = 'student' DESC, stage = 'evaluation' DESC, rank, trajectory_id LIMIT 1"
        )
    else:
        found = connection.execute(
            f"SELECT {columns} FROM rollouts WHERE starts_with(trajectory_id, ?) ORDER BY trajectory_id <> ?, trajectory_id LIMIT 4",
            [wanted, wanted],
        )
    return [RolloutRow(**dict(zip(RolloutRow.model_fields, row, strict=True))) for row in found.fetchall()]


def rows_of_episode(connection: duckdb.DuckDBPyConnection, model: type[R], trajectory_id: str) -> list[R]:
    """All rows of one episode in a table."""
    columns = list(model.model_fields)
    found = connection.execute(f"SELECT {', '.join(columns)} FROM {model.TABLE} WHERE trajectory_id = ?", [trajectory_id]).fetchall()
    return [model(**dict(zip(columns, row, strict=True))) for row in found]


def around_episode(connection: duckdb.DuckDBPyConnection, rollout: RolloutRow) -> tuple[str, str]:
    """Kind and level of an episode's task, and its harness as JSON; empty where there is no row."""
    task = connection.execute("SELECT kind || ', level ' || level FROM tasks WHERE task_id = ?", [rollout.task_id]).fetchone()
    harness = connection.execute("SELECT config_json FROM harnesses WHERE harness_sha256 = ?", [rollout.harness_sha256]).fetchone()
    return (task[0] if task else ""), (harness[0] if harness else "")


def tasks_named(connection: duckdb.DuckDBPyConnection, wanted: str) -> list[tuple[str, str]]:
    """Id and spec, as JSON, of at most four tasks whose id begins with `wanted`."""
    return connection.execute(
        "SELECT DISTINCT task_id, spec_json FROM tasks WHERE starts_with(task_id, ?) ORDER BY task_id LIMIT 4", [wanted]
    ).fetchall()


def graph(connection: duckdb.DuckDBPyConnection) -> tuple[Rows, Rows]:
    """Nodes (with candidate and published tasks) and edges of the concept graph."""
    nodes = rows(
        connection,
        """SELECT n.node_id, n.name, n.aliases, n.domain, n.level, n.branch, n.seed, n.atomic, n.reason,
            count(t.task_id) AS candidates, count(t.task_id) FILTER (t.status = 'published') AS published
        FROM nodes n
        LEFT JOIN (SELECT DISTINCT task_id, node_id FROM task_nodes) tn ON tn.node_id = n.node_id
        LEFT JOIN tasks t ON t.task_id = tn.task_id
        GROUP BY ALL ORDER BY n.level, n.node_id""",
    )
    edges = rows(connection, "SELECT coarse_id, fine_id FROM edges ORDER BY coarse_id, fine_id")
    return nodes, edges


def checkpoints(connection: duckdb.DuckDBPyConnection) -> Rows:
    """Every checkpoint with how many tasks and episodes fed it."""
    return rows(
        connection,
        """SELECT c.stage, c.domain, c.effort, c.step, c.checkpoint_id, c.parent_id, count(ct.task_id) AS tasks,
            sum(ct.episodes)::BIGINT AS episodes
        FROM checkpoints c LEFT JOIN checkpoint_tasks ct ON ct.checkpoint_id = c.checkpoint_id
        GROUP BY ALL ORDER BY c.stage, c.domain, c.effort, c.step""",
    )
