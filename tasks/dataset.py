"""A published dataset: Parquet shards by split, and a manifest that is written last.

A directory without a manifest is an incomplete dataset. The dataset's version is the content hash of its tasks and their
splits, so that publishing the same tasks again, in another order or shard size, gives the same version.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import Field, ValidationError

from environments.errors import ConfigError, CorruptArtifactError, DiskFullError
from environments.files import replacing
from environments.task import Frozen, TaskSpec, canonical_json, content_hash

MANIFEST = "manifest.json"
SHARD_ROWS = 2000
"""About 4 MB of specs a shard: small enough to hash and read at once, large enough that a laptop run has a few files."""
_SCHEMA = pa.schema(
    [
        pa.field("task_id", pa.string(), nullable=False),
        pa.field("domain", pa.string(), nullable=False),
        pa.field("family", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("level", pa.int64(), nullable=False),
        pa.field("branch", pa.string(), nullable=False),
        pa.field("spec_json", pa.string(), nullable=False),
    ]
)


class Shard(Frozen):
    """One Parquet file of the dataset."""

    file: str
    split: str
    rows: int
    sha256: str
    """Of the file's bytes."""


class Manifest(Frozen):
    """What a dataset holds. `counts[split][domain][level]` are tasks (levels as text, since JSON keys are)."""

    format: Literal[1] = 1
    dataset_version: str
    """Content hash of `split_sha256` (16 hex characters)."""
    graph_version: str
    code_version: str = ""
    """Commit or version of the code that published; empty when unknown."""
    split_sha256: dict[str, str]
    """By split: content hash of its tasks' content hashes, sorted."""
    shards: tuple[Shard, ...]
    counts: dict[str, dict[str, dict[str, int]]]
    families: dict[str, int] = Field(default_factory=dict)
    licences: dict[str, int] = Field(default_factory=dict)
    """Tasks by licence of their material."""
    dropped: dict[str, int] = Field(default_factory=dict)
    """Tasks that were not published, by reason; for the card only."""

    def tasks(self, split: str | None = None, domain: str | None = None) -> int:
        """How many tasks the dataset holds, of one split or domain when given."""
        return sum(
            n
            for s, domains in self.counts.items()
            if split in (None, s)
            for d, levels in domains.items()
            if domain in (None, d)
            for n in levels.values()
        )


def _version(split_sha256: Mapping[str, str]) -> str:
    return content_hash(dict(split_sha256))[:16]


def _split_hash(tasks: Sequence[TaskSpec]) -> str:
    return content_hash(sorted(content_hash(t) for t in tasks))


def publish(
    tasks_by_split: Mapping[str, Sequence[TaskSpec]],
    directory: Path,
    *,
    graph_version: str,
    code_version: str = "",
    dropped: Mapping[str, int] | None = None,
    shard_rows: int = SHARD_ROWS,
) -> Manifest:
    """Write the dataset; the manifest comes last, by a rename. Publishing the same tasks again leaves whole files alone.

    Args:
        tasks_by_split: Tasks by split name (`train`, `validation`, `heldout`); a task may be in one split only.
        graph_version: Content hash of the concept graph the tasks were sampled from.
        dropped: Counts by reason of what was not published, shown on the card.

    Raises:
        ConfigError: no task at all, or one task given twice.
        DiskFullError: the disk is full; no manifest is left, so the dataset reads as incomplete.
    """
    directory = Path(directory)
    _check(tasks_by_split, shard_rows)
    splits = {s: sorted(tasks, key=lambda t: (t.domain, t.level, t.task_id)) for s, tasks in sorted(tasks_by_split.items()) if tasks}
    split_sha256 = {s: _split_hash(tasks) for s, tasks in splits.items()}
    try:
        present = load_manifest(directory)
        told = (present.dataset_version, present.graph_version, present.code_version, present.dropped)
        if told == (_version(split_sha256), graph_version, code_version, dict(dropped or {})) and not _damaged(directory, present):
            return present
    except CorruptArtifactError:
        pass  # missing or damaged: it is written anew below
    try:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / MANIFEST).unlink(missing_ok=True)  # from here on the dataset is incomplete
        for old in directory.glob("*.parquet"):
            old.unlink()
        shards: list[Shard] = []
        for split, tasks in splits.items():
            total = -(-len(tasks) // shard_rows)
            for i in range(total):
                name = f"{split}-{i:05d}-of-{total:05d}.parquet"
                part = tasks[i * shard_rows : (i + 1) * shard_rows]
                _write_shard(directory / name, part)
                shards.append(Shard(file=name, split=split, rows=len(part), sha256=_file_sha256(directory / name)))
        every = [t for tasks in splits.values() for t in tasks]
        manifest = Manifest(
            dataset_version=_version(split_sha256),
            graph_version=graph_version,
            code_version=code_version,
            split_sha256=split_sha256,
            shards=tuple(shards),
            counts={s: _counts(tasks) for s, tasks in splits.items()},
            families=dict(sorted(Counter(t.family for t in every).items())),
            licences=dict(sorted(Counter(t.licence for t in every).items())),
            dropped=dict(dropped or {}),
        )
        _replace(directory / MANIFEST, json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True).encode() + b"\n")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFullError(
                f"no space left while publishing to {directory}", "free some space and publish again; the dataset is incomplete until then"
            ) from error
        raise
    return manifest


