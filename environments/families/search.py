"""Search family: answer a question by searching a corpus and reading its documents."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from environments.environment import Environment
from environments.errors import BadArgumentsError
from environments.protocols import SearchSource
from environments.task import TaskSpec, ToolParameter, ToolSpec


class SearchEnvironment(Environment):
    """Tools: `search` lists titles, `open` shows a document around a word, `record` writes down a value of the answer, `submit`."""

    TOOLS: ClassVar[dict[str, ToolSpec]] = {
        "search": ToolSpec(
            name="search",
            description="Search the documentation. Returns numbered titles.",
            parameters=(ToolParameter(name="query", description="Words or a qualified name."),),
        ),
        "open": ToolSpec(
            name="open",
            description="Show where a word stands in a numbered result of the last search.",
            parameters=(
                ToolParameter(name="result", description="Number of the result."),
                ToolParameter(name="find", description="Word to look for."),
            ),
        ),
        "record": ToolSpec(
            name="record",
            description="Write the next value of the answer down.",
            parameters=(ToolParameter(name="value", description="The value, nothing else."),),
        ),
        "submit": ToolSpec(
            name="submit",
            description="Submit the final answer.",
            parameters=(ToolParameter(name="answer", description="The answer; leave it out to submit what was recorded.", required=False),),
        ),
    }
    RESULTS = 2
    WINDOW_CHARS = 56
    """Characters of text shown around a found word: enough for a clause or three parameters of a signature."""

    def __init__(self, task: TaskSpec, corpus: SearchSource) -> None:
        super().__init__(task)
        self.corpus = corpus
        self.results: list[str] = []
        self.recorded: list[str] = []

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        if tool == "search":
            hits = self.corpus.search(arguments["query"], self.RESULTS)
            self.results = [h.document_id for h in hits]
            return "\n".join(f"{i} {short_title(h.title)}" for i, h in enumerate(hits, 1)) or "nothing found"
        if tool == "open":
            number = arguments["result"].strip()
            if not re.fullmatch(r"[0-9]{1,3}", number) or not 1 <= int(number) <= len(self.results):
                return f"no result {number[:20]}"
            text = self.corpus.open(self.results[int(number) - 1]).text
            return excerpt(text, arguments["find"], self.WINDOW_CHARS)
        if tool == "record":
            self.recorded.append(arguments["value"])
            return "recorded"
        if "answer" not in arguments and not self.recorded:
            raise BadArgumentsError("submit lacks answer, and nothing was recorded", "pass the answer, or record its values first")
        self.outcome.submission = arguments.get("answer", ",".join(self.recorded))
        return "submitted"


def short_title(title: str) -> str:
    """The last two parts of a qualified name; other titles whole."""
    return title if " " in title else ".".join(title.split(".")[-2:])


def excerpt(text: str, word: str, window_chars: int) -> str:
    """The text around the first whole-word occurrence of `word`, cut at spaces where possible, without quotation marks."""
    match = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) if word else None
    if match is None:
        return "not found"
    start = max(0, match.start() - window_chars // 2)
    end = min(len(text), match.end() + window_chars // 2)
    if start and (space := text.find(" ", start, match.start())) >= 0:
        start = space + 1
    if end < len(text) and (space := text.rfind(" ", match.end(), end)) >= 0:
        end = space
    return re.sub(r"['\"`]", "", " ".join(text[start:end].split()))
