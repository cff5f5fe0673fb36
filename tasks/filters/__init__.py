"""What keeps a written task out of the dataset before anybody runs it: its licence, a copy of another, or a public evaluation."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import Field

from environments.task import Frozen, TaskSpec
from tasks.filters.contamination import NGRAM, Reference, contaminated
from tasks.filters.duplicates import duplicates
from tasks.filters.licences import PERMISSIVE, refused

log = logging.getLogger(__name__)

__all__ = ["FilterConfig", "filtered"]


class FilterConfig(Frozen):
    """What is filtered, and how strictly."""

    licences: tuple[str, ...] = PERMISSIVE
    """SPDX identifiers and the names that package metadata use, that a passage may be under; empty: any."""
    near: float = Field(default=0.8, gt=0.0, le=1.0)
    """Jaccard index of two tasks' distinguishing shingles from which one of them goes; 1 leaves only exact copies out."""
    meaning: float = Field(default=0.97, gt=0.0, le=1.0)
    """Cosine of two prose prompts from which one of them goes; 1 switches it off."""
    evaluations: tuple[str, ...] = ("human-eval",)
    """Public evaluations that no task may overlap: `human-eval`, or files with one item a line (JSON Lines or text)."""
    ngram: int = Field(default=NGRAM, ge=3)
    """Words in a row that a task may not share with an evaluation."""


def filtered(tasks: Sequence[TaskSpec], config: FilterConfig, licences: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Why each task that goes must go, by task id. Neither the tasks' order nor how they were sharded matters.

    Args:
        licences: of the passages a task was written from, by task id.

    Raises:
        InputError: an evaluation cannot be read.
    """
    reasons: dict[str, str] = {}
    for task in tasks:
        if config.licences and (why := refused(licences.get(task.task_id, ()), config.licences)):
            reasons[task.task_id] = f"licence: {why}"
    rest = [task for task in tasks if task.task_id not in reasons]
    reference = Reference(config.ngram)
    for name in config.evaluations:
        reference.add(name if name == "human-eval" else Path(name))
    for task in rest:
        if hit := contaminated(task, reference):
            reasons[task.task_id] = f"contamination: {hit}"
    rest = [task for task in rest if task.task_id not in reasons]
    reasons |= duplicates(rest, config.near, config.meaning)
    log.info("filters: %d of %d tasks go", len(reasons), len(tasks))
    return reasons
