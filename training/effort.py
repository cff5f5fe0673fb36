"""Reasoning-effort budgets: b0 of a problem from the cold start's correct completions, and the reward rule on top.

Kimi K3 report, section 4.1.3: r' = -1 when T(y) > multiplier * b0(x), else r. T counts thinking tokens for general tasks and
all output tokens for agentic ones. The statistic behind b0 is not disclosed. Ours is the mean length of the cold start's correct
completions, estimated for each kind of problem and scaled to the problem by the length of its reference solution:

    b0(x) = T(reference of x) * mean over correct completions y' of problems x' of x's kind of T(y') / T(reference of x')

A few completions of one problem tell little about its mean; names that are long to write make all its solutions longer alike.
In a domain without any correct completion the lengths of failures stand in.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping

from environments.errors import InputError
from environments.harness.xtml import Xtml
from environments.task import Domain, Effort, Frozen, TaskSpec
from tasks.kinds import Demonstration
from training.config import EffortConfig

log = logging.getLogger(__name__)


class Budget0(Frozen):
    """Reference lengths by task id, in tokens; and b0 as a share of them by kind of task and by domain."""

    references: dict[str, int]
    kinds: dict[str, float]
    domains: dict[str, float]

    def of(self, task: TaskSpec) -> float:
        """b0 of a task, in tokens.

        Raises:
            InputError: the reference of the task was not measured, or the cold start was never sampled on its domain.
        """
        share = self.kinds.get(task.kind, self.domains.get(task.domain))
        if share is None:
            raise InputError(f"no budget for {task.domain} tasks: the cold start was not sampled on any", "run the stage budgets again")
        if task.task_id not in self.references:
            raise InputError(f"no reference length for task {task.task_id}", "run the stage budgets again")
        return share * self.references[task.task_id]


def reference_length(task: TaskSpec, reference: Demonstration, codec: Xtml) -> int:
    """T of a scripted solution, at least 1."""
    bodies = [codec.assistant_body(m) for m in reference.messages]
    return max(1, sum(codec.thinking_length(b) if task.domain == "general" else len(b) for b in bodies))


def estimate(completions: Iterable[tuple[TaskSpec, bool, int]], references: Mapping[str, int]) -> Budget0:
    """b0 from (task, passed, T) of cold-start completions. Where T of all correct ones is 0, the reference's own length counts.

    Raises:
        InputError: a task's reference length is not given.
    """
    by_kind: dict[str, list[float]] = defaultdict(list)
    by_domain: dict[str, list[float]] = defaultdict(list)
    whatever: dict[str, list[float]] = defaultdict(list)
    for task, passed, tokens in completions:
        if task.task_id not in references:
            raise InputError(f"no reference length for task {task.task_id}", "its solution is missing from the vault: synthesise again")
        share = tokens / references[task.task_id]
        whatever[task.domain].append(share)
        if passed:
            by_kind[task.kind].append(share)
            by_domain[task.domain].append(share)
    for domain in whatever.keys() - by_domain.keys():
        log.warning("the cold start solved no %s task: the lengths of its failures stand in for b0", domain)
        by_domain[domain] = whatever[domain]
    return Budget0(
        references=dict(references),
        kinds={k: sum(v) / len(v) for k, v in by_kind.items() if sum(v) > 0},
        domains={k: sum(v) / len(v) or 1.0 for k, v in by_domain.items()},
    )


def budget(task: TaskSpec, domain: Domain, effort: Effort, budgets: Budget0, config: EffortConfig) -> float:
    """Tokens that an episode of `task` may spend at `effort`."""
    return config.multipliers[domain][effort] * budgets.of(task)


def effort_reward(outcome: float, effort_tokens: int, budget_tokens: float) -> float:
    """-1 beyond the budget, whatever the outcome."""
    return -1.0 if effort_tokens > budget_tokens else outcome
