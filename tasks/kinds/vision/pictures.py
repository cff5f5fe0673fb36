"""Pictures drawn from known data, what is asked about each, and cells that find the answer in the pixels."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from PIL import Image, ImageDraw, ImageFont

COLOURS = {"red": (200, 40, 40), "green": (30, 140, 60), "blue": (40, 70, 200), "orange": (230, 140, 20), "violet": (130, 50, 160)}
INK, PAPER = (30, 30, 30), (250, 250, 246)
Box = tuple[int, int, int, int]

LOAD = "from picture import load\np = load()\nprint(p.width, p.height)\np"
FIND = """def blobs(colour):
    mark, seen, found = bytes(colour), set(), []
    for y, row in enumerate(p.rows):
        for x in range(p.width):
            if row[3 * x : 3 * x + 3] == mark and (x, y) not in seen:
                todo, part = [(x, y)], []
                seen.add((x, y))
                while todo:
                    a, b = todo.pop()
                    part.append((a, b))
                    for q in ((a + 1, b), (a - 1, b), (a, b + 1), (a, b - 1)):
                        if 0 <= q[0] < p.width and 0 <= q[1] < p.height and q not in seen and p.at(*q) == tuple(mark):
                            seen.add(q)
                            todo.append(q)
                if len(part) > 3:
                    found.append(part)
    return found
