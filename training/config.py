"""Training settings. Each default carries its reason; undisclosed constants of the sources are ours and configurable."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator

from environments.harness.presets import PRESETS
from environments.harness.sampler import Constraints, HarnessSampler
from environments.task import DOMAINS, EFFORTS, Domain, Effort, Frozen


def _complete(names: tuple[str, ...]) -> AfterValidator:
    """Refuse a table that leaves one of `names` out."""

    def check(table: dict[str, Any]) -> dict[str, Any]:
        if missing := [name for name in names if name not in table]:
            raise ValueError(f"says nothing of {', '.join(missing)}; give all of {', '.join(names)}")
        return table

    return AfterValidator(check)


Steps = Annotated[dict[Domain, int], _complete(DOMAINS)]
ByEffort = Annotated[dict[Effort, float], _complete(EFFORTS)]
Cells = Annotated[dict[Domain, ByEffort], _complete(DOMAINS)]


class PolicyConfig(Frozen):
    """The from-scratch policy of the embedded default."""

    vocab_size: int = 2048
    hidden_size: int = 128
    intermediate_size: int = 320
    layers: int = 3
    heads: int = 4
    kv_heads: int = 4
    window: int = Field(default=512, description="Longest context, tokens")


class SftConfig(Frozen):
    """Cold start on verified demonstrations, one recipe for all domains."""

    trainer: Literal["plain", "deepspeed"] = "deepspeed"
    workers: int = Field(default=2, description="Data-parallel processes")
    tokens: int = Field(default=4_300_000, description="Tokens to train on, padding included, all workers together")
    batch_tokens: int = Field(default=4096, description="Tokens of one optimizer step, all workers together")
    matrix_lr: float = Field(default=6e-3, description="Muon's learning rate")
    other_lr: float = Field(default=2e-3, description="AdamW's learning rate for embeddings and norms")
    warmup_steps: int = 30
    context_weight: float = Field(default=0.3, description="Weight of the tokens of prompts and tool results")
    renamed_copies: int = Field(default=5, description="Copies of each demonstration with other names and values")
    effort_message_share: float = Field(default=0.6, description="Share of demonstrations that show an effort message")
    effort_message_fit: float = Field(default=0.9, description="Share of those messages that fit the demonstration; the rest are random")
    styles: Cells = Field(
        default={
            "general": {"low": 0.25, "high": 0.25, "max": 0.5},
            "agent": {"low": 0.4, "high": 0.3, "max": 0.3},
            "coding": {"low": 0.5, "high": 0.27, "max": 0.23},
        },
        description="Shares of short, middling and long demonstrations, named by the effort they stand for",
    )


class ExpertConfig(Frozen):
    """RL of one expert."""

    prompts: int = Field(default=12, description="Prompts a step (P)")
    samples: int = Field(default=8, description="Completions a prompt (K)")
    steps_max: Steps = Field(
        default={"general": 18, "agent": 26, "coding": 32},
        description="Steps of the `max` expert; a step of the general domain costs as much as two or three of the others",
    )
    branch_step: int = Field(default=2, description="Step of `max` from which `high` and `low` branch")
    steps_other: Steps = Field(default={"general": 16, "agent": 38, "coding": 38}, description="Steps of `high` and `low` after the branch")
    layers: int = Field(default=1, ge=1, description="Layers that are trained, from the last: noise in the others spoils what copies names")
    lr: float = Field(default=1e-3, description="AdamW's learning rate, falling over the second half")
    negative_weight: float = Field(default=0.3, ge=0, description="Weight of negative advantages: unlearning long failures breaks more")
    warmup_steps: int = 3
    log_ratio_low: float = Field(default=-1.0, description="K2.5's a: tokens below it pass no policy gradient")
    log_ratio_high: float = Field(default=1.0, description="K2.5's b: tokens above it pass no policy gradient")
    log_ratio_penalty: float = Field(default=0.02, description="K2.5's tau: weight of the squared log ratio")
    epochs: int = Field(default=1, description="Passes over each batch")
    max_grad_norm: float = 1.0
    checkpoint_every: int = 5


class MopdConfig(Frozen):
    """Multi-teacher on-policy distillation."""

    prompts_per_cell: int = Field(default=8, description="Student episodes a step for each of the nine cells")
    steps: int = 34
    layers: int = Field(default=1, ge=1, description="Layers that are trained, from the last")
    lr: float = Field(default=1.2e-3, description="AdamW's learning rate")
    warmup_steps: int = 5
    reward_clip: float = Field(default=5.0, description="R_max of eq. 15, nats")
    log_ratio_low: float = -1.0
    log_ratio_high: float = 1.0
    log_ratio_penalty: float = 0.02
    max_grad_norm: float = 1.0
    checkpoint_every: int = 10
    max_initial_kl: float = Field(default=0.2, description="A teacher further away than this, in nats a token, is warned about")


class EffortConfig(Frozen):
    """Budgets: budget(x, effort) = multiplier[domain][effort] * b0(x), b0 from the cold start (K3, section 4.1.3)."""

    tasks_per_domain: int = Field(default=60, description="Draws of training tasks whose completions are measured; equal draws count once")
    samples: int = Field(default=3, description="Cold-start completions a problem")
    multipliers: Cells = Field(
        default={
            "general": {"low": 0.3, "high": 1.3, "max": 4.0},
            "agent": {"low": 0.74, "high": 1.1, "max": 3.0},
            "coding": {"low": 0.76, "high": 1.55, "max": 4.0},
        }
    )
    """Tuned by eye so that each level leaves room for one more way of working; a person may change them between stages."""


class EvaluationConfig(Frozen):
    """Sampled pass@1 on held-out tasks."""

    tasks_per_domain: int = 48
    samples: int = 3
    cross_tasks: int = Field(default=12, description="Tasks a foreign domain, for experts outside their own")
    bootstrap: int = 1000


class HarnessSettings(Frozen):
    """The harnesses that policies meet tasks in."""

    presets: tuple[str, ...] = Field(
        default=("laptop",), min_length=1, description="Presets to draw from; the first one is that of cold start and evaluation"
    )
    recombine: bool = Field(default=True, description="Draw each module from a preset of its own, once a task group")
    constraints: Constraints = Field(default=Constraints(memory=True), description="What policy, tasks and machine allow")

    @field_validator("presets")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in names if name not in PRESETS]:
            raise ValueError(f"there is no harness {unknown[0]!r}; use {', '.join(PRESETS)}")
        return names

    def sampler(self, seed: int) -> HarnessSampler:
        """Draws a harness for each task group. Raises ConfigError when the constraints leave nothing."""
        return HarnessSampler([PRESETS[name] for name in self.presets], self.constraints, seed, self.recombine)


class TrainingConfig(Frozen):
    """Everything a training process needs besides data."""

    seed: int = 0
    rows: int = Field(default=96, description="Trajectories that the engine runs at once")
    rl_tasks_per_domain: int = Field(default=300, description="Training tasks an expert draws its prompts from")
    harness: HarnessSettings = HarnessSettings()
    policy: PolicyConfig = PolicyConfig()
    sft: SftConfig = SftConfig()
    effort: EffortConfig = EffortConfig()
    expert: ExpertConfig = ExpertConfig()
    mopd: MopdConfig = MopdConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
