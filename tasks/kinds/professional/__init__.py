"""Professional deliverables: audit a quarter's ledger against invoices and rules; a spreadsheet and a memo are handed in as files."""

from __future__ import annotations

import random
from typing import Any

from environments.environment import ARTEFACTS
from environments.task import Budgets, InitialState
from kg.concept import Passage
from tasks.kinds.draft import Demonstration, Draft, KindSpec, Material, call
from tasks.kinds.professional.ledger import APPROVERS, KINDS_BY_LEVEL, RATES, VENDORS, Ledger, as_csv, draw
from tasks.kinds.professional.workbook_source import WORKBOOK

RULES = {
    "duplicate": "duplicate: an invoice that an earlier row of the ledger has booked already (every later row is one)",
    "amount differs": "amount differs: the first booking of an invoice whose amount is not the invoice's",
    "no invoice": "no invoice: the invoice is not in invoices.csv",
    "outside quarter": "outside quarter: dated before 2025-04-01 or after 2025-06-30",
    "over limit": "over limit: worth more euros than the approver's limit",
}


def policy(level: int) -> str:
    """The rules as the workspace states them."""
    rates = "; ".join(f"1 {currency} = {rate} EUR" for currency, rate in RATES.items() if level > 1 or currency == "EUR")
    lines = ["Rules for the second quarter of 2025", "", f"Rates: {rates}. Each row is converted and rounded to cents, halves up.", ""]
    if level == 3:
        lines += ["Limits in euros: " + "; ".join(f"{name} {limit}" for name, limit in APPROVERS.items()), ""]
    return "\n".join([*lines, "Findings (a row has at most one):", *(f"- {RULES[kind]}" for kind in KINDS_BY_LEVEL[level]), ""])


def expected(ledger: Ledger) -> dict[str, Any]:
    """What the verifier wants, from what was planted and from sums over the rows."""
    accounts = ledger.total("account")
    vendors = ledger.total("vendor")
    largest = max(vendors, key=lambda name: vendors[name][1])
    booked = sum(total for _, total in accounts.values())
    return {
        "table": [["account", "count", "total"], *([name, count, f"{total:.2f}"] for name, (count, total) in sorted(accounts.items()))],
        "findings": [list(pair) for pair in ledger.findings],
        "facts": [
            {"label": "total booked", "value": f"{booked:.2f}"},
            {"label": "number of findings", "value": str(len(ledger.findings))},
            {"label": "overstated by", "value": f"{ledger.overstated:.2f}"},
            {"label": "largest vendor is", "text": largest, "others": [v for v in VENDORS if v != largest]},
            {"label": "booked with it", "value": f"{vendors[largest][1]:.2f}"},
        ],
    }


def draft(rng: random.Random, material: Material, level: int) -> Draft | None:
    """Level 1: one currency, two kinds of fault. Level 2: three currencies, four. Level 3: limits of approval as well."""
    ledger = draw(rng, level)
    payload = expected(ledger)
    totals = sorted(total for _, total in ledger.total("vendor").values())
    if totals[-1] == totals[-2] or ledger.overstated in (totals[-1], sum(totals)):
        return None
    files = {
        "ledger.csv": as_csv(ledger.entries),
        "invoices.csv": as_csv(ledger.invoices),
        "rules.txt": policy(level),
        "workbook.py": WORKBOOK,
    }
    about = f" of the project on {material.names[0]}" if material.names else ""
    prompt = (
        f"Audit the ledger{about}: ledger.csv against invoices.csv under rules.txt, all in the working directory. Write two files there.\n"
        "report.xlsx, two sheets with a header row each: `totals` (account, count, total: every account with its rows and their euros, "
        "faulty rows included) and `findings` (entry, finding). Values, no formulas; `import workbook` helps to write it.\n"
        "memo.txt, a line each, with these words and one figure: `total booked` (euros of all rows), `number of findings`, `overstated by` "
        "(euros of all duplicates, and of each `amount differs` row the euros booked less the euros of its invoice), `largest vendor is` "
        "(name alone), `booked with it` (its euros).\nThen submit."
    )
    return Draft(
        kind="professional",
        family="professional",
        domain="general",
        level=level,
        prompt=prompt,
        tools=("python", "submit"),
        budgets=Budgets(steps=30, output_tokens=8_000, wall_s=300, submissions=1),
        verifier_kind="professional",
        payload=payload,
        passages=tuple(Passage.of(d, d.text[:200]) for d in material.documents[:1]),
        demonstrations=(
            Demonstration(
                "program", (call("python", code=_READ), call("python", code=_AUDIT), call("python", code=_WRITE), call("submit"))
            ),
        ),
        initial_state=InitialState(files=files, tables={ARTEFACTS: ({"path": "report.xlsx"}, {"path": "memo.txt"})}),
    )


_READ = """import csv, re
from decimal import Decimal, ROUND_HALF_UP
ledger = list(csv.DictReader(open("ledger.csv")))
invoices = {row["invoice"]: row for row in csv.DictReader(open("invoices.csv"))}
rules = open("rules.txt").read()
rates = {c: Decimal(r) for c, r in re.findall(r"1 ([A-Z]{3}) = ([0-9.]+) EUR", rules)}
said = re.search(r"Limits in euros: (.*)", rules)
limits = {n: Decimal(x) for n, x in re.findall(r"(\\w+) (\\d+)", said[1])} if said else {}
print(rules, len(ledger), len(invoices))
"""
_AUDIT = """def euros(row):
    return (Decimal(row["amount"]) * rates[row["currency"]]).quantize(Decimal("0.01"), ROUND_HALF_UP)
seen, findings, overstated = set(), [], Decimal(0)
for row in ledger:
    invoice = invoices.get(row["invoice"])
    if row["invoice"] in seen:
        kind = "duplicate"
        overstated += euros(row)
    elif invoice is None:
        kind = "no invoice"
    elif Decimal(invoice["amount"]) != Decimal(row["amount"]):
        kind = "amount differs"
        overstated += euros(row) - euros(invoice)
    elif not "2025-04-01" <= row["date"] <= "2025-06-30":
        kind = "outside quarter"
    elif row["approved_by"] in limits and euros(row) > limits[row["approved_by"]]:
        kind = "over limit"
    else:
        kind = ""
    seen.add(row["invoice"])
    if kind:
        findings.append([row["entry"], kind])
print(findings, overstated)
"""
_WRITE = """import workbook
totals, vendors = {}, {}
for row in ledger:
    count, total = totals.get(row["account"], (0, Decimal(0)))
    totals[row["account"]] = count + 1, total + euros(row)
    vendors[row["vendor"]] = vendors.get(row["vendor"], Decimal(0)) + euros(row)
table = [["account", "count", "total"]] + [[name, n, float(t)] for name, (n, t) in sorted(totals.items())]
workbook.save("report.xlsx", {"totals": table, "findings": [["entry", "finding"]] + findings})
largest = max(vendors, key=vendors.get)
with open("memo.txt", "w") as memo:
    print(f"Total booked: {sum(vendors.values()):,}", file=memo)
    print(f"Number of findings: {len(findings)}", file=memo)
    print(f"Overstated by {overstated:,}", file=memo)
    print(f"The largest vendor is {largest}", file=memo)
    print(f"Booked with it: {vendors[largest]:,}", file=memo)
"""

PROFESSIONAL = KindSpec("professional", "professional", "general", (1, 2, 3), draft)
