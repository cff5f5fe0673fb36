"""A quarter's ledger with its invoices and the rules it must keep, drawn from a seed; faults are planted and known."""

from __future__ import annotations

import csv
import io
import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

ACCOUNTS = ("travel", "software", "equipment", "training", "catering", "freight", "legal")
VENDORS = ("Abel Freight", "Bruno Systems", "Corvo Travel", "Delta Catering", "Ekholm Legal", "Ferro Tools")
APPROVERS = {"Ruiz": 1_500, "Sato": 4_000, "Thorne": 9_000}
RATES = {"EUR": Decimal(1), "USD": Decimal("0.92"), "CHF": Decimal("1.04")}
KINDS_BY_LEVEL = {
    1: ("duplicate", "amount differs"),
    2: ("duplicate", "amount differs", "no invoice", "outside quarter"),
    3: ("duplicate", "amount differs", "no invoice", "outside quarter", "over limit"),
}
ENTRIES = {1: 24, 2: 45, 3: 80}


def euros(amount: Decimal, currency: str) -> Decimal:
    """In euros, each entry rounded to cents, halves up."""
    return (amount * RATES[currency]).quantize(Decimal("0.01"), ROUND_HALF_UP)


@dataclass(frozen=True)
class Ledger:
    """Tables as rows of text, and what is true of them."""

    entries: tuple[dict[str, str], ...]
    invoices: tuple[dict[str, str], ...]
    findings: tuple[tuple[str, str], ...]
    overstated: Decimal
    """Euros by which duplicates, and entries above their invoices, exceed what is owed."""

    def total(self, column: str) -> dict[str, tuple[int, Decimal]]:
        """(count, euros) of all entries by a column's value."""
        found: dict[str, tuple[int, Decimal]] = defaultdict(lambda: (0, Decimal(0)))
        for row in self.entries:
            count, total = found[row[column]]
            found[row[column]] = count + 1, total + euros(Decimal(row["amount"]), row["currency"])
        return dict(found)


def as_csv(rows: Iterable[dict[str, Any]]) -> str:
    """With a header; lines end in a newline alone."""
    rows = list(rows)
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def draw(rng: random.Random, level: int) -> Ledger:
    """A ledger of the level's size; each of the level's faults is planted two or three times, one to an entry."""
    currencies = ("EUR",) if level == 1 else tuple(RATES)
    entries, invoices = [], []
    numbers = rng.sample(range(1_000, 9_999), ENTRIES[level] * 2 + 8)
    for _ in range(ENTRIES[level]):
        approver = rng.choice(sorted(APPROVERS))
        currency = rng.choice(currencies)
        amount = Decimal(rng.randint(2_000, (APPROVERS[approver] - 300) * 90)) / 100
        invoice = f"INV{numbers.pop()}"
        date = f"2025-{rng.randint(4, 6):02}-{rng.randint(1, 30):02}"
        vendor = rng.choice(VENDORS)
        common = {"invoice": invoice, "vendor": vendor, "amount": f"{amount:.2f}", "currency": currency}
        invoices.append(dict(common))
        entries.append({"date": date, "account": rng.choice(ACCOUNTS), **common, "approved_by": approver})
    kinds = KINDS_BY_LEVEL[level]
    counts = {kind: rng.randint(2, 3) for kind in kinds}
    spoiled = rng.sample(range(len(entries)), sum(counts.values()))
    faults: dict[int, str] = {}
    overstated = Decimal(0)
    for kind, count in counts.items():
        for _ in range(count):
            at = spoiled.pop()
            row = entries[at]
            if kind == "duplicate":
                entries.append({**row, "date": f"2025-06-{rng.randint(1, 30):02}" if row["date"] < "2025-06" else "2025-06-30"})
                faults[len(entries) - 1] = kind
                overstated += euros(Decimal(row["amount"]), row["currency"])
            elif kind == "amount differs":
                more = Decimal(rng.randint(100, 9_999)) / 100
                owed = euros(Decimal(row["amount"]), row["currency"])
                row["amount"] = f"{Decimal(row['amount']) + more:.2f}"
                overstated += euros(Decimal(row["amount"]), row["currency"]) - owed
                faults[at] = kind
            elif kind == "no invoice":
                invoices = [i for i in invoices if i["invoice"] != row["invoice"]]
                faults[at] = kind
            elif kind == "outside quarter":
                row["date"] = rng.choice(("2025-03-30", "2025-07-02", "2024-05-14"))
                faults[at] = kind
            else:
                row["approved_by"] = "Ruiz"
                over = Decimal(rng.randint(250_000, 800_000)) / 100
                row["amount"] = f"{over:.2f}"
                next(i for i in invoices if i["invoice"] == row["invoice"])["amount"] = row["amount"]
                faults[at] = kind
    # An original stands before its duplicate: by position in the ledger, not by date.
    order = list(range(ENTRIES[level]))
    rng.shuffle(order)
    for extra in range(ENTRIES[level], len(entries)):
        first = next(i for i, at in enumerate(order) if entries[at]["invoice"] == entries[extra]["invoice"])
        order.insert(rng.randint(first + 1, len(order)), extra)
    ids = [f"E{n}" for n in sorted(numbers[: len(order)])]
    named = {at: ids[i] for i, at in enumerate(order)}
    rng.shuffle(invoices)
    return Ledger(
        tuple({"entry": named[at], **entries[at]} for at in order),
        tuple(invoices),
        tuple(sorted((named[at], kind) for at, kind in faults.items())),
        overstated,
    )
