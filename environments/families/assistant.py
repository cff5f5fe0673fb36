"""Assistant family: a small office workflow over a settings store, judged by its final state."""

from __future__ import annotations

from typing import Any, ClassVar

from environments.environment import Environment
from environments.task import ToolParameter, ToolSpec

_NAME = ToolParameter(name="name", description="Name of the setting.")


class SettingsEnvironment(Environment):
    """One table `settings(name, value)`; tools `get`, `set` and `submit`. Values are text."""

    TOOLS: ClassVar[dict[str, ToolSpec]] = {
        "get": ToolSpec(name="get", description="Read a setting.", parameters=(_NAME,)),
        "set": ToolSpec(
            name="set",
            description="Write a setting that exists.",
            parameters=(_NAME, ToolParameter(name="value", description="The new value.")),
        ),
        "submit": ToolSpec(name="submit", description="Declare the work done. Nothing can be changed afterwards."),
    }

    def setup(self) -> None:
        super().setup()
        self.outcome.tables = {name: [dict(row) for row in rows] for name, rows in self.task.initial_state.tables.items()}

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        if tool == "submit":
            self.outcome.submission = "done"
            return "submitted"
        row = next((r for r in self.outcome.tables["settings"] if r["name"] == arguments["name"]), None)
        if row is None:
            return "no such setting"
        if tool == "get":
            return str(row["value"])
        row["value"] = arguments["value"].strip()
        return "ok"
