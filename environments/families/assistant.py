"""Assistant family: a small office workflow over a settings store, judged by its final state."""

from __future__ import annotations

from typing import Any, ClassVar

from environments.environment import ARTEFACTS, Environment
from environments.task import ToolParameter, ToolSpec

LOST_WRITES = "lost_writes"
_NAME = ToolParameter(name="name", description="Name of the setting.")


class SettingsEnvironment(Environment):
    """One table `settings(name, value)`; tools `get`, `set` and `submit`. Values are text.

    A table `lost_writes(name)` of the initial state is no part of the world that can be seen or changed: it names settings
    whose first write the store answers and forgets.
    """

    TOOLS: ClassVar[dict[str, ToolSpec]] = {
        "get": ToolSpec(name="get", description="Read a setting; one whose last write was lost reads as stale.", parameters=(_NAME,)),
        "set": ToolSpec(
            name="set",
            description="Write a setting that exists. Under load a write may be lost: read it back when it matters.",
            parameters=(_NAME, ToolParameter(name="value", description="The new value.")),
        ),
        "submit": ToolSpec(name="submit", description="Declare the work done. Nothing can be changed afterwards."),
    }

    def setup(self) -> None:
        super().setup()
        tables = self.task.initial_state.tables
        self.outcome.tables = {name: [dict(row) for row in rows] for name, rows in tables.items() if name not in (LOST_WRITES, ARTEFACTS)}
        self._stale: set[str] = set()
        self._to_lose = {row["name"] for row in tables.get(LOST_WRITES, ())}

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        if tool == "submit":
            self.outcome.submission = "done"
            return "submitted"
        row = next((r for r in self.outcome.tables["settings"] if r["name"] == arguments["name"]), None)
        if row is None:
            return "no such setting"
        if tool == "get":
            return f"{row['value']}, stale" if row["name"] in self._stale else str(row["value"])
        if row["name"] in self._to_lose:
            self._to_lose.remove(row["name"])
            self._stale.add(row["name"])
        else:
            row["value"] = arguments["value"].strip()
            self._stale.discard(row["name"])
        return "ok"
