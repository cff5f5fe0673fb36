"""What the report says, without a browser: figures as measured, gaps as gaps, text as text."""

from __future__ import annotations

import re

import pytest

from environments import records as r
from environments.errors import DiskFullError, InputError
from environments.tables import write_rows
from flows.report import markup, write_report
from flows.report.layout import MAX_NODES, graph_payload
from tests.tasks.synthetic import HOSTILE, synthetic_rows, write_run

SECTIONS = ("funnel", "curves", "experts", "student", "tokens", "trivial", "graph", "hardening", "traces", "time", "versions")


def section(html: str, name: str) -> str:
    return re.search(rf'<section id="{name}".*?</section>', html, re.S)[0]


def words(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


def test_a_whole_run_shows_every_section_without_a_gap(report):
    html = report.read_text()
    assert [s for s in SECTIONS if f'<section id="{s}"' not in html] == []
    assert "Not run." not in html
    assert report.stat().st_size < 2_000_000
    text = words(html)
    run = synthetic_rows()[r.RunRow][0]
    for fact in (run.dataset_version, run.profile, run.finished_at, run.git_commit[:12]):
        assert fact in text


def test_figures_are_those_of_the_rows(report):
    html = report.read_text()
    rows = synthetic_rows()
    funnel = words(section(html, "funnel"))
    published = sum(t.status == "published" for t in rows[r.TaskRow])
    assert "23,456 documents searched" in funnel
    assert f"published {published} " in funnel
    cells = {(e.policy, e.domain, e.effort): e for e in rows[r.EvaluationRow] if e.level == 0}
    before, after = cells["cold_start", "agent", "max"].pass_rate, cells["expert-agent-max", "agent", "max"].pass_rate
    assert f"agent max {before:.2f} {after:.2f} {after - before:+.2f}" in words(section(html, "experts"))
    student = words(section(html, "student"))
    assert "Mean over 8 cells: 0.90 ." in student
    assert "1 cell is null" in student
    assert student.count(" null ") == 1
    assert "coding low 0.35 0.35 null" in student
    assert section(html, "curves").count("<figure") == 9
    assert "copy 0.01 0.01 0.01" in words(section(html, "trivial"))
    checks = [v for v in rows[r.ValidationRow] if v.check_name == "reference"]
    assert f"reference pass {len(checks)} {sum(not v.ok for v in checks)} (fail)" in words(section(html, "hardening"))
    assert "cold start 3 min 00 s" in words(section(html, "time"))


def test_the_page_loads_and_sends_nothing(report):
    html = report.read_text()
    code = re.sub(r"<pre.*?</pre>|<dd.*?</dd>", "", html, flags=re.S)
    assert re.findall(r'(?:src|href)="(?!#|data:,)[^"]*"|url\(|@import|fetch\(|XMLHttpRequest', code) == []
    assert "default-src 'none'" in html


def test_hostile_text_is_escaped_everywhere(report):
    html = report.read_text()
    assert HOSTILE[:20] not in html
    assert html.count("<script") == 2, "the graph's data and the one script of ours"
    assert "<img" not in html
    assert "&lt;/script&gt;&lt;script&gt;window.hacked" in html


@pytest.mark.parametrize(
    ("only", "missing"),
    [
        ([], SECTIONS),
        ([r.NodeRow, r.EdgeRow], ("curves", "experts", "student", "tokens", "trivial", "hardening", "traces", "funnel")),
        ([r.NodeRow, r.TaskRow, r.ValidationRow, r.ProbeRow], ("curves", "experts", "student", "tokens", "trivial", "traces", "time")),
    ],
)
def test_stages_that_have_not_run_are_said_to_be_missing(tmp_path, only, missing):
    run = write_run(tmp_path, only=only)
    run.mkdir(parents=True, exist_ok=True)
    html = write_report(run).read_text()
    for name in missing:
        assert "Not run." in section(html, name), name
    shown = set(SECTIONS) - set(missing) - {"versions", "time"}
    for name in shown:
        assert "Not run." not in section(html, name), name


def test_one_missing_expert_is_a_hole_not_a_zero(tmp_path):
    run = write_run(tmp_path)
    keep = [
        e
        for e in synthetic_rows()[r.EvaluationRow]
        if not (e.policy == "expert-coding-low" or (e.policy == "student" and e.effort == "low"))
    ]
    for part in (run / "tables" / "evaluations").glob("*.parquet"):
        part.unlink()
    unbudgeted = [e.model_copy(update={"budget": 0.0}) if e.effort == "high" else e for e in keep]
    write_rows(run / "tables" / "evaluations" / "x.parquet", r.EvaluationRow, unbudgeted)
    html = write_report(run).read_text()
    assert section(html, "experts").count("not evaluated") == 1
    assert section(html, "student").count("not evaluated") == 3
    assert "student – 96 141 –" in words(section(html, "tokens")), "an order of three is not claimed from two"


def test_damaged_files_are_named_on_the_page(tmp_path):
    run = write_run(tmp_path, nodes=20, tasks=30)
    (run / "tables" / "tasks" / "a.parquet").write_text("cut")
    (run / "summary.json").write_text("{")
    (run / "git.json").write_text("[]")
    text = words(write_report(run).read_text())
    assert "tasks/a.parquet is not a whole Parquet file" in text
    assert "summary.json is damaged" in text
    assert "git.json is damaged" in text


def test_identity_comes_from_the_runs_files_before_the_run_row_exists(tmp_path):
    run = write_run(tmp_path, "half", only=[r.NodeRow], nodes=20, tasks=3)
    (run / "config.toml").write_text('profile = "gpu"\nseed = 41\n')
    (run / "git.json").write_text('{"commit": "abcdef0123456789"}')
    header = words(write_report(run).read_text().split("<nav")[0])
    assert "profile gpu seed 41" in header
    assert "abcdef012345" in header
    assert "not published" in header


def test_errors(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="no run at"):
        write_report(tmp_path / "runs" / "none")
    run = write_run(tmp_path, only=[r.NodeRow], nodes=8, tasks=3)
    before = write_report(run).read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("environments.files.os.replace", full)
    with pytest.raises(DiskFullError, match=r"report.html.*Fix: free some space"):
        write_report(run)
    assert (run / "report.html").read_text() == before
    assert list(run.glob(".report*")) == []


def test_transcripts_show_reserved_tokens_and_are_cut_honestly():
    html = markup.transcript('[open]call tool="x"[sep]<b>&[close]call[sep][end_of_msg]next')
    assert html.count('<mark class="tok">') == 4
    assert '<mark class="tok end">[end_of_msg]</mark>\nnext' in html
    assert "&lt;b&gt;&amp;" in html
    long = markup.transcript("x" * (markup.MAX_TRANSCRIPT + 1234))
    assert "1,234 more characters" in long
    assert len(long) < markup.MAX_TRANSCRIPT + 200


def test_lines_keep_their_ends_and_their_scale():
    points = [(i, float(i)) for i in range(1000)]
    few = markup.thin(points)
    assert len(few) <= 120
    assert sum(y for _, y in few) / len(few) == pytest.approx(499.5, rel=0.01)
    spiky = [(i, v) for i, v in enumerate([0.0, 1.0, 0.0, 1.0, 0.0, 1.0])]
    smoothed = markup.smooth(spiky)
    assert (smoothed[0], smoothed[-1]) == (spiky[0], spiky[-1])
    assert smoothed[2][1] == pytest.approx(0.4)
    assert 'points="0.00,100.00 50.00,0.00 100.00,0.00"' in markup.polyline([(0, -1), (5, 2), (10, 3)], 10, 2, "line")
    assert markup.polyline([], 10, 2, "line") == markup.polyline([(0, 1)], 0, 2, "line") == ""


@pytest.mark.parametrize(("value", "top"), [(0, 1), (0.03, 0.05), (0.7, 1), (1, 1), (1.1, 2), (23, 25), (99, 100), (101, 200), (640, 1000)])
def test_axes_end_at_round_numbers(value, top):
    assert markup.round_up(value) == pytest.approx(top)


def node(i, level, **more):
    base = {"node_id": f"n{i}", "name": f"n{i}", "aliases": [], "domain": "general", "level": level, "branch": "n0", "seed": level == 0}
    return base | {"atomic": False, "reason": "", "candidates": 0, "published": 0} | more


def test_the_layout_keeps_every_node_apart_and_in_the_box():
    rows = synthetic_rows()
    nodes = [n.model_dump() | {"candidates": 1, "published": 0} for n in rows[r.NodeRow]]
    payload = graph_payload(nodes, [e.model_dump() for e in rows[r.EdgeRow]])
    places = {(n["x"], n["y"]) for n in payload["nodes"]}
    assert len(places) == len(nodes)
    assert all(-1 <= c <= 1 for place in places for c in place)
    assert len(payload["edges"]) == len(rows[r.EdgeRow])
    assert graph_payload(nodes[::-1], [e.model_dump() for e in rows[r.EdgeRow]]) == payload


def test_the_layout_survives_odd_graphs():
    one = graph_payload([node(0, 0)], [])
    assert (one["nodes"][0]["x"], one["nodes"][0]["y"], one["left_out"]) == (0.0, 0.0, 0)
    orphan = graph_payload([node(0, 0), node(1, 2)], [{"coarse_id": "gone", "fine_id": "n1"}])
    assert orphan["edges"] == []
    many = graph_payload([node(i, min(i, 1)) for i in range(MAX_NODES + 5)], [])
    assert (len(many["nodes"]), many["left_out"]) == (MAX_NODES, 5)
