"""Message-level episodes: any policy that answers messages, judged like the token-level ones."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from environments.errors import InfrastructureError
from environments.families import make_environment
from environments.harness.config import ENDPOINT, HarnessConfig
from environments.harness.episode import Conversation, Episode
from environments.harness.interfaces import CARRIER
from environments.harness.tokens import subagent_record
from environments.protocols import MessagePolicy
from environments.resources import Resources
from environments.task import Effort, Message, TaskSpec
from environments.trace import Segment, StopReason, Trace
from environments.verdict import Verdict
from environments.verifiers import judge

CHARS_PER_TOKEN = 4
"""For want of an endpoint's tokenizer: a rough size, for context management and effort, never trained on."""


def run_messages(
    policy: MessagePolicy,
    task: TaskSpec,
    resources: Resources,
    harness: HarnessConfig = ENDPOINT,
    effort: Effort | None = None,
    *,
    window: int = 128_000,
) -> Trace:
    """Run one whole episode and judge it.

    An infrastructure failure of the environment or of the verifier's sandbox gives a trace without a verdict; one of the
    policy (a dead endpoint) raises EngineError, since another attempt elsewhere may succeed.

    Args:
        window: tokens that the policy can hold, for context management.
    """
    started = time.monotonic()
    episode = open_episode(task, resources, harness, effort)
    with episode:  # closes its sandbox when the policy raises
        generate_s = drive(episode, policy, window)
        before = time.monotonic()
        stop, verdict = conclude(episode, resources)
    main, *children = episode.conversations
    return Trace(
        trajectory_id=uuid.uuid4().hex[:16],
        task_id=task.task_id,
        domain=task.domain,
        effort=effort,
        harness_sha256=harness.sha256,
        policy=policy.name,
        trainable=False,
        segments=(
            Segment(messages=tuple(main.messages)),
            *(Segment(segment_id=c.conversation_id, parent_id=0, fork="subagent", messages=tuple(c.messages)) for c in children),
        ),
        tool_records=tuple(episode.records),
        stop=stop,
        output_tokens=sum(c.output_tokens for c in episode.conversations),
        thinking_tokens=sum(len(m.thinking) for c in episode.conversations for m in c.messages) // CHARS_PER_TOKEN,
        malformed_calls=episode.malformed,
        subagents=tuple(subagent_record(c, c.conversation_id) for c in children),
        timings={
            "generate": generate_s,
            "environment": episode.environment_s,
            "verify": time.monotonic() - before,
            "total": time.monotonic() - started,
        },
        verdict=verdict,
    )


def open_episode(
    task: TaskSpec,
    resources: Resources,
    harness: HarnessConfig,
    effort: Effort | None = None,
    extra_tools: Sequence[str] = (),
) -> Episode:
    """A started episode of `task` under `harness`, in an environment that offers what the harness calls through, and `extra_tools`."""
    environment = make_environment(task, resources, extra_tools, CARRIER.get(harness.tools.interface))
    transport = None
    if harness.tools.transport == "mcp":
        from environments.mcp.transport import McpTransport  # takes half a second to import

        transport = McpTransport.over(environment)
    episode = Episode(environment, harness, effort, resources.memory, transport)
    episode.start()
    return episode


def drive(episode: Episode, policy: MessagePolicy, window: int) -> float:
    """Play an episode to its end; sub-agents speak at the same time. Returns the seconds that the policy took, summed."""
    native = episode.harness.tools.interface == "native"
    sizes: dict[int, int] = {}
    """Characters by conversation."""
    seen: dict[int, int] = {}
    """Messages that they count."""
    spent = 0.0

    def ask(who: Conversation) -> tuple[Message, float]:
        before = time.monotonic()
        message = policy.reply(who.messages, who.tools if native else ())
        return message, time.monotonic() - before

    def prepare(who: Conversation) -> None:
        i = who.conversation_id
        if any(not isinstance(edit, Message) for edit in who.take()):
            sizes[i] = seen[i] = 0
        sizes[i] = sizes.get(i, 0) + sum(map(characters, who.messages[seen.get(i, 0) :]))
        seen[i] = len(who.messages)
        episode.manage(who, sizes[i] // CHARS_PER_TOKEN, window)

    def answer(who: Conversation, message: Message) -> None:
        who.output_tokens += characters(message) // CHARS_PER_TOKEN
        if who.conversation_id and who.output_tokens > who.output_budget:  # the main agent's is in tokens that are not counted here
            who.messages.append(message)
            episode.end("output_tokens", who)
        else:
            episode.act(message, who)

    while waiting := episode.waiting():
        for who in waiting:
            prepare(who)
        if len(waiting) == 1:
            message, took = ask(waiting[0])
            spent += took
            answer(waiting[0], message)
            continue
        with ThreadPoolExecutor(len(waiting)) as threads:
            for who, (message, took) in zip(waiting, threads.map(ask, waiting), strict=True):
                spent += took
                if episode.stop is None:
                    answer(who, message)
    return spent


def conclude(episode: Episode, resources: Resources) -> tuple[StopReason, Verdict | None]:
    """End an episode and judge what it leaves; a machine part that fails leaves no verdict."""
    outcome = episode.finalize()
    assert episode.stop is not None
    if episode.stop != "infrastructure":
        try:
            return episode.stop, judge(episode.task, outcome, resources)
        except InfrastructureError as error:
            episode.failure = str(error)
    return "infrastructure", None


def characters(message: Message) -> int:
    """What of a message takes room."""
    count = len(message.content) + len(message.thinking)
    for call in message.calls:
        count += len(call.tool) + len(str(call.arguments))
    return count
