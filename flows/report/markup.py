"""Small pieces of HTML that the template places: plots of lines and marks, and transcripts with their reserved tokens shown.

A plot is an SVG stretched to its box for the lines, with marks and labels as HTML above it: text keeps its size on any width.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from markupsafe import Markup, escape

from environments.harness.xtml import END, RESERVED

MAX_TRANSCRIPT = 20_000
"""Characters of a transcript shown; the whole one is in the rollouts table."""
_TOKEN = re.compile("(" + "|".join(re.escape(r) for r in RESERVED) + ")")


def transcript(text: str) -> Markup:
    """Escaped text in which reserved tokens are marked and every message starts on a line of its own."""
    shown, rest = text[:MAX_TRANSCRIPT], len(text) - MAX_TRANSCRIPT
    pieces: list[Markup] = []
    for piece in _TOKEN.split(shown):
        if piece in RESERVED:
            pieces.append(Markup('<mark class="{}">{}</mark>').format("tok end" if piece == END else "tok", piece))
            if piece == END:
                pieces.append(Markup("\n"))
        else:
            # A message is followed by its own line break above; one more would leave a gap.
            pieces.append(escape(piece.lstrip("\n") if pieces and pieces[-1] == "\n" else piece))
    if rest > 0:
        pieces.append(Markup('\n<em class="cut">… {} more characters: see the rollouts table</em>').format(f"{rest:,}"))
    return Markup("").join(pieces)


def evidence(text: str) -> str:
    """The verifier's evidence, indented when it is JSON."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)[:4000] if text else ""
    except ValueError:
        return text[:4000]


def polyline(points: Sequence[tuple[float, float]], x_max: float, y_max: float, kind: str) -> Markup:
    """One line in a 100 x 100 SVG whose y axis points up. Values beyond `y_max` or below 0 are drawn at the edge."""
    if x_max <= 0 or y_max <= 0 or not points:
        return Markup("")
    at = [(100 * x / x_max, 100 - 100 * min(max(y, 0.0), y_max) / y_max) for x, y in points]
    return Markup('<polyline class="{}" points="{}"/>').format(kind, " ".join(f"{x:.2f},{y:.2f}" for x, y in at))


def thin(points: Sequence[tuple[int, float]], most: int = 120) -> list[tuple[int, float]]:
    """At most about `most` points, each the mean of a stretch of neighbours, so that a long run stays light and readable."""
    if len(points) <= most:
        return list(points)
    size = -(-len(points) // most)
    chunks = [points[i : i + size] for i in range(0, len(points), size)]
    return [(round(sum(x for x, _ in c) / len(c)), sum(y for _, y in c) / len(c)) for c in chunks]


def smooth(points: Sequence[tuple[int, float]], window: int = 5) -> list[tuple[int, float]]:
    """Centred moving mean over at most `window` points; it narrows towards the ends, so that these are shown where they are."""
    out = []
    for i, (x, _) in enumerate(points):
        half = min(window // 2, i, len(points) - 1 - i)
        near = points[i - half : i + half + 1]
        out.append((x, sum(y for _, y in near) / len(near)))
    return out


def round_up(value: float) -> float:
    """The next value of 1, 2, 2.5, 5 times a power of ten: the top of an axis."""
    if value <= 0:
        return 1.0
    power = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 10.0 ** -(len(f"{1 / value:.0f}"))
    return next(m * power for m in (1, 2, 2.5, 5, 10, 20, 50, 100) if m * power >= value)
