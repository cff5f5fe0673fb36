"""The contracts: tasks, verdicts, the vault, errors, tables."""

from __future__ import annotations

import errno
import inspect
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from environments import errors
from environments.errors import CorruptArtifactError, DiskFullError, NinefoldError, NonFiniteRewardError
from environments.records import ROW_MODELS, NodeRow, RewardRow, Row
from environments.tables import arrow_schema, read_rows, write_rows
from environments.task import DOMAINS, FAMILY_DOMAIN, Message, TaskSpec, ToolCall, canonical_json, content_hash
from environments.vault import Vault
from environments.verdict import Verdict
from tests.tasks.specs import make_task

ERRORS = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, NinefoldError)]

# --- TaskSpec ---


def test_a_task_is_frozen_and_takes_no_unknown_field() -> None:
    task = make_task(1)
    with pytest.raises(ValidationError, match="frozen"):
        task.level = 2  # type: ignore[misc]
    with pytest.raises(ValidationError, match="hint"):
        TaskSpec.model_validate({**task.model_dump(), "hint": "x"})


def test_a_tasks_id_is_its_content() -> None:
    task = make_task(1)
    assert len(task.task_id) == 16
    assert TaskSpec.model_validate_json(task.model_dump_json()).task_id == task.task_id
    assert pickle.loads(pickle.dumps(task)).task_id == task.task_id
    for field, value in {"level": 2, "prompt": (Message(role="user", content="else"),), "licence": "MIT", "tools": ()}.items():
        assert task.model_copy(update={field: value}).__class__.model_validate({**task.model_dump(), field: value}).task_id != task.task_id


def test_the_content_hash_is_the_same_in_every_process_and_version() -> None:
    """Pinned: published datasets and vaults name tasks by it."""
    assert content_hash({"b": [1, "ä"], "a": None}) == "5d4c789751acdad9ba305072d1a6ccdc5864fd7c7a1bcc0f38a794e5a4417e02"
    assert canonical_json({"b": [1, "ä"], "a": None}) == '{"a":null,"b":[1,"ä"]}'
    assert canonical_json(ToolCall(tool="get")) == '{"arguments":{},"index":0,"tool":"get"}'
    assert content_hash(make_task(1)) == content_hash(json.loads(make_task(1).model_dump_json()))


def test_key_order_does_not_change_a_hash_and_values_do() -> None:
    assert content_hash({"a": 1, "b": 2}) == content_hash({"b": 2, "a": 1})
    assert content_hash({"a": 1}) != content_hash({"a": "1"})


def test_every_family_has_one_of_the_three_domains() -> None:
    assert set(FAMILY_DOMAIN.values()) == set(DOMAINS)


# --- Verdict ---


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf"), -0.01, 1.01, "1", None, True, [1], 10**400])
def test_only_a_finite_score_in_range_decides(score: Any) -> None:
    with pytest.raises(NonFiniteRewardError):
        Verdict.decide(score)


@settings(max_examples=80)
@given(st.floats())
def test_a_verdict_is_finite_or_none_at_all(score: float) -> None:
    try:
        verdict = Verdict.decide(score, parts={"p": score})
    except NonFiniteRewardError:
        assert not (math.isfinite(score) and 0 <= score <= 1)
        return
    assert verdict.reward == float(score == 1)
    assert verdict.status == ("pass" if score == 1 else "fail")


def test_verdicts_that_contradict_themselves_cannot_be_made() -> None:
    for bad in (
        {"status": "pass"},
        {"status": "fail"},
        {"status": "no-verdict", "score": 0.0},
        {"status": "unproven", "score": 1.0},
        {"status": "pass", "score": float("nan")},
        {"status": "pass", "score": 1.0, "parts": {"a": float("inf")}},
        {"status": "maybe"},
        {"status": "pass", "score": 1.0, "extra": 1},
    ):
        with pytest.raises(ValidationError):
            Verdict.model_validate(bad)


def test_only_pass_and_fail_are_rewards() -> None:
    assert Verdict.decide(1).reward == 1.0
    assert Verdict.decide(0.99).reward == 0.0
    assert Verdict.no_verdict("crashed").reward is None
    assert Verdict(status="tainted").reward is None
    assert Verdict(status="unproven").reward is None


# --- vault ---


def test_the_vault_stores_by_content_and_once(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    sha = vault.put({"answer": "5", "ä": [1.5, None]})
    assert sha == vault.put({"ä": [1.5, None], "answer": "5"}) == content_hash({"answer": "5", "ä": [1.5, None]})
    assert Vault(tmp_path).get(sha) == {"answer": "5", "ä": [1.5, None]}
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [f"{sha}.json"]
    messages = [Message(role="assistant", thinking="t", calls=(ToolCall(tool="get", arguments={"name": "x"}),))]
    assert Vault(tmp_path).get_reference(vault.put_reference(messages)) == messages


@pytest.mark.parametrize("damage", [b"", b'{"answer":"6"}', b"\xff\xfe\x00", b'{"answer":"5"} '])
def test_a_changed_vault_entry_is_corrupt(tmp_path: Path, damage: bytes) -> None:
    sha = Vault(tmp_path).put({"answer": "5"})
    (tmp_path / sha[:2] / f"{sha}.json").write_bytes(damage)
    with pytest.raises(CorruptArtifactError, match=sha[:16]):
        Vault(tmp_path).get(sha)


def test_a_missing_vault_entry_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptArtifactError, match="0" * 16):
        Vault(tmp_path).get("0" * 64)


