"""The tools of an agent that reads for a node. They read and take notes; none of them changes anything outside the reading.

What they return is material from the corpus and is marked as such. Its `<` are written as JSON escapes, so that no page can
spell a chat template's control token or a tool call's tag.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field

from environments.errors import AgentError, BadArgumentsError, MalformedCallError, UnknownToolError
from environments.protocols import Document, Evidence, Proposal, Refusal, SearchSource
from environments.task import ToolCall, ToolParameter, ToolSpec
from kg.equivalence import is_qualified, singular
from kg.evidence import judge_quote, plain
from kg.phrases import content
from kg.view import GraphView

_HITS = 8
_PAGE = 4000
"""Characters of a document that one `open` shows."""
_MIN_QUOTE = 12
"""Characters; what an agent quotes must be a passage."""
_MAX_REFUSED = 50
"""Refused proposals kept of one reading."""
RELATIONS = ("narrower", "broader", "equivalent", "related")

TOOLS: tuple[ToolSpec, ...] = (
    ToolSpec(
        name="search",
        description="Search the corpus. Returns up to eight hits: id, title, snippet.",
        parameters=(ToolParameter(name="query", description="words to look for"),),
    ),
    ToolSpec(
        name="open",
        description="Read a document by its id, 4000 characters at a time.",
        parameters=(
            ToolParameter(name="document_id", description="id of a hit"),
            ToolParameter(name="offset", type="integer", description="character to begin at, 0 by default", required=False),
        ),
    ),
    ToolSpec(
        name="find_concepts",
        description="Concepts of the graph that are named like a text or mean nearly the same. Look before you propose.",
        parameters=(ToolParameter(name="text", description="a name"),),
    ),
    ToolSpec(
        name="neighbourhood",
        description="What is broader, narrower, beside and related to a concept of the graph.",
        parameters=(ToolParameter(name="name", description="name of the concept"),),
    ),
    ToolSpec(
        name="propose",
        description="Propose a concept related to yours, with a passage quoted word for word from a document you opened.",
        parameters=(
            ToolParameter(name="name", description="the concept's name; that of the graph where it is there already"),
            ToolParameter(name="relation", description="of that concept to yours: narrower, broader, equivalent or related"),
            ToolParameter(name="document_id", description="document the quote is from"),
            ToolParameter(name="quote", description="the passage, word for word"),
            ToolParameter(name="confidence", type="number", description="0 to 1"),
        ),
    ),
    ToolSpec(
        name="finish",
        description="End your reading.",
        parameters=(
            ToolParameter(name="atomic", type="boolean", description="true when the concept is not worth splitting further"),
            ToolParameter(name="reason", description="why, in one sentence"),
        ),
    ),
)
_SPECS = {tool.name: tool for tool in TOOLS}
_TYPES: dict[str, tuple[type, ...]] = {"string": (str,), "number": (int, float), "integer": (int,), "boolean": (bool,)}


def as_data(value: object) -> str:
    """A tool's answer as it is sent to the model."""
    return json.dumps(value, ensure_ascii=False).encode(errors="replace").decode().replace("<", "\\u003c")


