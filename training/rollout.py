"""Trajectories from an engine: token in, token out, many at once.

The engine batches continuously: a trajectory that waits for its environment holds no decode slot, and the next one is
admitted as soon as a row is free. What the policy sampled is what is kept; nothing is tokenised twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from environments.harness.config import LAPTOP, HarnessConfig
from environments.harness.loop import conclude, open_episode
from environments.harness.tokens import ChatCodec, TokenEpisode
from environments.resources import Resources
from environments.task import Effort, TaskSpec
from environments.trace import Segment, StopReason, SubagentRecord, ToolRecord, Trace
from environments.verdict import Verdict
from training.engine.embedded import EmbeddedEngine


@dataclass(frozen=True)
class Job:
    """One trajectory to sample. `seed` keys its randomness; `group` names the prompt's group."""

    trajectory_id: str
    task: TaskSpec
    seed: int
    group: int = 0
    effort: Effort | None = None
    """Shown to the policy as an option message; None shows nothing."""
    harness: HarnessConfig = LAPTOP


@dataclass(frozen=True)
class Rollout:
    """A finished trajectory: exact tokens with log-probs and versions, and its verdict (None: infrastructure failed)."""

    job: Job
    segments: tuple[Segment, ...]
    """One, unless context management or sub-agents forked it; a sampled token carries loss in one of them."""
    stop: StopReason
    output_tokens: int
    thinking_tokens: int
    tool_calls: int
    malformed_calls: int
    verdict: Verdict | None
    wall_s: float
    records: list[ToolRecord] = field(default_factory=list)
    subagents: tuple[SubagentRecord, ...] = ()

    @cached_property
    def tokens(self) -> list[int]:
        """All segments' tokens, one after the other."""
        return [t for s in self.segments for t in s.tokens]

    @property
    def trained(self) -> list[Segment]:
        """The segments that carry loss."""
        return [s for s in self.segments if any(s.loss_mask)]

    @property
    def passed(self) -> bool:
        return self.verdict is not None and self.verdict.status == "pass"

    @property
    def effort_tokens(self) -> int:
        """What counts against an effort budget: thinking for general tasks, all output for agentic ones (K3, section 4.1.3)."""
        return self.thinking_tokens if self.job.task.domain == "general" else self.output_tokens

    def trace(self, policy: str, teacher: str | None = None) -> Trace:
        """The trajectory as a contract object."""
        return Trace(
            trajectory_id=self.job.trajectory_id,
            task_id=self.job.task.task_id,
            domain=self.job.task.domain,
            effort=self.job.effort,
            harness_sha256=self.job.harness.sha256,
            policy=policy,
            teacher=teacher,
            trainable=True,
            segments=self.segments,
            tool_records=tuple(self.records),
            stop=self.stop,
            output_tokens=self.output_tokens,
            thinking_tokens=self.thinking_tokens,
            malformed_calls=self.malformed_calls,
            subagents=self.subagents,
            timings={"total": self.wall_s},
            verdict=self.verdict,
        )


class Run:
    """One job under way."""

    def __init__(self, job: Job, resources: Resources, codec: ChatCodec, window: int) -> None:
        self.job, self.resources = job, resources
        self.began = time.monotonic()
        episode = open_episode(job.task, resources, job.harness, job.effort)
        self.tokens = TokenEpisode(job.trajectory_id, job.seed, episode, codec, window)

    def done(self) -> bool:
        return self.tokens.done

    def finish(self) -> Rollout:
        episode = self.tokens.episode
        stop, verdict = conclude(episode, self.resources)
        segments, subagents = self.tokens.trace_parts()
        return Rollout(
            self.job,
            segments,
            stop,
            self.tokens.output_tokens,
            self.tokens.thinking_tokens,
            episode.environment.outcome.tool_calls,
            episode.malformed,
            verdict,
            time.monotonic() - self.began,
            episode.records,
            subagents,
        )


def sample(engine: EmbeddedEngine, jobs: Iterable[Job], resources: Resources, codec: ChatCodec) -> Iterator[Rollout]:
    """Run all jobs to their end, yielding each as it finishes. At most `engine.capacity` conversations are under way at once."""
    waiting = iter(jobs)
    active: dict[str, Run] = {}
    """By request."""
    try:
        yield from _sample(engine, waiting, active, resources, codec)
    finally:
        for run in set(active.values()):  # nobody waits for these any more: their sandboxes go
            run.tokens.episode.close()


def _sample(
    engine: EmbeddedEngine, waiting: Iterator[Job], active: dict[str, Run], resources: Resources, codec: ChatCodec
) -> Iterator[Rollout]:
    window = engine.config.max_position_embeddings
    exhausted = False
    while True:
        while not exhausted and len(active) < engine.capacity:
            job = next(waiting, None)
            if job is None:
                exhausted = True
                break
            run = Run(job, resources, codec, window)
            requests = run.tokens.requests()
            if run.done():
                yield run.finish()
                continue
            for request in requests:
                active[request.request_id] = run
                engine.add(request)
        if not active:
            return
        for generation in engine.step():
            run = active.pop(generation.request_id)
            if run.done():  # a machine part of another of its conversations failed meanwhile
                engine.release(generation.request_id)
                continue
            run.tokens.feed(generation)
            requests = run.tokens.requests()
            if generation.request_id not in {r.request_id for r in requests}:
                engine.release(generation.request_id)
            for request in requests:
                active[request.request_id] = run
                engine.add(request)
            if run.done():
                if left := [i for i, r in active.items() if r is run]:
                    engine.abort(left)
                yield run.finish()