print({c: sum(r[i : i + 3] == bytes(c) for r in p.rows for i in range(0, len(r), 3)) for c in [(200, 40, 40)]})
"""


@dataclass(frozen=True)
class Asked:
    """A picture with its question."""

    image: Image.Image
    prompt: str
    payload: dict[str, Any]
    cells: tuple[str, ...]
    """The last hands in by calling `submit`."""
    boxes: list[Box] = field(default_factory=list)


def _canvas(width: int, height: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    image = Image.new("RGB", (width, height), PAPER)
    made = ImageDraw.Draw(image)
    made.fontmode = "1"  # no grey edges: a colour is exactly itself
    return image, made


def _spots(rng: random.Random, width: int, height: int, count: int, size: tuple[int, int]) -> list[Box]:
    """Boxes that keep apart."""
    found: list[Box] = []
    for _ in range(count * 60):
        w, h = rng.randint(*size), rng.randint(*size)
        x, y = rng.randint(4, width - w - 5), rng.randint(4, height - h - 5)
        if len(found) < count and all(x > b[2] + 3 or y > b[3] + 3 or x + w < b[0] - 3 or y + h < b[1] - 3 for b in found):
            found.append((x, y, x + w, y + h))
    return found


def _shape(pen: ImageDraw.ImageDraw, box: Box, colour: str, kind: str) -> None:
    if kind == "ellipse":
        pen.ellipse(box, fill=COLOURS[colour])
    else:
        pen.rectangle(box, fill=COLOURS[colour])


def counting(rng: random.Random, level: int) -> Asked | None:
    """How many small marks have a colour?"""
    image, pen = _canvas(320, 240)
    boxes = _spots(rng, 320, 240, 40 + 25 * level, (5, 11 - level))
    colours = [rng.choice(sorted(COLOURS)) for _ in boxes]
    for box, colour in zip(boxes, colours, strict=True):
        _shape(pen, box, colour, rng.choice(("ellipse", "rectangle")))
    asked = rng.choice(sorted(COLOURS))
    truth = colours.count(asked)
    if not 11 <= truth <= 41:
        return None
    cells = (LOAD, FIND, f"submit(str(len(blobs({COLOURS[asked]}))))")
    return Asked(
        image, f"How many of the marks are {asked}? Answer with the number.", {"reward": "count", "truth": truth, "enough": 1.0}, cells
    )


def grounding(rng: random.Random, level: int) -> Asked | None:
    """Boxes around all shapes of a colour."""
    image, pen = _canvas(320, 240)
    boxes = _spots(rng, 320, 240, 6 + 4 * level, (12, 40))
    colours = [rng.choice(sorted(COLOURS)) for _ in boxes]
    for box, colour in zip(boxes, colours, strict=True):
        _shape(pen, box, colour, rng.choice(("ellipse", "rectangle")))
    asked = rng.choice(sorted(COLOURS))
    truth = [[float(x) for x in b] for b, c in zip(boxes, colours, strict=True) if c == asked]
    if len(truth) < 2:
        return None
    find = "found = [[min(x for x, y in b), min(y for x, y in b), max(x for x, y in b), max(y for x, y in b)] for b in parts]"
    cells = (LOAD, FIND, f"import json\nparts = blobs({COLOURS[asked]})\n{find}\nsubmit(json.dumps(found))")
    prompt = (
        f"Give the bounding boxes of all {asked} shapes: a JSON list of [left, top, right, bottom] in pixels, from the upper left corner."
    )
    return Asked(image, prompt, {"reward": "grounding", "truth": truth, "enough": 0.9}, cells)


def points(rng: random.Random, level: int) -> Asked | None:
    """Where do the lines of one colour cross? The crossings are marked by nothing."""
    image, pen = _canvas(320, 240)
    asked, other = rng.sample(sorted(COLOURS), 2)
    columns, rows = sorted(rng.sample(range(30, 290, 22), 1 + level)), sorted(rng.sample(range(30, 210, 22), 2))
    for x in rng.sample(range(19, 300, 22), 3):
        pen.line((x, 0, x, 239), fill=COLOURS[other])
    for x in columns:
        pen.line((x, 0, x, 239), fill=COLOURS[asked])
    for y in rows:
        pen.line((0, y, 319, y), fill=COLOURS[asked])
    truth = [[float(x), float(y)] for x in columns for y in rows]
    cells = (
        LOAD,
        f"c = {COLOURS[asked]}\nxs = [x for x in range(p.width) if all(p.at(x, y) == c for y in range(p.height))]\n"
        "ys = [y for y in range(p.height) if all(p.at(x, y) == c for x in range(p.width))]\nxs, ys",
        "import json\nsubmit(json.dumps([[x, y] for x in xs for y in ys]))",
    )
    prompt = f"Where do the {asked} lines cross each other? A JSON list of [x, y] in pixels, from the upper left corner."
    return Asked(image, prompt, {"reward": "points", "truth": truth, "sigma": 3.0, "enough": 0.9}, cells)


def chart(rng: random.Random, level: int) -> Asked | None:
    """Read a bar chart whose axis is labelled at both ends."""
    image, pen = _canvas(320, 240)
    top, bottom, left = 20, 210, 40
    highest = rng.choice((200, 500, 1_000)) * level
    font = ImageFont.load_default(size=10)
    names = "ABCDEFGH"[: 3 + level]
    values = [round(highest * rng.uniform(0.08, 0.98)) for _ in names]
    pen.line((left, top, left, bottom), fill=INK)
    pen.line((left, bottom, 310, bottom), fill=INK)
    pen.text((4, top - 6), str(highest), fill=INK, font=font)
    pen.text((24, bottom - 6), "0", fill=INK, font=font)
    width = 260 // len(names)
    colours = [rng.choice(sorted(COLOURS)) for _ in names]
    for i, (name, value, colour) in enumerate(zip(names, values, colours, strict=True)):
        x = left + 8 + i * width
        pen.rectangle((x, bottom - round(value / highest * (bottom - top)), x + width - 12, bottom - 1), fill=COLOURS[colour])
        pen.text((x + 4, bottom + 6), name, fill=INK, font=font)
    cells = (
        LOAD,
        "p.crop(0, 0, 60, 60).zoom(5)",
        f"import statistics\nink, paper = {INK}, {PAPER}\naxis = [y for y in range(p.height) if p.at({left}, y) == ink]\n"
        f"top, bottom = min(axis), max(axis)\nheights = []\nfor i in range({len(names)}):\n    x = {left} + 8 + i * {width} + 6\n"
        "    heights.append(bottom - min(y for y in range(bottom) if p.at(x, y) not in (ink, paper)))\nheights",
        f"submit(', '.join(str(round(h / (bottom - top) * {highest})) for h in heights))",
    )
    prompt = "What do the bars stand for, from left to right? The vertical axis is labelled at both ends. Numbers, separated by commas."
    return Asked(image, prompt, {"reward": "values", "truth": [float(v) for v in values], "slack": highest / 10, "enough": 0.94}, cells)


def small_print(rng: random.Random, level: int) -> Asked | None:
    """One line among several in letters of a few pixels, which only a zoom makes readable."""
    image, pen = _canvas(320, 240)
    font = ImageFont.load_default(size=11 - level)
    lines = ["".join(rng.choice("ACDEFHJKLMNPRTUVWXY34679") for _ in range(6)) + f"-{rng.choice('KLMNR')}{i}" for i in range(4 + 2 * level)]
    top, step = rng.randint(10, 60), 16
    x = rng.randint(10, 200)
    for i, line in enumerate(lines):
        pen.text((x, top + i * step), line, fill=(90, 90, 90), font=font)
    at = rng.randrange(len(lines))
    y = top + at * step
    pen.rectangle((x - 8, y + 3, x - 5, y + 6), fill=COLOURS["red"])
    cells = (
        LOAD,
        "marks = [(x, y) for y in range(p.height) for x in range(p.width) if p.at(x, y) == (200, 40, 40)]\nx, y = marks[0]\nx, y",
        "p.crop(x, y - 6, x + 90, y + 12).zoom(6)",
        f"submit({lines[at]!r})",
    )
    return Asked(
        image,
        "What does the line beside the red mark say? Answer with the line alone.",
        {"reward": "ocr", "truth": lines[at], "enough": 1.0},
        cells,
    )


def maze(rng: random.Random, level: int) -> Asked | None:
    """A grid with walls: the shortest way from the green to the red cell."""
    n, size = 6 + 2 * level, 16
    grid = [["#" if rng.random() < 0.3 else "." for _ in range(n)] for _ in range(n)]
    (a, b), (c, d) = rng.sample([(r, k) for r in range(n) for k in range(n)], 2)
    grid[a][b], grid[c][d] = "S", "G"
    queue, far = deque([(a, b)]), {(a, b): 0}
    while queue:
        r, k = queue.popleft()
        for q in ((r + 1, k), (r - 1, k), (r, k + 1), (r, k - 1)):
            if 0 <= q[0] < n and 0 <= q[1] < n and grid[q[0]][q[1]] != "#" and q not in far:
                far[q] = far[r, k] + 1
                queue.append(q)
    if far.get((c, d), 0) < n - 1:
        return None
    image, pen = _canvas(n * size + 1, n * size + 1)
    fill = {"#": INK, ".": PAPER, "S": COLOURS["green"], "G": COLOURS["red"]}
    for r in range(n):
        for k in range(n):
            pen.rectangle((k * size, r * size, (k + 1) * size, (r + 1) * size), fill=fill[grid[r][k]], outline=(180, 180, 180))
    cells = (
        LOAD,
        f"size = {size}\nn = p.width // size\ncell = lambda r, k: p.at(k * size + size // 2, r * size + size // 2)\n"
        "where = {cell(r, k): (r, k) for r in range(n) for k in range(n)}\n"
        "start, goal = where[(30, 140, 60)], where[(200, 40, 40)]\nstart, goal",
        "ways, queue = {start: ''}, [start]\nfor r, k in queue:\n"
        "    for m, q in (('U', (r - 1, k)), ('D', (r + 1, k)), ('L', (r, k - 1)), ('R', (r, k + 1))):\n"
        "        if 0 <= q[0] < n and 0 <= q[1] < n and q not in ways and cell(*q) != (30, 30, 30):\n"
        "            ways[q] = ways[r, k] + m\n            queue.append(q)\nsubmit(ways[goal])",
    )
    payload = {"reward": "path", "truth": ["".join(row) for row in grid], "shortest": far[c, d], "enough": 1.0}
    return Asked(image, "Black cells are walls. Give a shortest way from the green to the red cell, as letters U, D, L, R.", payload, cells)


PICTURES: dict[str, Callable[[random.Random, int], Asked | None]] = {
    "counting": counting,
    "grounding": grounding,
    "points": points,
    "chart": chart,
    "small_print": small_print,
    "maze": maze,
}
