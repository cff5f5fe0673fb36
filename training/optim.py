"""Muon on the layers' matrices, AdamW on the rest, as one optimizer (Kimi K3 report: Muon; K2: AdamW elsewhere)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


def adamw(parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.AdamW:
    """AdamW as it is used everywhere here."""
    return torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)


class MuonAdamW(torch.optim.Optimizer):
    """Delegates to `torch.optim.Muon` and `torch.optim.AdamW`; `scale` multiplies every learning rate."""

    def __init__(self, model: nn.Module, matrix_lr: float, other_lr: float) -> None:
        matrices = [p for n, p in model.named_parameters() if p.dim() == 2 and "embed" not in n]
        chosen = {id(p) for p in matrices}
        rest = [p for p in model.parameters() if id(p) not in chosen]
        # Update size matched to AdamW's, so that both learning rates are of one kind.
        self.muon = torch.optim.Muon(matrices, lr=matrix_lr, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
        self.adamw = adamw(rest, other_lr)
        super().__init__([{"params": matrices}, {"params": rest}], {"lr": matrix_lr})
        self.param_groups = [*self.muon.param_groups, *self.adamw.param_groups]
        self._base = [g["lr"] for g in self.param_groups]

    def scale(self, factor: float) -> None:
        """Set every group's learning rate to `factor` times its base."""
        for group, base in zip(self.param_groups, self._base, strict=True):
            group["lr"] = base * factor

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        self.muon.step()
        self.adamw.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.muon.zero_grad(set_to_none)
        self.adamw.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self.muon.state_dict(), "adamw": self.adamw.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.muon.load_state_dict(state_dict["muon"])
        self.adamw.load_state_dict(state_dict["adamw"])
        self.param_groups = [*self.muon.param_groups, *self.adamw.param_groups]


def warmup_decay(step: int, steps: int, warmup: int, floor: float = 0.05) -> float:
    """Linear warm-up, flat to the middle, then linear down to `floor`."""
    return min(1.0, (step + 1) / max(warmup, 1)) * min(1.0, max(floor, (1 - step / max(steps, 1)) / 0.5))
