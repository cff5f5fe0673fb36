"""What a run shows in Prefect's UI. A failing artifact never fails a run: it is decoration."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)

log = logging.getLogger(__name__)

MIN_INTERVAL_S = 2.0
"""Progress updates are HTTP calls; more often nobody reads them."""


def artifact_key(*words: str) -> str:
    """A key Prefect accepts: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(words).lower()).strip("-")


class Progress:
    """A progress bar in the UI, fed as often as one likes and sent seldom."""

    def __init__(self, name: str, description: str) -> None:
        self._sent, self._value = 0.0, 0.0
        self._id: UUID | None = None
        self.description = description
        created = _quietly(lambda: create_progress_artifact(progress=0.0, key=artifact_key(name), description=description))
        self._id = created if isinstance(created, UUID) else None

    def __call__(self, done: float, total: float) -> None:
        """Report `done` of `total`."""
        value = 100.0 * min(1.0, done / total) if total > 0 else 0.0
        now = time.monotonic()
        if self._id is None or (value < 100 and now - self._sent < MIN_INTERVAL_S) or value == self._value:
            return
        artifact_id = self._id
        self._sent, self._value = now, value
        _quietly(lambda: update_progress_artifact(artifact_id=artifact_id, progress=value, description=self.description))


def rejects_table(name: str, reasons: Iterable[str], description: str) -> None:
    """A table of reasons and how often each occurred."""
    counts = Counter(reason or "accepted" for reason in reasons)
    rows = [{"reason": reason, "count": count} for reason, count in counts.most_common(50)]
    _quietly(lambda: create_table_artifact(table=rows, key=artifact_key(name), description=description))


def table(name: str, rows: list[dict[str, Any]], description: str) -> None:
    """Any table."""
    _quietly(lambda: create_table_artifact(table=rows, key=artifact_key(name), description=description))


def markdown(name: str, text: str, description: str) -> None:
    """A markdown page."""
    _quietly(lambda: create_markdown_artifact(markdown=text, key=artifact_key(name), description=description))


def link(name: str, url: str, text: str) -> None:
    """A link."""
    _quietly(lambda: create_link_artifact(link=url, link_text=text, key=artifact_key(name)))


def dataset_card(manifest: Mapping[str, Any], funnel: Mapping[str, int]) -> str:
    """The dataset's card in markdown: version, splits, and the way from nodes to published tasks."""
    lines = [f"# Dataset `{manifest.get('version', '')}`", "", "| stage | count |", "|---|---:|"]
    lines += [f"| {name} | {count:,} |" for name, count in funnel.items()]
    lines += ["", "```json", *(f"{key}: {value}" for key, value in manifest.items() if not isinstance(value, list | dict)), "```"]
    return "\n".join(lines)


def _quietly(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:  # noqa: BLE001 - the boundary named above
        log.warning("artifact not written (%s: %.200s)", type(error).__name__, error)
        return None
