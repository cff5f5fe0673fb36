"""Gather a run's figures and render them into `runs/<name>/report.html`.

The page is one file: style, script and data are inside it, and a content security policy lets nothing else run or load, so
that a task's text cannot do anything but be read.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import itertools
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from environments.errors import CorruptArtifactError
from environments.files import replacing
from environments.task import DOMAINS, EFFORTS
from flows.report import markup
from flows.report.layout import graph_payload
from tasks import catalog_queries as ask
from tasks.catalog import load_run
from tasks.dataset import load_manifest

_HERE = Path(__file__).parent
_TRIVIAL_LIMIT = 0.05
"""Highest pass rate a policy that does not do the task may have on held-out tasks."""


def write_report(run_dir: Path, catalog: Path | None = None) -> Path:
    """Write `report.html` of a run from its tables, and from `summary.json` where it exists. Offline, one file.

    A stage that has not run is said to be missing; a part that cannot be read is skipped and named on the page.

    Args:
        catalog: The catalogue whose name the page gives for further questions; by default the workspace's own.

    Raises:
        InputError: there is no such run.
        DiskFullError: no space left; an older report is untouched.
    """
    run_dir = Path(run_dir).absolute()
    html = render(gather(run_dir, Path(catalog or "catalog.duckdb").name))
    target = run_dir / "report.html"
    with replacing(target, "free some space and run `ninefold report`") as part:
        part.write_text(html, encoding="utf-8")
    return target


def gather(run_dir: Path, catalog: str) -> dict[str, Any]:
    """Everything the template shows, as plain values."""
    warnings: list[str] = []
    summary = _json(run_dir / "summary.json", warnings)
    with load_run(run_dir, skip_corrupt=True, warnings=warnings) as connection:
        shown, curves = ask.learning_curves(connection)
        experts = {(e["domain"], e["effort"]): e for e in ask.expert_gain(connection)}
        student = {(s["domain"], s["effort"]): s for s in ask.recovered_share(connection)}
        nodes, edges = ask.graph(connection)
        return {
            "run": _identity(run_dir, ask.run_row(connection), warnings),
            "warnings": warnings,
            "domains": DOMAINS,
            "efforts": EFFORTS,
            "cells": [(d, e) for d in DOMAINS for e in EFFORTS],
            "funnel": _funnel(ask.funnel(connection), summary),
            "rejects": ask.reject_reasons(connection),
            "levels": _levels(ask.published_by_level(connection)),
            "curve_metric": shown,
            "curves": _curves(curves, experts),
            "experts": experts,
            "student": student,
            "tiles": _tiles(experts, student),
            "tokens": _tokens(ask.tokens_by_effort(connection)),
            "policies": _policies(ask.pass_by_policy(connection)),
            "trivial_limit": _TRIVIAL_LIMIT,
            "graph": graph_payload(nodes, edges) if nodes else None,
            "graph_counts": (len(nodes), len(edges)),
            "seeds": [{**n, "aliases": ", ".join(n["aliases"][:3])} for n in nodes if n["seed"]],
            "checks": ask.validation_by_check(connection),
            "probes": ask.probes_by_class(connection),
            "best": sorted(ask.traces(connection, "best_traces"), key=_cell_order),
            "worst": sorted(ask.traces(connection, "worst_traces"), key=_cell_order),
            "wall": _wall(summary),
            "checkpoints": sorted(ask.checkpoints(connection), key=_cell_order),
            "versions": dict(sorted(_mapping(summary, "versions").items())),
            "catalog": catalog,
        }


def render(page: Mapping[str, Any]) -> str:
    """The page's HTML. Everything that is not markup of ours is escaped by the template engine."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        share=_share, number=_number, seconds=_seconds, pct=_percent, transcript=markup.transcript, evidence=markup.evidence
    )
    script = (_HERE / "graph.js").read_text()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("report.html.jinja").render(
        page,
        style=Markup((_HERE / "style.css").read_text()),
        script=Markup(script),
        script_sha256=digest,
        graph_json=_inline_json(page["graph"]),
    )


