"""One JSON line a step, appended whole; what was written for steps after a resumed checkpoint is dropped."""

from __future__ import annotations

import json
from pathlib import Path


class Metrics:
    """Appends to `metrics.jsonl`. `total` lets a reader show progress."""

    def __init__(self, stage: Path, total: int, resume_at: int = 0) -> None:
        self.path = stage / "metrics.jsonl"
        self.total = total
        stage.mkdir(parents=True, exist_ok=True)
        kept = [line for line in read(self.path) if line["step"] < resume_at]
        self.path.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def write(self, step: int, **values: float) -> None:
        """Append one step's values."""
        with self.path.open("a") as file:
            file.write(json.dumps({"step": step, "total": self.total, **values}) + "\n")


def read(path: Path) -> list[dict[str, float]]:
    """All whole lines; a line cut short by a kill is left out."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(dict(json.loads(line)))
        except ValueError:
            continue
    return lines