def test_demonstrations_are_kept_by_task_and_broken_ones_named(tmp_path: Path) -> None:
    vault = Vault(tmp_path)
    assert vault.get_demonstrations("t1") == []
    vault.put_demonstrations("t1", [{"style": "long"}])
    assert vault.get_demonstrations("t1") == [{"style": "long"}]
    (path,) = [p for p in tmp_path.rglob("*") if p.is_file()]
    path.write_bytes(b"\xff{")
    with pytest.raises(CorruptArtifactError):
        vault.get_demonstrations("t1")


def test_a_full_disk_while_storing_is_typed_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    vault = Vault(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(DiskFullError):
        vault.put({"a": 1})
    with pytest.raises(DiskFullError):
        vault.put_demonstrations("t1", [])
    monkeypatch.undo()
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []
    assert vault.get(vault.put({"a": 1})) == {"a": 1}


# --- errors ---


@pytest.mark.parametrize("kind", ERRORS, ids=lambda c: c.__name__)
def test_errors_survive_pickling_and_print_their_fix(kind: type[NinefoldError]) -> None:
    error = pickle.loads(pickle.dumps(kind("the thing 'x' broke", "mend it")))
    assert type(error) is kind
    assert (error.message, error.fix) == ("the thing 'x' broke", "mend it")
    assert str(error) == "the thing 'x' broke. Fix: mend it"
    assert str(kind("short")) == "short"


def test_who_failed_is_told_apart() -> None:
    roots = (errors.InputError, errors.InfrastructureError, errors.AgentError, errors.VerifierError)
    for kind in ERRORS:
        assert sum(issubclass(kind, root) for root in roots) == (0 if kind is NinefoldError else 1)


# --- tables ---


def _example(model: type[Row], number: int) -> Row:
    values: dict[Any, Any] = {
        str: f"text {number} ä",
        int: number,
        float: number / 3,
        bool: bool(number % 2),
        list[str]: ["a", ""],
        list[int]: [number],
        list[float]: [number / 3, -0.0],
    }
    filled = {}
    for name, info in model.model_fields.items():
        kind: Any = info.annotation
        if kind not in values:  # X | None
            filled[name] = None if number % 2 else values[next(a for a in kind.__args__ if a is not type(None))]
        else:
            filled[name] = values[kind]
    return model.model_validate(filled)


@pytest.mark.parametrize("model", ROW_MODELS, ids=lambda m: m.TABLE)
def test_every_table_comes_back_as_written(model: type[Row], tmp_path: Path) -> None:
    rows = [_example(model, n) for n in range(3)]
    path = write_rows(tmp_path / "deep" / "part.parquet", model, rows)
    assert read_rows(path, model) == rows
    assert pq.read_schema(path).equals(arrow_schema(model))
    assert read_rows(write_rows(tmp_path / "empty.parquet", model, []), model) == []
    assert all(info.description for info in model.model_fields.values())


@pytest.mark.parametrize("keep", [0, 4, 200, -1])
def test_a_part_cut_short_is_corrupt_and_named(keep: int, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "part.parquet", NodeRow, [_example(NodeRow, 1)])  # type: ignore[list-item]
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptArtifactError, match=r"part\.parquet is not a whole"):
        read_rows(path, NodeRow)


def test_a_missing_part_and_another_tables_part_are_corrupt(tmp_path: Path) -> None:
    with pytest.raises(CorruptArtifactError):
        read_rows(tmp_path / "none.parquet", NodeRow)
    path = write_rows(tmp_path / "part.parquet", NodeRow, [_example(NodeRow, 1)])  # type: ignore[list-item]
    with pytest.raises(CorruptArtifactError):
        read_rows(path, RewardRow)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(CorruptArtifactError):
        read_rows(tmp_path / "x.parquet", NodeRow)


@pytest.mark.parametrize("where", ["write", "rename"])
def test_a_full_disk_is_typed_and_keeps_what_was_there(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_rows(tmp_path / "part.parquet", NodeRow, [_example(NodeRow, 1)])  # type: ignore[list-item]

    def full(*arguments: Any, **_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((pq.ParquetWriter, "write_table", full) if where == "write" else (os, "replace", full)))
    with pytest.raises(DiskFullError, match=r"part\.parquet"):
        write_rows(path, NodeRow, [_example(NodeRow, 2)])  # type: ignore[list-item]
    monkeypatch.undo()
    assert read_rows(path, NodeRow) == [_example(NodeRow, 1)]
    assert [p.name for p in tmp_path.iterdir()] == ["part.parquet"]


def test_another_disk_error_stays_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(os, "replace", denied)
    with pytest.raises(PermissionError):
        write_rows(tmp_path / "part.parquet", NodeRow, [])
    assert list(tmp_path.iterdir()) == []
