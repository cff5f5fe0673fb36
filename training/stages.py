"""The stages of a training run, each resumable, each sealed by `done.json`."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

import torch

from environments.errors import InputError
from environments.families import TOOLS
from environments.task import DOMAINS, EFFORTS, Domain, Effort, TaskSpec
from tasks.demonstrations import load as load_demonstrations
from training import checkpoint, sft
from training import evaluate as evaluation
from training import expert as experts
from training import mopd as distillation
from training.context import StageContext, expert_stage
from training.demonstrations import Verified, balanced, encode, lexicon, rename, replay, texts
from training.effort import estimate, reference_length
from training.evaluate import play
from training.model import Llama, ModelConfig
from training.structure import induction_start
from training.tokenizer import XtmlTokenizer, element_tags


def use_threads(count: int) -> None:
    """Let a process that works alone compute on so many cores; those that work side by side keep to one each."""
    torch.set_num_threads(count)


def cold_start(context: StageContext) -> dict[str, Any]:
    """Tokenizer, then SFT from nothing on verified demonstrations of the training tasks. Seals the first checkpoint.

    Raises:
        InputError: no demonstration passed its verifier.
    """
    stage = "cold_start"
    if context.finished(stage):
        return context.done(stage)
    directory, config = context.stage_dir(stage), context.config
    directory.mkdir(parents=True, exist_ok=True)
    tasks = {t.task_id: t for t in context.tasks("train")}
    verified: list[Verified] = []
    refused = 0
    for task_id, demonstrations in load_demonstrations(context.resources.vault, tasks):
        for demonstration in demonstrations:
            found = replay(tasks[task_id], demonstration, context.resources, context.harness)
            if found is None:
                refused += 1
            else:
                verified.append(found)
    if not verified:
        raise InputError("no demonstration passed its verifier", "look at the validation rows of this run")
    rng = random.Random(config.seed)
    passages = list(_passages(context))
    words = lexicon(passages)
    domain_of = {t.task_id: t.domain for t in tasks.values()}
    shown = balanced(verified, domain_of, config.sft.styles, 1 + config.sft.renamed_copies)
    verified = [rename(v, words, rng) if repeats else v for v, repeats in shown]
    policy = config.policy
    tags = element_tags(TOOLS)
    tokenizer = XtmlTokenizer.train(chain(passages, *map(texts, verified)), tags, policy.vocab_size)
    tokenizer.save(directory / "tokenizer")
    examples = [encode(v, context.codec, rng, config.sft.effort_message_share, config.sft.effort_message_fit) for v in verified]
    examples = [e for e in examples if len(e[0]) <= policy.window]
    model = Llama(
        ModelConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=policy.hidden_size,
            intermediate_size=policy.intermediate_size,
            num_hidden_layers=policy.layers,
            num_attention_heads=policy.heads,
            num_key_value_heads=policy.kv_heads,
            max_position_embeddings=policy.window,
        ),
        seed=config.seed,
    )
    induction_start(model, config.seed)
    if config.sft.trainer == "deepspeed":
        sft.train_data_parallel(model, examples, config.sft, config.seed, directory)
    else:
        from training.metrics import Metrics

        metrics = Metrics(directory, sft.steps_of(config.sft))
        sft.train(
            model, examples, config.sft, config.seed, lambda p: metrics.write(p.step, loss=p.loss, tokens=p.tokens, seconds=p.seconds)
        )
    fed = Counter(v.task_id for v in verified)
    identity = checkpoint.save(directory / "final", model, None, {"step": sft.steps_of(config.sft), "parent_id": "", "fed": dict(fed)})
    shutil.rmtree(directory / "start", ignore_errors=True)
    return context.seal(
        stage,
        {
            "checkpoint_id": identity,
            "parent_id": "",
            "steps": sft.steps_of(config.sft),
            "demonstrations": len(verified),
            "refused": refused,
            "parameters": sum(p.numel() for p in model.parameters()),
            "fed": dict(fed),
        },
    )


def _passages(context: StageContext) -> Iterator[str]:
    """Text that names come from: titles and signatures of the corpus where it can be listed, else the training prompts."""
    listed = getattr(context.resources.corpus, "documents", None)
    if listed is None:
        yield from (m.content for t in context.tasks("train") for m in t.prompt)
        return
    for document in listed():
        opening = document.text.split("\n\n", 1)[0][:400]
        yield f"{document.title} {opening}" if "(" in opening else document.title


def budgets(context: StageContext) -> dict[str, Any]:
    """b0 of every task that RL or the evaluation uses, from completions of the cold start. Writes `b0.json`."""
    stage = "budgets"
    if context.finished(stage):
        return context.done(stage)
    directory, settings = context.stage_dir(stage), context.config.effort
    directory.mkdir(parents=True, exist_ok=True)
    model = Llama.load(context.checkpoint("cold_start"))
    completions: list[tuple[TaskSpec, bool, int]] = []
    wanted: dict[str, TaskSpec] = {}
    for domain in DOMAINS:
        tasks = context.selected(domain)
        wanted |= {t.task_id: t for t in (*tasks, *evaluation.held_out(context, domain, context.config.evaluation.tasks_per_domain))}
        measured = experts.pick(tasks, settings.tasks_per_domain, context.config.seed, stage, domain)
        rollouts = play(context, model, list({t.task_id: t for t in measured}.values()), settings.samples, None, stage)
        completions += [(r.job.task, r.passed, r.effort_tokens) for r in rollouts]
    references = {
        task_id: reference_length(wanted[task_id], demonstrations[0], context.codec)
        for task_id, demonstrations in load_demonstrations(context.resources.vault, wanted)
    }
    b0 = estimate(completions, references)
    (directory / "b0.json").write_text(b0.model_dump_json(indent=1))
    rates = {
        f"pass_{d}": sum(p for t, p, _ in completions if t.domain == d) / max(1, sum(t.domain == d for t, _, _ in completions))
        for d in DOMAINS
    }
    return context.seal(stage, {"completions": len(completions), **rates, **{f"b0_share_{d}": v for d, v in b0.domains.items()}})


def expert(context: StageContext, domain: Domain, effort: Effort) -> dict[str, Any]:
    """One expert; see `training.expert`."""
    return experts.run(context, domain, effort)


def mopd(context: StageContext) -> dict[str, Any]:
    """The student; see `training.mopd`."""
    return distillation.run(context)


def evaluate(context: StageContext) -> dict[str, Any]:
    """Evaluate every policy of the run on held-out tasks; what other processes have evaluated already is read, not redone."""
    policies = ["cold_start", "student", *(expert_stage(d, e) for d in DOMAINS for e in EFFORTS), "trivial"]
    stage = "evaluate"
    if context.finished(stage):
        return context.done(stage)
    context.stage_dir(stage).mkdir(parents=True, exist_ok=True)
    return context.seal(stage, evaluation.evaluate(context, policies))
