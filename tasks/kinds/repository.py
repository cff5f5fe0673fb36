"""Single-fix repository tasks: built beforehand from real fixes (`python -m tasks.repository`), drawn here for the material they fit."""

from __future__ import annotations

import os
import random
import re
from functools import cache
from pathlib import Path

from environments.environment import ARTEFACTS
from environments.families.repository import AGENT_TOOLS, REQUIREMENTS
from environments.search.sources import document_id
from environments.task import Budgets, InitialState
from kg.concept import Passage
from tasks.kinds.draft import Demonstration, Draft, KindSpec, Material
from tasks.repository.build import BuiltTask
from tasks.repository.store import load

FOLDER = "NINEFOLD_REPOSITORY_TASKS"
"""Variable that names the folder of built tasks; `data/repository` where it is not set."""
_LINES_BY_LEVEL = {1: 15, 2: 60}
"""Changed lines up to which a fix is of the level; larger ones are of level 3."""


@cache
def _built(folder: str) -> tuple[BuiltTask, ...]:
    return load(Path(folder))


def built_tasks() -> tuple[BuiltTask, ...]:
    """The tasks of the configured folder; none before they are built."""
    return _built(os.environ.get(FOLDER, "data/repository"))


def level_of(task: BuiltTask) -> int:
    """Difficulty by the size of the fix."""
    return next((level for level, lines in _LINES_BY_LEVEL.items() if task.row.lines <= lines), 3)


def draft_built(task: BuiltTask) -> Draft:
    """A built task as a draft."""
    source = f"repository:{task.row.package}"
    passage = Passage(document_id(source, task.row.name), task.row.name, source, task.row.licence, task.prompt)
    return Draft(
        kind="repository",
        family="coding",
        domain="coding",
        level=level_of(task),
        prompt=task.prompt,
        tools=(*AGENT_TOOLS, "submit"),
        budgets=Budgets(steps=60, output_tokens=30_000, wall_s=3_600, submissions=1),
        verifier_kind="repository_tests",
        payload=task.payload,
        passages=(passage,),
        demonstrations=(Demonstration("long", task.reference),),
        initial_state=InitialState(
            files=task.files,
            tables={
                ARTEFACTS: tuple({"path": place} for place in task.editable),
                REQUIREMENTS: tuple({"name": name} for name in task.row.requirements),
            },
        ),
    )


def fits(task: BuiltTask, material: Material) -> bool:
    """Whether the material is about the task's package: a document of it, or its name in a concept's."""
    names = {
        task.row.package.lower().replace("-", "_"),
        *(place.rstrip("/").rsplit("/", 1)[-1].removesuffix(".py") for place in task.editable),
    }
    about = {document.source.lower().replace("-", "_") for document in material.documents}
    about |= {document.title.partition(".")[0].lower() for document in material.documents}
    words = {word for name in material.names for word in re.findall(r"\w+", name.lower())}
    return bool(names & (about | words))


def draft(rng: random.Random, material: Material, level: int) -> Draft | None:
    """One of the built tasks of this level that the material is about; None when there is none."""
    found = [task for task in built_tasks() if level_of(task) == level and fits(task, material)]
    return draft_built(rng.choice(found)) if found else None


REPOSITORY = KindSpec("repository", "coding", "coding", (1, 2, 3), draft)
