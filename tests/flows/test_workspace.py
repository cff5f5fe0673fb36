"""Run folders: refused twice, resumed when asked, and a step counts as done only while its outputs are what was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from environments.errors import ConfigError, DiskFullError, InputError, RunExistsError
from flows import workspace as module
from flows.config import RunConfig, load_config
from flows.workspace import RunDirectory, Workspace


@pytest.fixture
def config() -> RunConfig:
    return load_config("laptop")


def test_the_workspace_is_ninefold_home_or_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NINEFOLD_HOME", str(tmp_path / "home"))
    assert Workspace().root == tmp_path / "home"
    monkeypatch.delenv("NINEFOLD_HOME")
    monkeypatch.chdir(tmp_path)
    assert Workspace().root == tmp_path


def test_a_run_is_created_once_and_entered_again_only_to_resume(tmp_path: Path, config: RunConfig) -> None:
    run = Workspace(tmp_path).start("first", config)
    assert run.config() == config
    assert set(json.loads((run.root / "git.json").read_text())["versions"]) >= {"python", "torch", "prefect"}
    with pytest.raises(RunExistsError, match="--resume"):
        Workspace(tmp_path).start("first", config)
    changed = config.model_copy(update={"seed": 5})
    assert Workspace(tmp_path).start("first", changed, resume=True).config().seed == 5


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", "x" * 65])
def test_a_name_that_is_no_folder_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="run name"):
        Workspace(tmp_path).run(name)


def test_an_unknown_run_is_answered_with_those_that_exist(tmp_path: Path, config: RunConfig) -> None:
    Workspace(tmp_path).start("first", config)
    with pytest.raises(InputError, match="first"):
        Workspace(tmp_path).existing("frist")


def test_too_little_disk_stops_before_anything_is_computed(tmp_path: Path, config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "free_disk_mb", lambda path: 10)
    with pytest.raises(DiskFullError, match="only 10 MB"):
        Workspace(tmp_path).start("first", config)


def test_a_full_disk_while_writing_is_typed_and_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, text: str) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(DiskFullError, match=r"state\.json"):
        module.write_json(tmp_path / "state.json", {})
    assert list(tmp_path.iterdir()) == []


def finished_step(run: RunDirectory) -> Path:
    part = run.part("nodes", "grow")
    part.parent.mkdir(parents=True)
    part.write_bytes(b"rows")
    run.finish("grow", "key", [part], {"nodes": 3}, 1.5)
    return part


def test_a_step_is_reused_exactly_while_key_and_outputs_hold(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs" / "r")
    part = finished_step(run)
    record = run.finished("grow", "key")
    assert record is not None
    assert (record.result, record.wall_s) == ({"nodes": 3}, 1.5)
    assert run.finished("grow", "another key") is None
    assert run.finished("grow") == record
    part.write_bytes(b"bits")  # same size, other bytes
    assert run.finished("grow", "key") is None
    part.unlink()
    assert run.finished("grow", "key") is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"step": "grow"}', '{"outputs": {"x": 3}, "step": "", "key": "", "result": {}, "wall_s": 0, "finished_at": ""}'],
)
def test_a_corrupt_manifest_means_the_step_is_done_again(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = RunDirectory(tmp_path / "runs" / "r")
    finished_step(run)
    run.step_file("grow").write_text(text)
    assert run.finished("grow", "key") is None
    assert str(run.step_file("grow")) in caplog.text


def test_content_follows_the_outputs_not_the_time(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs" / "r")
    part = finished_step(run)
    first = run.finished("grow")
    again = run.finish("grow", "key", [part], {"nodes": 3}, 99.0)
    part.write_bytes(b"more rows")
    changed = run.finish("grow", "key", [part], {"nodes": 3})
    assert first is not None
    assert first.content == again.content != changed.content


def test_stale_parts_of_an_earlier_cut_go(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "runs" / "r")
    names = ("validate-shard-0000", "validate-shard-0001", "probe-shard-0000")
    for name in names:
        path = run.part("probes", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    run.drop_stale_parts("validate", [run.part("probes", names[0])])
    assert sorted(p.stem for p in (run.tables / "probes").iterdir()) == ["probe-shard-0000", "validate-shard-0000"]
