"""Repository tasks of the coding family: change a package's source in a sandbox until its hidden tests would pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from environments.environment import Environment
from environments.resources import Resources
from environments.task import TaskSpec, ToolSpec
from environments.tools.toolbox import TOOLS, Toolbox
from environments.verifiers.suite import sandbox_config

REQUIREMENTS = "requirements"
"""Table of a repository task's initial state, with a column `name`: what is installed beside the tree. No part of the world."""
AGENT_TOOLS = ("bash", "view", "edit", "create")


class RepositoryEnvironment(Environment):
    """Tools: `submit` says that the tree is done; the rest works on the tree in the sandbox. The declared source is the outcome."""

    TOOLS: ClassVar[dict[str, ToolSpec]] = {
        "submit": ToolSpec(name="submit", description="Hand in the tree as it is. Hidden tests then decide."),
    }

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        self.outcome.submission = ""
        return "submitted"


def make_repository_environment(
    task: TaskSpec, resources: Resources, extra_tools: Sequence[str] = (), carrier: str | None = None
) -> RepositoryEnvironment:
    """A fresh environment whose sandbox has the tree and what its tests need, but not the package itself.

    Args:
        extra_tools, carrier: as `environments.families.make_environment`.

    Raises:
        ConfigError: an extra tool that there is not.
        ImageError: the requirements cannot be installed.
    """
    names = dict.fromkeys([*(name for name in task.tools if name in TOOLS), *extra_tools, *([carrier] if carrier else [])])
    requirements = tuple(str(row["name"]) for row in task.initial_state.tables.get(REQUIREMENTS, ()))
    environment = RepositoryEnvironment(task)
    config = sandbox_config(requirements or ("pytest>=8,<10",))
    environment.equip(Toolbox(task, tuple(names), resources.sandboxes, config, carriers=(carrier,) if carrier else ()))
    return environment
