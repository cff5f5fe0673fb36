"""Notes that persist between the episodes of a task."""

from __future__ import annotations

import json
import threading
from pathlib import Path


class FileMemory:
    """One file of JSON lines a task; appended to, so that episodes on many threads or processes may share a folder."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock = threading.Lock()

    def _path(self, task_id: str) -> Path:
        return self.directory / f"{task_id}.jsonl"

    def notes(self, task_id: str) -> list[str]:
        """As `protocols.Memory.notes`. A last line that was cut short by a kill is left out."""
        try:
            lines = self._path(task_id).read_text().splitlines()
        except FileNotFoundError:
            return []
        out = []
        for line in lines:
            try:
                note = json.loads(line)
            except ValueError:
                continue
            if isinstance(note, str):
                out.append(note)
        return out

    def add(self, task_id: str, note: str) -> None:
        """As `protocols.Memory.add`; one write of one line, after a newline that ends whatever was cut short before it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._lock, self._path(task_id).open("a") as file:
            file.write("\n" * (file.tell() > 0) + json.dumps(note))
