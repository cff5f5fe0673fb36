"""Scripted solutions as synthesis stored them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from environments.task import Message
from environments.vault import Vault
from tasks.kinds import Demonstration


def load(vault: Vault, task_ids: Iterable[str]) -> Iterator[tuple[str, list[Demonstration]]]:
    """(task id, demonstrations), in the order of the ids; tasks without any are left out."""
    for task_id in task_ids:
        stored = vault.get_demonstrations(task_id)
        if stored:
            yield (
                task_id,
                [Demonstration(d["style"], tuple(Message.model_validate(m) for m in d["messages"])) for d in stored],
            )
