"""The training process: `python -m flows.train_process STAGE --run-dir DIR [--domain D --effort E]`.

It alone writes `runs/<name>/training/<stage>/`. SIGTERM ends it after what it is doing; started again, it resumes. It exits
with 0 when the stage is done, 2 when the input is wrong (no retry helps), 3 when a machine part failed.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from environments.errors import InputError, NinefoldError
from environments.task import DOMAINS, EFFORTS
from flows.stages import EXPERTS
from flows.stages import expert as expert_name
from flows.workspace import RunDirectory

POLICIES = ("cold_start", "student", *(expert_name(domain, effort) for domain, effort in EXPERTS), "trivial")
"""Whom the evaluation asks; a shard takes every n-th."""
STAGES = ("cold_start", "budgets", "expert", "mopd", "evaluate")


def main(argv: list[str] | None = None) -> int:
    """Run one stage; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m flows.train_process", description=__doc__)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--run-dir", type=Path, required=True)
    parser.add_argument("--domain", choices=DOMAINS)
    parser.add_argument("--effort", choices=EFFORTS)
    parser.add_argument("--shard", type=int, default=0, help="with --shards: this process's share of an evaluation, left unsealed")
    parser.add_argument("--shards", type=int, default=1)
    options = parser.parse_args(argv)
    if options.stage == "expert" and not (options.domain and options.effort):
        parser.error("expert needs --domain and --effort")
    os.environ.setdefault("DS_ACCELERATOR", "cpu" if not Path("/dev/nvidia0").exists() else "cuda")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s", datefmt="%H:%M:%S")
    signal.signal(signal.SIGTERM, lambda signum, _frame: sys.exit(128 + signum))
    try:
        run_stage(RunDirectory(options.run_dir.absolute()), options.stage, options.domain, options.effort, options.shard, options.shards)
    except NinefoldError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 3
    return 0


def run_stage(run: RunDirectory, stage: str, domain: Any = None, effort: Any = None, shard: int = 0, shards: int = 1) -> None:
    """Build the stage's context and call it; importing torch is left to here."""
    from environments.harness.memory import FileMemory
    from environments.resources import Resources
    from environments.sandbox import CodePool
    from environments.vault import Vault
    from flows.steps.corpus import open_corpus
    from training import stages
    from training.context import StageContext

    config = run.config()
    corpus = run.finished("corpus")
    if corpus is None:
        raise InputError(f"the run {run.name!r} has no corpus", "run `ninefold run --resume`")
    settings = config.training.model_copy(update={"seed": config.seed})
    with Resources(
        vault=Vault(run.vault),
        corpus=open_corpus(run.workspace, str(corpus.result["corpus"])),
        pool=CodePool(workers=1),
        memory=FileMemory(run.training / "notes"),
    ) as resources:
        if stage in ("budgets", "mopd"):  # alone on the machine, in one process
            stages.use_threads(min(2, os.cpu_count() or 1))
        context = StageContext(run_dir=run.root, config=settings, resources=resources)
        if stage == "expert":
            stages.expert(context, domain, effort)
        elif shards > 1:
            from training.evaluate import evaluate

            evaluate(context, POLICIES[shard::shards])
        else:
            getattr(stages, stage)(context)


if __name__ == "__main__":
    sys.exit(main())
