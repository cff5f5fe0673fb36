"""The stages at their smallest: cold start, an expert and the student really run, are killed, and go on as if they had not been."""

from __future__ import annotations

import dataclasses
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from environments.errors import CorruptArtifactError, InputError
from environments.harness.presets import PRESETS
from environments.harness.sampler import Constraints
from environments.protocols import Document
from environments.records import HarnessRow, RewardRow, RolloutRow, SegmentRow
from environments.tables import read_rows
from environments.task import DOMAINS, EFFORTS, Budgets, Message, TaskSpec
from environments.vault import Vault
from tasks.dataset import publish
from tasks.kinds import Demonstration
from tests.environments.small_tasks import coding_task, make_resources, search_task, settings_task
from training import checkpoint, expert, mopd, stages
from training.config import EffortConfig, ExpertConfig, HarnessSettings, MopdConfig, PolicyConfig, SftConfig, TrainingConfig
from training.context import DONE, StageContext, expert_stage
from training.effort import Budget0, reference_length
from training.evaluate import interval
from training.metrics import Metrics, read
from training.model import Llama

pytestmark = pytest.mark.sandbox

CONFIG = TrainingConfig(
    rows=8,
    policy=PolicyConfig(vocab_size=360, hidden_size=64, intermediate_size=96, layers=2, heads=4, kv_heads=4, window=192),
    sft=SftConfig(trainer="plain", tokens=40 * 1024, batch_tokens=1024, warmup_steps=2),
    expert=ExpertConfig(
        prompts=2,
        samples=4,
        steps_max=dict.fromkeys(DOMAINS, 4),
        branch_step=2,
        steps_other=dict.fromkeys(DOMAINS, 2),
        checkpoint_every=2,
        lr=1e-3,
    ),
    mopd=MopdConfig(prompts_per_cell=1, steps=3, checkpoint_every=2, max_initial_kl=1e-6),
    effort=EffortConfig(),
)


def _tasks(vault: Vault) -> dict[str, list[TaskSpec]]:
    def varied(task: TaskSpec, number: int) -> TaskSpec:
        prompt = (Message(role="user", content=f"{task.prompt[0].content} ({number})"),)
        budgets = Budgets(steps=4, output_tokens=40, wall_s=60, submissions=1)  # untrained policies talk to the end of it
        return task.model_copy(update={"prompt": prompt, "level": 1 + number % 2, "budgets": budgets})

    made: dict[str, list[TaskSpec]] = {"train": [], "heldout": []}
    for number in range(6):
        split = "train" if number < 4 else "heldout"
        made[split] += [varied(make(vault), number) for make in (search_task, settings_task, coding_task)]
    return made


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StageContext]:
    """A run with a dataset, demonstrations and a finished cold start."""
    run = tmp_path_factory.mktemp("runs") / "small"
    with make_resources(Vault(run / "vault")) as resources:
        tasks = _tasks(resources.vault)
        publish(tasks, run / "dataset", graph_version="g")
        for task in (*tasks["train"], *tasks["heldout"]):
            messages = [m.model_dump(mode="json") for m in resources.vault.get_reference(task.reference_sha256)]
            scripts = [{"style": "long", "messages": messages}, {"style": "short", "messages": messages[:1]}]
            resources.vault.put_demonstrations(task.task_id, scripts)
        context = StageContext(run, CONFIG, resources)
        stages.cold_start(context)
        yield context


@pytest.fixture
def context(started: StageContext, tmp_path: Path) -> StageContext:
    """A copy of it, to train on."""
    shutil.copytree(started.run_dir, tmp_path / "small")
    return StageContext(tmp_path / "small", CONFIG, started.resources)


def _b0(context: StageContext, tokens: float) -> None:
    directory = context.stage_dir("budgets")
    directory.mkdir(parents=True)
    references = dict.fromkeys((t.task_id for split in ("train", "heldout") for t in context.tasks(split)), 1)
    b0 = Budget0(references=references, kinds={}, domains=dict.fromkeys(DOMAINS, tokens))
    (directory / "b0.json").write_text(b0.model_dump_json())


def _kill_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    whole = Metrics.write

    def dying(self: Metrics, at: int, **values: float) -> None:
        if at == step:
            raise KeyboardInterrupt
        whole(self, at, **values)

    monkeypatch.setattr(Metrics, "write", dying)


def _comparable(path: Path) -> list[dict[str, float]]:
    return [{k: v for k, v in line.items() if not k.endswith("_s")} for line in read(path)]


# --- cold start ---


