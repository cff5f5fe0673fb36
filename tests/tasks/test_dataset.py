"""A dataset is whole or it says so, naming the file and the fix."""

from __future__ import annotations

import json

import pyarrow.parquet as pq
import pytest

from environments.errors import ConfigError, CorruptArtifactError, DiskFullError
from tasks import dataset
from tasks.dataset import card, load, load_manifest, publish
from tests.tasks.specs import make_task


@pytest.fixture
def splits(tasks):
    return {"train": tasks[:40], "validation": tasks[40:50], "heldout": tasks[50:]}


def test_what_was_published_is_loaded(splits, tmp_path):
    manifest = publish(splits, tmp_path, graph_version="g1", code_version="abc", shard_rows=16)
    assert {t.task_id for t in load(tmp_path)} == {t.task_id for s in splits.values() for t in s}
    assert load(tmp_path, split="heldout", domain="coding") == sorted(
        (t for t in splits["heldout"] if t.domain == "coding"), key=lambda t: (t.level, t.task_id)
    )
    assert [(s.split, s.rows) for s in manifest.shards] == [("heldout", 10), ("train", 16), ("train", 16), ("train", 8), ("validation", 10)]
    assert manifest.tasks() == 60
    assert manifest.tasks("train") == 40
    assert manifest.tasks(domain="agent") == 20
    assert manifest.licences == {"BSD-3-Clause": 60}
    assert manifest.families == {"assistant": 20, "coding": 20, "search": 20}
    assert load_manifest(tmp_path) == manifest
    assert pq.read_schema(tmp_path / manifest.shards[0].file).names == [
        "task_id",
        "domain",
        "family",
        "kind",
        "level",
        "branch",
        "spec_json",
    ]


def test_the_version_is_the_content(splits, tmp_path):
    first = publish(splits, tmp_path / "a", graph_version="g1")
    turned = publish({s: t[::-1] for s, t in splits.items()}, tmp_path / "b", graph_version="g1", shard_rows=7)
    assert turned.dataset_version == first.dataset_version
    moved = {**splits, "train": splits["train"][1:], "heldout": [*splits["heldout"], splits["train"][0]]}
    assert publish(moved, tmp_path / "c", graph_version="g1").dataset_version != first.dataset_version


def test_publishing_again_leaves_whole_files_alone_and_mends_damaged_ones(splits, tmp_path):
    manifest = publish(splits, tmp_path, graph_version="g1")
    shard = tmp_path / manifest.shards[0].file
    before = shard.stat().st_mtime_ns
    assert publish(splits, tmp_path, graph_version="g1") == manifest
    assert shard.stat().st_mtime_ns == before
    shard.write_bytes(b"cut short")
    publish(splits, tmp_path, graph_version="g1")
    assert len(load(tmp_path)) == 60


def test_a_smaller_dataset_leaves_no_stale_shard(splits, tmp_path):
    publish(splits, tmp_path, graph_version="g1", shard_rows=5)
    manifest = publish({"train": splits["train"][:5]}, tmp_path, graph_version="g1", shard_rows=5)
    assert [p.name for p in tmp_path.glob("*.parquet")] == [s.file for s in manifest.shards]
    assert len(load(tmp_path)) == 5


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [flip, lambda p: p.unlink(), lambda p: p.write_bytes(p.read_bytes()[:-9])])
def test_a_damaged_shard_is_named(splits, tmp_path, damage):
    manifest = publish(splits, tmp_path, graph_version="g1")
    damage(tmp_path / manifest.shards[1].file)
    with pytest.raises(CorruptArtifactError, match=f"{manifest.shards[1].file}.*Fix: .*publish again"):
        load(tmp_path)
    assert len(load(tmp_path, split=manifest.shards[0].split)) == manifest.shards[0].rows, "a whole split stays readable"


def test_a_dataset_without_a_manifest_is_incomplete(splits, tmp_path):
    publish(splits, tmp_path, graph_version="g1")
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(CorruptArtifactError, match=r"incomplete.*Fix: "):
        load(tmp_path)


@pytest.mark.parametrize("edit", ["version", "syntax", "unknown key", "path"])
def test_a_false_manifest_is_named(splits, tmp_path, edit):
    publish(splits, tmp_path, graph_version="g1")
    path = tmp_path / "manifest.json"
    content = json.loads(path.read_text())
    if edit == "version":
        content["split_sha256"]["train"] = "0" * 64
    elif edit == "unknown key":
        content["surprise"] = 1
    elif edit == "path":
        content["shards"][0]["file"] = "../../etc/passwd"
    path.write_text("{" if edit == "syntax" else json.dumps(content))
    with pytest.raises(CorruptArtifactError, match=r"manifest.json"):
        load(tmp_path)


def test_shards_swapped_in_from_another_dataset_are_found(splits, tmp_path):
    """File hashes and rows agree with an edited manifest, but the split's content hash does not."""
    publish(splits, tmp_path / "a", graph_version="g1")
    other = publish({**splits, "train": [make_task(900)]}, tmp_path / "b", graph_version="g1")
    (shard,) = [s for s in other.shards if s.split == "train"]
    (tmp_path / "a" / shard.file).write_bytes((tmp_path / "b" / shard.file).read_bytes())
    path = tmp_path / "a" / "manifest.json"
    content = json.loads(path.read_text())
    content["shards"] = [s for s in content["shards"] if s["split"] != "train"] + [shard.model_dump()]
    path.write_text(json.dumps(content))
    with pytest.raises(CorruptArtifactError, match="train shards"):
        load(tmp_path / "a")


def test_what_cannot_be_published_is_named(splits, tmp_path):
    with pytest.raises(ConfigError, match="no task to publish"):
        publish({"train": []}, tmp_path, graph_version="g1")
    with pytest.raises(ConfigError, match="given twice"):
        publish({"train": splits["train"], "heldout": splits["train"][:1]}, tmp_path, graph_version="g1")
    with pytest.raises(ConfigError, match="no name for a split"):
        publish({"../x": splits["train"]}, tmp_path, graph_version="g1")
    publish(splits, tmp_path, graph_version="g1")
    with pytest.raises(ConfigError, match="no split 'test'"):
        load(tmp_path, split="test")


def test_a_full_disk_leaves_an_incomplete_dataset(splits, tmp_path, monkeypatch):
    publish({"train": splits["train"][:3]}, tmp_path, graph_version="g1")
    real = dataset._replace

    def full_after_two(path, data, written=[]):  # noqa: B006 (the list is the counter)
        written.append(path)
        if len(written) > 2:
            raise OSError(28, "No space left on device")
        real(path, data)

    monkeypatch.setattr(dataset, "_replace", full_after_two)
    with pytest.raises(DiskFullError, match=r"no space left.*Fix: "):
        publish(splits, tmp_path, graph_version="g1", shard_rows=10)
    with pytest.raises(CorruptArtifactError, match="incomplete"):
        load(tmp_path)


def test_the_card_tells_counts_licences_and_files(splits, tmp_path):
    evil = make_task(1000, licence="<b>MIT</b>\n# heading")
    manifest = publish(
        {**splits, "train": [*splits["train"], evil]}, tmp_path, graph_version="g1", dropped={"passage occurs in training": 4}
    )
    text = card(manifest)
    assert f"# Dataset {manifest.dataset_version}" in text
    assert "61 tasks" in text
    assert "| train | 13 | 13 | 15 | 41 |" in text
    assert "- BSD-3-Clause: 60 tasks" in text
    assert "passage occurs in training: 4 tasks" in text
    assert "<b>" not in text
    assert "\n# heading" not in text
    assert all(s.file in text for s in manifest.shards)
