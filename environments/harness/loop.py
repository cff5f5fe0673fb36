"""Message-level episodes: any policy that answers messages, judged like the token-level ones."""

from __future__ import annotations

import time
import uuid

from environments.errors import InfrastructureError
from environments.families import make_environment
from environments.harness.config import ENDPOINT, HarnessConfig
from environments.harness.episode import Episode
from environments.protocols import MessagePolicy
from environments.resources import Resources
from environments.task import Effort, TaskSpec
from environments.trace import Segment, Trace
from environments.verdict import Verdict
from environments.verifiers import judge


def run_messages(
    policy: MessagePolicy, task: TaskSpec, resources: Resources, harness: HarnessConfig = ENDPOINT, effort: Effort | None = None
) -> Trace:
    """Run one whole episode and judge it.

    An infrastructure failure of the environment or of the verifier's sandbox gives a trace without a verdict; one of the
    policy (a dead endpoint) raises EngineError, since another attempt elsewhere may succeed.
    """
    started = time.monotonic()
    environment = make_environment(task, resources)
    episode = Episode(environment, harness, effort)
    episode.start()
    generate_s = 0.0
    while episode.stop is None:
        before = time.monotonic()
        message = policy.reply(episode.messages, environment.tools)
        generate_s += time.monotonic() - before
        episode.act(message)
    outcome = episode.finalize()
    stop = episode.stop
    assert stop is not None
    before = time.monotonic()
    verdict: Verdict | None = None
    if stop != "infrastructure":
        try:
            verdict = judge(task, outcome, resources)
        except InfrastructureError:
            stop = "infrastructure"
    spoken = [m for m in episode.messages if m.role == "assistant"]
    return Trace(
        trajectory_id=uuid.uuid4().hex[:16],
        task_id=task.task_id,
        domain=task.domain,
        effort=effort,
        harness_sha256=harness.sha256,
        policy=policy.name,
        trainable=False,
        segments=(Segment(messages=tuple(episode.messages)),),
        tool_records=tuple(episode.records),
        stop=stop,
        # Words, for want of the endpoint's tokenizer: a rough size, never trained on.
        output_tokens=sum(len(f"{m.thinking} {m.content} {m.calls}".split()) for m in spoken),
        thinking_tokens=sum(len(m.thinking.split()) for m in spoken),
        malformed_calls=episode.malformed,
        timings={
            "generate": generate_s,
            "environment": episode.environment_s,
            "verify": time.monotonic() - before,
            "total": time.monotonic() - started,
        },
        verdict=verdict,
    )