def test_the_cold_start_trains_on_what_passed_and_seals_a_whole_checkpoint(started: StageContext) -> None:
    done = started.done("cold_start")
    assert done["refused"] == 12  # every second script is wrong on purpose
    assert done["demonstrations"] > 0
    assert done["demonstrations"] % 12 == 0  # with as many renamed copies of each
    assert set(done["fed"]) == {t.task_id for t in started.tasks("train")}
    assert (
        done["checkpoint_id"]
        == started.checkpoint_id("cold_start")
        == checkpoint.read_state(started.checkpoint("cold_start"))["checkpoint_id"]
    )
    losses = [line["loss"] for line in read(started.stage_dir("cold_start") / "metrics.jsonl")]
    assert len(losses) == 40
    assert losses[-1] < losses[0] - 0.5
    assert Llama.load(started.checkpoint("cold_start")).config.vocab_size == started.tokenizer.vocab_size


def test_a_finished_stage_is_not_run_again(started: StageContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "load_demonstrations", lambda *_: pytest.fail("ran again"))
    assert stages.cold_start(started) == started.done("cold_start")


@pytest.mark.slow
def test_the_same_seed_gives_the_same_cold_start(started: StageContext, tmp_path: Path) -> None:
    for part in ("dataset", "vault"):
        shutil.copytree(started.run_dir / part, tmp_path / "other" / part)
    again = StageContext(tmp_path / "other", CONFIG, started.resources)
    assert stages.cold_start(again)["checkpoint_id"] == started.checkpoint_id("cold_start")


def test_without_a_demonstration_that_passes_there_is_no_cold_start(started: StageContext, tmp_path: Path) -> None:
    shutil.copytree(started.run_dir / "dataset", tmp_path / "other" / "dataset")
    with make_resources(Vault(tmp_path / "empty")) as resources, pytest.raises(InputError, match="no demonstration passed"):
        stages.cold_start(StageContext(tmp_path / "other", CONFIG, resources))


def test_names_come_from_titles_and_signatures_of_the_corpus_or_from_training_prompts(started: StageContext) -> None:
    class Listed:
        def documents(self) -> Iterator[Document]:
            yield Document("d1", "optimize.bisect", "bisect(f, xtol=2e-12)\n\nFind a root (of f).", "scipy", "BSD-3-Clause", ())
            yield Document("d2", "Tutorial", "No signature here.\n\nf(x)", "scipy", "BSD-3-Clause", ())

    listed = StageContext(started.run_dir, CONFIG, dataclasses.replace(started.resources, corpus=Listed()))  # type: ignore[arg-type]
    assert list(stages._passages(listed)) == ["optimize.bisect bisect(f, xtol=2e-12)", "Tutorial"]
    silent = StageContext(started.run_dir, CONFIG, dataclasses.replace(started.resources, corpus=None))
    assert list(stages._passages(silent)) == [m.content for t in started.tasks("train") for m in t.prompt]


# --- budgets ---


def test_budgets_measure_training_tasks_and_hold_for_every_task_of_rl_and_evaluation(context: StageContext) -> None:
    done = stages.budgets(context)
    b0 = expert.load_budgets(context)
    tasks = [t for split in ("train", "heldout") for t in context.tasks(split)]
    assert set(b0.references) == {t.task_id for t in tasks}
    for task in tasks:
        reference = Demonstration("s", tuple(context.resources.vault.get_reference(task.reference_sha256)))
        assert b0.references[task.task_id] == reference_length(task, reference, context.codec)
        assert b0.of(task) == b0.kinds.get(task.kind, b0.domains[task.domain]) * b0.references[task.task_id]
    assert done["completions"] == len(context.tasks("train")) * CONFIG.effort.samples  # held-out tasks are not sampled
    assert [done[f"b0_share_{d}"] for d in DOMAINS] == [b0.domains[d] for d in DOMAINS]


# --- an expert ---


