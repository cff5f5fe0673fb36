"""Worlds of the general-agent kind: a database that can be reached through tools alone, and a plan to fill in.

The construction follows DeepSeek-V3.2's general agents (report, section 3.2.3): data in a database, tools as functions over it.
One database shape serves several schemas: *slots* to fill, *options* for each, *links* between groups of options, and the *plan*.
A schema gives them their names, their columns and their tools.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from environments.environment import Environment
from environments.errors import InputError
from environments.task import TaskSpec, ToolParameter, ToolSpec

Row = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True)
class Number:
    """A numeric column of the options: whole numbers within [low, high]."""

    column: str
    said: str
    """As a prompt names it, with its unit."""
    low: int
    high: int


@dataclass(frozen=True)
class Schema:
    """What a world is about. Tool names differ from schema to schema, so that an agent must read them."""

    name: str
    slot: str
    option: str
    numbers: tuple[Number, Number, Number]
    """The first is what is minimised."""
    groups: tuple[tuple[str, tuple[str, ...]], tuple[str, tuple[str, ...]]]
    """Columns of text with their possible values; the first is what links connect."""
    link: str
    """What a link measures."""
    tools: tuple[str, str, str, str, str, str]
    """Names of: find, details, link, choose, clear, plan."""
    request: str

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The schema's tools."""
        slot = ToolParameter(name="slot", description=f"Name of the {self.slot}.")
        option = ToolParameter(name="option", description=f"Id of the {self.option}.")
        group = self.groups[0][0]
        ends = (ToolParameter(name="a", description=f"One {group}."), ToolParameter(name="b", description=f"Another {group}."))
        find, details, link, choose, clear, plan = self.tools
        return (
            ToolSpec(name=find, description=f"Ids of the {self.option}s for a {self.slot}, as a JSON list.", parameters=(slot,)),
            ToolSpec(name=details, description=f"All columns of one {self.option}, as a JSON object.", parameters=(option,)),
            ToolSpec(name=link, description=f"{self.link} between two {group} values, a number.", parameters=ends),
            ToolSpec(
                name=choose, description=f"Take a {self.option} for a {self.slot}; replaces what was taken.", parameters=(slot, option)
            ),
            ToolSpec(name=clear, description=f"Take nothing for a {self.slot}.", parameters=(slot,)),
            ToolSpec(name=plan, description="What is taken so far, as a JSON object."),
        )


SCHEMAS: dict[str, Schema] = {
    s.name: s
    for s in (
        Schema(
            "trip",
            "night",
            "stay",
            (Number("price", "price in euros", 45, 240), Number("walk", "minutes on foot", 1, 45), Number("score", "guest score", 55, 99)),
            (("city", ("Arles", "Bruges", "Cadiz", "Dresden", "Evora")), ("style", ("hotel", "hostel", "farm", "boat"))),
            "Minutes by train",
            ("find_stays", "stay_details", "train_minutes", "book_stay", "cancel_stay", "itinerary"),
            "Plan a trip: one stay for every night ({slots}).",
        ),
        Schema(
            "stock_room",
            "item",
            "offer",
            (
                Number("cost", "cost in euros", 12, 400),
                Number("days", "days of delivery", 1, 30),
                Number("units", "units in a pack", 5, 90),
            ),
            (("depot", ("north", "south", "east", "west", "port")), ("grade", ("basic", "standard", "industrial", "medical"))),
            "Kilometres",
            ("list_offers", "read_offer", "depot_distance", "order_offer", "drop_order", "open_orders"),
            "Order stock: one offer for every item ({slots}).",
        ),
        Schema(
            "calendar",
            "meeting",
            "opening",
            (
                Number("fee", "room fee in euros", 10, 150),
                Number("start", "start in minutes after 8:00", 0, 540),
                Number("seats", "seats", 4, 60),
            ),
            (("building", ("Ada", "Bohr", "Curie", "Darwin", "Euler")), ("day", ("Monday", "Tuesday", "Thursday", "Friday"))),
            "Minutes on foot",
            ("openings_for", "opening_info", "walking_minutes", "reserve", "release", "reservations"),
            "Reserve an opening for every meeting ({slots}).",
        ),
        Schema(
            "support_desk",
            "ticket",
            "agent shift",
            (Number("rate", "rate in euros", 20, 180), Number("queue", "tickets waiting", 0, 25), Number("skill", "skill score", 30, 100)),
            (("team", ("network", "billing", "database", "identity", "hardware")), ("language", ("en", "de", "fr", "es"))),
            "Minutes of handover",
            ("shifts_for_ticket", "shift_record", "handover_minutes", "assign_ticket", "unassign_ticket", "assignments"),
            "Assign an agent shift to every ticket ({slots}).",
        ),
    )
}


