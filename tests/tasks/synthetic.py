"""Made-up rows for every table: TEST DATA, nothing here was measured.

The numbers follow simple formulas with seeded noise, so that catalogue and report have something of a realistic shape to show.
`HOSTILE` occurs in task, transcript and node texts: pages built from the rows must show it as text.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Sequence
from pathlib import Path

from environments import records as r
from environments.harness.config import LAPTOP
from environments.tables import write_rows
from environments.task import DOMAINS, EFFORTS
from environments.trace_rows import harness_row

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>\"'&"
SEEDS = ("linear algebra", "regular expressions", "network sockets", "text encoding", "random numbers", "file archives")
WORDS = ("solver", "buffer", "codec", "index", "parser", "stream", "token", "matrix", "cursor", "packet", "filter", "kernel", "header")
EXPLOITS = [
    ("constant answer", "constant"),
    ("copy a number from the prompt", "copy"),
    ("read the vault", "leak"),
    ("overwrite the verifier", "tamper"),
    ("always equal object", "equality"),
    ("exit before the tests", "exit"),
    ("special-case the examples", "overfit"),
    ("submit many times", "resubmit"),
    ("claim success in words", "claim"),
    ("write every setting", "flood"),
]
TIME = "2026-01-01T00:00:00Z"


def _id(*parts: object) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()[:16]


def synthetic_rows(run: str = "synthetic", nodes: int = 240, tasks: int = 360, seed: int = 7) -> dict[type[r.Row], list[r.Row]]:
    """Rows of all seventeen tables of one run. The lists are the caller's own."""
    return {model: list(rows) for model, rows in _made(run, nodes, tasks, seed).items()}


