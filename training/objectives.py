"""Policy objectives as pure functions of log-probs.

Shapes: B completions, T tokens. `mask_BT` is 1 on tokens the policy sampled. The loss is normalised by a token count that
the caller gives for the *whole* batch, so that it does not change with micro-batches or data-parallel layout.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from environments.errors import NonFiniteRewardError


@dataclass(frozen=True)
class K25Config:
    """Constants of Kimi K2.5's objective; the report does not disclose them, so these are ours.

    `log_ratio_low` < 0 < `log_ratio_high` bound the log ratio inside which a token passes policy gradient;
    `log_ratio_penalty` weighs the squared log ratio, which stays on for every token.
    """

    log_ratio_low: float = -1.0
    log_ratio_high: float = 1.0
    log_ratio_penalty: float = 0.02

    def __post_init__(self) -> None:
        if not self.log_ratio_low < 0 < self.log_ratio_high:
            raise ValueError(f"log_ratio_low={self.log_ratio_low} and log_ratio_high={self.log_ratio_high} must enclose 0")


def k25(
    logprobs_BT: Tensor, old_logprobs_BT: Tensor, advantages_BT: Tensor, mask_BT: Tensor, tokens: int, config: K25Config
) -> tuple[Tensor, dict[str, float]]:
    """Kimi K2.5 report, eq. 1, read as a mask on the log ratio whatever the sign of the advantage.

    l = logp - logp_old;  loss = (1 / tokens) * sum over sampled tokens of -m * exp(l) * A + penalty * l^2.

    Args:
        tokens: sampled tokens of the whole batch, not of this micro-batch.

    Returns:
        The loss and sums over this micro-batch: `masked_tokens`, `abs_log_ratio`, `tokens`.
    """
    log_ratio_BT = torch.where(mask_BT > 0, logprobs_BT - old_logprobs_BT, 0.0)
    inside_BT = (log_ratio_BT.detach() >= config.log_ratio_low) & (log_ratio_BT.detach() <= config.log_ratio_high)
    # Outside the interval the ratio may overflow; it is multiplied by zero there, so it is bounded first.
    ratio_BT = log_ratio_BT.clamp(config.log_ratio_low, config.log_ratio_high).exp()
    loss_BT = -(inside_BT * ratio_BT * advantages_BT) + config.log_ratio_penalty * log_ratio_BT**2
    loss = (loss_BT * mask_BT).sum() / max(tokens, 1)
    metrics = {
        "masked_tokens": float((~inside_BT * mask_BT).sum()),
        "abs_log_ratio": float((log_ratio_BT.detach().abs() * mask_BT).sum()),
        "tokens": float(mask_BT.sum()),
    }
    return loss, metrics


def group_advantages(rewards: list[float], groups: list[int]) -> list[float]:
    """A_j = r_j - mean of its group; no division by the standard deviation (K2.5). Sums to zero in every group.

    Raises:
        NonFiniteRewardError: a reward is NaN or infinite.
    """
    members: dict[int, list[float]] = {}
    for reward, group in zip(rewards, groups, strict=True):
        if reward != reward or reward in (float("inf"), float("-inf")):
            raise NonFiniteRewardError(
                f"a reward of group {group} is {reward}", "let the verifier return a finite score; the episode must be left out"
            )
        members.setdefault(group, []).append(reward)
    means = {group: sum(rs) / len(rs) for group, rs in members.items()}
    return [reward - means[group] for reward, group in zip(rewards, groups, strict=True)]


def reverse_kl_reward(teacher_logprobs_BT: Tensor, student_logprobs_BT: Tensor, mask_BT: Tensor, clip: float) -> Tensor:
    """MOPD's per-token advantage: clip(sg(log pi_teacher - log pi_student), -clip, clip) (Kimi K3 report, eq. 15)."""
    return (teacher_logprobs_BT - student_logprobs_BT).detach().clamp(-clip, clip) * mask_BT
