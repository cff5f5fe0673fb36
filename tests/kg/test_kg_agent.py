from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from environments.errors import EngineError
from environments.protocols import Brain
from environments.search import Corpus
from environments.task import Message, ToolCall, ToolSpec
from kg import LanguageModelBrain, grow

Script = list[tuple[str, dict[str, Any]] | str]


class Scripted:
    """A message policy that plays a script; it keeps the messages it was shown."""

    name = "scripted"

    def __init__(self, script: Script | Callable[[Sequence[Message]], Message]) -> None:
        self.script = script
        self.seen: list[Message] = []

    def reply(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Message:
        self.seen = list(messages)
        if callable(self.script):
            return self.script(messages)
        turn = sum(m.role == "assistant" for m in messages)
        step = self.script[turn] if turn < len(self.script) else ("finish", {"atomic": False, "reason": "script over"})
        if isinstance(step, str):
            return Message(role="assistant", content=step)
        return Message(role="assistant", calls=(ToolCall(tool=step[0], arguments=step[1]),))


def proposing(name: str, document: str, quote: str, relation: str = "narrower", confidence: float = 0.8) -> tuple[str, dict[str, Any]]:
    return "propose", {"name": name, "relation": relation, "document_id": document, "quote": quote, "confidence": confidence}


QUOTE = "A sorting technique in which pairs of adjacent values are compared."
FINISH: tuple[str, dict[str, Any]] = ("finish", {"atomic": True, "reason": "done"})


def test_an_agent_searches_opens_and_proposes(tiny: Corpus) -> None:
    script: Script = [
        ("search", {"query": "sorting technique"}),
        ("open", {"document_id": "d1"}),
        proposing("bubble sort", "d1", QUOTE),
        FINISH,
    ]
    brain: Brain = LanguageModelBrain(Scripted(script))
    reading = brain.read("sorting", ("algorithms",), tiny)
    (proposal,) = reading.proposals
    assert (proposal.name, proposal.relation, proposal.confidence) == ("bubble sort", "narrower", 0.8)
    assert proposal.evidence[0].quote == QUOTE
    assert reading.queries == ("sorting technique",)
    assert reading.documents == ("d1",)
    assert not reading.atomic  # It proposed something narrower, whatever it says.
    assert reading.reason == "done"


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ([proposing("bubble sort", "d1", QUOTE)], "not opened"),
        ([("open", {"document_id": "d1"}), proposing("bubble sort", "d1", "words that the page does not say")], "does not stand"),
        ([("open", {"document_id": "d1"}), proposing("bubble sort", "d1", "A")], "does not stand"),
        ([("open", {"document_id": "d1"}), proposing("bubble sort", "d1", QUOTE, "sideways")], "unknown"),
        ([("open", {"document_id": "d1"}), proposing("bubble sort", "d1", QUOTE, confidence=7.0)], "not within"),
        ([("open", {"document_id": "nothing"})], "no document"),
        ([("open", {"document_id": 3})], "not of type string"),
        ([("search", {"query": "x", "limit": 3})], "takes exactly"),
        ([("finish", {"atomic": "yes", "reason": "x"})], "not of type boolean"),
        ([("rm", {"path": "/"})], "no tool"),
    ],
)
def test_bad_calls_are_answered_and_change_nothing(tiny: Corpus, script: Script, error: str) -> None:
    policy = Scripted([*script, FINISH])
    reading = LanguageModelBrain(policy).read("sorting", (), tiny)
    assert reading.proposals == ()
    answers = [json.loads(m.content) for m in policy.seen if m.role == "tool"]
    assert error in answers[-1]["error"]
    assert reading.atomic
    assert reading.reason == "done"


def test_garbage_gives_a_failed_node_and_growth_goes_on(tiny: Corpus) -> None:
    def play(messages: Sequence[Message]) -> Message:
        concept = json.loads(messages[1].content)["concept"]
        scripts: dict[str, Script] = {
            "sorting": [("open", {"document_id": "d1"}), proposing("bubble sort", "d1", QUOTE), proposing("heap", "d1", QUOTE), FINISH],
            "bubble sort": ["half a { json", "what?", "lorem", "ipsum"],
            "heap": [FINISH],
        }
        return Scripted(scripts[concept]).reply(messages, ())

    graph = grow(("sorting",), tiny, LanguageModelBrain(Scripted(play)))
    concepts = {c.name: c for c in graph}
    assert set(concepts) == {"sorting", "bubble sort", "heap"}
    assert concepts["bubble sort"].reason == "failed: 4 malformed calls or turns without one"
    assert concepts["heap"].atomic
    assert concepts["heap"].agent == "language-model:scripted"
    assert concepts["bubble sort"].evidence[0].quote == QUOTE


def test_a_policy_that_raises_or_never_ends_is_a_failed_reading(tiny: Corpus) -> None:
    def broken(messages: Sequence[Message]) -> Message:
        raise ValueError("not json")

    assert LanguageModelBrain(Scripted(broken)).read("sorting", (), tiny).reason == "failed: the policy answered garbage (ValueError)"
    endless = Scripted(lambda messages: Message(role="assistant", calls=(ToolCall(tool="search", arguments={"query": "sorting"}),)))
    assert LanguageModelBrain(endless, max_steps=5).read("sorting", (), tiny).reason == "failed: no finish within 5 steps"


def test_a_dead_endpoint_leaves_the_node_open(tiny: Corpus) -> None:
    def dead(messages: Sequence[Message]) -> Message:
        raise EngineError("connection refused", "start the server")

    with pytest.raises(EngineError):
        LanguageModelBrain(Scripted(dead)).read("sorting", (), tiny)
    graph = grow(("sorting",), tiny, LanguageModelBrain(Scripted(dead)))
    assert graph.frontier() == graph.seeds()
    assert "EngineError" in graph.concept(graph.seeds()[0]).reason


def test_retrieved_text_stays_data(tiny: Corpus) -> None:
    """A page that says "ignore your instructions" reaches the agent as a JSON string in a tool message, nowhere else.

    What this does not cover: whether a given model obeys such a page; it then still needs a quote that the page contains.
    """
    policy = Scripted([("open", {"document_id": "d3"}), FINISH])
    LanguageModelBrain(policy).read("sorting", (), tiny)
    holders = [m for m in policy.seen if "Ignore your instructions" in m.content]
    assert [m.role for m in holders] == ["tool"]
    assert "PWNED" in json.loads(holders[0].content)["text"]
