"""Renaming demonstrations: consistent, complete, and never with words of held-out tasks."""

from __future__ import annotations

import random
import re

from environments.task import Message, ToolCall
from training.demonstrations import Verified, lexicon, rename

WORDS = [f"word{c}" for c in "abcdefgh"]


def call(tool: str, thinking: str = "", **arguments: str) -> Message:
    return Message(role="assistant", thinking=thinking, calls=(ToolCall(tool=tool, arguments=dict(arguments)),))


LOOKUP = Verified(
    "t",
    "long",
    (
        Message(role="system", content="search open submit"),
        Message(role="user", content="What are the defaults of `xtol` and `max_iter` of `scipy.optimize.find_root`?"),
        call("search", query="scipy.optimize.find_root"),
        Message(role="tool", tool="search", content="1 optimize.find_root\n2 scipy.optimize"),
        call("open", result="1", find="xtol"),
        Message(role="tool", tool="open", content="find_root(f, xtol=2e-12, max_iter=100, disp=True)"),
        call("submit", "xtol=2e-12;max_iter=100", answer="2e-12,100"),
    ),
    (),
)


def text(verified: Verified) -> str:
    return "\n".join(" ".join([m.content, m.thinking, *(str(v) for c in m.calls for v in c.arguments.values())]) for m in verified.messages)


def test_names_and_values_change_everywhere_in_the_same_way() -> None:
    renamed = rename(LOOKUP, WORDS, random.Random(1))
    whole = text(renamed)
    for old in ("xtol", "iter", "scipy", "optimize", "root", "2e-12"):
        assert not re.search(rf"(?<![A-Za-z]){re.escape(old)}(?![A-Za-z])", whole), old
    messages = renamed.messages
    asked = re.findall(r"`([^`]+)`", messages[1].content)
    assert messages[2].calls[0].arguments["query"] == asked[2]
    assert messages[4].calls[0].arguments == {"result": "1", "find": asked[0]}
    first, second = messages[6].calls[0].arguments["answer"].split(",")
    assert f"{asked[0]}={first}" in messages[5].content
    assert f"{asked[1]}={second}" in messages[5].content
    assert messages[6].thinking == f"{asked[0]}={first};{asked[1]}={second}"
    assert messages[3].content.startswith("1 ")
    assert "\n2 " in messages[3].content


def test_tools_structure_and_failed_tries_stay() -> None:
    renamed = rename(LOOKUP, WORDS, random.Random(2))
    assert renamed.messages[0] == LOOKUP.messages[0]
    assert [[c.tool for c in m.calls] for m in renamed.messages] == [[c.tool for c in m.calls] for m in LOOKUP.messages]
    assert renamed.masked == LOOKUP.masked
    assert renamed.task_id == LOOKUP.task_id


def test_numbers_in_code_stay_since_results_depend_on_them() -> None:
    coding = Verified(
        "c",
        "tries0",
        (
            Message(
                role="user",
                content="Documented in `pkg.grid`: size=100. Write solve(n) from n, the default `size` and 22. solve(2) is 222.",
            ),
            call("submit", source="def solve(n):\n    return n * 100 + 22"),
        ),
        (),
    )
    renamed = rename(coding, WORDS, random.Random(3))
    assert renamed.messages[1] == coding.messages[1]
    assert "100" in renamed.messages[0].content
    assert "`pkg.grid`" not in renamed.messages[0].content


def test_the_lexicon_avoids_words_of_held_out_prompts() -> None:
    words = lexicon(["scipy.optimize.bisect", "a sentence is no name", "networkx.ladder_graph"], ["Look up `k` of `networkx.pagerank`."])
    assert words == ["bisect", "graph", "ladder", "optimize", "scipy"]
