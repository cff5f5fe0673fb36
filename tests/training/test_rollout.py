"""Token-level episodes: what is sampled is what is kept, everything ends typed, and nothing broken becomes a reward."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from environments import verifiers
from environments.errors import InputError, SandboxError
from environments.harness.config import EFFORT_LINES, LAPTOP, effort_message
from environments.harness.loop import run_messages
from environments.harness.opening import opening
from environments.protocols import Generation
from environments.resources import Resources
from environments.task import EFFORTS, Budgets, Effort, Message, TaskSpec, ToolCall
from environments.trace import StopReason
from environments.vault import Vault
from environments.verdict import Verdict
from tasks.kinds import Demonstration
from tests.environments.small_tasks import coding_task, make_resources, search_task, settings_task
from tests.training.small import codec as make_codec
from tests.training.small import policy_for
from training import trivial
from training.demonstrations import encode, replay
from training.engine.embedded import EmbeddedEngine
from training.mopd import teacher_logprobs, teacher_view
from training.rollout import Job, Rollout, Run, sample

CODEC = make_codec()
POLICY = policy_for(CODEC)
STOPS = set(StopReason.__args__)


@pytest.fixture
def resources(tmp_path: Path) -> Iterator[Resources]:
    with make_resources(Vault(tmp_path / "vault")) as made:
        yield made


def reference(task: TaskSpec, resources: Resources) -> list[Message]:
    return resources.vault.get_reference(task.reference_sha256)


def generation(tokens: list[int], finish: str = "stop") -> Generation:
    return Generation("t", tokens, [-0.5] * len(tokens), [2] * len(tokens), finish)


def play(task: TaskSpec, resources: Resources, bodies: Sequence[list[int]], effort: Effort | None = None, window: int = 4096) -> Rollout:
    """Feed given bodies as if they had been sampled."""
    run = Run(Job("t", task, 1, effort=effort), resources, CODEC, window)
    for body in bodies:
        if not run.tokens.requests():
            break
        run.tokens.feed(generation(body))
    run.tokens.requests()
    return run.finish()


def sampled(rollout: Rollout) -> list[int]:
    """The tokens that carry loss."""
    (segment,) = rollout.segments
    return [t for t, m in zip(segment.tokens, segment.loss_mask, strict=True) if m]


def untrained(
    tasks: Sequence[TaskSpec], resources: Resources, rows: int = 8, effort: Effort | None = None, samples: int = 4
) -> list[Rollout]:
    engine = EmbeddedEngine(POLICY, rows=rows)
    jobs = [Job(f"{i}-{k}", t, 100 * i + k, group=i, effort=effort) for i, t in enumerate(tasks) for k in range(samples)]
    return sorted(sample(engine, jobs, resources, CODEC), key=lambda r: r.job.trajectory_id)


# --- whole episodes with an untrained model ---


@pytest.mark.sandbox
@pytest.mark.parametrize("effort", [None, "low"])
def test_every_episode_of_an_untrained_model_ends_typed_with_its_exact_tokens(effort: Effort | None, resources: Resources) -> None:
    tasks = [make(resources.vault) for make in (search_task, settings_task, coding_task)]
    rollouts = untrained(tasks, resources, effort=effort)
    assert len(rollouts) == 12
    for r in rollouts:
        assert r.stop in STOPS
        assert r.verdict is not None
        assert r.verdict.status in ("fail", "pass")
        (segment,) = r.segments
        assert len(segment.tokens) == len(segment.logprobs) == len(segment.versions) == len(segment.loss_mask) <= 256
        assert 0 < r.output_tokens <= r.job.task.budgets.output_tokens
        assert r.thinking_tokens <= r.output_tokens
        for logprob, version, mask in zip(segment.logprobs, segment.versions, segment.loss_mask, strict=True):
            assert (version == 0 and logprob <= 0 and math.isfinite(logprob)) if mask else (version == -1 and logprob == 0.0)
        trace = r.trace("p")
        assert (trace.trainable, trace.stop, trace.effort, trace.output_tokens) == (True, r.stop, effort, r.output_tokens)
        assert trace.segments[0].tokens == tuple(r.tokens)
        before = [t for m in opening(LAPTOP, r.job.task.prompt, (), effort)[1:] for t in CODEC.encode(m)]
        assert CODEC.transcript(before) in CODEC.transcript(r.tokens)


def test_recorded_logprobs_are_the_policys_own(resources: Resources) -> None:
    rollouts = untrained([settings_task(resources.vault)], resources)
    segments = [r.segments[0] for r in rollouts]
    again = teacher_logprobs(POLICY, [(list(s.tokens), list(s.loss_mask)) for s in segments])
    for s, scores in zip(segments, again, strict=True):
        assert [lp for lp, m in zip(s.logprobs, s.loss_mask, strict=True) if m] == pytest.approx(scores, abs=1e-4)


def test_a_trajectory_is_the_same_whatever_it_is_batched_with(resources: Resources) -> None:
    tasks = [search_task(resources.vault), settings_task(resources.vault)]
    wide, narrow = untrained(tasks, resources, rows=8), untrained(tasks, resources, rows=2)
    assert [r.tokens for r in wide] == [r.tokens for r in narrow]
    assert [r.stop for r in wide] == [r.stop for r in narrow]


# --- one episode, by hand ---


@pytest.mark.sandbox
@pytest.mark.parametrize("make", [search_task, settings_task, coding_task])
def test_the_reference_passes_token_by_token(make: Any, resources: Resources) -> None:
    task = make(resources.vault)
    bodies = [CODEC.assistant_body(m) for m in reference(task, resources)]
    rollout = play(task, resources, bodies)
    assert (rollout.stop, rollout.passed, rollout.malformed_calls) == ("submitted", True, 0)
    assert sampled(rollout) == [t for b in bodies for t in b]
    assert rollout.output_tokens == sum(map(len, bodies))
    assert rollout.tool_calls == len(bodies)
    assert rollout.effort_tokens == (rollout.thinking_tokens if task.domain == "general" else rollout.output_tokens)


def test_a_malformed_message_is_answered_and_the_episode_goes_on(resources: Resources) -> None:
    task = settings_task(resources.vault)
    broken = [*CODEC.tokenizer.encode("hm"), CODEC.close, CODEC.end]
    wrong_tool = CODEC.assistant_body(Message(role="assistant", calls=(ToolCall(tool="shell"),)))
    bodies = [broken, wrong_tool, *(CODEC.assistant_body(m) for m in reference(task, resources))]
    rollout = play(task, resources, bodies)
    assert (rollout.stop, rollout.passed, rollout.malformed_calls) == ("submitted", True, 2)
    assert [r.error for r in rollout.records[:2]] == ["MalformedCallError", "UnknownToolError"]
    read = CODEC.transcript(rollout.tokens)
    assert "error: a tag is not ended" in read
    assert "error: there is no tool 'shell'" in read
    assert sampled(rollout)[: len(broken)] == broken  # kept as sampled


def test_output_and_window_limits_end_an_episode(resources: Resources) -> None:
    budgets = Budgets(steps=8, output_tokens=20, wall_s=60, submissions=1)
    task = settings_task(resources.vault, budgets=budgets)
    run = Run(Job("t", task, 1), resources, CODEC, 4096)
    (request,) = run.tokens.requests()
    assert request.max_new_tokens == 20
    length = len(request.prefix)
    run.tokens.feed(generation([5] * 20, "length"))
    rollout = run.finish()
    assert (rollout.stop, rollout.thinking_tokens) == ("output_tokens", 20)
    run = Run(Job("t", task, 1), resources, CODEC, length + 4)
    (request,) = run.tokens.requests()
    assert request.max_new_tokens == 4
    run.tokens.feed(generation([5] * 4, "length"))
    rollout = run.finish()
    assert rollout.stop == "context"
    assert rollout.verdict is not None
    assert rollout.verdict.status == "fail"


def test_each_turn_is_keyed_by_its_position(resources: Resources) -> None:
    task = settings_task(resources.vault)
    tokens = Run(Job("t", task, 77), resources, CODEC, 4096).tokens
    (first,) = tokens.requests()
    seen = list(first.prefix)
    tokens.feed(generation(CODEC.assistant_body(reference(task, resources)[0])))
    (second,) = tokens.requests()
    assert (first.key, second.key) == ((77, len(seen)), (77, len(second.prefix)))
    assert list(second.prefix[: len(seen)]) == seen


# --- what breaks ---


def test_a_prompt_that_fills_the_window_ends_the_episode_not_the_run(resources: Resources) -> None:
    """One task too long for the policy's window must not take the others down."""
    short = settings_task(resources.vault)
    long = short.model_copy(update={"prompt": (Message(role="user", content="word and " * 300),)})
    rollouts = untrained([long, short], resources, samples=1)
    assert rollouts[0].stop == "context"
    assert rollouts[0].output_tokens == 0
    assert rollouts[1].output_tokens > 0