@dataclass
class Desk:
    """What one reading has gathered, and its tools."""

    source: SearchSource
    graph: GraphView | None
    opened: dict[str, Document] = field(default_factory=dict)
    queries: list[str] = field(default_factory=list)
    proposals: list[Proposal] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)
    malformed: int = 0
    finished: tuple[bool, str] | None = None

    def answer(self, call: ToolCall) -> str:
        """Execute a call and return what the model reads; a call that is refused is answered with the reason and counted."""
        try:
            return as_data({"material": self._call(call)})
        except AgentError as error:
            self.malformed += 1
            return as_data({"error": str(error)})

    def _call(self, call: ToolCall) -> object:
        spec = _SPECS.get(call.tool)
        if spec is None:
            raise UnknownToolError(f"there is no tool {call.tool!r:.60}", f"use one of: {', '.join(_SPECS)}")
        if call.malformed:
            raise MalformedCallError(f"the call of {call.tool} cannot be read: {call.malformed!r:.60}", "write it as declared")
        declared = {p.name: p for p in spec.parameters}
        for name, value in call.arguments.items():
            if name not in declared:
                raise BadArgumentsError(f"{call.tool} has no argument {name!r:.60}", f"it takes: {', '.join(declared)}")
            kind = declared[name].type
            if not isinstance(value, _TYPES[kind]) or (isinstance(value, bool) and kind != "boolean"):
                raise BadArgumentsError(f"{call.tool}.{name} is not of type {kind}: {value!r:.60}", "pass the declared type")
        if missing := [name for name, p in declared.items() if p.required and name not in call.arguments]:
            raise BadArgumentsError(f"{call.tool} lacks {', '.join(missing)}", "pass every required argument")
        acts: dict[str, Callable[..., object]] = {
            "search": self._search,
            "open": self._open,
            "find_concepts": self._find,
            "neighbourhood": self._around,
            "propose": self._propose,
            "finish": self._finish,
        }
        return acts[call.tool](**call.arguments)

    def _search(self, query: str) -> object:
        if query not in self.queries:
            self.queries.append(query)
        return [{"id": h.document_id, "title": h.title, "snippet": h.snippet} for h in self.source.search(query, _HITS)]

    def _open(self, document_id: str, offset: int = 0) -> object:
        try:
            document = self.source.open(document_id)
        except KeyError as error:
            raise BadArgumentsError(f"there is no document {document_id!r:.60}", "open the id of a hit") from error
        if not 0 <= offset < max(1, len(document.text)):
            raise BadArgumentsError(f"the offset {offset} lies outside the document's {len(document.text)} characters", "begin at 0")
        self.opened[document.document_id] = document
        return {"title": document.title, "characters": len(document.text), "text": document.text[offset : offset + _PAGE]}

    def _find(self, text: str) -> object:
        return [] if self.graph is None else self.graph.find_concepts(text)

    def _around(self, name: str) -> object:
        found = None if self.graph is None else self.graph.neighbourhood(name)
        if found is None:
            raise BadArgumentsError(f"the graph has no concept {name!r:.60}", "find_concepts says what it has")
        return found

    def _propose(self, name: str, relation: str, document_id: str, quote: str, confidence: float) -> object:
        why, fix = self._judge(name, relation, document_id, quote, confidence)
        if why:
            if len(self.refused) < _MAX_REFUSED:
                self.refused.append(Refusal(name[:200], relation[:30], why))
            raise BadArgumentsError(why, fix)
        domain = "coding" if is_qualified(name) else "general"
        self.proposals.append(Proposal(name, relation, float(confidence), (Evidence(document_id, plain(quote)),), domain))
        return "noted"

    def _judge(self, name: str, relation: str, document_id: str, quote: str, confidence: float) -> tuple[str, str]:
        """(why a proposal is refused, what to do), both empty when it stands."""
        if relation not in RELATIONS:
            return f"relation: {relation!r:.30} is none of {', '.join(RELATIONS)}", "use one of them"
        if not 0.0 <= confidence <= 1.0:
            return f"evidence: confidence {confidence} is not within 0 and 1", "pass a number from 0 to 1"
        document = self.opened.get(document_id)
        if document is None:
            return f"evidence: {document_id!r:.60} was not opened", "open the document before you quote it"
        if len(plain(quote)) < _MIN_QUOTE:
            return f"evidence: the quote has fewer than {_MIN_QUOTE} characters", "quote a passage"
        if why := judge_quote(quote, document):
            return why, "copy a passage that states the relation, exactly"
        if not _speaks_of(name, f"{document.title} {quote}"):
            return "evidence: neither the quote nor its document's title speaks of the concept", "quote a passage that names it"
        return "", ""

    def _finish(self, atomic: bool, reason: str) -> object:
        self.finished = (atomic, reason)
        return "ended"


def _speaks_of(name: str, text: str) -> bool:
    """True when the text has one of the name's telling words, or a name without any."""
    words = {singular(w) for w in content(name)} or {name.casefold()}
    said = {singular(w) for w in content(text)} | {text.casefold()}
    return bool(words & said) or any(word in text.casefold() for word in words)
