"""Problems of three branches over data files. The answer computed here and the reference cells use different methods."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

REGIONS = ("north", "south", "east", "west", "centre")


@dataclass(frozen=True)
class Problem:
    """What a notebook task asks."""

    branch: str
    prompt: str
    files: dict[str, str]
    results: tuple[dict[str, str], ...]
    cells: tuple[str, ...]
    """The reference; the last hands in by calling `submit`."""


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([columns, *rows])
    return out.getvalue()


def data_science(rng: random.Random, level: int) -> Problem | None:
    """Join, clean, fit: slope and correlation sign within a region, and the region of the largest median."""
    shops = [(f"s{i}", rng.choice(REGIONS)) for i in range(10 * level)]
    slope, rows = Fraction(rng.randint(-300, 300), 100), []
    for i in range(60 * level):
        shop, x = rng.choice(shops)[0], Fraction(rng.randint(10, 9_000), 100)
        y = slope * x + Fraction(rng.randint(-4_000, 4_000), 100) + 200
        gap = rng.random()
        rows.append([f"r{i}", shop, "" if gap < 0.05 else f"{float(x):.2f}", "n/a" if gap > 0.95 else f"{float(round(y, 2)):.2f}"])
    rows += rng.sample(rows, 3 * level)
    region_of = dict(shops)
    clean: dict[str, tuple[str, Fraction, Fraction]] = {}
    for name, shop, left, right in rows:
        if left and right != "n/a":
            clean[str(name)] = (region_of[str(shop)], Fraction(str(left)), Fraction(str(right)))
    region = rng.choice(REGIONS)
    pairs = [(x, y) for where, x, y in clean.values() if where == region]
    if len(pairs) < 8:
        return None
    n = len(pairs)
    mean_x, mean_y = sum(x for x, _ in pairs) / n, sum(y for _, y in pairs) / n
    fit = sum((x - mean_x) * (y - mean_y) for x, y in pairs) / sum((x - mean_x) ** 2 for x, _ in pairs)
    medians = {}
    for where in REGIONS:
        values = sorted(y for r, _, y in clean.values() if r == where)
        if values:
            medians[where] = (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2
    best = sorted(medians, key=lambda r: medians[r])
    if len(best) < 3 or medians[best[-1]] == medians[best[-2]]:
        return None
    files = {"sales.csv": _table(("id", "shop", "visits", "revenue"), rows), "shops.csv": _table(("shop", "region"), shops)}
    prompt = (
        "sales.csv and shops.csv are in the working directory. Drop rows without visits or revenue, and repeated ids. "
        f"Answer, separated by commas: how many rows remain; the least-squares slope of revenue on visits in region {region}, to three "
        "decimals; the region with the largest median revenue."
    )
    cells = (
        "import csv, statistics\nregion = {r['shop']: r['region'] for r in csv.DictReader(open('shops.csv'))}\n"
        "rows = {r['id']: r for r in csv.DictReader(open('sales.csv')) if r['visits'] and r['revenue'] != 'n/a'}\nprint(len(rows))",
        f"part = [(float(r['visits']), float(r['revenue'])) for r in rows.values() if region[r['shop']] == {region!r}]\n"
        "slope = statistics.linear_regression(*zip(*part)).slope\nslope",
        "groups = {}\nfor r in rows.values():\n    groups.setdefault(region[r['shop']], []).append(float(r['revenue']))\n"
        "best = max(groups, key=lambda g: statistics.median(groups[g]))\nsubmit(f'{len(rows)},{slope:.3f},{best}')",
    )
    results = (
        {"number": str(len(clean)), "within": "0"},
        {"number": f"{float(fit):.6f}", "within": "0.001"},
        {"text": best[-1]},
    )
    return Problem("data science", prompt, files, results, cells)


def _determinant(matrix: list[list[int]]) -> int:
    """Fraction-free elimination (Bareiss 1968)."""
    rows, sign, previous, n = [list(row) for row in matrix], 1, 1, len(matrix)
    for k in range(n - 1):
        pivot = next((i for i in range(k, n) if rows[i][k]), None)
        if pivot is None:
            return 0
        if pivot != k:
            rows[k], rows[pivot], sign = rows[pivot], rows[k], -sign
        for i in range(k + 1, n):
            for j in range(k + 1, n):
                rows[i][j] = (rows[i][j] * rows[k][k] - rows[i][k] * rows[k][j]) // previous
        previous = rows[k][k]
    return sign * rows[-1][-1]


def mathematics(rng: random.Random, level: int) -> Problem | None:
    """Determinant of an integer matrix, and the trace of a power of it modulo a prime."""
    n, prime, power = 4 + 2 * level, rng.choice((10_007, 65_537, 999_983)), rng.randint(200, 900)
    matrix = [[rng.randint(-20, 20) for _ in range(n)] for _ in range(n)]
    determinant = _determinant(matrix)
    vectors = [[int(i == j) for j in range(n)] for i in range(n)]
    for _ in range(power):  # one multiplication at a time: the reference squares
        vectors = [[sum(v[k] * matrix[k][j] for k in range(n)) % prime for j in range(n)] for v in vectors]
    trace = sum(vectors[i][i] for i in range(n)) % prime
    if not determinant:
        return None
    prompt = (
        "matrix.txt, in the working directory, holds an integer matrix M, a row a line. Answer, separated by a comma: "
        "the determinant of M; "
        f"the trace of M to the power {power}, modulo {prime} (from 0 on)."
    )
    cells = (
        "from fractions import Fraction\nM = [[int(x) for x in line.split()] for line in open('matrix.txt')]\nn = len(M)\nprint(n)",
        "A = [[Fraction(x) for x in row] for row in M]\ndet = Fraction(1)\nfor k in range(n):\n"
        "    p = next(i for i in range(k, n) if A[i][k])\n    if p != k:\n        A[k], A[p] = A[p], A[k]\n        det = -det\n"
        "    det *= A[k][k]\n    for i in range(k + 1, n):\n        f = A[i][k] / A[k][k]\n"
        "        A[i] = [a - f * b for a, b in zip(A[i], A[k])]\ndet",
        f"p = {prime}\ndef times(a, b):\n    return [[sum(x * y for x, y in zip(r, c)) % p for c in zip(*b)] for r in a]\n"
        f"result, base, e = [[int(i == j) for j in range(n)] for i in range(n)], M, {power}\nwhile e:\n    if e & 1:\n"
        "        result = times(result, base)\n    base, e = times(base, base), e >> 1\n"
        "submit(f'{det},{sum(result[i][i] for i in range(n)) % p}')",
    )
    files = {"matrix.txt": "\n".join(" ".join(map(str, row)) for row in matrix) + "\n"}
    results = ({"number": str(determinant), "within": "0"}, {"number": str(trace), "within": "0"})
    return Problem("mathematics", prompt, files, results, cells)


def _models(clauses: list[tuple[int, ...]], free: tuple[int, ...], chosen: tuple[int, ...] = ()) -> list[frozenset[int]]:
    """All models by splitting on one variable after another."""
    if any(not clause for clause in clauses):
        return []
    if not free:
        return [frozenset(chosen)]
    found = []
    for literal in (free[0], -free[0]):
        rest = [tuple(x for x in clause if x != -literal) for clause in clauses if literal not in clause]
        found += _models(rest, free[1:], (*chosen, literal))
    return found


def logic(rng: random.Random, level: int) -> Problem | None:
    """Statements over people who are present or not: how many situations fit, and who is present in the most of them."""
    names = ["Ada", "Bo", "Cy", "Dot", "Eli", "Fay", "Gus", "Hal", "Ida", "Jo", "Kit", "Lou", "Mae"][: 7 + 2 * level]
    n = len(names)
    clauses: list[tuple[int, ...]] = []
    lines = []
    for _ in range(2 * n):
        a, b = rng.sample(range(n), 2)
        c = rng.choice([i for i in range(n) if i not in (a, b)])
        kind = rng.randrange(3)
        if kind == 0:
            clauses.append((-(a + 1), b + 1, c + 1))
            lines.append(f"If {names[a]} is present, then {names[b]} or {names[c]} is present (or both).")
        elif kind == 1:
            clauses.append((-(a + 1), -(b + 1), -(c + 1)))
            lines.append(f"{names[a]}, {names[b]} and {names[c]} are not all present.")
        else:
            clauses.append((a + 1, b + 1, c + 1))
            lines.append(f"At least one of {names[a]}, {names[b]} and {names[c]} is present.")
    models = _models(clauses, tuple(range(1, n + 1)))
    counts = sorted((sum(i + 1 in m for m in models), name) for i, name in enumerate(names))
    if len(models) < 12 or counts[-1][0] == counts[-2][0]:
        return None
    prompt = (
        "statements.txt, in the working directory, says who may be present together; the first line names everybody. Answer, separated by "
        "commas: in how many situations all statements hold; who is present in the most of these; in how many of them."
    )
    cells = (
        "import itertools, re\nnames, *lines = open('statements.txt').read().splitlines()\nnames = names.split(', ')\n"
        "lines = [x for x in lines if x]\nprint(len(names), len(lines))",
        "def test(line):\n    who = [names.index(w) for w in re.findall(r'[A-Z]\\w+', line) if w in names]\n"
        "    if line.startswith('If '):\n        return lambda s: not s[who[0]] or any(s[i] for i in who[1:])\n"
        "    if 'not all' in line:\n        return lambda s: not all(s[i] for i in who)\n    return lambda s: any(s[i] for i in who)\n"
        "tests = [test(line) for line in lines]\n"
        "fit = [s for s in itertools.product((0, 1), repeat=len(names)) if all(t(s) for t in tests)]\nlen(fit)",
        "often = {name: sum(s[i] for s in fit) for i, name in enumerate(names)}\nbest = max(often, key=often.get)\n"
        "submit(f'{len(fit)},{best},{often[best]}')",
    )
    results = ({"number": str(len(models)), "within": "0"}, {"text": counts[-1][1]}, {"number": str(counts[-1][0]), "within": "0"})
    return Problem("logic", prompt, {"statements.txt": "\n".join([", ".join(names), *lines]) + "\n"}, results, cells)


BRANCHES: tuple[Callable[[random.Random, int], Problem | None], ...] = (data_science, mathematics, logic)
