"""Effort budgets, checkpoints, metrics and the optimizer's state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from environments.errors import CorruptArtifactError, InputError
from environments.task import Domain, Message, ToolCall
from tasks.kinds import Demonstration
from tests.tasks.specs import make_task
from tests.training.small import CONFIG, codec, model
from training import checkpoint
from training.config import EffortConfig
from training.effort import budget, effort_reward, estimate, reference_length
from training.metrics import Metrics, read
from training.model import Llama
from training.optim import MuonAdamW, warmup_decay

# --- effort ---


def test_b0_is_the_reference_length_times_the_mean_share_of_correct_completions_of_the_kind() -> None:
    """References of 10, 40 and 25 tokens; correct completions of 15, 25 and 20: shares 1.5, 2.5 and 0.5, mean 1.5."""
    short, long, never = make_task(1), make_task(2), make_task(3)
    references = {short.task_id: 10, long.task_id: 40, never.task_id: 25}
    completions = [(short, True, 15), (short, True, 25), (long, True, 20), (long, False, 90_000), (never, False, 1)]
    b0 = estimate(completions, references)
    assert b0.kinds == {"test_kind": 1.5}
    assert [b0.of(t) for t in (short, long, never)] == [15.0, 60.0, 37.5]
    assert b0 == estimate(reversed(completions), references)
    assert type(b0).model_validate_json(b0.model_dump_json()) == b0


def test_a_kind_without_correct_completions_falls_back_to_its_domain() -> None:
    easy, easier, hard = make_task(1), make_task(2, kind="b"), make_task(3, kind="c")
    b0 = estimate([(easy, True, 10), (easier, True, 40), (hard, False, 900)], {easy.task_id: 10, easier.task_id: 20, hard.task_id: 30})
    assert b0.kinds == {"test_kind": 1.0, "b": 2.0}
    assert b0.of(hard) == 30 * 1.5


def test_correct_completions_without_any_thinking_set_no_budget_of_nothing_for_their_kind() -> None:
    silent, loud = make_task(1), make_task(2, kind="b")
    b0 = estimate([(silent, True, 0), (loud, True, 10)], {silent.task_id: 10, loud.task_id: 10})
    assert b0.kinds == {"b": 1.0}
    assert b0.of(silent) == 10 * 0.5


def test_in_a_domain_without_correct_completions_the_lengths_of_failures_stand_in(caplog: pytest.LogCaptureFixture) -> None:
    solved, failed = make_task(1), make_task(2, domain="coding", kind="b")
    b0 = estimate([(solved, True, 10), (failed, False, 30), (failed, False, 60)], {solved.task_id: 10, failed.task_id: 15})
    assert b0.of(failed) == 45.0
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "the cold start solved no coding task: the lengths of its failures stand in for b0"
    ]


def test_a_task_without_a_reference_or_of_an_unsampled_domain_is_named() -> None:
    known, unknown, foreign = make_task(1), make_task(2), make_task(3, domain="agent", kind="b")
    b0 = estimate([(known, True, 10)], {known.task_id: 10, foreign.task_id: 10})
    with pytest.raises(InputError, match=f"no reference length for task {unknown.task_id}"):
        b0.of(unknown)
    with pytest.raises(InputError, match="no budget for agent tasks"):
        b0.of(foreign)


@pytest.mark.parametrize("domain", ["general", "agent", "coding"])
def test_a_reference_is_as_long_as_its_thinking_or_as_all_of_its_output(domain: Domain) -> None:
    xtml, thoughts = codec(), ["width is 113", "", "so set it"]
    calls = [ToolCall(tool="search", arguments={"query": "width"}), ToolCall(tool="submit", arguments={"answer": "113"})]
    messages = tuple(
        Message(role="assistant", thinking=t, content="done" * (not c), calls=c)
        for t, c in zip(thoughts, [(calls[0],), (calls[1],), ()], strict=True)
    )
    if domain == "general":
        expected = sum(len(xtml.tokenizer.encode(t)) for t in thoughts)
    else:
        expected = sum(len(xtml.encode(m)) - len(xtml.generation_prefix) for m in messages)
    assert reference_length(make_task(1, domain=domain), Demonstration("s", messages), xtml) == expected
    silent = tuple(m.model_copy(update={"thinking": ""}) for m in messages)
    length = reference_length(make_task(1, domain=domain), Demonstration("s", silent), xtml)
    assert length == 1 if domain == "general" else 1 < length < expected


def test_budgets_multiply_b0_and_beyond_them_the_reward_is_minus_one() -> None:
    task, config = make_task(1), EffortConfig()
    b0 = estimate([(task, True, 100)], {task.task_id: 40})
    found = [budget(task, "general", e, b0, config) for e in ("low", "high", "max")]
    assert found == [config.multipliers["general"][e] * 100 for e in ("low", "high", "max")]
    assert found == sorted(found)
    assert [effort_reward(o, n, 100.0) for o, n in ((1.0, 100), (0.0, 100), (1.0, 101), (0.0, 101))] == [1.0, 0.0, -1.0, -1.0]


# --- checkpoints ---


def _save(stage: Path, step: int, seed: int = 0) -> str:
    return checkpoint.save(stage / "checkpoints" / f"step_{step}", model(seed), None, {"step": step})


def test_a_checkpoint_comes_back_with_its_optimizer(tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    net(torch.tensor([[1, 2, 3]])).sum().backward()
    optimizer.step()
    identity = checkpoint.save(tmp_path / "step_3", net, optimizer, {"step": 3, "fed": {"t": 1}})
    assert checkpoint.read_state(tmp_path / "step_3") == {"step": 3, "fed": {"t": 1}, "checkpoint_id": identity}
    again = Llama.load(tmp_path / "step_3")
    other = torch.optim.AdamW(again.parameters(), lr=0.5)
    checkpoint.load_optimizer(tmp_path / "step_3", other)
    for a, b in ((net, optimizer), (again, other)):
        b.zero_grad()
        a(torch.tensor([[4, 5]])).sum().backward()
        b.step()
    assert torch.equal(net.head, again.head)
    assert [p.name for p in tmp_path.iterdir()] == ["step_3"]


def test_saving_again_replaces_the_whole_folder(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "final", model(0), torch.optim.SGD(model(0).parameters(), lr=1.0), {"step": 1})
    identity = checkpoint.save(tmp_path / "final", model(1), None, {"step": 2})
    assert checkpoint.read_state(tmp_path / "final")["checkpoint_id"] == identity
    assert not (tmp_path / "final" / "optimizer.pt").exists()


def test_latest_is_the_newest_whole_one_by_number(tmp_path: Path) -> None:
    assert checkpoint.latest(tmp_path) is None
    for step in (2, 10, 9):
        _save(tmp_path, step)
    folder = tmp_path / "checkpoints"
    (folder / "step_11").mkdir()  # killed before its state was written
    (folder / ".step_12.tmp").mkdir()
    (folder / ".step_12.tmp" / checkpoint.STATE).write_text("{}")
    assert checkpoint.latest(tmp_path) == folder / "step_10"
    _save(tmp_path, 12)  # what a kill left behind does not disturb the next attempt
    assert checkpoint.latest(tmp_path) == folder / "step_12"


def test_prune_keeps_the_newest_and_the_named(tmp_path: Path) -> None:
    for step in (2, 4, 10, 12):
        _save(tmp_path, step)
    checkpoint.prune(tmp_path, keep={"step_2"}, last=2)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step_10", "step_12", "step_2"]


@pytest.mark.parametrize(
    "damage",
    [b"", b"{", b"[1]", b"{}", b"\xff", b'{"step": 1}', b'{"checkpoint_id": "0000"}'],
)
def test_a_broken_state_is_corrupt(damage: bytes, tmp_path: Path) -> None:
    _save(tmp_path, 1)
    path = tmp_path / "checkpoints" / "step_1"
    (path / checkpoint.STATE).write_bytes(damage)
    with pytest.raises(CorruptArtifactError, match="step_1"):
        checkpoint.read_state(path)


def test_weights_that_are_cut_or_exchanged_are_corrupt(tmp_path: Path) -> None:
    _save(tmp_path, 1)
    weights = tmp_path / "checkpoints" / "step_1" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    with pytest.raises(CorruptArtifactError, match="holds weights"):
        checkpoint.read_state(weights.parent)
    model(5).save(tmp_path / "other")
    weights.write_bytes((tmp_path / "other" / "model.safetensors").read_bytes())
    with pytest.raises(CorruptArtifactError, match="holds weights"):
        checkpoint.read_state(weights.parent)
    weights.unlink()
    with pytest.raises(CorruptArtifactError, match="not a whole checkpoint"):
        checkpoint.read_state(weights.parent)


@pytest.mark.parametrize("damage", ["gone", "cut", "other"])
def test_a_broken_optimizer_state_is_corrupt(damage: str, tmp_path: Path) -> None:
    net = model()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    checkpoint.save(tmp_path / "s", net, optimizer, {"step": 1})
    path = tmp_path / "s" / "optimizer.pt"
    if damage == "gone":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    target = torch.optim.AdamW(list(net.parameters())[:1] if damage == "other" else net.parameters(), lr=0.01)
    with pytest.raises(CorruptArtifactError, match="no whole optimizer state"):
        checkpoint.load_optimizer(tmp_path / "s", target)


# --- metrics ---


def test_metrics_are_lines_and_a_resume_drops_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "stage", total=9)
    for step in range(6):
        metrics.write(step, loss=1.0 / (step + 1))
    assert [line["step"] for line in read(metrics.path)] == [0, 1, 2, 3, 4, 5]
    again = Metrics(tmp_path / "stage", total=9, resume_at=4)
    again.write(4, loss=9.0)
    assert [(line["step"], line["total"]) for line in read(again.path)] == [(s, 9) for s in range(5)]
    assert read(again.path)[-1]["loss"] == 9.0
    assert read(Metrics(tmp_path / "stage", total=9).path) == []  # a fresh start keeps nothing


def test_a_line_cut_short_by_a_kill_is_left_out(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path, total=3)
    metrics.write(0, loss=1.0)
    with metrics.path.open("a") as file:
        file.write('{"step": 1, "to')
    assert [line["step"] for line in read(metrics.path)] == [0]
    assert [line["step"] for line in read(Metrics(tmp_path, total=3, resume_at=2).path)] == [0]
    assert read(tmp_path / "none.jsonl") == []


# --- optimizer ---


def _walk(net: Llama, optimizer: MuonAdamW, steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        ids = torch.randint(0, CONFIG.vocab_size, (2, 12), generator=generator)
        torch.nn.functional.cross_entropy(net(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()


def test_muon_adamw_goes_on_from_its_state_as_if_never_stopped() -> None:
    straight = model(1)
    optimizer = MuonAdamW(straight, 0.01, 0.003)
    optimizer.scale(0.5)
    _walk(straight, optimizer, 3, seed=0)
    state = json.loads(json.dumps({k: v["param_groups"] for k, v in optimizer.state_dict().items()}))
    assert [g["lr"] for k in ("muon", "adamw") for g in state[k]] == [0.005, 0.0015]
    resumed = model(2)
    resumed.load_state_dict(straight.state_dict())
    other = MuonAdamW(resumed, 0.01, 0.003)
    buffer: dict[str, Any] = torch.load(_saved(optimizer), weights_only=True)
    other.load_state_dict(buffer)
    other.scale(1.0)
    optimizer.scale(1.0)
    _walk(straight, optimizer, 3, seed=1)
    _walk(resumed, other, 3, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))


def _saved(optimizer: MuonAdamW) -> Any:
    import io

    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    return file


def test_muon_takes_the_layers_matrices_and_adamw_the_rest() -> None:
    net = model()
    optimizer = MuonAdamW(net, 0.01, 0.003)
    muon = {id(p) for g in optimizer.muon.param_groups for p in g["params"]}
    adamw = {id(p) for g in optimizer.adamw.param_groups for p in g["params"]}
    assert not muon & adamw
    for name, p in net.named_parameters():
        assert id(p) in (muon if name.endswith("_proj.weight") else adamw)


def test_the_schedule_warms_up_stays_and_decays() -> None:
    values = [warmup_decay(s, 100, 10) for s in range(100)]
    assert values[0] == 0.1
    assert values[9:51] == [1.0] * 42
    assert values[50:] == sorted(values[50:], reverse=True)
    assert min(values[10:]) == 0.05
    assert warmup_decay(0, 0, 0) == 1.0
