"""Fetched content on disk, by its hash, and a record by address of what was got when. Safe for many processes at a time.

`content/ab/<sha256>` holds bodies; `pages/ab/<sha256 of the address>.json` says which body an address had. Files appear
whole or not at all, and a body that is not what its name says counts as absent.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import filelock
from pydantic import BaseModel, ConfigDict, ValidationError

from environments.files import replacing
from environments.search.web.outcome import Failure, RefusedError

log = logging.getLogger(__name__)


class Record(BaseModel):
    """What an address answered. Times in seconds since 1970."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    address: str
    final_address: str
    """Behind all redirects."""
    retrieved_at: float
    checked_at: float
    """When the host last said that this still holds."""
    failure: Failure | None = None
    reason: str = ""
    status: int = 200
    media_type: str = ""
    """The Content-Type header."""
    link: str = ""
    """The Link header, which may name a licence."""
    etag: str = ""
    last_modified: str = ""
    sha256: str = ""
    size_bytes: int = 0
    via: Literal["http", "browser"] = "http"


class Cache:
    """Bodies and records in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, address: str) -> Record | None:
        """The record of an address; None when there is none, or it or its body is damaged."""
        path = self._record(address)
        try:
            record = Record.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            log.warning("%s is damaged and counts as absent (%s)", path, type(error).__name__)
            return None
        if record.address != address or (record.failure is None and self.body(record) is None):
            return None
        return record

    def body(self, record: Record) -> bytes | None:
        """The content a record speaks of; None when it is gone or changed."""
        path = self._content(record.sha256)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        if hashlib.sha256(data).hexdigest() != record.sha256:
            log.warning("%s is not what its name says and counts as absent", path)
            return None
        return data

    def put(self, record: Record, body: bytes | None = None) -> Record:
        """Keep a record and its body, if there is one; returns the record with the body's hash.

        Raises:
            DiskFullError: no space left; what was there before is untouched.
        """
        if body is not None:
            sha256 = hashlib.sha256(body).hexdigest()
            record = record.model_copy(update={"sha256": sha256, "size_bytes": len(body)})
            if self.body(record) is None:
                with replacing(self._content(sha256)) as part:
                    part.write_bytes(body)
        with replacing(self._record(record.address)) as part:
            part.write_text(record.model_dump_json())
        return record

    @contextmanager
    def lock(self, address: str, timeout_s: float) -> Iterator[None]:
        """One process and thread at a time works on an address.

        Raises:
            RefusedError: `timeout`, when another holds it for too long.
        """
        path = self._record(address).with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(path, timeout=timeout_s, thread_local=False)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise RefusedError("timeout", f"another process has been fetching this for {timeout_s:.0f} s") from error
        try:
            yield
        finally:
            lock.release()

    def _record(self, address: str) -> Path:
        name = hashlib.sha256(address.encode()).hexdigest()
        return self.folder / "pages" / name[:2] / f"{name}.json"

    def _content(self, sha256: str) -> Path:
        return self.folder / "content" / (sha256[:2] or "none") / (sha256 or "none")
