"""Is the task sound? The reference passes, again and again; nothing, rubbish and every spoiled variant fails.

A variant is spoiled on either side: the *payload* (the verifier then expects something else, so the true reference must
fail; a pass means that the verifier does not look) and the reference's *outcome* (one fault each; a pass means that it looks
past a part).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from environments.errors import CorruptArtifactError
from environments.families import make_environment
from environments.hardening.attempt import Attempt, MakeEnvironment, Replay, replay
from environments.hardening.config import HardeningConfig
from environments.records import ValidationRow
from environments.resources import Resources
from environments.sandbox.code_pool import RememberingPool
from environments.task import TaskSpec
from environments.verdict import Verdict
from environments.verifiers import judge, judge_payload, verifier_for

MALFORMED: tuple[str, ...] = ("{}", "I am done.", "\ufffd\x00]]>", "9" * 5_000)
"""Submissions that are an answer to no task."""


def validate(
    task: TaskSpec, resources: Resources, config: HardeningConfig, make: MakeEnvironment = make_environment
) -> list[ValidationRow]:
    """All checks of one task, a row each; the task is sound when every row is `ok`.

    Sandbox calls for a coding task: the reference's own and one a verdict, `reference_runs` times; 3 for malformed
    submissions; 1 for all spoiled payloads; 1 for each spoiled outcome (4). With the defaults, 14.

    Raises:
        InfrastructureError: a machine part failed; nothing is known about the task.
    """
    rows: list[ValidationRow] = []

    def check(name: str, expected: str, run: Callable[[], Iterable[tuple[str, Any]]]) -> None:
        started = time.monotonic()
        seen = list(run())
        statuses = [status for status, _ in seen]
        observed = next((s for s in statuses if s != expected), expected) if statuses else "not run"
        detail = next((str(d) for s, d in seen if s != expected), str(seen[0][1]) if seen else "nothing to run")
        rows.append(
            ValidationRow(
                run=config.run,
                task_id=task.task_id,
                verifier_sha256=task.hidden_verifier.sha256,
                verifier_version=task.hidden_verifier.version,
                check_name=name,
                expected=expected,
                observed=observed,
                ok=observed == expected,
                runs=len(seen),
                wall_s=time.monotonic() - started,
                detail=detail[:500],
            )
        )

    try:
        messages = resources.vault.get_reference(task.reference_sha256)
        payload = resources.vault.get(task.hidden_verifier.sha256)
    except (CorruptArtifactError, ValueError) as error:
        reason = str(error)
        check("reference", "pass", lambda: [("no reference or payload", reason)])
        return rows
    runs: list[Replay] = []
    check("reference", "pass", lambda: [_seen(_keep(runs, replay(task, messages, resources, make)).verdict)])
    check("repeat", "pass", lambda: _repeat(task, runs, config, lambda: replay(task, messages, resources, make)))
    check("budgets", "pass", lambda: [_budgets(task, r) for r in runs])
    check("null", "fail", lambda: [_seen(_try(task, resources, make, say="I am done."))])
    check("empty", "fail", lambda: [_seen(_try(task, resources, make, submit=""))])
    check("malformed", "fail", lambda: _malformed(task, resources, make))
    if rows[0].ok:
        verifier: Any = verifier_for(task.hidden_verifier.kind, resources)
        outcome = runs[0].outcome
        spoil = getattr(verifier, "mutations", None)
        payloads = spoil(payload) if spoil else []
        once = replace(resources, pool=RememberingPool(resources.pool))  # the same outcome each time: only the payloads differ
        for name, spoiled in payloads:
            check(f"mutation:{name}", "fail", lambda spoiled=spoiled: [_seen(judge_payload(task, outcome, spoiled, once))])  # type: ignore[misc]
        if not payloads:
            check("mutation:none", "fail", list)
        spoil = getattr(verifier, "wrong_outcomes", None)
        for name, wrong in spoil(outcome, payload) if spoil else []:
            check(f"mutation:outcome:{name}", "fail", lambda wrong=wrong: [_seen(judge(task, wrong, resources))])  # type: ignore[misc]
    return rows


def _seen(verdict: Verdict) -> tuple[str, Any]:
    return verdict.status, verdict.evidence


def _keep(runs: list[Replay], run: Replay) -> Replay:
    runs.append(run)
    return run


def _repeat(task: TaskSpec, runs: list[Replay], config: HardeningConfig, again: Callable[[], Replay]) -> Iterable[tuple[str, Any]]:
    yield _seen(runs[0].verdict)
    for _ in range(config.reference_runs - 1):
        run = _keep(runs, again())
        same = run.verdict == runs[0].verdict and run.outcome == runs[0].outcome
        yield (run.verdict.status if same else "flips"), f"{runs[0].verdict} then {run.verdict}" if not same else run.verdict.evidence


def _budgets(task: TaskSpec, run: Replay) -> tuple[str, str]:
    said = f"{run.steps} of {task.budgets.steps} steps, stopped by {run.stop}, {run.refused} calls refused"
    # A task with submissions to spare does not end by itself; its reference has then handed in and is out of messages.
    ended = run.stop in ("submitted", "finished") or (run.stop == "aborted" and run.outcome.submission is not None)
    return ("pass" if ended and run.steps <= task.budgets.steps and not run.refused else "over budget"), said


def _try(task: TaskSpec, resources: Resources, make: MakeEnvironment, *, say: str | None = None, submit: str | None = None) -> Verdict:
    attempt = Attempt(task, resources, make)
    if say is not None:
        attempt.say(say)
    if submit is not None:
        attempt.submit(submit)
    return attempt.finish().verdict


def _malformed(task: TaskSpec, resources: Resources, make: MakeEnvironment) -> Iterable[tuple[str, Any]]:
    """Rubbish as the answer, after calls that do not exist or carry the wrong arguments; the environment must survive all of it."""
    argument = Attempt(task, resources, make).submit_argument
    texts = MALFORMED[:1] if argument is None else MALFORMED[:3] if argument == "source" else MALFORMED
    for i, text in enumerate(texts):
        attempt = Attempt(task, resources, make)
        if i == 0:
            attempt.call("no_such_tool", x=1)
            attempt.call(task.tools[0], no_such_argument="1")
        attempt.submit(text)
        yield _seen(attempt.finish().verdict)
