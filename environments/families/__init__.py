"""Environment families. One entry a family: `make_environment` is the only way to an environment."""

from __future__ import annotations

from collections.abc import Sequence

from environments.environment import Environment
from environments.errors import InputError
from environments.families.assistant import SettingsEnvironment
from environments.families.coding import CodingEnvironment
from environments.families.general_agent import GeneralAgentEnvironment
from environments.families.office import OfficeEnvironment
from environments.families.reading import ReadingEnvironment
from environments.families.repository import make_repository_environment
from environments.families.search import SearchEnvironment
from environments.families.workspace import WorkspaceEnvironment
from environments.resources import Resources
from environments.task import TaskSpec, ToolSpec
from environments.tools import toolbox_for

TOOLS: tuple[ToolSpec, ...] = tuple(
    tool for family in (SearchEnvironment, SettingsEnvironment, CodingEnvironment) for tool in family.TOOLS.values()
)
"""Tools of the families whose tasks are written by default."""


def make_environment(task: TaskSpec, resources: Resources, extra_tools: Sequence[str] = (), carrier: str | None = None) -> Environment:
    """A fresh environment for one episode of `task`.

    Args:
        extra_tools: tools of `environments.tools` to offer beside the task's own.
        carrier: `bash` or `python`, where the harness calls all others through it.

    Raises:
        InputError: no such family, or the resources lack what the family needs.
        ConfigError: an extra tool that there is not.
    """
    if task.kind == "repository":
        return make_repository_environment(task, resources, extra_tools, carrier)
    environment = _of_family(task, resources)
    if (toolbox := toolbox_for(task, environment.TOOLS, resources, extra_tools, carrier)) is not None:
        environment.equip(toolbox)
    return environment


def _of_family(task: TaskSpec, resources: Resources) -> Environment:
    match task.family, task.kind:
        case "search", _:
            if resources.corpus is None:
                raise InputError("a search task needs a corpus", "pass Resources(corpus=...)")
            return (ReadingEnvironment if "read" in task.tools else SearchEnvironment)(task, resources.corpus)
        case "assistant", "general_agent":
            return GeneralAgentEnvironment(task)
        case "assistant", "office":
            return OfficeEnvironment(task)
        case "assistant", _:
            return SettingsEnvironment(task)
        case "coding", _:
            return CodingEnvironment(task, resources)
        case "reasoning" | "professional" | "vision", _:
            return WorkspaceEnvironment(task)
    raise InputError(f"family {task.family!r} has no environment yet", "use search, assistant, coding, reasoning, professional or vision")
