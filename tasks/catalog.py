"""The catalogue: one DuckDB file over all runs, rebuilt from Parquet and swapped in whole.

Parquet parts are the truth. `build_catalog` reads them into a temporary file beside `catalog.duckdb` and renames it over
the old one, so that a reader in another process sees the old catalogue or the new one, never half of it. A process that
already holds the old file open keeps reading the old one until it closes its connections.
"""

from __future__ import annotations

import errno
import importlib
import os
import time
import types
import typing
import uuid
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from environments.errors import CorruptArtifactError, DiskFullError, InfrastructureError, InputError, MissingDependencyError
from environments.records import ROW_MODELS, Row
from environments.tables import arrow_schema

CATALOG = "catalog.duckdb"
_CONFIG: dict[str, str | bool | int | float | list[str]] = {"autoinstall_known_extensions": False, "autoload_known_extensions": False}
"""Nothing is fetched from a network, whatever a query asks for."""
_BATCH_ROWS = 50_000
"""Rows gathered before an insert: a part is often small, and an insert costs about a millisecond."""
_STALE_S = 3600.0
"""A temporary file this old belongs to a build that was killed; a build takes seconds."""
_DUCK = {str: "VARCHAR", int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN"}
_DUCK |= {list[str]: "VARCHAR[]", list[int]: "BIGINT[]", list[float]: "DOUBLE[]"}

_EXTRA_TABLES = """
CREATE TABLE parts (run VARCHAR, table_name VARCHAR, file VARCHAR, rows BIGINT, problem VARCHAR);
COMMENT ON TABLE parts IS 'The Parquet parts the catalogue was built from, and those it had to skip';
COMMENT ON COLUMN parts.run IS 'Folder name of the run';
COMMENT ON COLUMN parts.table_name IS 'Table the part belongs to';
COMMENT ON COLUMN parts.file IS 'Path of the part, relative to the workspace';
COMMENT ON COLUMN parts.rows IS 'Rows loaded from it';
COMMENT ON COLUMN parts.problem IS 'Why it was skipped, empty when it was loaded';
"""
_TEXT_TABLES = """
CREATE TABLE material_texts AS SELECT material_sha256, any_value(title) AS title, any_value(passage) AS passage FROM materials GROUP BY ALL;
COMMENT ON TABLE material_texts IS 'Every passage once, over all runs: what search_materials looks through';
COMMENT ON COLUMN material_texts.material_sha256 IS 'sha256 of the passage''s text';
COMMENT ON COLUMN material_texts.title IS 'Title of one document that holds it';
COMMENT ON COLUMN material_texts.passage IS 'The passage''s text';
CREATE TABLE task_texts AS SELECT task_id, any_value(prompt) AS prompt FROM tasks GROUP BY ALL;
COMMENT ON TABLE task_texts IS 'Every task''s prompt once, over all runs: what search_tasks looks through';
COMMENT ON COLUMN task_texts.task_id IS 'Content hash of the task (16 hex characters)';
COMMENT ON COLUMN task_texts.prompt IS 'The user''s message';
"""


def build_catalog(workspace: Path, *, skip_corrupt: bool = False, warnings: list[str] | None = None) -> Path:
    """Build `workspace/catalog.duckdb` from `runs/*/tables/<table>/*.parquet` and swap it in.

    Args:
        skip_corrupt: Leave parts out that cannot be read, instead of failing; each is listed in the table `parts`.
        warnings: Takes a line for each part skipped and for full-text search when it is not available.

    Raises:
        InputError: the workspace has no `runs` folder.
        CorruptArtifactError: a part cannot be read, or has columns its table does not have (the file is named).
        DiskFullError: no space left; the old catalogue is untouched.
    """
    workspace = Path(workspace).absolute()
    runs = workspace / "runs"
    if not runs.is_dir():
        raise InputError(f"{workspace} holds no runs", "run `ninefold run` first, or set NINEFOLD_HOME to a workspace that has `runs`")
    for stale in workspace.glob(f".{CATALOG}.*.tmp*"):
        if time.time() - stale.stat().st_mtime > _STALE_S:
            stale.unlink(missing_ok=True)
    target, part = workspace / CATALOG, workspace / f".{CATALOG}.{uuid.uuid4().hex}.tmp"
    told: list[str] = []
    try:
        with duckdb.connect(str(part), config=_CONFIG) as connection:
            _fill(connection, [p for p in sorted(runs.iterdir()) if p.is_dir()], workspace, skip_corrupt, told)
            connection.execute("CHECKPOINT")
        os.replace(part, target)
    except (OSError, duckdb.IOException, duckdb.OutOfMemoryException) as error:
        if getattr(error, "errno", None) == errno.ENOSPC or "No space left" in str(error):
            raise DiskFullError(
                f"no space left while building {target}", "free some space and run `ninefold catalog`; the old one is untouched"
            ) from error
        raise
    finally:
        for leftover in (part, part.with_name(part.name + ".wal")):
            leftover.unlink(missing_ok=True)
    if warnings is not None:
        warnings += told
    return target


def open_catalog(path: Path, read_only: bool = True) -> duckdb.DuckDBPyConnection:
    """Open a catalogue (the file, or the workspace that holds it), with full-text search when its extension is there.

    Raises:
        InputError: there is no catalogue yet.
        CorruptArtifactError: the file is not a DuckDB database.
        InfrastructureError: another process holds it open for writing.
    """
    path = Path(path)
    path = (path / CATALOG if path.is_dir() else path).absolute()
    if not path.is_file():
        raise InputError(f"there is no catalogue at {path}", "build it with `ninefold catalog`")
    try:
        connection = duckdb.connect(str(path), read_only=read_only, config=_CONFIG)
    except duckdb.IOException as error:
        if "lock" in str(error).lower():
            raise InfrastructureError(
                f"{path} is open for writing elsewhere", "close that connection; readers open it read-only"
            ) from error
        raise CorruptArtifactError(f"{path} is not a whole DuckDB file ({error!s:.120})", "rebuild it with `ninefold catalog`") from error
    except duckdb.Error as error:
        raise CorruptArtifactError(f"{path} cannot be opened ({error!s:.120})", "rebuild it with `ninefold catalog`") from error
    _load_fts(connection)
    return connection


def load_run(run_dir: Path, *, skip_corrupt: bool = False, warnings: list[str] | None = None) -> duckdb.DuckDBPyConnection:
    """The same tables and views in memory, over one run's parts as they lie now. Without the search index.

    Raises:
        InputError: there is no such run.
        CorruptArtifactError: as `build_catalog`.
    """
    run_dir = Path(run_dir).absolute()
    if not run_dir.is_dir():
        raise InputError(f"there is no run at {run_dir}", f"use one of the folders in {run_dir.parent}")
    connection = duckdb.connect(":memory:", config=_CONFIG)
    told: list[str] = []
    try:
        _fill(connection, [run_dir], run_dir.parent, skip_corrupt, told, search=False)
    except BaseException:
        connection.close()
        raise
    if warnings is not None:
        warnings += told
    return connection


def _fill(
    connection: duckdb.DuckDBPyConnection, runs: list[Path], root: Path, skip_corrupt: bool, warnings: list[str], search: bool = True
) -> None:
    connection.execute("BEGIN")  # some 400 statements: one flush to disk, not 400
    for model in ROW_MODELS:
        _create_table(connection, model)
    connection.execute(_EXTRA_TABLES)
    for model in ROW_MODELS:
        gathered: list[pa.Table] = []
        for run in runs:
            for file in sorted((run / "tables" / model.TABLE).glob("*.parquet")):
                problem, rows = "", 0
                try:
                    table = _read_part(file, model)
                    rows = table.num_rows
                    gathered.append(table)
                except CorruptArtifactError as error:
                    if not skip_corrupt:
                        raise
                    problem = error.message
                    warnings.append(f"skipped {problem}")
                connection.execute(
                    "INSERT INTO parts VALUES (?, ?, ?, ?, ?)", [run.name, model.TABLE, str(file.relative_to(root)), rows, problem]
                )
                if sum(t.num_rows for t in gathered) >= _BATCH_ROWS:
                    _insert(connection, model, gathered)
        _insert(connection, model, gathered)
    _run_sql(connection, "views.sql")
    connection.execute(_TEXT_TABLES)
    _comment_view_columns(connection)
    connection.execute("COMMIT")
    if search:
        try:
            if not _load_fts(connection):
                raise MissingDependencyError("the fts extension of DuckDB is not installed", "pip install duckdb-extension-fts==1.5.5")
            _run_sql(connection, "search.sql")
        except (MissingDependencyError, duckdb.CatalogException) as error:
            warnings.append(f"no full-text search: {error}")


def _create_table(connection: duckdb.DuckDBPyConnection, model: type[Row]) -> None:
    columns = ", ".join(f'"{name}" {_duck_type(info.annotation)}' for name, info in model.model_fields.items())
    connection.execute(f"CREATE TABLE {model.TABLE} ({columns})")
    connection.execute(f"COMMENT ON TABLE {model.TABLE} IS {_quoted((model.__doc__ or '').strip())}")
    for name, info in model.model_fields.items():
        connection.execute(f'COMMENT ON COLUMN {model.TABLE}."{name}" IS {_quoted(info.description or "")}')


def _duck_type(annotation: object) -> str:
    if isinstance(annotation, types.UnionType):
        (annotation,) = [a for a in typing.get_args(annotation) if a is not type(None)]
    return _DUCK[annotation]  # type: ignore[index]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _read_part(file: Path, model: type[Row]) -> pa.Table:
    """One part with exactly the table's columns. A column with a default may be missing in a part of an older version."""
    fix = "delete it and run the stage again, which writes it anew, or build with skip_corrupt=True to leave it out"
    try:
        # The file alone: a folder named like `kind=x` must not add columns of its own.
        with pq.ParquetFile(file) as opened:
            table = opened.read()
    except (OSError, pa.ArrowException) as error:
        raise CorruptArtifactError(f"{file} is not a whole Parquet file ({type(error).__name__})", fix) from error
    wanted = arrow_schema(model)
    extra = [n for n in table.column_names if n not in wanted.names]
    missing = [n for n in wanted.names if n not in table.column_names]
    required = [n for n in missing if model.model_fields[n].is_required()]
    if extra or required:
        odd = f"has a column {extra[0]!r}" if extra else f"lacks the column {required[0]!r}"
        raise CorruptArtifactError(f"{file} is no part of {model.TABLE}: it {odd}", fix)
    for name in missing:
        value = model.model_fields[name].get_default(call_default_factory=True)
        table = table.append_column(wanted.field(name), pa.array([value] * table.num_rows, type=wanted.field(name).type))
    table = table.select(wanted.names)
    for have, want in zip(table.schema, wanted, strict=True):
        if have.type != want.type:
            raise CorruptArtifactError(f"{file} is no part of {model.TABLE}: {want.name} is {have.type}, not {want.type}", fix)
    # Whether a column may be NULL is the writer's affair; parts only stack when they agree.
    return table.cast(pa.schema([pa.field(f.name, f.type) for f in wanted]))


def _insert(connection: duckdb.DuckDBPyConnection, model: type[Row], gathered: list[pa.Table]) -> None:
    if gathered:
        connection.register("gathered_parts", pa.concat_tables(gathered))
        connection.execute(f"INSERT INTO {model.TABLE} SELECT * FROM gathered_parts")
        connection.unregister("gathered_parts")
        gathered.clear()


def _run_sql(connection: duckdb.DuckDBPyConnection, name: str) -> None:
    connection.execute((Path(__file__).parent / "sql" / name).read_text())


def _comment_view_columns(connection: duckdb.DuckDBPyConnection) -> None:
    """A view's column without a comment of its own takes that of the table column of the same name."""
    known: dict[str, str] = {}
    for model in ROW_MODELS:
        for name, info in model.model_fields.items():
            known.setdefault(name, info.description or "")
    for view, column in _uncommented(connection):
        if column in known:
            connection.execute(f'COMMENT ON COLUMN {view}."{column}" IS {_quoted(known[column])}')


def _uncommented(connection: duckdb.DuckDBPyConnection) -> Iterator[tuple[str, str]]:
    yield from connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE schema_name = 'main' AND NOT internal AND comment IS NULL"
    ).fetchall()


def _load_fts(connection: duckdb.DuckDBPyConnection) -> bool:
    """Load full-text search from the installed package, without a network and without writing to the home folder."""
    try:
        package = importlib.import_module("duckdb_extension_fts")
    except ImportError:
        return False
    folder = Path(next(iter(package.__path__))) / "extensions" / f"v{duckdb.__version__}"
    try:
        connection.execute(f"LOAD {_quoted(str(folder / 'fts.duckdb_extension'))}")
    except duckdb.Error:  # built for another version or machine: search is missing, all else works
        return False
    return True
