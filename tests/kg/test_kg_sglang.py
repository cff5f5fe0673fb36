"""A real language model behind the real sglang server on a CPU: the plumbing of the agent's path, not its quality.

135 million parameters write no call of their own accord, so a grammar holds SmolLM2 to the shape of calls; the names it
proposes and the reasons it gives are its own words. Not covered: a model that chooses its calls well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from environments.errors import MissingDependencyError
from environments.policies import OpenAIChatPolicy
from environments.search import Corpus
from kg import GraphConfig, LanguageModelBrain, grow
from kg.brain import BrainConfig, make_brain
from kg.budget import Ledger
from training.sglang_cpu import SglangServer, launch, server_python

from .smollm2 import write_model

pytestmark = [pytest.mark.slow, pytest.mark.sglang, pytest.mark.timeout(1800)]

QUOTE = "A sorting technique in which"
WORDS = "[a-z]{3,9}"


def call(tool: str, arguments: str) -> str:
    """A regular expression for one call, as the json style writes it."""
    return rf'<tool_call>\{{"name": "{tool}", "arguments": \{{{arguments}\}}\}}</tool_call>'


SHAPE = "".join(
    [
        call("search", f'"query": "{WORDS}"'),
        call("find_concepts", f'"text": "{WORDS}"'),
        call("open", '"document_id": "d1"'),
        call(
            "propose",
            f'"name": "{WORDS} sort", "relation": "narrower", "document_id": "d1", "quote": "{re.escape(QUOTE)}", "confidence": 0\\.[5-9]',
        ),
        call("finish", '"atomic": (true|false), "reason": "[a-z ]{10,20}"'),
    ]
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    model = tmp_path_factory.mktemp("smollm2")
    try:
        server_python()
        write_model(model)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    with launch(model, log_path=tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


def test_a_few_nodes_grow(server: SglangServer, tiny: Corpus) -> None:
    policy = OpenAIChatPolicy(
        f"{server.url}/v1", "smollm2", temperature=0.8, max_tokens=256, timeout_s=500, extra_body={"regex": SHAPE, "sampling_seed": 3}
    )
    brain = LanguageModelBrain(policy, max_steps=3, interface="json", parallel=2)
    ledger = Ledger()
    graph = grow(("sorting",), tiny, brain, GraphConfig(max_nodes=3, max_level=2), ledger=ledger)
    assert 2 <= len(graph) <= 3
    read = [c for c in graph if c.agent]
    assert read
    assert {c.agent for c in read} == {"language-model:smollm2"}
    assert all(c.queries and c.reason for c in read)
    found = [c for c in graph if not c.seed]
    assert all(c.name.endswith(" sort") and [p.quote for p in c.evidence] == [QUOTE] for c in found)
    assert ledger.tokens > 200 * len(read)  # The endpoint counted prompt and answer.
    assert ledger.searches >= len(read)
    assert ledger.stops or graph.frontier() == []


def test_without_a_grammar_it_is_a_typed_outcome(server: SglangServer, tiny: Corpus) -> None:
    config = BrainConfig(
        kind="language-model",
        endpoint=f"{server.url}/v1",
        model="smollm2",
        max_steps=2,
        max_malformed=2,
        max_answer_tokens=48,
        temperature=0,
        timeout_s=500,
    )
    ledger = Ledger()
    graph = grow(("sorting",), tiny, make_brain(config), ledger=ledger)
    (seed,) = graph
    assert re.match(r"failed: (2 malformed calls or turns without one|no finish within 2 steps)$|agent: ", seed.reason)
    assert seed.open == seed.reason.startswith("failed")
    assert (ledger.readings, ledger.tokens > 0) == (1, True)