def load_manifest(directory: Path) -> Manifest:
    """Read and check the manifest alone.

    Raises:
        CorruptArtifactError: it is missing (the dataset is incomplete), not a manifest, or contradicts itself.
    """
    path = Path(directory) / MANIFEST
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise CorruptArtifactError(f"{path} is missing: the dataset is incomplete", "publish again (`ninefold run --resume`)") from error
    except (OSError, ValidationError) as error:
        raise CorruptArtifactError(f"{path} is not a dataset manifest ({type(error).__name__})", "delete it and publish again") from error
    if manifest.dataset_version != _version(manifest.split_sha256):
        raise CorruptArtifactError(
            f"{path} names version {manifest.dataset_version}, its splits say {_version(manifest.split_sha256)}",
            "delete it and publish again",
        )
    if any(Path(s.file).name != s.file for s in manifest.shards):
        raise CorruptArtifactError(f"{path} names a shard outside its folder", "delete it and publish again")
    return manifest


def load(directory: Path, split: str | None = None, domain: str | None = None) -> list[TaskSpec]:
    """The tasks of a dataset, of one split or domain when given. Every file read is verified against the manifest.

    Raises:
        CorruptArtifactError: the manifest is missing, or a shard is missing, altered or not what the manifest says.
        ConfigError: the dataset has no such split.
    """
    directory = Path(directory)
    manifest = load_manifest(directory)
    if split is not None and split not in manifest.split_sha256:
        raise ConfigError(f"the dataset in {directory} has no split {split!r}", f"use one of {', '.join(manifest.split_sha256)}")
    tasks: list[TaskSpec] = []
    for name in manifest.split_sha256:
        if split not in (None, name):
            continue
        members = [t for shard in manifest.shards if shard.split == name for t in _read_shard(directory, shard)]
        if _split_hash(members) != manifest.split_sha256[name]:
            raise CorruptArtifactError(
                f"the {name} shards in {directory} are not the tasks the manifest names", f"delete {directory} and publish again"
            )
        tasks += [t for t in members if domain in (None, t.domain)]
    return tasks