def database(slots: Iterable[Row], options: Iterable[Row], links: Iterable[Row], plan: Iterable[Row]) -> sqlite3.Connection:
    """The four tables in memory, and the view `chosen(n, slot, id, ...)`: the options taken, in the order of the slots.

    Raises:
        InputError: a table without rows where rows must be, or rows that differ in their columns.
    """
    made = sqlite3.connect(":memory:", check_same_thread=False)
    tables = {"slots": list(slots), "options": list(options), "links": list(links), "plan": list(plan)}
    fixed = {"links": ("a", "b", "cost"), "plan": ("slot", "option")}
    for name, rows in tables.items():
        if not rows and name not in fixed:
            raise InputError(f"a world without {name}", "synthesise the task again")
        columns = fixed.get(name) or tuple(rows[0])
        if not all(c.isidentifier() for c in columns) or any(set(row) != set(columns) for row in rows):
            raise InputError(f"the rows of {name} differ in their columns, or a column is no identifier", "synthesise the task again")
        made.execute(f"CREATE TABLE {name} ({', '.join(f'{chr(34)}{c}{chr(34)}' for c in columns)})")
        made.executemany(f"INSERT INTO {name} VALUES ({', '.join('?' * len(columns))})", [tuple(row[c] for c in columns) for row in rows])
    made.execute(
        "CREATE VIEW chosen AS SELECT s.n AS n, o.* FROM plan p JOIN slots s ON s.name = p.slot "
        "JOIN options o ON o.id = p.option AND o.slot = p.slot"
    )
    return made


class GeneralAgentEnvironment(Environment):
    """The tools of the task's schema, and `submit`. The outcome's only table is the plan: the rest of the world cannot be changed."""

    TOOLS: ClassVar[dict[str, ToolSpec]] = {
        **{spec.name: spec for schema in SCHEMAS.values() for spec in schema.specs},
        "submit": ToolSpec(name="submit", description="Declare the plan final. Nothing can be changed afterwards."),
    }
    ROLES: ClassVar[dict[str, str]] = {
        name: role
        for schema in SCHEMAS.values()
        for name, role in zip(schema.tools, ("find", "details", "link", "choose", "clear", "plan"), strict=True)
    }

    def __init__(self, task: TaskSpec) -> None:
        super().__init__(task)
        tables = task.initial_state.tables
        if missing := [name for name in ("slots", "options", "links") if name not in tables]:
            raise InputError(f"the world of task {task.task_id} has no {missing[0]}", "synthesise the task again")
        self._world = database(tables["slots"], tables["options"], tables["links"], [])

    def setup(self) -> None:
        super().setup()
        self.outcome.tables = {"plan": []}

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        if tool == "submit":
            self.outcome.submission = "done"
            return "submitted"
        role, plan = self.ROLES[tool], self.outcome.tables["plan"]
        if role == "plan":
            return json.dumps({row["slot"]: row["option"] for row in plan})
        if role == "details":
            return self._details(arguments["option"])
        if role == "link":
            found = self._one("SELECT cost FROM links WHERE a = ? AND b = ?", arguments["a"], arguments["b"])
            return "no such pair" if found is None else str(found[0])
        slot = arguments["slot"]
        if self._one("SELECT 1 FROM slots WHERE name = ?", slot) is None:
            return "there is no such slot"
        if role == "find":
            return json.dumps([row[0] for row in self._world.execute("SELECT id FROM options WHERE slot = ? ORDER BY id", (slot,))])
        if role == "choose" and self._one("SELECT 1 FROM options WHERE id = ? AND slot = ?", arguments["option"], slot) is None:
            return "that is no option for it"
        plan[:] = [row for row in plan if row["slot"] != slot]
        if role == "choose":
            plan.append({"slot": slot, "option": arguments["option"]})
            plan.sort(key=lambda row: str(row["slot"]))
        return "ok"

    def _one(self, query: str, *values: str) -> tuple[Any, ...] | None:
        found: tuple[Any, ...] | None = self._world.execute(query, values).fetchone()
        return found

    def _details(self, option: str) -> str:
        cursor = self._world.execute("SELECT * FROM options WHERE id = ?", (option,))
        row = cursor.fetchone()
        return "no such id" if row is None else json.dumps(dict(zip([d[0] for d in cursor.description], row, strict=True)))

    def close(self) -> None:
        self._world.close()
        super().close()
