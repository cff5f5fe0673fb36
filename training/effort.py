"""Reasoning-effort budgets: b0 of a problem from the cold start's correct completions, and the reward rule on top.

Kimi K3 report, section 4.1.3: r' = -1 when T(y) > multiplier * b0(x), else r. T counts thinking tokens for general tasks and
all output tokens for agentic ones. The statistic behind b0 is not disclosed; ours is a percentile, lent by the problem's class
(kind, level) where a problem has too few correct completions. In a domain without any, the lengths of failures stand in.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from pydantic import Field

from environments.errors import InputError
from environments.task import Domain, Effort, Frozen, TaskSpec
from training.config import EffortConfig

log = logging.getLogger(__name__)


class Budget0(Frozen):
    """b0 by task id, by class `kind/level`, and by domain, in tokens; and how often the cold start passed each task."""

    tasks: dict[str, float]
    classes: dict[str, float]
    domains: dict[str, float]
    rates: dict[str, float] = Field(default_factory=dict)
    """Share of a task's cold-start completions that passed."""

    def of(self, task: TaskSpec) -> float:
        """b0 of a task: its own, else its class's, else its domain's.

        Raises:
            InputError: the cold start was never sampled on a task of the domain.
        """
        for table, key in ((self.tasks, task.task_id), (self.classes, class_of(task)), (self.domains, task.domain)):
            if key in table:
                return table[key]
        raise InputError(
            f"no budget for {task.domain} tasks: the cold start solved none", "train the cold start longer, or lower the difficulty"
        )


def sometimes_solved(tasks: Sequence[TaskSpec], budgets: Budget0) -> list[TaskSpec]:
    """The tasks that the cold start passes now and then: groups that all pass or all fail teach nothing. All, when there are none."""
    return [t for t in tasks if 0 < budgets.rates.get(t.task_id, 0.5) < 1] or list(tasks)


def class_of(task: TaskSpec) -> str:
    """The class that lends a budget: kind and level."""
    return f"{task.kind}/{task.level}"


def estimate(completions: Iterable[tuple[TaskSpec, bool, int]], config: EffortConfig) -> Budget0:
    """b0 from (task, passed, effort tokens) of cold-start completions."""
    by_task: dict[str, list[int]] = defaultdict(list)
    by_class: dict[str, list[int]] = defaultdict(list)
    by_domain: dict[str, list[int]] = defaultdict(list)
    whatever: dict[str, list[int]] = defaultdict(list)
    outcomes: dict[str, list[bool]] = defaultdict(list)
    for task, passed, tokens in completions:
        outcomes[task.task_id].append(passed)
        whatever[task.domain].append(tokens)
        if passed:
            by_task[task.task_id].append(tokens)
            by_class[class_of(task)].append(tokens)
            by_domain[task.domain].append(tokens)

    for domain in whatever.keys() - by_domain.keys():
        log.warning("the cold start solved no %s task: the lengths of its failures stand in for b0", domain)
        by_domain[domain] = whatever[domain]

    def percentile(lengths: list[int]) -> float:
        return float(np.percentile(lengths, config.percentile))

    return Budget0(
        tasks={k: percentile(v) for k, v in by_task.items() if len(v) >= config.min_correct},
        classes={k: percentile(v) for k, v in by_class.items()},
        domains={k: percentile(v) for k, v in by_domain.items()},
        rates={k: sum(v) / len(v) for k, v in outcomes.items()},
    )


def budget(task: TaskSpec, domain: Domain, effort: Effort, budgets: Budget0, config: EffortConfig) -> float:
    """Tokens that an episode of `task` may spend at `effort`."""
    return config.multipliers[domain][effort] * budgets.of(task)


def effort_reward(outcome: float, effort_tokens: int, budget_tokens: float) -> float:
    """-1 beyond the budget, whatever the outcome."""
    return -1.0 if effort_tokens > budget_tokens else outcome