@functools.cache
def _made(run: str, nodes: int, tasks: int, seed: int) -> dict[type[r.Row], list[r.Row]]:
    rng = random.Random(seed)
    rows: dict[type[r.Row], list[r.Row]] = {model: [] for model in r.ROW_MODELS}

    def add(model: type[r.Row], **values: object) -> None:
        rows[model].append(model(run=run, **values))

    graph: list[r.NodeRow] = []
    for i in range(nodes):
        parents = [] if i < len(SEEDS) else rng.sample(graph[:70], k=1 if i < 30 or rng.random() < 0.85 else 2)
        level = 1 + max((p.level for p in parents), default=-1)
        name = SEEDS[i] if i < len(SEEDS) else f"{rng.choice(WORDS)} {rng.choice(WORDS)} {i}"
        node_id = f"n{i:04d}"
        branch = node_id if level <= 1 else parents[0].branch
        node = r.NodeRow(
            run=run,
            node_id=node_id,
            name=HOSTILE if i == 9 else name,
            aliases=[name.upper()],
            domain=DOMAINS[i % 3] if not parents else parents[0].domain,
            level=level,
            branch=branch,
            seed=not parents,
            atomic=rng.random() < 0.4,
            agent="embedded",
            reason="fewer than two new concepts in its documents" if rng.random() < 0.4 else "its documents name narrower concepts",
            queries=[name, f"{name} parameters"],
            confidence=round(0.4 + 0.6 * rng.random(), 3),
            created_at=TIME,
        )
        graph.append(node)
        for parent in parents:
            add(
                r.EdgeRow,
                coarse_id=parent.node_id,
                fine_id=node_id,
                relation="narrower",
                confidence=0.7,
                document_ids=[f"doc{i}"],
                quote=f"{name} is used with {parent.name}",
                agent="embedded",
                created_at=TIME,
            )
        sha = hashlib.sha256(name.encode()).hexdigest()
        passage = f"{name}: max_iter defaults to {100 + i}. It reads a {rng.choice(WORDS)} and returns a {rng.choice(WORDS)}."
        add(r.MaterialRow, material_sha256=sha, document_id=f"doc{i}", title=name, source="numpy", licence="BSD-3-Clause", passage=passage)
        add(r.NodeMaterialRow, node_id=node_id, material_sha256=sha)
    rows[r.NodeRow].extend(graph)
    for i in range(40):
        why = rng.choice(["cycle", "evidence", "name"])
        add(r.GraphRejectRow, node_id=f"n{i:04d}", name=f"thing {i}", relation="narrower", reason=why)

    made: list[r.TaskRow] = []
    for i in range(tasks):
        node = graph[(7 * i) % nodes]
        domain = DOMAINS[i % 3]
        status = rng.choices(["published", "synthesis", "validation", "probe", "split"], [74, 8, 8, 6, 4])[0]
        split = "" if status != "published" else rng.choices(["train", "validation", "heldout"], [80, 8, 12])[0]
        kind = {"general": "two_default_sum", "agent": "restore_settings", "coding": "infer_function"}[domain]
        task = r.TaskRow(
            run=run,
            task_id=_id(run, "task", i),
            family={"general": "search", "agent": "assistant", "coding": "coding"}[domain],
            domain=domain,
            kind=kind,
            level=1 + i % 4,
            branch=node.branch,
            split=split,
            status=status,
            reject_reason="" if status == "published" else f"{status}: made-up reason",
            prompt=f"Test task {i} about {node.name}: add the default of max_iter to {i}. {HOSTILE if i % 50 == 3 else ''}",
            spec_json=json.dumps({"number": i}),
            verifier_kind={"general": "exact_number", "agent": "final_state", "coding": "hidden_tests"}[domain],
            verifier_sha256=_id("verifier", i) * 4,
            verifier_version=1,
            synthesizer="test",
            synthesizer_version="1",
            licence="BSD-3-Clause",
        )
        made.append(task)
        add(r.TaskNodeRow, task_id=task.task_id, node_id=node.node_id)
        add(r.TaskMaterialRow, task_id=task.task_id, material_sha256=hashlib.sha256(_name(graph, node).encode()).hexdigest())
        if status != "synthesis":
            _checks(add, task, rng)
    rows[r.TaskRow].extend(made)
    _training(add, made, rng, run)
    add(
        r.RunRow,
        profile="laptop",
        seed=seed,
        status="finished",
        started_at=TIME,
        finished_at="2026-01-01T00:17:31Z",
        prefect_run_url="http://127.0.0.1:4200/runs/flow-run/test",
        config_json="{}",
        git_commit="0" * 40,
        dataset_version=_id(run, "dataset"),
    )
    return rows


def _name(graph: Sequence[r.NodeRow], node: r.NodeRow) -> str:
    return node.aliases[0].lower()


def _checks(add, task: r.TaskRow, rng: random.Random) -> None:
    for check in ("reference", "null", "empty", "malformed", "repeat", "mutation:constant", "mutation:zero"):
        expected = "pass" if check in ("reference", "repeat") else "fail"
        broken = task.status == "validation" and check == ("reference" if task.level % 2 else "mutation:constant")
        add(
            r.ValidationRow,
            task_id=task.task_id,
            verifier_sha256=task.verifier_sha256,
            verifier_version=1,
            check_name=check,
            expected=expected,
            observed={"pass": "fail", "fail": "pass"}[expected] if broken else expected,
            ok=not broken,
            runs=1,
            wall_s=0.01,
            detail="answer 12 instead of 13" if broken else "as expected",
        )
    if task.status != "validation":
        for n, (exploit, exploit_class) in enumerate(EXPLOITS):
            hit = task.status == "probe" and n == task.level % 3
            add(
                r.ProbeRow,
                task_id=task.task_id,
                verifier_version=1,
                exploit=exploit,
                exploit_class=exploit_class,
                succeeded=hit,
                status="pass" if hit else rng.choice(["fail", "tainted"]),
                wall_s=0.02,
                transcript=f"submit(7) -> {HOSTILE}",
            )


