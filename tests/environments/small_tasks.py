"""One small, sound task of each family, for tests of the harness, the policies and training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from environments.protocols import Document, Hit
from environments.resources import Resources
from environments.task import Budgets, InitialState, TaskSpec
from environments.vault import Vault
from tests.environments.hardening.worlds import BUDGETS, DOUBLE, TwoDocuments, coding_task, make_task, message, search_task


class SmallCorpus:
    """Two documents that can be searched, opened and listed."""

    content_hash = "two"
    _two = TwoDocuments()

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        return self._two.search(query, limit)

    def open(self, document_id: str) -> Document:
        return self._two.open(document_id)

    def documents(self) -> Iterator[Document]:
        return iter(self._two.documents)


def make_resources(vault: Vault) -> Resources:
    return Resources(vault, corpus=SmallCorpus())


def rows(**settings: str) -> tuple[dict[str, Any], ...]:
    """A settings store's rows; values are text."""
    return tuple({"name": name, "value": value} for name, value in sorted(settings.items()))


def settings_task(vault: Vault, *, kind: str = "final_state", budgets: Budgets = BUDGETS) -> TaskSpec:
    """Set `width` to 113 in a store of three settings."""
    before, after = rows(depth="3", length="10", width="70"), rows(depth="3", length="10", width="113")
    reference = [message("get", name="width"), message("set", name="width", value="113"), message("submit")]
    payload = {"tables": {"settings": list(after)}, "initial": {"settings": list(before)}}
    state = InitialState(tables={"settings": before})
    return make_task(vault, "assistant", "Set `width` to 113.", payload, kind, reference, ("get", "set", "submit"), state, budgets)


__all__ = ["BUDGETS", "DOUBLE", "coding_task", "make_resources", "make_task", "message", "search_task", "settings_task"]
