"""The store of what no agent may see: hidden payloads and reference solutions, by content hash.

It is a directory of JSON files that is never mounted into an agent's sandbox; only verifiers resolve it.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from environments.errors import CorruptArtifactError
from environments.files import replacing
from environments.task import Message, canonical_json


class Vault:
    """Content-addressed JSON values under `root`, in folders by their first two characters."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        self._cache: dict[str, Any] = {}

    def _path(self, sha256: str) -> Path:
        return self.root / sha256[:2] / f"{sha256}.json"

    def put(self, value: Any) -> str:
        """Store a JSON value; returns its sha256. Written under a temporary name, then renamed.

        Raises:
            DiskFullError: no space left; nothing half-written stays.
        """
        text = canonical_json(value)
        sha256 = hashlib.sha256(text.encode()).hexdigest()
        path = self._path(sha256)
        if not path.exists():
            _write(path, text)
        return sha256

    def get(self, sha256: str) -> Any:
        """The value stored under `sha256`.

        Raises:
            CorruptArtifactError: it is missing, or its bytes no longer match the hash.
        """
        if sha256 not in self._cache:
            path = self._path(sha256)
            try:
                text = path.read_text()
            except OSError as error:
                raise CorruptArtifactError(
                    f"vault entry {sha256[:16]} cannot be read ({error.strerror})", "run synthesis again for this task"
                ) from error
            except UnicodeDecodeError as error:
                raise CorruptArtifactError(
                    f"vault entry {sha256[:16]} is not text", f"delete {path.name} and run synthesis again"
                ) from error
            if hashlib.sha256(text.encode()).hexdigest() != sha256:
                raise CorruptArtifactError(
                    f"vault entry {sha256[:16]} does not match its hash", f"delete {path.name} and run synthesis again"
                )
            self._cache[sha256] = json.loads(text)
        return self._cache[sha256]

    def _script_path(self, task_id: str) -> Path:
        return self.root / "demonstrations" / f"{task_id}.json"

    def put_demonstrations(self, task_id: str, value: Any) -> None:
        """Store a task's scripted solutions (JSON) under its id."""
        _write(self._script_path(task_id), canonical_json(value))

    def get_demonstrations(self, task_id: str) -> Any:
        """A task's scripted solutions; an empty list when it has none.

        Raises:
            CorruptArtifactError: the file is not JSON.
        """
        path = self._script_path(task_id)
        if not path.exists():
            return []
        try:
            return json.loads(path.read_text())
        except ValueError as error:
            raise CorruptArtifactError(f"{path.name} is not JSON", "delete it and run synthesis again") from error

    def put_reference(self, messages: list[Message]) -> str:
        """Store a reference solution: the assistant messages that solve the task."""
        return self.put([m.model_dump(mode="json") for m in messages])

    def get_reference(self, sha256: str) -> list[Message]:
        """The reference solution stored under `sha256`."""
        return [Message.model_validate(m) for m in self.get(sha256)]


def _write(path: Path, text: str) -> None:
    with replacing(path) as part:
        part.write_text(text)
