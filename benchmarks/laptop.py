"""The laptop profile from nothing, once per seed: what it learns and how long it takes.

    python benchmarks/laptop.py --seeds 0 1 --workspace FOLDER

Prints progress to standard error and one JSON object as its last line: per seed the wall time, the nine experts' gains over
the cold start within their budgets, the order of mean tokens, the student's recovered share, what `max` gains on the hardest level
over its own output cut at the `low` budget, the best trivial policy, and the tables these come from.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb


def run(workspace: Path, seed: int) -> dict[str, Any]:
    """One run; its summary with the wall time of the command."""
    name, started = f"seed-{seed}", time.monotonic()
    command = [str(Path(sys.executable).with_name("ninefold")), "run", "--name", name, "--seed", str(seed), "--resume"]
    env = {**os.environ, "NINEFOLD_HOME": str(workspace)}
    subprocess.run(command, check=True, env=env, stdout=sys.stderr)
    folder = workspace / "runs" / name
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return {**summary, **evaluated(folder), "command_s": time.monotonic() - started}


def evaluated(folder: Path) -> dict[str, Any]:
    """What the evaluation's rows say beyond the summary."""
    connection = duckdb.connect()
    connection.read_parquet(f"{folder}/tables/evaluations/*.parquet").create_view("rows")
    cut = connection.sql(
        "SELECT domain, max(pass_rate) FILTER (effort = 'max') - max(pass_rate) FILTER (effort = 'low') FROM rows "
        "WHERE policy = 'expert-' || domain || '-max' AND level = 3 GROUP BY domain ORDER BY domain"
    ).fetchall()
    trivial = connection.sql("SELECT max(pass_rate) FROM rows WHERE policy LIKE 'trivial-%'").fetchone()
    return {"max_over_low_cut": {d: round(gain, 3) for d, gain in cut}, "best_trivial": trivial[0] if trivial else None}


def ordered(rows: list[dict[str, Any]]) -> bool:
    """Mean tokens rise from low over high to max in every domain."""
    by = {(r["domain"], r["effort"]): r["mean_tokens"] for r in rows}
    return all(by[d, "low"] < by[d, "high"] < by[d, "max"] for d in {r["domain"] for r in rows})


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    """What the issue of the laptop profile asks about."""
    experts = summary["experts"]
    gains = {f"{r['domain']}-{r['effort']}": round(r["expert_pass"] - r["sft_pass"], 3) for r in experts}
    return {
        "wall_s": round(summary["command_s"]),
        "gains": gains,
        "experts_ok": sum(r["expert_pass"] - r["sft_pass"] >= 0.2 or r["expert_pass"] >= 0.85 for r in experts),
        "expert_tokens_ordered": ordered(experts),
        "student_tokens_ordered": ordered(summary["student"]),
        "recovered_mean": summary["recovered_mean"],
        **{k: summary[k] for k in ("max_over_low_cut", "best_trivial", "funnel", "experts", "student")},
        "stage_s": summary["wall_s"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--workspace", type=Path, default=Path("bench-workspace"))
    options = parser.parse_args()
    options.workspace.mkdir(parents=True, exist_ok=True)
    seeds = {seed: figures(run(options.workspace.absolute(), seed)) for seed in options.seeds}
    print(json.dumps({"benchmark": "laptop", "machine": f"{platform.machine()}, {os.cpu_count()} cores", "seeds": seeds}))


if __name__ == "__main__":
    main()