def _inline_json(value: object) -> Markup:
    """JSON that cannot end the script element it stands in."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)


# --- formats -------------------------------------------------------------------------------------------------------------


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value == int(value) or abs(value) >= 100 else f"{value:,.1f}"


def _percent(value: float | None) -> str:
    """A CSS percentage, kept within the box."""
    return f"{100 * min(max(value or 0.0, 0.0), 1.0):.2f}%"


def _seconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1f} s" if value < 60 else f"{int(value) // 60} min {int(value) % 60:02d} s"


# --- what the sections show -----------------------------------------------------------------------------------------------


def _json(path: Path, warnings: list[str]) -> dict[str, Any]:
    """A JSON object of the run's, {} when it is missing; a damaged one is told."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        value = None
    if not isinstance(value, dict):
        warnings.append(f"{path.name} is damaged and was left out")
        return {}
    return value


def _mapping(value: Mapping[str, Any], key: str) -> dict[str, Any]:
    inner = value.get(key)
    return inner if isinstance(inner, dict) else {}


def _identity(run_dir: Path, row: dict[str, Any] | None, warnings: list[str]) -> dict[str, Any]:
    """Name, profile, seed, versions and times; from the run's row, else from the files it started with."""
    config: dict[str, Any] = {}
    with contextlib.suppress(OSError, tomllib.TOMLDecodeError):  # a run without a readable config.toml still has a report
        config = tomllib.loads((run_dir / "config.toml").read_text())
    commit = _json(run_dir / "git.json", warnings).get("commit", "")
    version = ""
    try:
        version = load_manifest(run_dir / "dataset").dataset_version
    except CorruptArtifactError as error:
        if (run_dir / "dataset" / "manifest.json").exists():
            warnings.append(error.message)
    row = row or {}
    return {
        "name": run_dir.name,
        "profile": row.get("profile") or config.get("profile", ""),
        "seed": row.get("seed", config.get("seed")),
        "status": row.get("status") or "no run row yet",
        "started_at": row.get("started_at") or "",
        "finished_at": row.get("finished_at") or "",
        "prefect_run_url": row.get("prefect_run_url") or "",
        "git_commit": str(row.get("git_commit") or commit or "")[:12],
        "dataset_version": row.get("dataset_version") or version,
    }


