"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from environments.errors import DiskFullError


@contextlib.contextmanager
def replacing(path: Path, fix: str = "free some space and run again; what was finished is kept") -> Iterator[Path]:
    """A temporary name beside `path` to write to; on leaving, its file is flushed to disk and takes the place of `path`.

    After an error the temporary file is gone and `path` is as it was.

    Raises:
        DiskFullError: no space was left, here or in the body.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        yield part
        with part.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise DiskFullError(f"no space left while writing {path.name}", fix) from error
        raise
    finally:
        part.unlink(missing_ok=True)
