"""Office workflow: work through an order desk's letters by its rules. The expected final state comes from executing the rules."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from environments.task import Budgets, InitialState, Message
from kg.concept import Passage
from tasks.kinds.draft import Demonstration, Draft, KindSpec, Material, call

CUSTOMERS = ("Abel & Sons", "Bruno Works", "Corvo Ltd", "Delta Mill", "Ekholm Yard", "Ferro Shop")
ITEMS = ("bolts", "hinges", "cables", "valves")
LETTERS = {1: 4, 2: 7, 3: 10}
DESKS = 60
"""Desks drawn for one draft: on many of them a rule changes nothing."""
RULES = {
    1: "An order of a blocked customer is refused. Any other is shipped, and its units reserved, if enough are left; "
    "if not it is a backorder.",
    2: " Orders of key customers come before all others; within each group the lower letter number comes first.",
    3: " A letter that withdraws an order is filed as cancelled, and so is the order, before anything is shipped.",
}


@dataclass(frozen=True)
class Letter:
    """An order, or the withdrawal of one."""

    letter: str
    sender: str
    item: str = ""
    units: int = 0
    withdraws: str = ""

    @property
    def text(self) -> str:
        """As the customer wrote it."""
        if self.withdraws:
            return f"Please forget letter {self.withdraws}. {self.sender}"
        return f"We need {self.units} {self.item}. {self.sender}"


@dataclass(frozen=True)
class Deed:
    """What becomes of one letter, in the order of work."""

    letter: Letter
    status: str


def work(letters: Sequence[Letter], standing: dict[str, str], stock: dict[str, int], level: int) -> tuple[list[Deed], dict[str, int]]:
    """Execute the rules: the deeds in order, and the stock that is left."""
    left = dict(stock)
    withdrawn = {x.withdraws for x in letters if x.withdraws}
    deeds = [Deed(x, "cancelled") for x in letters if x.withdraws or x.letter in withdrawn]
    orders = [x for x in letters if not x.withdraws and x.letter not in withdrawn]
    if level > 1:
        orders.sort(key=lambda x: standing[x.sender] != "key")  # stable: numbers keep their order
    for order in orders:
        if standing[order.sender] == "blocked":
            status = "refused"
        elif left[order.item] >= order.units:
            status = "shipped"
            left[order.item] -= order.units
        else:
            status = "backorder"
        deeds.append(Deed(order, status))
    return deeds, left


def draft(rng: random.Random, material: Material, level: int) -> Draft | None:
    """A desk on which every rule of the level matters, or None when none is drawn."""
    return next((found for _ in range(DESKS) if (found := _desk(rng, material, level)) is not None), None)


def _desk(rng: random.Random, material: Material, level: int) -> Draft | None:
    """Level 1: blocked customers and short stock. Level 2: key customers first. Level 3: withdrawals as well."""
    standing = {name: rng.choice(("usual", "usual", "key", "blocked")) for name in CUSTOMERS}
    stock = {item: rng.randint(20, 45) for item in ITEMS}
    letters: list[Letter] = []
    for i in range(1, LETTERS[level] + 1):
        orders = [x for x in letters if not x.withdraws and x.letter not in {y.withdraws for y in letters}]
        if level == 3 and len(orders) > 2 and rng.random() < 0.3:
            gone = rng.choice(orders)
            letters.append(Letter(f"L{i:02}", gone.sender, withdraws=gone.letter))
        else:
            letters.append(Letter(f"L{i:02}", rng.choice(CUSTOMERS), rng.choice(ITEMS[: 1 + level]), rng.randint(8, 30)))
    deeds, left = work(letters, standing, stock, level)
    statuses = {d.letter.letter: d.status for d in deeds}
    wanted = {"shipped", "refused", "backorder"} if level > 1 else {"shipped", "refused"}
    if not wanted <= set(statuses.values()) or (level == 3 and "cancelled" not in statuses.values()):
        return None
    # A rule that changes nothing here is no rule: leaving out the priority must lead to another state.
    if level > 1 and {d.letter.letter: d.status for d in work(letters, standing, stock, 1)[0]} == statuses:
        return None
    rules = "".join(RULES[i] for i in range(1, level + 1))
    about = f"The desk serves a project on {material.names[0]}. " if material.names else ""
    before = {
        "letters": [{"id": x.letter, "status": "new"} for x in letters],
        "stock": [{"item": item, "units": units} for item, units in stock.items()],
    }
    after = {
        "letters": [{"id": x.letter, "status": statuses[x.letter]} for x in letters],
        "stock": [{"item": item, "units": left[item]} for item in stock],
    }
    order = "" if level > 1 else " Work in the order of the letter numbers."
    return Draft(
        kind="office",
        family="assistant",
        domain="agent",
        level=level,
        prompt=f"{about}File every letter of the order desk. {rules}{order} Change nothing else, then submit.",
        tools=("list_letters", "read_letter", "customer_standing", "units_left", "reserve_units", "file_letter", "submit"),
        budgets=Budgets(steps=80, output_tokens=6_000, wall_s=120, submissions=1),
        verifier_kind="final_state",
        payload={"initial": before, "tables": after, "keys": {"letters": "id", "stock": "item"}},
        passages=tuple(Passage.of(d, d.text[:200]) for d in material.documents[:1]),
        demonstrations=(Demonstration("rules", tuple(_solution(letters, deeds))),),
        initial_state=InitialState(
            tables={
                "letters": tuple({"id": x.letter, "sender": x.sender, "text": x.text, "status": "new"} for x in letters),
                "customers": tuple({"name": name, "standing": kind} for name, kind in standing.items()),
                "stock": tuple({"item": item, "units": units} for item, units in stock.items()),
            }
        ),
    )


def _solution(letters: Sequence[Letter], deeds: Sequence[Deed]) -> list[Message]:
    """Read everything first, then act in the rules' order."""
    messages = [call("list_letters"), *(call("read_letter", letter=x.letter) for x in letters)]
    messages += [call("customer_standing", name=name) for name in dict.fromkeys(x.sender for x in letters)]
    for deed in deeds:
        letter = deed.letter
        if deed.status in ("shipped", "backorder"):
            messages.append(call("units_left", item=letter.item))
        if deed.status == "shipped":
            reserve = call("reserve_units", item=letter.item)
            arguments = {**reserve.calls[0].arguments, "units": letter.units}
            messages.append(reserve.model_copy(update={"calls": (reserve.calls[0].model_copy(update={"arguments": arguments}),)}))
        messages.append(call("file_letter", letter=letter.letter, status=deed.status))
    return [*messages, call("submit")]


OFFICE = KindSpec("office", "assistant", "agent", (1, 2, 3), draft)
