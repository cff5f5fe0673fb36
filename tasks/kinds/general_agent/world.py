"""A world of a schema, drawn from a seed and named after the material; constraints over it, each said in three ways.

A constraint is a sentence for the prompt, a Python expression for the solution program, and a query for the verifier. The
expression and the query are independent; a test holds them to the same answer on every plan.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from environments.families.general_agent import Schema

Plan = tuple[int, ...]
"""Index of the option taken, by slot."""


@dataclass(frozen=True)
class World:
    """Tables of one world."""

    schema: Schema
    slots: tuple[str, ...]
    options: tuple[tuple[dict[str, Any], ...], ...]
    """By slot."""
    links: dict[tuple[str, str], int]

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        """Every complete plan."""
        return tuple(itertools.product(*(range(len(found)) for found in self.options)))

    def rows(self, plan: Plan) -> list[dict[str, Any]]:
        """The options that a plan takes."""
        return [found[i] for found, i in zip(self.options, plan, strict=True)]

    @cached_property
    def costs(self) -> tuple[int, ...]:
        """What each of `plans` costs in all."""
        column = self.schema.numbers[0].column
        return tuple(sum(row[column] for row in self.rows(plan)) for plan in self.plans)

    def tables(self) -> dict[str, tuple[dict[str, Any], ...]]:
        """As the initial state of a task."""
        return {
            "slots": tuple({"n": i, "name": name} for i, name in enumerate(self.slots, 1)),
            "options": tuple(row for found in self.options for row in found),
            "links": tuple({"a": a, "b": b, "cost": cost} for (a, b), cost in sorted(self.links.items())),
        }


def draw(rng: random.Random, schema: Schema, slots: int, options: int) -> World:
    """A world with ids that say nothing about what they name."""
    names = tuple(f"{schema.slot} {i}" for i in range(1, slots + 1))
    ids = rng.sample(range(1000, 10_000), slots * options)
    found = []
    for name in names:
        rows = []
        for _ in range(options):
            row: dict[str, Any] = {"id": f"{schema.option[0].upper()}{ids.pop()}", "slot": name}
            row |= {n.column: rng.randint(n.low, n.high) for n in schema.numbers}
            row |= {column: rng.choice(values) for column, values in schema.groups}
            rows.append(row)
        found.append(tuple(sorted(rows, key=lambda row: str(row["id"]))))
    places = schema.groups[0][1]
    links = {(a, a): 0 for a in places}
    for a, b in itertools.combinations(places, 2):
        links[a, b] = links[b, a] = rng.randint(5, 180)
    return World(schema, names, tuple(found), links)


@dataclass(frozen=True)
class Constraint:
    """One condition on a plan."""

    name: str
    text: str
    expression: str
    """Python over `rows` (the options taken, in the slots' order) and `links`."""
    sql: str
    """A query over `chosen` and `links` that gives 1 where it is kept."""

    @cached_property
    def holds(self) -> Callable[[Sequence[dict[str, Any]], dict[tuple[str, str], int]], bool]:
        """The expression as a function; expressions are ours, never an agent's."""
        made: Callable[[Sequence[dict[str, Any]], dict[tuple[str, str], int]], bool] = eval(
            f"lambda rows, links: {self.expression}",
            {"__builtins__": {}, "sum": sum, "all": all, "len": len, "zip": zip, "set": set, "max": max, "min": min},
        )
        return made


def proposal(rng: random.Random, world: World, plans: Sequence[Plan]) -> Constraint:
    """A constraint that at least one of `plans` keeps: its numbers are read off one of them, with some room."""
    schema = world.schema
    rows = world.rows(rng.choice(plans))
    number, other = rng.sample(schema.numbers, 2)
    group, _ = rng.choice(schema.groups)
    place, _ = schema.groups[0]
    column, value = number.column, rng.choice(rows)[group]
    count, n = sum(row[group] == value for row in rows), len(rows)
    total, least, most = sum(r[column] for r in rows), min(r[column] for r in rows), max(r[column] for r in rows)
    travelled = sum(world.links[a[place], b[place]] for a, b in itertools.pairwise(rows))
    i, j = rng.sample(range(n), 2)
    bound = rows[j][other.column]
    made = [
        Constraint(
            f"total_most_{column}",
            f"Over all of them, {number.said} adds up to at most {total}.",
            f"sum(r[{column!r}] for r in rows) <= {total}",
            f"SELECT SUM({column}) <= {total} FROM chosen",
        ),
        Constraint(
            f"total_least_{column}",
            f"Over all of them, {number.said} adds up to at least {total}.",
            f"sum(r[{column!r}] for r in rows) >= {total}",
            f"SELECT SUM({column}) >= {total} FROM chosen",
        ),
        Constraint(
            f"each_least_{column}",
            f"In none is the figure for {number.said} below {least}.",
            f"all(r[{column!r}] >= {least} for r in rows)",
            f"SELECT MIN({column}) >= {least} FROM chosen",
        ),
        Constraint(
            f"spread_{column}",
            f"The largest and the smallest figure for {number.said} differ by at most {most - least}.",
            f"max(r[{column!r}] for r in rows) - min(r[{column!r}] for r in rows) <= {most - least}",
            f"SELECT MAX({column}) - MIN({column}) <= {most - least} FROM chosen",
        ),
        Constraint(
            f"exactly_{group}",
            f"Exactly {count} of them with {group} {value}.",
            f"sum(r[{group!r}] == {value!r} for r in rows) == {count}",
            f"SELECT SUM({group} = '{value}') = {count} FROM chosen",
        ),
        Constraint(
            "links_most",
            f"{schema.link} from each to the next (by {place}) add up to at most {travelled}.",
            f"sum(links[a[{place!r}], b[{place!r}]] for a, b in zip(rows, rows[1:])) <= {travelled}",
            f"SELECT COALESCE(SUM(l.cost), 0) <= {travelled} FROM chosen x JOIN chosen y ON y.n = x.n + 1 "
            f"JOIN links l ON l.a = x.{place} AND l.b = y.{place}",
        ),
        Constraint(
            f"if_{group}",
            f"If {world.slots[i]} has {group} {rows[i][group]}, then the {other.said} of {world.slots[j]} must be at most {bound}.",
            f"rows[{i}][{group!r}] != {rows[i][group]!r} or rows[{j}][{other.column!r}] <= {bound}",
            f"SELECT x.{group} <> '{rows[i][group]}' OR y.{other.column} <= {bound} FROM chosen x, chosen y "
            f"WHERE x.n = {i + 1} AND y.n = {j + 1}",
        ),
    ]
    if len({row[group] for row in rows}) == n:
        made.append(
            Constraint(
                f"distinct_{group}",
                f"No two with the same {group}.",
                f"len(set(r[{group!r}] for r in rows)) == len(rows)",
                f"SELECT COUNT(DISTINCT {group}) = COUNT(*) FROM chosen",
            )
        )
    if all(a[group] != b[group] for a, b in itertools.pairwise(rows)):
        made.append(
            Constraint(
                f"changing_{group}",
                f"Each has another {group} than the one before it.",
                f"all(a[{group!r}] != b[{group!r}] for a, b in zip(rows, rows[1:]))",
                f"SELECT COUNT(*) = 0 FROM chosen x JOIN chosen y ON y.n = x.n + 1 AND y.{group} = x.{group}",
            )
        )
    return rng.choice(made)
