"""Try every exploit that applies to a task, for real."""

from __future__ import annotations

import time

from environments.families import make_environment
from environments.hardening.attempt import Attempt, MakeEnvironment
from environments.hardening.config import HardeningConfig
from environments.hardening.exploits import Exploit, exploits_for
from environments.records import ProbeRow
from environments.resources import Resources
from environments.task import TaskSpec


def probe(task: TaskSpec, resources: Resources, config: HardeningConfig, make: MakeEnvironment = make_environment) -> list[ProbeRow]:
    """Play each exploit in fresh environments until one of its variants passes; a row an exploit.

    About 20 sandbox calls for a coding task (one a variant), none for others.

    Raises:
        InfrastructureError: a machine part failed; nothing is known about the task.
    """
    return [attack(task, exploit, resources, config, make) for exploit in exploits_for(task.family, config.exploits)]


def attack(
    task: TaskSpec, exploit: Exploit, resources: Resources, config: HardeningConfig, make: MakeEnvironment = make_environment
) -> ProbeRow:
    """One exploit on one task. The transcript is that of the variant that passed, else of the last."""
    started = time.monotonic()
    status, transcript = "not run", ""
    for play in exploit.plays(Attempt(task, resources, make)):
        attempt = Attempt(task, resources, make)
        play(attempt)
        status = attempt.finish().verdict.status
        transcript = attempt.transcript()
        if status == "pass":
            break
    return ProbeRow(
        run=config.run,
        task_id=task.task_id,
        verifier_version=task.hidden_verifier.version,
        exploit=exploit.name,
        exploit_class=exploit.exploit_class,
        succeeded=status == "pass",
        status=status,
        wall_s=time.monotonic() - started,
        transcript=transcript,
    )