@pytest.mark.parametrize("where", ["setup", "judge"])
def test_a_broken_machine_is_no_verdict_and_the_other_trajectories_go_on(
    where: str, resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> Any:
        raise SandboxError("the sandbox died", "run again")

    places = {"setup": "environments.families.assistant.SettingsEnvironment.setup", "judge": "environments.harness.loop.judge"}
    monkeypatch.setattr(places[where], broken)
    rollouts = untrained([settings_task(resources.vault)], resources, samples=3)
    assert [(r.stop, r.verdict, r.passed) for r in rollouts] == [("infrastructure", None, False)] * 3


def test_a_crashing_verifier_is_no_verdict_and_no_reward(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crashes:
        kind, version = "crashes", 1

        def verify(self, task: TaskSpec, outcome: Any, payload: Any) -> Verdict:
            raise ZeroDivisionError("oops")

    monkeypatch.setitem(verifiers._registry, "crashes", lambda _: Crashes())
    task = settings_task(resources.vault, kind="crashes")
    rollout = play(task, resources, [CODEC.assistant_body(m) for m in reference(task, resources)])
    assert rollout.stop == "submitted"
    assert rollout.verdict is not None
    assert (rollout.verdict.status, rollout.verdict.reward, rollout.passed) == ("no-verdict", None, False)


# --- demonstrations ---


def test_replay_keeps_what_passes_and_refuses_the_rest(resources: Resources) -> None:
    task = settings_task(resources.vault)
    good = replay(task, Demonstration("s", tuple(reference(task, resources))), resources, LAPTOP)
    assert good is not None
    assert [m.role for m in good.messages] == ["system", "user", "assistant", "tool", "assistant", "tool", "assistant"]
    assert good.messages[3].content == "70"
    bad = (Message(role="assistant", calls=(ToolCall(tool="submit"),)),)
    assert replay(task, Demonstration("s", bad), resources, LAPTOP) is None
    too_long = (*reference(task, resources), Message(role="assistant", content="more"))
    assert replay(task, Demonstration("s", too_long), resources, LAPTOP) is None


def test_encode_learns_what_was_said(resources: Resources) -> None:
    import random

    task = settings_task(resources.vault)
    get, set_, submit = reference(task, resources)
    tries = (Message(role="assistant", thinking="no", calls=(ToolCall(tool="get", arguments={"name": "nothing"}),)), get, set_, submit)
    verified = replay(task, Demonstration("long", tries), resources, LAPTOP)
    assert verified is not None
    tokens, mask = encode(verified, CODEC, random.Random(0), effort_share=0.0, effort_fit=0.0)
    assert tokens == [t for m in verified.messages for t in CODEC.encode(m)]
    assert [t for t, m in zip(tokens, mask, strict=True) if m] == [t for m in tries for t in CODEC.assistant_body(m)]
    # The same episode as the rollout would see it: a policy is trained on the prefixes that it will meet.
    rollout = play(task, resources, [CODEC.assistant_body(m) for m in tries])
    assert rollout.tokens == tokens
    assert list(rollout.segments[0].loss_mask) == mask


@pytest.mark.parametrize("fit", [0.0, 0.6, 1.0])
def test_encode_shows_effort_where_the_harness_does_and_as_often_as_told_the_one_that_fits(resources: Resources, fit: float) -> None:
    import random

    task = settings_task(resources.vault)
    verified = replay(task, Demonstration("short", tuple(reference(task, resources))), resources, LAPTOP)
    assert verified is not None
    rng, seen = random.Random(0), []
    for _ in range(120):
        tokens, mask = encode(verified, CODEC, rng, effort_share=0.5, effort_fit=fit)
        shown = [e for e in EFFORTS if EFFORT_LINES[e] in CODEC.transcript(tokens)]
        seen += shown or [None]
        prompt = [t for m in opening(LAPTOP, task.prompt, (), shown[0] if shown else None)[1:] for t in CODEC.encode(m)]
        declaration = len(CODEC.encode(verified.messages[0]))
        assert tokens[declaration : declaration + len(prompt)] == prompt
        assert not any(mask[: declaration + len(prompt)])
    assert set(seen) == ({None, "high"} if fit == 1.0 else {None, *EFFORTS})
    assert 40 <= seen.count(None) <= 80
    share = seen.count("high") / (len(seen) - seen.count(None))
    assert abs(share - (fit + (1 - fit) / 3)) <= 0.15


# --- distillation's view ---


@pytest.mark.parametrize("effort", EFFORTS)
def test_the_teacher_sees_everything_but_the_effort_message(effort: Effort, resources: Resources) -> None:
    task = settings_task(resources.vault)
    bodies = [CODEC.assistant_body(m) for m in reference(task, resources)]
    shown = play(task, resources, bodies, effort=effort)
    plain = play(task, resources, bodies)
    option = CODEC.encode(effort_message(effort))
    (with_effort,), (without,) = shown.segments, plain.segments
    assert teacher_view(with_effort, option) == (list(without.tokens), list(without.loss_mask))
    assert len(shown.tokens) == len(plain.tokens) + len(option)
    with pytest.raises(InputError, match="no effort message"):
        teacher_view(without, option)


def test_teacher_logprobs_are_those_of_sampled_tokens_in_order(resources: Resources) -> None:
    rollouts = untrained([settings_task(resources.vault), search_task(resources.vault)], resources, samples=2)
    teacher = policy_for(CODEC, seed=9)
    views = [(list(r.segments[0].tokens), list(r.segments[0].loss_mask)) for r in rollouts]
    together = teacher_logprobs(teacher, views)
    engine = EmbeddedEngine(teacher, rows=1)
    for (tokens, mask), found in zip(views, together, strict=True):
        (scores,) = engine.score([tokens])
        assert found == pytest.approx([s for s, m in zip(scores, mask, strict=True) if m], abs=1e-4)


# --- policies that do not try ---


@pytest.mark.sandbox
def test_trivial_policies_are_scored_like_any_other(resources: Resources) -> None:
    makers = {"general": search_task, "agent": settings_task, "coding": coding_task}
    for domain, make in makers.items():
        task = make(resources.vault)
        train = [task, task]
        found = {p.name: run_messages(p, task, resources) for p in trivial.policies(domain, train, resources)}  # type: ignore[arg-type]
        assert set(found) == {"constant", "copy", "no-tools"}
        for name, trace in found.items():
            assert trace.verdict is not None
            assert trace.verdict.reward is not None
            assert trace.stop == ("finished" if name == "no-tools" else "submitted")
            if name != "constant":
                assert trace.verdict.status == "fail", (domain, name)
        # Fitted to this very task, a constant is right where the answer is handed in, and wrong where work must be done.
        assert found["constant"].verdict.status == ("fail" if domain == "agent" else "pass")


def test_without_training_tasks_the_constant_is_still_an_answer(resources: Resources) -> None:
    constant = trivial.policies("general", [], resources)[0]
    trace = run_messages(constant, search_task(resources.vault), resources)
    assert trace.verdict is not None
    assert trace.verdict.status == "fail"
