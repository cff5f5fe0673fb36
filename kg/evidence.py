"""Judging evidence: a quote counts when it stands word for word in its document and states something.

Retrieved text is data. Whoever wrote a page may address the reader in it; a passage that does so says nothing about a concept,
and supports none, whichever brain quotes it.
"""

from __future__ import annotations

import re
from dataclasses import replace

from environments.protocols import Document, Evidence, Proposal, SearchSource
from environments.search.markup import strip_links
from kg.concept import Passage

MIN_QUOTE = 3
"""Characters; a shorter quote supports nothing."""
_ADDRESSES_READER = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b[^.!?]{0,60}\b(?:instructions?|prompts?|rules|guidelines|directions)\b"
    r"|\byour\s+(?:previous|prior|earlier|system|new|original)\s+(?:instructions?|prompts?|rules|task)\b"
    r"|\b(?:propose|add|enter|insert)\s+(?:the\s+|a\s+|this\s+)?(?:new\s+)?concepts?\b"
    r"|\b(?:call|invoke|run)\s+the\s+(?:\S+\s+)?tool\b"
    r"|\byou\s+are\s+(?:now\s+)?an?\s+(?:\S+\s+)?(?:assistant|agent|language\s+model|ai)\b"
    r"|\bsystem\s+prompt\b",
    re.I,
)


def plain(text: str) -> str:
    """A text with every run of white space made one blank: how quotes are compared."""
    return " ".join(text.split())


def stands_in(quote: str, document: Document) -> bool:
    """True when the quote stands word for word in the document's title or text, cross-reference markup left in or taken out."""
    said = plain(quote)
    if len(said) < MIN_QUOTE:
        return False
    return any(said in plain(text) for text in (document.text, strip_links(document.text, document.source), document.title))


def addresses_reader(text: str) -> bool:
    """True for a passage that tells its reader what to do with instructions, tools or proposals instead of stating something."""
    return _ADDRESSES_READER.search(text) is not None


def judge_quote(quote: str, document: Document) -> str | None:
    """Why a quote does not count as evidence; None when it does."""
    if not stands_in(quote, document):
        return f"evidence: the quote does not stand in {document.document_id!r:.80}"
    if addresses_reader(quote):
        return "evidence: the quote addresses the reader and states nothing"
    return None


def verify(proposal: Proposal, source: SearchSource) -> tuple[Proposal, list[Passage], str | None]:
    """The proposal with the evidence that counts, its passages, and why the first of the rest does not (None when all counts)."""
    kept: list[Evidence] = []
    passages: list[Passage] = []
    refused: str | None = None
    for evidence in proposal.evidence:
        try:
            document = source.open(evidence.document_id)
        except KeyError:
            refused = refused or f"evidence: there is no document {evidence.document_id!r:.80}"
            continue
        if why := judge_quote(evidence.quote, document):
            refused = refused or why
            continue
        kept.append(evidence)
        passages.append(Passage.of(document, evidence.quote))
    return replace(proposal, evidence=tuple(kept)), passages, refused
