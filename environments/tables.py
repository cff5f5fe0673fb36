"""Parquet parts: one file a shard, written under a temporary name and renamed when whole."""

from __future__ import annotations

import itertools
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from environments.errors import CorruptArtifactError
from environments.files import replacing
from environments.records import Row

R = typing.TypeVar("R", bound=Row)

_GROUP = 50_000
"""Rows held at once while writing or reading."""
_ARROW = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    list[str]: pa.list_(pa.string()),
    list[int]: pa.list_(pa.int64()),
    list[float]: pa.list_(pa.float64()),
}


def arrow_schema(model: type[Row]) -> pa.Schema:
    """The Arrow schema of a row model; `X | None` becomes a nullable column."""
    fields = []
    for name, info in model.model_fields.items():
        annotation: object = info.annotation
        nullable = False
        if isinstance(annotation, types.UnionType):
            (annotation,) = [a for a in typing.get_args(annotation) if a is not type(None)]
            nullable = True
        fields.append(pa.field(name, _ARROW[annotation], nullable=nullable))  # type: ignore[index]
    return pa.schema(fields)


def write_rows(path: Path, model: type[R], rows: Iterable[R]) -> Path:
    """Write rows to one Parquet file, atomically and a group at a time. No rows gives an empty, typed file.

    Raises:
        DiskFullError: the disk is full; nothing half-written is left under `path`.
    """
    path, schema, source = Path(path), arrow_schema(model), iter(rows)
    with replacing(path) as part, pq.ParquetWriter(part, schema, compression="zstd") as writer:
        while group := [r.model_dump() for r in itertools.islice(source, _GROUP)]:
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
    return path


def iterate_rows(path: Path, model: type[R]) -> Iterator[R]:
    """Rows of one file, a group at a time.

    Raises:
        CorruptArtifactError: the file is missing, cut short, or has other columns.
    """
    try:
        # The file alone: a folder named like `kind=x` must not add columns of its own.
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_GROUP):
                for row in batch.to_pylist():
                    yield model.model_validate(row)
    except (OSError, pa.ArrowException, ValidationError) as error:
        raise CorruptArtifactError(
            f"{path} is not a whole {model.TABLE} file ({type(error).__name__})", "delete it and run again; the stage writes it anew"
        ) from error


def read_rows(path: Path, model: type[R]) -> list[R]:
    """All rows of one file.

    Raises:
        CorruptArtifactError: the file is missing, cut short, or has other columns.
    """
    return list(iterate_rows(path, model))
