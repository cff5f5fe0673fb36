"""Search tasks over prose: as the search family, with more results and a page's worth of text around a found word."""

from __future__ import annotations

from typing import Any, ClassVar

from environments.environment import Environment
from environments.errors import BadArgumentsError
from environments.families.search import excerpt, short_title
from environments.protocols import SearchSource
from environments.task import TaskSpec, ToolParameter, ToolSpec


class ReadingEnvironment(Environment):
    """Tools: `search` lists titles with snippets, `read` shows a document's text around a word, `submit`."""

    TOOLS: ClassVar[dict[str, ToolSpec]] = {
        "search": ToolSpec(
            name="search",
            description="Search the documentation. Returns numbered titles.",
            parameters=(ToolParameter(name="query", description="Words or a name."),),
        ),
        "read": ToolSpec(
            name="read",
            description="Read a numbered result of the last search: its beginning, or the text around a word.",
            parameters=(
                ToolParameter(name="result", description="Number of the result."),
                ToolParameter(name="find", description="Word to look for.", required=False),
            ),
        ),
        "submit": ToolSpec(
            name="submit",
            description="Submit the final answer.",
            parameters=(ToolParameter(name="answer", description="The answer, in the form that the task asks for."),),
        ),
    }
    RESULTS = 6
    WINDOW_CHARS = 1_500

    def __init__(self, task: TaskSpec, corpus: SearchSource) -> None:
        super().__init__(task)
        self.corpus = corpus
        self.results: list[str] = []

    def call(self, tool: str, arguments: dict[str, Any]) -> str:
        if tool == "search":
            hits = self.corpus.search(arguments["query"], self.RESULTS)
            self.results = [h.document_id for h in hits]
            return "\n".join(f"{i} {short_title(h.title)}" for i, h in enumerate(hits, 1)) or "nothing found"
        if tool == "read":
            number = arguments["result"].strip()
            if not (number.isascii() and number.isdigit() and len(number) < 4) or not 1 <= int(number) <= len(self.results):
                raise BadArgumentsError(f"there is no result {number:.20}", f"name one of the last search's {len(self.results)}")
            text = self.corpus.open(self.results[int(number) - 1]).text
            find = arguments.get("find", "")
            return excerpt(text, find, self.WINDOW_CHARS) if find else " ".join(text[: self.WINDOW_CHARS].split())
        self.outcome.submission = arguments["answer"]
        return "submitted"
