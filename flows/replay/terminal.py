"""Stepping through a trace in the terminal: one message at a time, the verdict at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from environments.task import Message
from environments.trace import Segment
from flows.replay.find import Found

_STYLES = {"system": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}
LONG = 4000
"""Characters of one part shown; the page shows all."""


def step_through(found: Found, console: Console, wait: Callable[[], bool]) -> None:
    """Show one message after the other; `wait` is called between them and ends the replay by returning False."""
    console.print(_head(found))
    for panel in panels(found):
        if not wait():
            return
        console.print(panel)
    console.print(_verdict(found))


def panels(found: Found) -> Iterator[RenderableType]:
    """Every message of every conversation, where its segment has them."""
    for segment in found.trace.segments:
        if not segment.messages:
            yield Text(f"— segment {segment.segment_id}: {_tokens(segment)}, then its context was managed —", style="dim")
            continue
        if segment.fork == "subagent":
            yield Text(f"— sub-agent (segment {segment.segment_id}) —", style="magenta")
        for i, message in enumerate(segment.messages):
            yield _panel(message, f"{i + 1}/{len(segment.messages)}")


def _panel(message: Message, where: str) -> Panel:
    parts: list[RenderableType] = []
    if message.thinking:
        parts.append(Text(_cut(message.thinking), style="italic dim"))
    if message.content:
        parts.append(Text(_cut(message.content)))
    for call in message.calls:
        said = call.malformed or json.dumps(call.arguments, ensure_ascii=False)
        parts.append(Text.assemble(("→ ", "bold"), (call.tool, "bold"), " ", _cut(said)))
    if message.images:
        parts.append(Text(f"[{len(message.images)} image{'s' if len(message.images) > 1 else ''}: see the page]", style="dim"))
    title = f"{where} {message.role}" + (f" {message.tool}" if message.tool else "") + (f" ({message.option})" if message.option else "")
    style = _STYLES[message.role]
    return Panel(Group(*parts) if parts else Text("(nothing)", style="dim"), title=title, title_align="left", border_style=style)


def _head(found: Found) -> Panel:
    trace = found.trace
    lines = [
        f"episode {trace.trajectory_id} · {found.where}",
        f"task {trace.task_id} ({trace.domain}) · policy {trace.policy} · effort {trace.effort or 'not said'}",
        f"{trace.output_tokens} output tokens ({trace.thinking_tokens} thinking) · {len(trace.tool_records)} calls, "
        f"{trace.malformed_calls} refused · stopped: {trace.stop}",
    ]
    return Panel("\n".join(lines), title="replay", title_align="left")


def _verdict(found: Found) -> Panel:
    verdict = found.trace.verdict
    if verdict is None:
        return Panel("no verdict: a machine part failed", title="verdict", title_align="left", border_style="red")
    score = "" if verdict.score is None else f", score {verdict.score:g}"
    reward = f"\nreward {found.reward.reward:g}, advantage {found.reward.advantage:+.3f}" if found.reward else ""
    text = f"{verdict.status}{score}{reward}\n{json.dumps(verdict.evidence, ensure_ascii=False, indent=1)}"
    return Panel(Text(_cut(text)), title="verdict", title_align="left", border_style="green" if verdict.status == "pass" else "red")


def _tokens(segment: Segment) -> str:
    return f"{len(segment.tokens)} tokens, {sum(segment.loss_mask)} of them sampled"


def _cut(text: str) -> str:
    return text if len(text) <= LONG else f"{text[:LONG]} … [{len(text) - LONG} more characters]"