def card(manifest: Manifest) -> str:
    """The dataset card, in markdown."""
    domains = sorted({d for levels in manifest.counts.values() for d in levels})
    lines = [
        f"# Dataset {manifest.dataset_version}",
        "",
        f"{manifest.tasks():,} tasks, split by whole branches of concept graph `{manifest.graph_version}`.",
        "No validation or held-out task shares an answer, a passage or a document with a training task.",
        "",
        "| split | " + " | ".join(domains) + " | all |",
        "|---|" + "---:|" * (len(domains) + 1),
    ]
    for split in manifest.counts:
        cells = [f"{manifest.tasks(split, d):,}" for d in domains]
        lines.append(f"| {split} | " + " | ".join(cells) + f" | {manifest.tasks(split):,} |")
    levels = sorted({int(n) for by_domain in manifest.counts.values() for by_level in by_domain.values() for n in by_level})
    lines += ["", "| level | " + " | ".join(domains) + " |", "|---|" + "---:|" * len(domains)]
    for level in levels:
        lines.append(
            f"| {level} | "
            + " | ".join(f"{sum(c.get(d, {}).get(str(level), 0) for c in manifest.counts.values()):,}" for d in domains)
            + " |"
        )
    lines += ["", "## Families", ""] + [f"- {_inline(name)}: {n:,} tasks" for name, n in manifest.families.items()]
    lines += ["", "## Licences of the material", ""] + [f"- {_inline(name)}: {n:,} tasks" for name, n in manifest.licences.items()]
    if manifest.dropped:
        lines += ["", "## Not published", ""] + [f"- {_inline(reason)}: {n:,} tasks" for reason, n in sorted(manifest.dropped.items())]
    lines += ["", "## Files", "", "| file | tasks | sha256 |", "|---|---:|---|"]
    lines += [f"| `{s.file}` | {s.rows:,} | `{s.sha256[:16]}` |" for s in manifest.shards]
    lines += ["", f"Published by code version `{manifest.code_version or 'unknown'}`."]
    lines += ["Hidden answers and reference solutions are not part of the files.", ""]
    return "\n".join(lines)


def _inline(text: str) -> str:
    """One line that cannot break out of a list item."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;") or "unknown"


def _check(tasks_by_split: Mapping[str, Sequence[TaskSpec]], shard_rows: int) -> None:
    if shard_rows < 1:
        raise ConfigError(f"shard_rows={shard_rows}", "use at least 1")
    where: dict[str, str] = {}
    for split, tasks in tasks_by_split.items():
        if not split.isidentifier():
            raise ConfigError(f"{split!r} is no name for a split", "use train, validation and heldout")
        for task in tasks:
            if task.task_id in where:
                raise ConfigError(
                    f"task {task.task_id} is given twice, in {where[task.task_id]} and {split}",
                    "split with tasks.split.split_tasks, which drops duplicates",
                )
            where[task.task_id] = split
    if not where:
        raise ConfigError("there is no task to publish", "see the tasks table for the reasons they were rejected, and sample more nodes")


def _counts(tasks: Sequence[TaskSpec]) -> dict[str, dict[str, int]]:
    counted = Counter((str(t.domain), t.level) for t in tasks)
    domains: dict[str, dict[str, int]] = {}
    for (domain, level), n in sorted(counted.items()):
        domains.setdefault(domain, {})[str(level)] = n
    return domains


def _write_shard(path: Path, tasks: Sequence[TaskSpec]) -> None:
    rows = [
        {
            "task_id": t.task_id,
            "domain": t.domain,
            "family": t.family,
            "kind": t.kind,
            "level": t.level,
            "branch": t.provenance.branch,
            "spec_json": canonical_json(t),
        }
        for t in tasks
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA), sink, compression="zstd")
    _replace(path, sink.getvalue().to_pybytes())


def _replace(path: Path, data: bytes) -> None:
    with replacing(path, "free some space and publish again; the dataset is incomplete until then") as part:
        part.write_bytes(data)


def _file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(directory: Path, manifest: Manifest) -> bool:
    return any(not (directory / s.file).is_file() or _file_sha256(directory / s.file) != s.sha256 for s in manifest.shards)


def _read_shard(directory: Path, shard: Shard) -> list[TaskSpec]:
    path = directory / shard.file
    fix = f"delete {directory / MANIFEST} and publish again (`ninefold run --resume`)"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CorruptArtifactError(f"shard {path} cannot be read ({error.strerror})", fix) from error
    found = hashlib.sha256(data).hexdigest()
    if found != shard.sha256:
        raise CorruptArtifactError(f"shard {path} has sha256 {found[:16]}, the manifest says {shard.sha256[:16]}", fix)
    try:
        rows = pq.read_table(pa.BufferReader(data)).to_pylist()
        tasks = [TaskSpec.model_validate_json(r["spec_json"]) for r in rows]
    except (pa.ArrowException, ValidationError, KeyError) as error:
        raise CorruptArtifactError(f"shard {path} does not hold tasks ({type(error).__name__})", fix) from error
    if len(tasks) != shard.rows or any(t.task_id != r["task_id"] for t, r in zip(tasks, rows, strict=True)):
        raise CorruptArtifactError(f"shard {path} does not hold the {shard.rows} tasks it names", fix)
    return tasks
