"""Environment families. One entry a family: `make_environment` is the only way to an environment."""

from __future__ import annotations

from collections.abc import Sequence

from environments.environment import Environment
from environments.errors import InputError
from environments.families.assistant import SettingsEnvironment
from environments.families.coding import CodingEnvironment
from environments.families.search import SearchEnvironment
from environments.resources import Resources
from environments.task import TaskSpec, ToolSpec
from environments.tools import toolbox_for

TOOLS: tuple[ToolSpec, ...] = tuple(
    tool for family in (SearchEnvironment, SettingsEnvironment, CodingEnvironment) for tool in family.TOOLS.values()
)
"""Every tool of every family."""


def make_environment(
    task: TaskSpec, resources: Resources, extra_tools: Sequence[str] = (), carrier: str | None = None
) -> Environment:
    """A fresh environment for one episode of `task`.

    Args:
        extra_tools: tools of `environments.tools` to offer beside the task's own.
        carrier: `bash` or `python`, where the harness calls all others through it.

    Raises:
        InputError: no such family, or the resources lack what the family needs.
        ConfigError: an extra tool that there is not.
    """
    environment = _of_family(task, resources)
    if (toolbox := toolbox_for(task, environment.TOOLS, resources, extra_tools, carrier)) is not None:
        environment.equip(toolbox)
    return environment


def _of_family(task: TaskSpec, resources: Resources) -> Environment:
    if task.family == "search":
        if resources.corpus is None:
            raise InputError("a search task needs a corpus", "pass Resources(corpus=...)")
        return SearchEnvironment(task, resources.corpus)
    if task.family == "assistant":
        return SettingsEnvironment(task)
    if task.family == "coding":
        return CodingEnvironment(task, resources)
    raise InputError(f"family {task.family!r} has no environment yet", "use search, assistant or coding")
