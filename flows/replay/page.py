"""A trace as a page to read: messages, calls, pictures, tokens coloured by log-prob and mask, verdict and evidence. One offline file."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from environments.files import replacing
from environments.harness.xtml import END
from environments.task import Message
from environments.trace import Segment, ToolRecord
from flows.replay.find import Found, Spell

_HERE = Path(__file__).parent
_STYLE = _HERE.parent / "report" / "style.css"
STEPS = 8
"""Shades of a token: from certain (0) to as unlikely as e^-7 or less (7)."""


def write_page(found: Found, target: Path) -> Path:
    """Write the page.

    Raises:
        DiskFullError: no space left; an older page is untouched.
    """
    target = Path(target).absolute()
    with replacing(target, "free some space and write the page again") as part:
        part.write_text(render(found), encoding="utf-8")
    return target


def render(found: Found) -> str:
    """The page's HTML; whatever an agent or a document wrote is escaped."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    trace = found.trace
    records = list(trace.tool_records)
    return environment.get_template("replay.html.jinja").render(
        trace=trace,
        where=found.where,
        task=found.task,
        reward=found.reward,
        verdict=trace.verdict,
        evidence=json.dumps(trace.verdict.evidence, indent=2, ensure_ascii=False) if trace.verdict else "",
        segments=[_segment(s, found.spell) for s in trace.segments],
        refused=[_call(r) for r in records if r.error],
        harness=json.dumps(found.harness, indent=1, ensure_ascii=False) if found.harness else "",
        shades=range(STEPS),
        spelled=found.spell is not None,
        style=Markup(_STYLE.read_text()),
    )


def shade(logprob: float) -> int:
    """The shade of a sampled token."""
    return min(STEPS - 1, max(0, math.floor(-logprob)))


def _segment(segment: Segment, spell: Spell | None) -> dict[str, Any]:
    texts = spell(segment.tokens) if spell else [str(t) for t in segment.tokens]
    malformed = segment.malformed or (0,) * len(segment.tokens)
    columns = zip(segment.tokens, texts, segment.logprobs, segment.versions, segment.loss_mask, malformed, strict=True)
    tokens = [
        {
            "text": text if spell else f"{text} ",
            "kind": f"s{shade(logprob)}" if sampled else "given",
            "bad": bool(bad),
            "says": f"token {token}, " + (f"p {math.exp(logprob):.3g}, policy version {version}" if sampled else "not sampled here"),
            "ends": text == END,
        }
        for token, text, logprob, version, sampled, bad in columns
    ]
    return {
        "id": segment.segment_id,
        "parent": segment.parent_id,
        "fork": segment.fork,
        "messages": [_message(m) for m in segment.messages],
        "tokens": tokens,
        "sampled": sum(segment.loss_mask),
        "mean": _mean([lp for lp, m in zip(segment.logprobs, segment.loss_mask, strict=True) if m]),
    }


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _message(message: Message) -> dict[str, Any]:
    calls = []
    for call in message.calls:
        arguments = [(k, v if isinstance(v, str) else json.dumps(v)) for k, v in call.arguments.items()]
        calls.append({"tool": call.tool, "malformed": call.malformed, "arguments": arguments})
    return {**message.model_dump(exclude={"calls"}), "images": message.images, "option": message.option, "calls": calls}


def _call(record: ToolRecord) -> dict[str, Any]:
    return {"step": record.step, "tool": record.tool or "(no readable call)", "error": record.error, "result": record.result}
