"""Keys and plans: what changes a stage's key, what does not, and what a change makes anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from environments.errors import ConfigError
from environments.task import DOMAINS, EFFORTS
from flows.config import RunConfig, load_config
from flows.stages import EXPERTS, GROUPS, STAGES, Plan
from flows.steps import keys
from flows.workspace import RunDirectory


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "kg" / "deep").mkdir(parents=True)
    (tmp_path / "kg" / "a.py").write_text('"""Doc."""\n\ndef f(x):\n    """Doc."""\n    return x + 1\n')
    (tmp_path / "kg" / "deep" / "b.py").write_text("X = 1\n")
    return tmp_path


PATTERNS = ("kg/**/*.py",)


def test_the_code_hash_changes_with_code_at_any_depth(code: Path) -> None:
    before = keys.code_hash(PATTERNS, code)
    (code / "kg" / "deep" / "b.py").write_text("X = 2\n")
    changed = keys.code_hash(PATTERNS, code)
    (code / "kg" / "c.py").write_text("")
    assert len({before, changed, keys.code_hash(PATTERNS, code)}) == 3


def test_comments_blank_lines_and_docstrings_change_nothing(code: Path) -> None:
    before = keys.code_hash(PATTERNS, code)
    (code / "kg" / "a.py").write_text('"""Another doc."""\n# why\n\n\ndef f(x):\n    """Longer doc."""\n    return x + 1  # so\n')
    assert keys.code_hash(PATTERNS, code) == before


def test_a_moved_file_changes_the_hash_and_an_excluded_one_does_not(code: Path) -> None:
    before = keys.code_hash((*PATTERNS, "!kg/deep/*.py"), code)
    (code / "kg" / "deep" / "b.py").write_text("X = 3\n")
    assert keys.code_hash((*PATTERNS, "!kg/deep/*.py"), code) == before
    (code / "kg" / "a.py").rename(code / "kg" / "z.py")
    assert keys.code_hash((*PATTERNS, "!kg/deep/*.py"), code) != before


def test_a_file_that_does_not_parse_still_counts(code: Path) -> None:
    (code / "kg" / "a.py").write_text("def (")
    before = keys.code_hash(PATTERNS, code)
    (code / "kg" / "a.py").write_text("def ((")
    assert keys.code_hash(PATTERNS, code) != before


def test_every_pattern_of_every_stage_matches_real_code() -> None:
    for stage, patterns in keys.CODE.items():
        for pattern in patterns:
            assert list(keys.ROOT.glob(pattern.removeprefix("!"))), f"{stage}: {pattern} matches nothing"


UNTIL_PUBLISH = {"corpus", "grow", "synthesize", "validate", "probe", "publish"}


def finish_all(run: RunDirectory, config: RunConfig) -> None:
    for name in STAGES:
        key = Plan(run, config).key(name)
        assert key is not None
        run.finish(name, key, [], {"of": name})


def done(run: RunDirectory, config: RunConfig) -> set[str]:
    return {stage.name for stage, ok in Plan(run, config).todo(["evaluate"]) if ok}


def test_nine_experts_each_after_what_they_branch_from() -> None:
    assert sorted(EXPERTS) == sorted((d, e) for d in DOMAINS for e in EFFORTS)
    order = list(STAGES)
    for stage in STAGES.values():
        assert all(order.index(needed) < order.index(stage.name) for needed in stage.needs)
    assert "expert-coding-max" in STAGES["expert-coding-low"].needs
    assert set(GROUPS["train"]) <= set(Plan(RunDirectory(Path("/nowhere/runs/r")), load_config()).closure(["distill"]))


def test_a_key_waits_for_what_it_needs(tmp_path: Path) -> None:
    plan = Plan(RunDirectory(tmp_path / "runs" / "r"), load_config())
    assert plan.key("corpus") is not None
    assert plan.key("grow") is None
    with pytest.raises(ConfigError, match="grow"):
        plan.result("grow")
    with pytest.raises(ConfigError, match="no stage"):
        plan.key("grew")


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"orchestration": {"shards": 3}}, set(STAGES)),
        ({"training": {"evaluation": {"samples": 9}}}, set(STAGES) - {"evaluate"}),
        ({"training": {"mopd": {"steps": 9}}}, set(STAGES) - {"distill", "evaluate"}),
        ({"training": {"expert": {"lr": 1.0}}}, UNTIL_PUBLISH | {"select", "cold_start", "budgets"}),
        ({"selection": {"query": "SELECT 1"}}, UNTIL_PUBLISH | {"cold_start"}),
        ({"hardening": {"reference_runs": 9}}, {"corpus", "grow", "synthesize"}),
        ({"graph": {"max_nodes": 9}}, {"corpus"}),
    ],
)
def test_a_change_of_the_configuration_makes_anew_only_what_it_touches(
    change: dict[str, dict[str, object]], kept: set[str], tmp_path: Path
) -> None:
    run, config = RunDirectory(tmp_path / "runs" / "r"), load_config()
    finish_all(run, config)
    assert done(run, config) == set(STAGES)
    values = config.model_dump()
    for section, keys_ in change.items():
        for key, value in keys_.items():
            values[section][key] = values[section][key] | value if isinstance(value, dict) else value
    assert done(run, RunConfig.model_validate(values)) == kept


def test_a_change_of_code_makes_its_stage_and_all_after_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, config = RunDirectory(tmp_path / "runs" / "r"), load_config()
    finish_all(run, config)
    monkeypatch.setattr("flows.stages.stage_code", lambda stage: "other" if stage == "validate" else keys.stage_code(stage))
    assert done(run, config) == {"corpus", "grow", "synthesize"}


def test_equal_results_of_a_redone_stage_keep_what_follows(tmp_path: Path) -> None:
    run, config = RunDirectory(tmp_path / "runs" / "r"), load_config()
    finish_all(run, config)
    run.step_file("grow").unlink()
    assert "synthesize" not in done(run, config)
    key = Plan(run, config).key("grow")
    assert key is not None
    run.finish("grow", key, [], {"of": "grow"})
    assert done(run, config) == set(STAGES)
