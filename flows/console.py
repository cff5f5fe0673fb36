"""What a run prints at its end: tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from typing import Any, TextIO

from rich.console import Console
from rich.table import Table

from flows.summary import funnel_words, lines
from flows.workspace import RunDirectory, Workspace


def commands(run: RunDirectory, workspace: Workspace) -> list[tuple[str, str]]:
    """What to type to open the report, the catalogue and the UI."""
    home = f"NINEFOLD_HOME={shlex.quote(str(workspace.root))} "
    return [
        ("report", f"xdg-open {shlex.quote(str(run.report))}"),
        ("catalogue", home + "ninefold catalog --query 'from runs'"),
        ("UI", home + "ninefold serve"),
    ]


def print_summary(summary: Mapping[str, Any], run: RunDirectory, workspace: Workspace, out: TextIO | None = None) -> None:
    """Funnel, nine experts before and after, the student against its teachers, and the commands that open the rest."""
    out = out or sys.stdout
    opening = commands(run, workspace)
    if not out.isatty():
        for line in [*lines(summary), *(f"open the {what}: {command}" for what, command in opening)]:
            print(line, file=out)
        return
    console = Console(file=out)
    console.print("[bold]" + " → ".join(funnel_words(summary)))
    table = Table("domain", "effort", "cold start", "expert", "tokens", "budget", "student", "recovered", "tokens", title=f"Run {run.name}")
    for expert, student in zip(summary["experts"], summary["student"], strict=True):
        table.add_row(
            expert["domain"],
            expert["effort"],
            *(_cell(expert[k], ".3f") for k in ("sft_pass", "expert_pass")),
            *(_cell(expert[k], ".0f") for k in ("mean_tokens", "budget")),
            _cell(student["pass"], ".3f"),
            _cell(student["recovered"], ".2f"),
            _cell(student["mean_tokens"], ".0f"),
        )
    console.print(table)
    console.print(lines(summary)[-2])
    console.print(lines(summary)[-1])
    for what, command in opening:
        console.print(f"open the {what}: [cyan]{command}", soft_wrap=True)


def _cell(value: float | None, spec: str) -> str:
    return format(value, spec) if value is not None else "n/a"
