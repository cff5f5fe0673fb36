"""Search questions: look documented defaults up in one, two or three documents, and report them in the asked order."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence

from environments.families.search import SearchEnvironment, excerpt, short_title
from environments.protocols import SearchSource
from environments.task import Budgets, Message
from tasks.facts import Fact, askable
from tasks.kinds.draft import STYLES, Demonstration, Draft, KindSpec, Material, call

_PROMPTS = (
    "What is the documented default of {names}? Answer with the values alone, in this order, separated by commas.",
    "Look up {names}. Report the default values in this order, with commas between.",
    "Which default does the documentation give for {names}? Values only, comma-separated, in order.",
)


def states(text: str, fact: Fact) -> bool:
    """Whether an excerpt spells the fact out as `parameter=value`."""
    return re.search(rf"(?<!\w){re.escape(fact.parameter)}={re.escape(fact.value)}(?![\w.])", text.replace(" ", "")) is not None


def _spoken(facts: Sequence[Fact]) -> str:
    """`a` of `f`, then `b` of `g`."""
    return ", then ".join(f"`{f.parameter}` of `{short_title(f.title)}`" for f in facts)


def draft(rng: random.Random, material: Material, level: int) -> Draft | None:
    """One value from each of as many documents as the level says."""
    by_title: dict[str, list[Fact]] = {}
    for fact in askable(material.facts):
        if states(excerpt(fact.quote, fact.parameter, SearchEnvironment.WINDOW_CHARS), fact):
            by_title.setdefault(short_title(fact.title), []).append(fact)
    if len(by_title) < level:
        return None
    chosen = [rng.choice(by_title[title]) for title in rng.sample(sorted(by_title), level)]
    if len({f.parameter for f in chosen}) < level:
        return None
    values = [f.value for f in chosen]
    return Draft(
        kind="lookup",
        family="search",
        domain="general",
        level=level,
        prompt=rng.choice(_PROMPTS).format(names=_spoken(chosen)),
        tools=("search", "open", "record", "submit"),
        budgets=Budgets(steps=12, output_tokens=320, wall_s=60, submissions=1),
        verifier_kind="exact_values",
        payload={"values": values},
        passages=tuple(chosen),
        demonstrations=tuple(Demonstration(style, tuple(_solution(chosen, style))) for style in STYLES),
    )


def _solution(facts: Sequence[Fact], style: str) -> Iterator[Message]:
    """none: read and record. short: note what stands in a document before recording it. long: first repeat what is asked for."""
    thinking = _spoken(facts).replace("`", "") if style == "long" else ""
    for fact in facts:
        yield call("search", thinking, query=short_title(fact.title))
        yield call("open", result="1", find=fact.parameter)
        yield call("record", "" if style == "none" else f"{fact.parameter}={fact.value}", value=fact.value)
        thinking = ""
    yield call("submit")


def unreachable(draft: Draft, source: SearchSource) -> str:
    """Why a draft's facts cannot be found with the tools that it offers; empty when they can."""
    shown: dict[str, str] = {}
    for fact in draft.passages:
        assert isinstance(fact, Fact)
        if fact.document_id not in shown:
            hits = source.search(short_title(fact.title), SearchEnvironment.RESULTS)
            if not hits or hits[0].document_id != fact.document_id:
                return "search does not find the document first"
            shown[fact.document_id] = excerpt(source.open(fact.document_id).text, fact.parameter, SearchEnvironment.WINDOW_CHARS)
        if not states(shown[fact.document_id], fact):
            return "the document's excerpt does not show the value"
    return ""


LOOKUP = KindSpec("lookup", "search", "general", (1, 2, 3), draft, unreachable, default=True)
