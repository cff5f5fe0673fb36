"""Renaming demonstrations: consistent, complete, with common words, and in coding with numbers that still compute."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.task import Message, ToolCall
from training import demonstrations
from training.demonstrations import Verified, balanced, lexicon, rename

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
    assert renamed.task_id == LOOKUP.task_id


CODING = Verified(
    "c",
    "search",
    (
        Message(
            role="user",
            content="Documented in `pkg.grid`: size=100. Write solve(n): n, `size` and 22. solve(2) is 222, solve(7) is 722.",
        ),
        call("run_tests", source="def solve(n):\n    return n * 22 + 100"),
        Message(role="tool", tool="run_tests", content="solve(2) is 144, not 222"),
        call("run_tests", source="def solve(n):\n    return n * 100 + 22"),
        Message(role="tool", tool="run_tests", content="all 2 examples pass"),
        call("submit", source="def solve(n):\n    return n * 100 + 22"),
    ),
)


def run(source: str, n: int) -> int:
    space: dict[str, Callable[[int], int]] = {}
    exec(source, space)  # a source of ours
    return space["solve"](n)


@pytest.mark.parametrize("seed", range(5))
def test_numbers_in_code_change_and_every_example_is_computed_anew(seed: int) -> None:
    renamed = rename(CODING, WORDS, random.Random(seed))
    prompt, wrong, answer, right, passed, submit = renamed.messages
    source, tried = str(submit.calls[0].arguments["source"]), str(wrong.calls[0].arguments["source"])
    found = re.fullmatch(r"def solve\(n\):\n    return n \* (\d+) \+ (\d+)", source)
    assert found is not None
    a, b = found.groups()
    assert (a, b) != ("100", "22")
    assert tried == f"def solve(n):\n    return n * {b} + {a}"
    assert right.calls[0].arguments["source"] == source
    assert f"={a}. Write" in prompt.content
    assert f"and {b}. solve(2) is {run(source, 2)}, solve(7) is {run(source, 7)}." in prompt.content
    assert answer.content == f"solve(2) is {run(tried, 2)}, not {run(source, 2)}"
    assert passed.content == "all 2 examples pass"
    assert "`pkg.grid`" not in prompt.content
    assert "`size`" not in prompt.content


@pytest.mark.parametrize("seed", range(30))
def test_numbers_in_code_keep_their_count_of_digits(seed: int) -> None:
    source = str(rename(CODING, WORDS, random.Random(seed)).messages[-1].calls[0].arguments["source"])
    assert [len(number) for number in re.findall(r"\d+", source)] == [3, 2]


def test_renaming_is_decided_by_its_seed() -> None:
    assert rename(LOOKUP, WORDS, random.Random(4)) == rename(LOOKUP, WORDS, random.Random(4)) != rename(LOOKUP, WORDS, random.Random(5))


def test_the_lexicon_holds_words_of_three_to_twelve_letters() -> None:
    assert lexicon(["scipy.optimize.bisect(f, Xtol=2)", "networkx.LadderGraph", "characteristicpolynomial"]) == [
        "LadderGraph",
        "Xtol",
        "bisect",
        "networkx",
        "optimize",
        "scipy",
    ]


def test_the_lexicon_begins_with_what_most_passages_hold_in_whatever_order_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word counts once a passage; ties go to the first in the alphabet."""
    passages = ["zeta tol axis", "axis tol", "axis order", "zeta beta", "rare rare rare rare"]
    assert lexicon(passages) == ["axis", "tol", "zeta", "beta", "order", "rare"]
    assert lexicon(reversed(passages)) == lexicon(passages)
    monkeypatch.setattr(demonstrations, "LEXICON", 4)
    assert lexicon(passages) == ["axis", "tol", "zeta", "beta"]


def test_rare_words_come_up_less_often_than_common_ones_but_do() -> None:
    words = [f"word{chr(97 + i)}" for i in range(20)]
    rng = random.Random(0)
    drawn = [v for _ in range(400) for v in re.findall(r"word[a-t]", rename(LOOKUP, words, rng).messages[1].content)]
    assert set(drawn) == set(words)
    assert 1.5 < sum(w < "wordk" for w in drawn) / sum(w >= "wordk" for w in drawn) < 4.0


def _shown(style: str, count: int, domain: str) -> list[Verified]:
    return [Verified(f"{domain}-{style}-{i}", style, ()) for i in range(count)]


@given(
    counts=st.tuples(*[st.integers(1, 40)] * 3),
    weights=st.tuples(*[st.floats(0.1, 1.0)] * 3),
    copies=st.integers(1, 6),
)
def test_styles_come_in_proportion_to_their_shares(counts: tuple[int, int, int], weights: tuple[float, float, float], copies: int) -> None:
    """Whatever was verified, each style has its share, and nothing is repeated before everything of its style came."""
    pool = [v for style, count in zip(("none", "short", "long"), counts, strict=True) for v in _shown(style, count, "agent")]
    shares = {"agent": dict(zip(("low", "high", "max"), weights, strict=True))}
    out = list(balanced(pool, {v.task_id: "agent" for v in pool}, shares, copies))  # type: ignore[dict-item, arg-type]
    for style, count, weight in zip(("none", "short", "long"), counts, weights, strict=True):
        mine = [(v.task_id, repeats) for v, repeats in out if v.style == style]
        assert abs(len(mine) - copies * len(pool) * weight / sum(weights)) <= 0.5
        assert [repeats for _, repeats in mine] == [i // count for i in range(len(mine))]
        assert len(set(mine)) == len(mine)


def test_domains_are_balanced_apart_and_missing_styles_leave_their_share_to_the_others() -> None:
    pool = [*_shown("none", 4, "agent"), *_shown("long", 2, "agent"), *_shown("guess", 6, "coding")]
    shares = {d: {"low": 0.25, "high": 0.25, "max": 0.5} for d in ("agent", "coding")}
    domain_of = {v.task_id: v.task_id.split("-")[0] for v in pool}
    out = Counter(v.style for v, _ in balanced(pool, domain_of, shares, 2))  # type: ignore[arg-type]
    assert out == {"none": 4, "long": 8, "guess": 12}
