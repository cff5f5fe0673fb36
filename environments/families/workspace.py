"""Tasks whose whole world is the sandbox's workspace: files to read, `python` to work with, files or an answer to hand in."""

from __future__ import annotations

from typing import Any, ClassVar

from environments.environment import Environment
from environments.task import ToolParameter, ToolSpec


class WorkspaceEnvironment(Environment):
    """The one tool of its own is `submit`; the task names those of the toolbox (`python` at least) beside it.

    Professional, notebook and vision tasks are played here: their data lie in the initial state's files, their deliverables are
    the files that its table `artefacts` names.
    """

    TOOLS: ClassVar[dict[str, ToolSpec]] = {
        "submit": ToolSpec(
            name="submit",
            description="Hand in: the answer, or nothing where only files are asked for.",
            parameters=(ToolParameter(name="answer", description="The answer.", required=False),),
        )
    }

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        self.outcome.submission = arguments.get("answer", "")
        return "submitted"
