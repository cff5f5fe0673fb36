"""Parquet parts: one file a shard, written under a temporary name and renamed when whole."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from environments.errors import CorruptArtifactError
from environments.files import replacing
from environments.records import Row

R = typing.TypeVar("R", bound=Row)

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
    """Write rows to one Parquet file, atomically. No rows gives an empty, typed file.

    Raises:
        DiskFullError: the disk is full; nothing half-written is left under `path`.
    """
    path = Path(path)
    table = pa.Table.from_pylist([r.model_dump() for r in rows], schema=arrow_schema(model))
    with replacing(path) as part:
        pq.write_table(table, part, compression="zstd")
    return path


def read_rows(path: Path, model: type[R]) -> list[R]:
    """Read one file back.

    Raises:
        CorruptArtifactError: the file is missing, cut short, or has other columns.
    """
    try:
        # The file alone: a folder named like `kind=x` must not add columns of its own.
        with pq.ParquetFile(path) as file:
            table = file.read()
        return [model.model_validate(r) for r in table.to_pylist()]
    except (OSError, pa.ArrowException, ValidationError) as error:
        raise CorruptArtifactError(
            f"{path} is not a whole {model.TABLE} file ({type(error).__name__})", "delete it and run again; the stage writes it anew"
        ) from error
