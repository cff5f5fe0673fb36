"""What environments and verifiers need around them: the vault, a corpus, a pool of code sandboxes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from environments.protocols import Memory, SearchSource
from environments.sandbox import CodePool
from environments.sandbox.base import Backend
from environments.vault import Vault


@dataclass
class Resources:
    """Shared by all episodes of a process. The pool starts its sandboxes on first use; the rest is read-only.

    Pickling ships the vault's folder and the pool's size, not the sandboxes: each process gets its own.
    """

    vault: Vault
    corpus: SearchSource | None = None
    pool: CodePool = field(default_factory=CodePool)
    memory: Memory | None = None
    """Where agents' notes persist between the episodes of a task."""
    sandboxes: Backend | None = None
    """Makes the sandboxes of agents' tools; None chooses the strongest backend that works here."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the pool's sandboxes; they start again if something is judged afterwards."""
        self.pool.close()
