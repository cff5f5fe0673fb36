"""Token-level episodes over an engine: token in, token out, many at once.

The engine batches continuously: a trajectory that waits for its environment holds no decode slot, and the next one is
admitted as soon as a row is free. What the policy sampled is what is kept; nothing is tokenised twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from environments.errors import AgentError, InfrastructureError
from environments.families import make_environment
from environments.harness.config import HarnessConfig
from environments.harness.episode import Episode
from environments.harness.xtml import Xtml
from environments.protocols import GenerateRequest, Generation
from environments.resources import Resources
from environments.task import Effort, TaskSpec
from environments.trace import Segment, StopReason, ToolRecord, Trace
from environments.verdict import Verdict
from environments.verifiers import judge
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


@dataclass
class Rollout:
    """A finished trajectory: exact tokens with log-probs and versions, and its verdict (None: infrastructure failed)."""

    job: Job
    tokens: list[int]
    logprobs: list[float]
    versions: list[int]
    mask: list[int]
    stop: StopReason
    thinking_tokens: int
    tool_calls: int
    malformed_calls: int
    verdict: Verdict | None
    wall_s: float
    records: list[ToolRecord] = field(default_factory=list)

    @property
    def output_tokens(self) -> int:
        return sum(self.mask)

    @property
    def passed(self) -> bool:
        return self.verdict is not None and self.verdict.status == "pass"

    @property
    def effort_tokens(self) -> int:
        """What counts against an effort budget: thinking for general tasks, all output for agentic ones (K3, section 4.1.3)."""
        return self.thinking_tokens if self.job.task.domain == "general" else self.output_tokens

    def trace(self, policy: str, harness: HarnessConfig, teacher: str | None = None) -> Trace:
        """The trajectory as a contract object."""
        segment = Segment(
            tokens=tuple(self.tokens), logprobs=tuple(self.logprobs), versions=tuple(self.versions), loss_mask=tuple(self.mask)
        )
        return Trace(
            trajectory_id=self.job.trajectory_id,
            task_id=self.job.task.task_id,
            domain=self.job.task.domain,
            effort=self.job.effort,
            harness_sha256=harness.sha256,
            policy=policy,
            teacher=teacher,
            trainable=True,
            segments=(segment,),
            tool_records=tuple(self.records),
            stop=self.stop,
            output_tokens=self.output_tokens,
            thinking_tokens=self.thinking_tokens,
            malformed_calls=self.malformed_calls,
            timings={"total": self.wall_s},
            verdict=self.verdict,
        )


class TokenEpisode:
    """One episode on tokens: `tokens` is the whole context, `feed` appends a generation and the world's answer."""

    def __init__(self, job: Job, resources: Resources, codec: Xtml, harness: HarnessConfig, window: int) -> None:
        self.job, self.resources, self.codec, self.window = job, resources, codec, window
        self.episode = Episode(make_environment(job.task, resources), harness, job.effort)
        self.started = time.monotonic()
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self.mask: list[int] = []
        self.thinking_tokens = 0
        opening = [t for m in self.episode.start() for t in codec.encode(m)] + codec.generation_prefix
        self._observe(opening[:window])
        if len(opening) >= window and self.episode.stop is None:
            self.episode.stop = "context"

    def _observe(self, tokens: list[int]) -> None:
        self.tokens += tokens
        self.logprobs += [0.0] * len(tokens)
        self.versions += [-1] * len(tokens)
        self.mask += [0] * len(tokens)

    @property
    def done(self) -> bool:
        return self.episode.stop is not None

    def request(self) -> GenerateRequest:
        """What the engine should generate next."""
        left = min(self.job.task.budgets.output_tokens - sum(self.mask), self.window - len(self.tokens))
        return GenerateRequest(
            self.job.trajectory_id, self.tokens, max(1, left), frozenset({self.codec.end}), (self.job.seed, len(self.tokens))
        )

    def feed(self, generation: Generation) -> None:
        """Append what was sampled, act on it, and append what the world answers."""
        self.tokens = [*self.tokens, *generation.tokens]
        self.logprobs += generation.logprobs
        self.versions += generation.versions
        self.mask += [1] * len(generation.tokens)
        self.thinking_tokens += self.codec.thinking_length(generation.tokens)
        if generation.finish != "stop":
            self.episode.stop = "context" if len(self.tokens) >= self.window else "output_tokens"
            return
        try:
            answers = self.episode.act(self.codec.decode_assistant(generation.tokens))
        except AgentError as error:
            answers = self.episode.refuse(error)
        if not self.done:
            observed = [t for m in answers for t in self.codec.encode(m)] + self.codec.generation_prefix
            if len(self.tokens) + len(observed) >= self.window:  # nothing longer than the window may reach a trainer
                self.episode.stop = "context"
                return
            self._observe(observed)
            if sum(self.mask) >= self.job.task.budgets.output_tokens:
                self.episode.stop = "output_tokens"

    def finish(self) -> Rollout:
        """Judge the outcome; a sandbox that fails meanwhile leaves no verdict."""
        outcome = self.episode.finalize()
        stop = self.episode.stop
        assert stop is not None
        verdict: Verdict | None = None
        if stop != "infrastructure":
            try:
                verdict = judge(self.job.task, outcome, self.resources)
            except InfrastructureError as error:
                stop, self.episode.failure = "infrastructure", str(error)
        return Rollout(
            self.job,
            self.tokens,
            self.logprobs,
            self.versions,
            self.mask,
            stop,
            self.thinking_tokens,
            outcome.tool_calls,
            self.episode.malformed,
            verdict,
            time.monotonic() - self.started,
            self.episode.records,
        )


def sample(engine: EmbeddedEngine, jobs: Iterable[Job], resources: Resources, codec: Xtml, harness: HarnessConfig) -> Iterator[Rollout]:
    """Run all jobs to their end, yielding each as it finishes. At most `engine.capacity` are under way at once."""
    window = engine.config.max_position_embeddings
    waiting = iter(jobs)
    active: dict[str, TokenEpisode] = {}
    exhausted = False
    while True:
        while not exhausted and len(active) < engine.capacity:
            job = next(waiting, None)
            if job is None:
                exhausted = True
                break
            episode = TokenEpisode(job, resources, codec, harness, window)
            if episode.done:
                yield episode.finish()
                continue
            active[job.trajectory_id] = episode
            engine.add(episode.request())
        if not active:
            return
        for generation in engine.step():
            episode = active[generation.request_id]
            episode.feed(generation)
            if episode.done:
                engine.release(generation.request_id)
                del active[generation.request_id]
                yield episode.finish()
            else:
                engine.add(episode.request())
