"""Token in, token out: what was sampled is trained on once, verbatim, whatever the context management forks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.families import make_environment
from environments.harness.config import ContextModule, HarnessConfig, SubagentModule, ToolModule
from environments.harness.context import SUMMARY_REQUEST, Keep
from environments.harness.episode import Episode
from environments.harness.history import TokenHistory
from environments.harness.tokens import TokenEpisode
from environments.harness.xtml import Xtml
from environments.protocols import GenerateRequest, Generation
from environments.resources import Resources
from environments.task import Budgets, Message, ToolCall
from environments.trace import Segment
from environments.vault import Vault
from tests.environments.harness.test_xtml import TOKENIZER
from tests.environments.small_tasks import make_resources, message, settings_task
from training.tokenizer import XtmlTokenizer

BUDGETS = Budgets(steps=60, output_tokens=50_000, wall_s=60, submissions=1)


class Lossy(XtmlTokenizer):
    """Loses on decoding what it cannot get back: runs of spaces become one."""

    def __init__(self) -> None:
        super().__init__(TOKENIZER._bpe, list(TOKENIZER.elements))

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(super().decode(ids).split(" ")) if "  " not in super().decode(ids) else " ".join(super().decode(ids).split())


CODEC = Xtml(Lossy())


def spelled(said: Message) -> list[int]:
    """A body as no encoder would write it: letter by letter where a tokenizer would join, and with doubled spaces."""
    return [
        piece
        for token in CODEC.assistant_body(said)
        for piece in (
            [token]
            if token in CODEC.structure.names
            else [i for letter in TOKENIZER.decode([token]).replace(" ", "  ") for i in TOKENIZER.encode(letter)]
        )
    ]


@pytest.fixture
def resources(tmp_path: Path) -> Iterator[Resources]:
    with make_resources(Vault(tmp_path / "vault")) as made:
        yield made


def generation(request: GenerateRequest, tokens: list[int], version: int = 0, finish: str = "stop") -> Generation:
    return Generation(request.request_id, tokens, [-0.25] * len(tokens), [version] * len(tokens), finish)


def play(
    resources: Resources, harness: HarnessConfig, say: Callable[[GenerateRequest, int], Message], window: int
) -> tuple[TokenEpisode, list[list[int]]]:
    """Feed spelled bodies until the episode ends; returns it and what was sampled, turn by turn."""
    episode = Episode(make_environment(settings_task(resources.vault, budgets=BUDGETS), resources), harness)
    tokens = TokenEpisode("t", 7, episode, CODEC, window)
    tokens.start()
    sampled: list[list[int]] = []
    while requests := tokens.requests():
        for request in requests:
            assert len(request.prefix) + request.max_new_tokens <= window
            body = spelled(say(request, len(sampled)))
            sampled.append(body)
            tokens.feed(generation(request, body, version=len(sampled)))
    return tokens, sampled


def trained(segments: Sequence[Segment]) -> list[int]:
    return [t for s in segments for t, m in zip(s.tokens, s.loss_mask, strict=True) if m]


def shape(segment: Segment) -> bool:
    return len(segment.tokens) == len(segment.logprobs) == len(segment.versions) == len(segment.loss_mask)


def says(summary: str = "width is 70") -> Callable[[GenerateRequest, int], Message]:
    def say(request: GenerateRequest, turn: int) -> Message:
        if SUMMARY_REQUEST in CODEC.transcript(list(request.prefix)[-400:]):
            return Message(role="assistant", content=summary)
        if turn < 18:
            return Message(role="assistant", thinking=f"look at  it {turn}", calls=(ToolCall(tool="get", arguments={"title": "width"}),))
        return message("submit")

    return say


@pytest.mark.parametrize(
    "module",
    [
        ContextModule(),
        ContextModule(strategy="drop_oldest"),
        ContextModule(strategy="drop_all"),
        ContextModule(strategy="summarise", reasoning="until_user"),
    ],
    ids=lambda m: m.strategy,
)
def test_sampled_tokens_are_kept_verbatim_and_each_carries_loss_once(module: ContextModule, resources: Resources) -> None:
    tools = ToolModule(declaration="names")
    window = 4000 if module.strategy == "keep_all" else 1500
    tokens, sampled = play(resources, HarnessConfig(name="h", tools=tools, context=module), says(), window)
    assert tokens.episode.stop == "submitted"
    segments, _ = tokens.trace_parts()
    assert (len(segments) > 1) == (module.strategy != "keep_all")
    assert all(map(shape, segments))
    assert trained(segments) == [t for body in sampled for t in body]
    assert tokens.output_tokens == sum(map(len, sampled))
    versions = [v for s in segments for v, m in zip(s.versions, s.loss_mask, strict=True) if m]
    assert versions == [i for i, body in enumerate(sampled, 1) for _ in body]
    for segment in segments:
        columns = zip(segment.versions, segment.logprobs, segment.loss_mask, strict=True)
        assert all((v == -1 and lp == 0.0) != bool(m) for v, lp, m in columns)
    assert [s.parent_id for s in segments] == [None, *range(len(segments) - 1)]
    assert [s.fork for s in segments] == ["root"] + ["context"] * (len(segments) - 1)
    # It is no accident of this tokenizer: encoding what it decodes gives other tokens.
    assert any(CODEC.tokenizer.encode(CODEC.tokenizer.decode(body)) != body for body in sampled)


def test_a_fork_keeps_the_exact_tokens_of_what_stays(resources: Resources) -> None:
    harness = HarnessConfig(name="h", tools=ToolModule(declaration="names"), context=ContextModule(strategy="drop_all"))
    tokens, sampled = play(resources, harness, says(), 1500)
    first, second = tokens.trace_parts()[0][:2]
    inside = [body for body in sampled if _contains(first.tokens, body)]
    assert len(inside) > 3
    assert all(_contains(second.tokens, body) for body in inside)


def _contains(tokens: Sequence[int], body: list[int]) -> bool:
    return any(list(tokens[i : i + len(body)]) == body for i in range(len(tokens) - len(body) + 1))


def test_forgetting_reasoning_takes_its_tokens_and_no_others() -> None:
    history = TokenHistory(CODEC)
    history.observe(Message(role="user", content="go"))
    history.open_turn()
    body = spelled(Message(role="assistant", thinking="think  hard", content="said"))
    history.sample(Generation("r", body, [-1.0] * len(body), [3] * len(body), "stop"))
    before = list(history.tokens)
    history.fork([Keep(0), Keep(1, thinking=False)])
    cut = CODEC.thinking_length(body)
    assert list(history.tokens) == [*before[: len(before) - len(body)], *body[cut:]]
    assert trained(history.segments()) == body


def test_positions_never_repeat_within_a_conversation(resources: Resources) -> None:
    keys: list[tuple[int, int]] = []

    def say(request: GenerateRequest, turn: int) -> Message:
        keys.append(request.key)
        return says()(request, turn)

    harness = HarnessConfig(name="h", tools=ToolModule(declaration="names"), context=ContextModule(strategy="drop_oldest"))
    play(resources, harness, say, 1500)
    positions = [position for _, position in keys]
    assert positions == sorted(set(positions))
    assert {seed for seed, _ in keys} == {7}


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.text("ab  c", max_size=8)), min_size=1, max_size=8), st.data())
def test_any_plan_conserves_what_carries_loss(said: list[tuple[bool, str]], data: Any) -> None:
    history = TokenHistory(CODEC)
    everything: list[int] = []
    for sampled, words in said:
        if sampled:
            history.open_turn()
            body = spelled(Message(role="assistant", thinking=words, content=words))
            everything += body
            history.sample(Generation("r", body, [-1.0] * len(body), [0] * len(body), "stop"))
        else:
            history.observe(Message(role="user", content=words))
        indices = data.draw(st.lists(st.integers(0, len(history.entries) - 1), unique=True).map(sorted))
        if data.draw(st.booleans()):
            history.fork([Keep(i, data.draw(st.booleans())) for i in indices] + [Message(role="user", content="new")])
    segments = history.segments()
    assert trained(segments) == everything
    assert all(map(shape, segments))


# --- malformed calls, token by token ---


@pytest.mark.parametrize("style", ["native", "json", "fence"])
def test_tokens_of_refused_calls_are_marked_and_no_others(style: Any, resources: Resources) -> None:
    good, bad = ToolCall(tool="get", arguments={"name": "width"}), ToolCall(tool="gett", arguments={"name": "width"}, index=1)
    if style == "native":
        said = Message(role="assistant", content="both", calls=(good, bad))
    else:
        from environments.harness.interfaces import TEXT_STYLES

        write = TEXT_STYLES[style].write
        said = Message(role="assistant", content=f"both\n{write(good)}\nand\n{write(bad)}\nnow")
    episode = Episode(
        make_environment(settings_task(resources.vault, budgets=BUDGETS), resources),
        HarnessConfig(name="h", tools=ToolModule(interface=style)),
    )
    tokens = TokenEpisode("t", 7, episode, Xtml(TOKENIZER), 10_000)
    tokens.start()
    (request,) = tokens.requests()
    body = Xtml(TOKENIZER).assistant_body(said)
    tokens.feed(generation(request, body))
    ((segment,), _) = tokens.trace_parts()
    assert segment.malformed is not None
    assert episode.malformed == 1
    marked = Xtml(TOKENIZER).transcript([t for t, h in zip(segment.tokens, segment.malformed, strict=True) if h])
    assert "gett" in marked
    assert "both" not in marked
    assert "and" not in marked.replace("command", "")
    assert marked.count("width") == 1


# --- sub-agents ---


def test_sub_agents_work_in_parallel_within_their_own_budgets(resources: Resources) -> None:
    harness = HarnessConfig(
        name="h",
        tools=ToolModule(declaration="names"),
        subagents=SubagentModule(max_parallel=3, max_total=3, steps=3, output_tokens=2000),
    )
    waves: list[list[str]] = []

    def say(request: GenerateRequest, turn: int) -> Message:
        text = CODEC.transcript(list(request.prefix))
        who = request.request_id.partition("#")[2]
        if not who:
            results = "stopped: steps" in text
            return message("submit") if results else message("delegate", prompts=["read width", "loop for ever", "submit it"])
        if who == "2" or (who == "1" and "70" not in text):
            return message("get", name="width")
        if who == "3" and "cannot submit" not in text:
            return message("submit")
        return Message(role="assistant", content="it is 70" if who == "1" else "could not")

    episode = Episode(make_environment(settings_task(resources.vault, budgets=BUDGETS), resources), harness)
    tokens = TokenEpisode("t", 7, episode, CODEC, 8000)
    tokens.start()
    while requests := tokens.requests():
        waves.append([r.request_id for r in requests])
        for request in requests:
            tokens.feed(generation(request, CODEC.assistant_body(say(request, 0))))
    assert waves[1] == ["t#1", "t#2", "t#3"]  # at the same time
    assert (episode.stop, episode.steps) == ("submitted", 2)
    segments, subagents = tokens.trace_parts()
    assert [(s.fork, s.parent_id) for s in segments] == [("root", None)] + [("subagent", 0)] * 3
    assert [(s.prompt, s.stop, s.finished, s.steps, s.result) for s in subagents] == [
        ("read width", "finished", True, 2, "it is 70"),
        ("loop for ever", "steps", False, 3, ""),
        ("submit it", "finished", True, 2, "could not"),
    ]
    (answer,) = [m for m in episode.messages if m.tool == "delegate"]
    assert answer.content == "1. it is 70\n2. [stopped: steps] \n3. could not"
    assert not episode.environment.submitted or episode.environment.submissions == 1
    keys = {s.segment_id for s in segments}
    assert keys == {0, 1, 2, 3}


@pytest.mark.parametrize(
    ("prompts", "told"),
    [([], "0 prompts"), (["a"] * 4, "at most 3 at a time and 4 in all"), ([1], "one that is no text"), ("a", "takes prompts (array)")],
)
def test_bad_delegations_are_refused(prompts: Any, told: str, resources: Resources) -> None:
    harness = HarnessConfig(name="h", subagents=SubagentModule(max_parallel=3, max_total=4))
    episode = Episode(make_environment(settings_task(resources.vault, budgets=BUDGETS), resources), harness)
    episode.start()
    (answer,) = episode.act(message("delegate", prompts=prompts))
    assert told in answer.content
    assert len(episode.conversations) == 1


# --- long transcripts ---


class Counting(Xtml):
    """Counts what it encodes."""

    encoded = 0

    def encode(self, message: Message, thinking: bool = True) -> list[int]:
        ids = super().encode(message, thinking)
        self.encoded += len(ids)
        return ids


@pytest.mark.slow
@pytest.mark.parametrize("window", [2_000_000, 60_000], ids=["one context", "many forks"])
def test_a_million_tokens_and_five_thousand_calls_in_linear_time_and_bounded_memory(window: int, resources: Resources) -> None:
    """Counts work instead of seconds: what is encoded and what forks copy stay in proportion to the transcript."""
    turns, text = 5000, "word " * 50
    harness = HarnessConfig(name="h", tools=ToolModule(declaration="names"), context=ContextModule(strategy="summarise"))
    budgets = Budgets(steps=2 * turns, output_tokens=10**8, wall_s=600, submissions=1)
    episode = Episode(make_environment(settings_task(resources.vault, budgets=budgets), resources), harness)
    codec = Counting(TOKENIZER)
    tokens = TokenEpisode("t", 7, episode, codec, window)
    tokens.start()
    body = codec.assistant_body(Message(role="assistant", thinking=text, calls=(ToolCall(tool="get", arguments={"name": "width"}),)))
    summary = codec.assistant_body(Message(role="assistant", content="so far so good"))
    said = 0
    while len(episode.records) < turns:
        (request,) = tokens.requests()
        asked = episode.main.summarising
        said += len(summary if asked else body)
        tokens.feed(generation(request, summary if asked else body))
    assert len(episode.records) == turns
    segments, _ = tokens.trace_parts()
    assert (len(segments) > 10) == (window == 60_000)
    assert sum(sum(s.loss_mask) for s in segments) == said == tokens.output_tokens >= 1_000_000
    held = sum(len(s.tokens) for s in segments)
    assert held <= 1.2 * (said + codec.encoded)  # forks copy the opening and the summary, not what they leave behind
    assert codec.encoded <= 0.2 * said + 60 * len(segments)  # each observation once
    assert all(len(s.tokens) <= window for s in segments)
    history = tokens.histories[0]
    columns = (history.tokens, history.logprobs, history.versions, history.mask, history.malformed)
    assert sum(c.itemsize * len(c) for c in columns) <= 20 * len(history)
