"""A journal of finished readings: a growth that is killed loses only the nodes in flight, since the others are not read again.

One JSON line a reading, written as soon as it is there. A line that does not read back (the writer died within it) is passed
over. Failed readings are not kept: whoever grows on tries them again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter, ValidationError

from environments.protocols import Brain, Reading, SearchSource
from kg.concept import FAILED

log = logging.getLogger(__name__)

_READING: TypeAdapter[Reading] = TypeAdapter(Reading)


class Journal:
    """The readings of one brain over one corpus, by what was asked. One writer at a time; use it as a context manager.

    Raises:
        OSError: the file cannot be read or written.
    """

    def __init__(self, path: Path, brain: Brain, source: SearchSource) -> None:
        self.path = path
        self.torn = 0
        """Lines that did not read back."""
        self._of = (brain.name, source.content_hash)
        self._readings: dict[str, Reading] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.read_bytes() if path.exists() else b""
        for line in written.splitlines():
            self._take(line)
        if self.torn:
            log.warning("%s: %d lines do not read back and are passed over", path, self.torn)
        self._file: BinaryIO = path.open("ab")
        if written and not written.endswith(b"\n"):
            self._file.write(b"\n")

    def __len__(self) -> int:
        return len(self._readings)

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; what was written is there already."""
        self._file.close()

    def get(self, concept: str, ancestors: Sequence[str]) -> Reading | None:
        """The reading of a concept below these ancestors, if it was finished."""
        return self._readings.get(self._key(concept, ancestors))

    def add(self, concept: str, ancestors: Sequence[str], reading: Reading) -> None:
        """Keep a finished reading; a failed one is not kept."""
        key = self._key(concept, ancestors)
        if reading.reason.startswith(FAILED) or key in self._readings:
            return
        self._readings[key] = reading
        self._file.write(json.dumps({"key": key, "reading": _READING.dump_python(reading, mode="json")}).encode() + b"\n")
        self._file.flush()  # The kernel has it: it outlives this process.

    def _take(self, line: bytes) -> None:
        if not line.strip():
            return
        try:
            entry = json.loads(line)
            self._readings[str(entry["key"])] = _READING.validate_python(entry["reading"], strict=False)
        except (ValueError, KeyError, TypeError, ValidationError):
            self.torn += 1

    def _key(self, concept: str, ancestors: Sequence[str]) -> str:
        return hashlib.sha256(json.dumps([*self._of, concept, list(ancestors)]).encode()).hexdigest()[:32]