def _transcript(task: r.TaskRow, good: bool) -> str:
    call = f'[open]call tool="search" index="0"[sep][open]arg name="query"[sep]max_iter {HOSTILE[:20]}[close]arg[sep][close]call[sep]'
    answer = "487" if good else "12"
    return (
        f'[open]message role="user"[sep]{task.prompt}[close]message[sep][end_of_msg]\n'
        f'[open]message role="assistant"[sep][open]think[sep]The default is documented.[close]think[sep]{call}[end_of_msg]\n'
        f'[open]message role="tool"[sep]1. doc12 max_iter defaults to 112[close]message[sep][end_of_msg]\n'
        f'[open]message role="assistant"[sep][open]call tool="submit" index="0"[sep]{answer}[close]call[sep][end_of_msg]'
    )


def _training(add, tasks: Sequence[r.TaskRow], rng: random.Random, run: str) -> None:
    train = [t for t in tasks if t.split == "train"]
    held = [t for t in tasks if t.split == "heldout"]
    cold, student = _id(run, "cold"), _id(run, "student")
    sealed = {"dataset_version": _id(run, "dataset"), "created_at": TIME}
    nobody = {"domain": "", "effort": ""}
    laptop = harness_row(run, LAPTOP)
    add(r.HarnessRow, **laptop.model_dump(exclude={"run"}))
    add(r.CheckpointRow, checkpoint_id=cold, parent_id="", stage="cold_start", step=400, path="cold", **nobody, **sealed)
    add(r.CheckpointRow, checkpoint_id=student, parent_id=cold, stage="mopd", step=120, path="student", **nobody, **sealed)
    for task in train:
        add(r.CheckpointTaskRow, checkpoint_id=cold, task_id=task.task_id, episodes=3)
        add(r.CheckpointTaskRow, checkpoint_id=student, task_id=task.task_id, episodes=2)
    for step in range(0, 401, 20):
        add(r.MetricRow, stage="cold_start", step=step, name="loss", value=0.3 + 2.5 / (1 + step / 30))
    count = 0

    def rollout(task: r.TaskRow, policy: str, checkpoint: str, stage: str, effort: str, step: int, good: bool, tokens: int) -> str:
        nonlocal count
        count += 1
        trajectory = _id(run, "trajectory", count)
        add(
            r.RolloutRow,
            trajectory_id=trajectory,
            task_id=task.task_id,
            stage=stage,
            policy=checkpoint or policy,
            checkpoint_id=checkpoint,
            domain=task.domain,
            effort=effort,
            step=step,
            teacher="",
            stop="submitted" if good else "output_tokens",
            output_tokens=tokens,
            thinking_tokens=tokens // 3,
            tool_calls=3,
            malformed_calls=0 if good else count % 3,
            status="pass" if good else "fail",
            score=1.0 if good else 0.25,
            within_budget=tokens < 150,
            transcript=_transcript(task, good),
            evidence=json.dumps({"submitted": "487" if good else "12", "note": HOSTILE}),
            harness_sha256=LAPTOP.sha256,
            wall_s=0.2,
        )
        add(
            r.SegmentRow,
            trajectory_id=trajectory,
            segment_id=0,
            parent_id=None,
            fork="root",
            token_ids=[1, 2, 3],
            logprobs=[0.0, -0.5, -0.25],
            versions=[-1, step, step],
            loss_mask=[0, 1, 1],
            malformed=[],
            messages_json="",
        )
        add(
            r.CallRow,
            trajectory_id=trajectory,
            position=0,
            conversation=0,
            step=1,
            tool="submit",
            arguments_json="{}",
            result="submitted",
            error="" if good else "BadArgumentsError",
            wall_s=0.01,
        )
        return trajectory

    for d, domain in enumerate(DOMAINS):
        mine = [t for t in held if t.domain == domain] or [t for t in tasks if t.domain == domain]
        fed = [t for t in train if t.domain == domain]
        for e, effort in enumerate(EFFORTS):
            expert = _id(run, "expert", domain, effort)
            add(
                r.CheckpointRow,
                checkpoint_id=expert,
                parent_id=cold,
                stage="expert",
                domain=domain,
                effort=effort,
                step=150,
                path=f"e-{domain}-{effort}",
                **sealed,
            )
            before, after = 0.22 + 0.08 * e + 0.05 * d, 0.62 + 0.11 * e + 0.03 * d
            if (domain, effort) == ("coding", "low"):
                after = before + 0.03  # a teacher without a gain: its recovered share is null
            caught = before + 0.9 * (after - before)
            budget, tokens = 60 * (e + 1) + 20 * d, 45 * (e + 1) + 18 * d
            for policy, checkpoint, share, length in (
                ("cold_start", cold, before, 90 + 10 * d),
                (f"expert-{domain}-{effort}", expert, after, tokens),
                ("student", student, caught, tokens + 6),
            ):
                for level in range(5):
                    value = share if level == 0 else max(0.02, min(0.99, share + 0.12 * (2.5 - level)))
                    add(
                        r.EvaluationRow,
                        policy=policy,
                        checkpoint_id=checkpoint,
                        domain=domain,
                        effort=effort,
                        level=level,
                        tasks=40 if level == 0 else 10,
                        samples=160 if level == 0 else 40,
                        pass_rate=value,
                        pass_low=max(0.0, value - 0.07),
                        pass_high=min(1.0, value + 0.07),
                        pass_unbudgeted=min(1.0, value + 0.04),
                        mean_tokens=length,
                        mean_effort_tokens=0.7 * length,
                        budget=budget,
                    )
                for n, task in enumerate([t for t in mine[:3] for _ in range(4)]):
                    rollout(task, policy, checkpoint, "evaluation", effort, -1, n % 3 > 0, length + 7 * n)
            stage = f"expert-{domain}-{effort}"
            for step in range(0, 151, 10):
                noise = 0.05 * (rng.random() - 0.5)
                value = before + (after - before) * step / (step + 40) * 1.25 + noise
                add(r.MetricRow, stage=stage, step=step, name="reward", value=min(1.0, value))
                add(r.MetricRow, stage=stage, step=step, name="mean_tokens", value=90 + (tokens - 90) * step / 150)
                for task in fed[:2]:
                    good = rng.random() < value
                    trajectory = rollout(task, stage, expert, "expert", effort, step, good, tokens)
                    add(
                        r.RewardRow,
                        trajectory_id=trajectory,
                        reward=float(good),
                        outcome_reward=float(good),
                        advantage=float(good) - value,
                        budget_tokens=budget,
                        effort_tokens=tokens,
                    )
            for task in fed:
                add(r.CheckpointTaskRow, checkpoint_id=expert, task_id=task.task_id, episodes=4)
        for policy, share in (("constant", 0.0), ("copy", 0.012), ("no_tools", 0.021)):
            add(
                r.EvaluationRow,
                policy=policy,
                checkpoint_id="",
                domain=domain,
                effort="",
                level=0,
                tasks=40,
                samples=40,
                pass_rate=share,
                pass_low=0.0,
                pass_high=share + 0.02,
                pass_unbudgeted=share,
                mean_tokens=4,
                mean_effort_tokens=2,
                budget=0,
            )


def write_run(workspace: Path, run: str = "synthetic", *, only: Sequence[type[r.Row]] | None = None, **sizes: int) -> Path:
    """Write the tables (all, or only some) of a synthetic run; returns its folder."""
    run_dir = Path(workspace) / "runs" / run
    for model, rows in synthetic_rows(run, **sizes).items():
        if only is None or model in only:
            half = len(rows) // 2
            write_rows(run_dir / "tables" / model.TABLE / "a.parquet", model, rows[:half])
            write_rows(run_dir / "tables" / model.TABLE / "b.parquet", model, rows[half:])
    return run_dir