@pytest.mark.slow
def test_an_expert_killed_in_the_middle_ends_as_if_it_had_not_been(
    context: StageContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _b0(context, 8.0)
    shutil.copytree(context.run_dir, tmp_path / "b" / "small")
    killed = StageContext(tmp_path / "b" / "small", CONFIG, context.resources)
    whole = expert.run(context, "agent", "max")
    stage = expert_stage("agent", "max")
    with monkeypatch.context() as patch:
        _kill_at(patch, 3)
        with pytest.raises(KeyboardInterrupt):
            expert.run(killed, "agent", "max")
    assert not killed.finished(stage)
    assert checkpoint.latest(killed.stage_dir(stage)).name == "step_2"
    assert expert.run(killed, "agent", "max") == whole
    assert _comparable(killed.stage_dir(stage) / "metrics.jsonl") == _comparable(context.stage_dir(stage) / "metrics.jsonl")
    assert [line["step"] for line in read(context.stage_dir(stage) / "metrics.jsonl")] == [0, 1, 2, 3]
    assert whole["parent_id"] == context.checkpoint_id("cold_start")
    kept = {p.name for p in (context.stage_dir(stage) / "checkpoints").iterdir()}
    assert kept == {"step_2", "step_4"}
    # `low` branches from the kept early checkpoint.
    low = expert.run(context, "agent", "low")
    assert low["parent_id"] == checkpoint.read_state(context.stage_dir(stage) / "checkpoints" / "step_2")["checkpoint_id"]
    parts = {row: sorted((context.run_dir / "tables" / row.TABLE).glob(f"{stage}-*.parquet")) for row in (RolloutRow, RewardRow)}
    assert [len(p) for p in parts.values()] == [4, 4]
    assert sum(len(read_rows(p, RolloutRow)) for p in parts[RolloutRow]) == 32
    rewards = [r for p in parts[RewardRow] for r in read_rows(p, RewardRow)]
    assert len(rewards) == 32
    for r in rewards:
        assert r.budget_tokens == 8.0 * CONFIG.effort.multipliers["agent"]["max"]
        assert r.reward == (-1.0 if r.effort_tokens > r.budget_tokens else r.outcome_reward)
    assert {r.reward for r in rewards} > {-1.0}  # some within, some beyond: the killed run had something to lose


@pytest.mark.slow
def test_each_task_group_meets_one_drawn_harness_and_the_tables_say_which(context: StageContext) -> None:
    _b0(context, 8.0)
    # Names only: the small policy's window holds no schemas.
    plain = [n for n, p in PRESETS.items() if p.tools.declaration == "names"]
    settings = HarnessSettings(presets=(*plain, "deepseek"), constraints=Constraints(mcp=False))
    context.config = CONFIG.model_copy(update={"harness": settings})
    expert.run(context, "agent", "max")
    tables = context.run_dir / "tables"
    rows = [r for p in tables.glob("rollouts/expert-agent-max-*.parquet") for r in read_rows(p, RolloutRow)]
    groups: dict[tuple[int, str], set[str]] = {}
    for row in rows:
        groups.setdefault((row.step, row.trajectory_id.rpartition("-")[0]), set()).add(row.harness_sha256)
    assert {len(g) for g in groups.values()} == {1}
    drawn = {sha for g in groups.values() for sha in g}
    assert len(drawn) > 1
    harnesses = {r.harness_sha256: r for p in tables.glob("harnesses/*.parquet") for r in read_rows(p, HarnessRow)}
    assert drawn <= set(harnesses)
    sampler = context.config.harness.sampler(context.config.seed)
    for step, group in groups:
        assert groups[step, group] == {sampler.draw(group).sha256}
    segments = [r for p in tables.glob("segments/expert-agent-max-*.parquet") for r in read_rows(p, SegmentRow)]
    assert {s.trajectory_id for s in segments} == {r.trajectory_id for r in rows}


@pytest.mark.slow
def test_negative_advantages_weigh_less_in_training_and_are_recorded_whole(context: StageContext, monkeypatch: pytest.MonkeyPatch) -> None:
    _b0(context, 8.0)
    trained: list[list[float]] = []
    spread = expert.trainer.per_sequence
    monkeypatch.setattr(expert.trainer, "per_sequence", lambda advantages: trained.append(list(advantages)) or spread(advantages))
    expert.run(context, "agent", "max")
    stage, weight = expert_stage("agent", "max"), CONFIG.expert.negative_weight
    assert 0 < weight < 1
    steps = [
        [r.advantage for r in read_rows(p, RewardRow) if r.advantage]
        for p in sorted((context.run_dir / "tables" / RewardRow.TABLE).glob(f"{stage}-*.parquet"))
    ]
    assert any(steps)
    assert trained == [[a * (weight if a < 0 else 1.0) for a in step] for step in steps if step]


@pytest.mark.parametrize("missing", ["cold start", "budgets", "branch"])
def test_an_expert_names_what_it_lacks(missing: str, context: StageContext) -> None:
    if missing != "budgets":
        _b0(context, 8.0)
    if missing == "cold start":
        (context.stage_dir("cold_start") / DONE).unlink()
        with pytest.raises(InputError, match="cold_start has not finished"):
            expert.run(context, "agent", "max")
    elif missing == "budgets":
        with pytest.raises(InputError, match="budgets has not finished"):
            expert.run(context, "agent", "max")
        _b0(context, 8.0)
        (context.stage_dir("budgets") / "b0.json").write_text("{")
        with pytest.raises(CorruptArtifactError, match=r"b0\.json"):
            expert.run(context, "agent", "max")
    else:
        with pytest.raises(CorruptArtifactError, match="step_2"):
            expert.run(context, "agent", "low")


def test_prompts_are_picked_in_equal_parts_by_level_and_by_seed(started: StageContext) -> None:
    tasks = started.selected("general")
    assert {t.level for t in tasks} == {1, 2}
    found = expert.pick(tasks, 6, 0, "x", 1)
    assert [t.level for t in found] == [1, 2] * 3
    assert expert.pick(tasks, 6, 0, "x", 1) == found
    assert expert.stable_seed(1, "a") == expert.stable_seed(1, "a") != expert.stable_seed("1/a", "")
    assert 0 <= expert.stable_seed("anything") < 2**63


def test_the_stored_selection_decides_what_experts_train_on(context: StageContext) -> None:
    chosen = context.tasks("train", "general")[:1]
    (context.run_dir / "training" / "selection.json").write_text(json.dumps({"task_ids": [t.task_id for t in chosen]}))
    assert context.selected("general") == chosen


# --- the student ---


def _teachers(context: StageContext, parent: str | None = None) -> None:
    """Nine teachers: the cold start, each nudged its own way."""
    for number, (domain, effort) in enumerate(mopd.CELLS):
        net = Llama.load(context.checkpoint("cold_start"))
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for p in net.parameters():
                p.add_(torch.randn(p.shape, generator=generator) * 0.02)
        stage = expert_stage(domain, effort)
        identity = checkpoint.save(context.stage_dir(stage) / "final", net, None, {"step": 1})
        context.seal(stage, {"checkpoint_id": identity, "parent_id": parent or context.checkpoint_id("cold_start")})


@pytest.mark.slow
def test_a_student_killed_in_the_middle_ends_as_if_it_had_not_been(
    context: StageContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _teachers(context)
    shutil.copytree(context.run_dir, tmp_path / "b" / "small")
    killed = StageContext(tmp_path / "b" / "small", CONFIG, context.resources)
    with caplog.at_level(logging.WARNING):
        whole = mopd.run(context)
    assert sum("nats a token from the student" in r.getMessage() for r in caplog.records) == 9
    with monkeypatch.context() as patch:
        _kill_at(patch, 2)
        with pytest.raises(KeyboardInterrupt):
            mopd.run(killed)
    assert mopd.run(killed) == whole
    lines = _comparable(context.stage_dir("student") / "metrics.jsonl")
    assert lines == _comparable(killed.stage_dir("student") / "metrics.jsonl")
    assert whole["checkpoint_id"] != context.checkpoint_id("cold_start")
    assert whole["parent_id"] == context.checkpoint_id("cold_start")
    assert len(set(whole["teachers"].values())) == 9
    assert all(line["train_skipped"] == 0.0 for line in lines)
    rows = read_rows(context.run_dir / "tables" / RolloutRow.TABLE / "student-0000.parquet", RolloutRow)
    assert {(r.domain, r.effort) for r in rows} == set(mopd.CELLS)
    assert {r.teacher for r in rows} == set(whole["teachers"].values())
    assert all(f"Reasoning effort: {r.effort}." in r.transcript for r in rows)


def test_a_teacher_of_another_descent_is_refused(context: StageContext) -> None:
    _teachers(context, parent="somewhere")
    max_stage = context.stage_dir(expert_stage("general", "max")) / "checkpoints" / "step_2"
    checkpoint.save(max_stage, Llama.load(context.checkpoint("cold_start")), None, {"step": 2, "parent_id": "elsewhere"})
    with pytest.raises(InputError, match="descends from somewhere, not from the cold start"):
        mopd.run(context)


def test_a_missing_teacher_is_named(context: StageContext) -> None:
    with pytest.raises(InputError, match="expert-general-low has not finished"):
        mopd.run(context)


# --- the context, and figures ---


def test_a_broken_done_file_is_corrupt(context: StageContext) -> None:
    (context.stage_dir("cold_start") / DONE).write_text("{")
    with pytest.raises(CorruptArtifactError, match=r"cold_start/done\.json"):
        context.done("cold_start")


def test_a_split_or_domain_without_tasks_is_named(context: StageContext) -> None:
    only = [t for t in context.tasks("train") if t.domain != "agent"]
    publish({"train": only}, context.run_dir / "dataset", graph_version="g")
    with pytest.raises(InputError, match="no train tasks for agent"):
        context.tasks("train", "agent")


def test_the_interval_resamples_tasks() -> None:
    tasks = [str(i // 4) for i in range(80)]
    passes = [float(i // 4 % 2) for i in range(80)]  # 20 tasks, each always or never passed
    low, high = interval(passes, tasks, 2000, 0)
    assert low < 0.5 < high
    assert high - low == pytest.approx(2 * 1.96 * (0.25 / 20) ** 0.5, rel=0.2)
    assert interval(passes, tasks, 2000, 0) == (low, high)
    assert interval([1.0] * 5, ["a"] * 5, 100, 0) == (1.0, 1.0)
    assert interval([], [], 100, 0) == (0.0, 0.0)


def test_efforts_and_cells_cover_the_nine() -> None:
    assert len(mopd.CELLS) == len(set(mopd.CELLS)) == len(DOMAINS) * len(EFFORTS) == 9