def _funnel(counts: dict[str, Any] | None, summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The funnel's bars in two scales: what was read, and what became of the candidates."""
    if counts is None:
        return []
    corpus = _mapping(summary, "funnel").get("documents")
    read = [("documents searched", corpus), ("graph nodes", counts["nodes"]), ("passages kept", counts["passages"])]
    tasks = [
        ("candidate tasks", counts["candidates"]),
        ("written", counts["synthesised"]),
        ("valid", counts["valid"]),
        ("after hack probes", counts["after_probes"]),
        ("published", counts["published"]),
    ]
    bars = []
    for group, steps in (("Material", read), ("Tasks", tasks)):
        top = max((n or 0 for _, n in steps), default=0)
        for name, n in steps:
            if n is not None:
                bars.append({"group": group, "name": name, "count": n, "share": n / top if top else 0.0})
    bars.append(
        {
            "group": "Splits",
            "name": "splits",
            "count": 0,
            "share": 0.0,
            "splits": {s: counts[s] for s in ("train", "validation", "heldout")},
        }
    )
    return bars


def _levels(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Published tasks as a table: levels down, domains across."""
    table: dict[int, dict[str, int]] = {}
    for row in found:
        table.setdefault(row["level"], {})[row["domain"]] = row["tasks"]
    return {"rows": dict(sorted(table.items())), "top": max((r["tasks"] for r in found), default=0)}


def _curves(
    curves: Mapping[tuple[str, str], list[tuple[int, float]]], experts: Mapping[tuple[str, str], dict[str, Any]]
) -> dict[tuple[str, str], dict[str, Any]]:
    """Ready-made lines of the small multiples, on common axes."""
    if not curves:
        return {}
    last = max(x for points in curves.values() for x, _ in points)
    top = markup.round_up(max(1.0, max(y for points in curves.values() for _, y in points)))
    out = {}
    for cell, points in curves.items():
        few = markup.thin(points)
        before = experts.get(cell, {}).get("sft_pass")
        out[cell] = {
            "raw": markup.polyline(few, max(last, 1), top, "raw"),
            "line": markup.polyline(markup.smooth(few), max(last, 1), top, "line"),
            "before": before,
            "before_at": None if before is None else before / top,
            "first": markup.smooth(few)[0][1],
            "end": markup.smooth(few)[-1][1],
            "last": last,
            "top": top,
        }
    return out


def _tiles(experts: Mapping[Any, dict[str, Any]], student: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    gains = [e["gain"] for e in experts.values() if e["gain"] is not None]
    shares = [s["recovered"] for s in student.values() if s["recovered"] is not None]
    return {
        "gain": sum(gains) / len(gains) if gains else None,
        "gains": len(gains),
        "recovered": sum(shares) / len(shares) if shares else None,
        "cells": len(shares),
        "null_cells": len(student) - len(shares),
    }


def _tokens(found: list[dict[str, Any]]) -> dict[str, Any]:
    """By domain and effort: mean output tokens of experts and student, on one axis; and what of them counts against the budget."""
    domains: dict[str, dict[str, dict[str, float]]] = {}
    counted: dict[str, dict[str, dict[str, float]]] = {}
    for row in found:
        who = row["policy"] if row["policy"] in ("student", "cold_start") else "experts"
        if who == "cold_start":
            continue
        cell = domains.setdefault(row["domain"], {})
        cell.setdefault(who, {})[row["effort"]] = row["mean_tokens"]
        if row["budget"] > 0:
            counts = counted.setdefault(row["domain"], {"experts": {}, "student": {}, "budget": {}})
            counts[who][row["effort"]] = row["mean_effort_tokens"]
            counts["budget"][row["effort"]] = row["budget"]
    top = markup.round_up(max((v for d in domains.values() for s in d.values() for v in s.values()), default=0.0))
    lines: dict[str, dict[str, Markup]] = {}
    for domain, series in domains.items():
        for who, values in series.items():
            points = [(1.0 + 2.0 * i, values[e]) for i, e in enumerate(EFFORTS) if e in values]
            lines.setdefault(domain, {})[who] = markup.polyline(points, 6.0, top, f"line {who}")
    ordered = {d: {w: _rises([s.get(e) for e in EFFORTS]) for w, s in series.items()} for d, series in domains.items()}
    return {"domains": domains, "counted": counted, "lines": lines, "top": top, "ordered": ordered}


def _cell_order(row: Mapping[str, Any]) -> tuple[object, ...]:
    """Stages, domains and efforts in the order the whole page uses; what is unknown comes last."""
    efforts = [*EFFORTS, ""]
    return (
        str(row["stage"]),
        DOMAINS.index(row["domain"]) if row["domain"] in DOMAINS else len(DOMAINS),
        efforts.index(row["effort"]) if row["effort"] in efforts else len(efforts),
        row.get("rank", 0),
        row.get("step", 0),
    )


def _rises(values: list[float | None]) -> bool | None:
    """Whether values strictly rise; None when one is missing."""
    known = [v for v in values if v is not None]
    return None if len(known) < len(values) else all(a < b for a, b in itertools.pairwise(known))


def _policies(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a policy with its cells by domain; trivial ones first, then cold start, expert, student."""
    order = {"cold_start": 1, "expert": 2, "student": 3}
    policies: dict[str, dict[str, Any]] = {}
    for row in found:
        entry = policies.setdefault(row["policy"], {"name": row["policy"], "trivial": row["trivial"], "cells": {}})
        entry["cells"][row["domain"]] = row
    return sorted(policies.values(), key=lambda p: (0 if p["trivial"] else order.get(p["name"], 4), p["name"]))


def _wall(summary: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(stage, seconds, share of the longest)."""
    walls = {str(k): float(v) for k, v in _mapping(summary, "wall_s").items() if isinstance(v, (int, float))}
    top = max(walls.values(), default=0.0)
    return [(name, s, s / top if top else 0.0) for name, s in walls.items()]
