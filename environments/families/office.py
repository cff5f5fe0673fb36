"""Assistant family: an order desk. Letters come in, stock is reserved, every letter is filed; judged by the final state."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from environments.environment import Environment
from environments.task import ToolParameter, ToolSpec

_LETTER = ToolParameter(name="letter", description="Id of the letter.")
_ITEM = ToolParameter(name="item", description="Name of the item.")
STATUSES = ("shipped", "backorder", "refused", "cancelled")


class OfficeEnvironment(Environment):
    """Tables: `letters` (id, sender, text, status), `customers` (name, standing), `stock` (item, units). Status and units change."""

    TOOLS: ClassVar[dict[str, ToolSpec]] = {
        "list_letters": ToolSpec(name="list_letters", description="Ids and senders of the letters that are not filed, as JSON."),
        "read_letter": ToolSpec(name="read_letter", description="Text of a letter.", parameters=(_LETTER,)),
        "customer_standing": ToolSpec(
            name="customer_standing",
            description="Standing of a customer.",
            parameters=(ToolParameter(name="name", description="The sender's name."),),
        ),
        "units_left": ToolSpec(name="units_left", description="Units of an item in stock.", parameters=(_ITEM,)),
        "reserve_units": ToolSpec(
            name="reserve_units",
            description="Take units out of stock; they cannot be put back.",
            parameters=(_ITEM, ToolParameter(name="units", type="integer", description="How many.")),
        ),
        "file_letter": ToolSpec(
            name="file_letter",
            description=f"File a letter, for good, as one of {', '.join(STATUSES)}.",
            parameters=(_LETTER, ToolParameter(name="status", description="What became of it.")),
        ),
        "submit": ToolSpec(name="submit", description="Declare the work done. Nothing can be changed afterwards."),
    }

    def setup(self) -> None:
        super().setup()
        tables = self.task.initial_state.tables
        self.outcome.tables = {
            "letters": [{"id": row["id"], "status": row["status"]} for row in tables["letters"]],
            "stock": [dict(row) for row in tables["stock"]],
        }

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        if tool == "submit":
            self.outcome.submission = "done"
            return "submitted"
        letters, stock = self.outcome.tables["letters"], self.outcome.tables["stock"]
        given = {str(row["id"]): row for row in self.task.initial_state.tables["letters"]}
        if tool == "list_letters":
            return json.dumps([[row["id"], given[row["id"]]["sender"]] for row in letters if row["status"] == "new"])
        if tool == "customer_standing":
            found = next((r for r in self.task.initial_state.tables["customers"] if r["name"] == arguments["name"]), None)
            return "no such customer" if found is None else str(found["standing"])
        if tool in ("read_letter", "file_letter"):
            letter = next((row for row in letters if row["id"] == arguments["letter"]), None)
            if letter is None:
                return "no such letter"
            if tool == "read_letter":
                return str(given[letter["id"]]["text"])
            if arguments["status"] not in STATUSES or letter["status"] != "new":
                return f"not possible: it is {letter['status']}"
            letter["status"] = arguments["status"]
            return "filed"
        item = next((row for row in stock if row["item"] == arguments["item"]), None)
        if item is None:
            return "no such item"
        if tool == "units_left":
            return str(item["units"])
        if not 1 <= arguments["units"] <= item["units"]:
            return "not possible"
        item["units"] -= arguments["units"]
        return "reserved"
