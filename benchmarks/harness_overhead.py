"""What the harness costs: steps a second with a scripted policy, messages only, no sandbox; beside verifiers' and inspect-ai's loops.

    make setup-peers && python benchmarks/harness_overhead.py

One step is an assistant message with one call, the call's execution (a look-up in a table), its record and its answer. All
three run the same episode, each in a process of its own, in turns; the best of the repetitions counts, for the machine may be
busy with other work. Prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from itertools import chain, repeat
from pathlib import Path

HERE = Path(__file__).parent
PEERS = {"verifiers": "verifiers_loop.py", "inspect_ai": "inspect_loop.py"}


def ours(steps: int, episodes: int) -> dict[str, float]:
    """The episode in our own loop."""
    from environments.families import make_environment
    from environments.harness.config import ENDPOINT
    from environments.harness.episode import Episode
    from environments.harness.loop import drive
    from environments.policies import ScriptedPolicy
    from environments.resources import Resources
    from environments.task import Budgets, InitialState, Message, Provenance, TaskSpec, ToolCall, VerifierRef
    from environments.vault import Vault

    rows = ({"name": "depth", "value": "3"}, {"name": "length", "value": "10"}, {"name": "width", "value": "70"})
    verifier = VerifierRef(kind="final_state", sha256="0" * 64, entry="environments.verifiers.final_state:FinalState")
    task = TaskSpec(
        family="assistant",
        domain="agent",
        kind="benchmark",
        level=1,
        prompt=(Message(role="user", content="What is the width?"),),
        initial_state=InitialState(tables={"settings": rows}),
        tools=("get", "set", "submit"),
        budgets=Budgets(steps=steps + 5, output_tokens=10**9, wall_s=600, submissions=1),
        hidden_verifier=verifier,
        reference_sha256="0" * 64,
        provenance=Provenance(
            node_ids=(), branch="", document_ids=(), material_hashes=(), synthesizer="benchmark", synthesizer_version="1"
        ),
        licence="none",
    )
    call = Message(role="assistant", calls=(ToolCall(tool="get", arguments={"name": "width"}),))
    with tempfile.TemporaryDirectory() as folder, Resources(Vault(Path(folder))) as resources:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(episodes):
            episode = Episode(make_environment(task, resources), ENDPOINT)
            episode.start()
            drive(episode, ScriptedPolicy.of(chain(repeat(call, steps))), 10**9)
            assert episode.stop == "finished"
            assert len(episode.records) == steps
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"steps_per_s": steps * episodes / wall, "steps_per_cpu_s": steps * episodes / cpu}


def measure(command: list[str]) -> dict[str, float]:
    """What one process measured: the last line it printed."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command[1]} failed: {done.stderr.strip().splitlines()[-1:]}")
    measured: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return measured


def best(runs: list[dict[str, float]]) -> dict[str, float]:
    return max(runs, key=lambda r: r["steps_per_s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100, help="of one episode")
    parser.add_argument("--episodes", type=int, default=100, help="of one repetition of ours; peers run a tenth of them")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--peers", type=Path, default=HERE.parent / ".venv-peers", help="environment that `make setup-peers` made")
    parser.add_argument("--only-ours", action="store_true", help="print one measurement of ours: what the processes run")
    options = parser.parse_args()
    if options.only_ours:
        print(json.dumps(ours(options.steps, options.episodes)))
        return
    python = options.peers / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"there is no {python}: run `make setup-peers` first")
    mine, peers = [], {name: [] for name in PEERS}
    own = [sys.executable, __file__, "--only-ours", "--steps", str(options.steps), "--episodes", str(options.episodes)]
    for repetition in range(options.repetitions):
        mine.append(measure(own))
        for name, script in PEERS.items():
            few = str(max(1, options.episodes // 10))
            peers[name].append(measure([str(python), str(HERE / "peers" / script), str(options.steps), few]))
        print(f"repetition {repetition}: {mine[-1]} {[(n, p[-1]) for n, p in peers.items()]}", file=sys.stderr)
    chosen = best(mine)
    report = {
        "steps_per_s": round(chosen["steps_per_s"]),
        "steps_per_cpu_s": round(chosen["steps_per_cpu_s"]),
        "peers": {name: {k: v if k == "version" else round(v) for k, v in best(runs).items()} for name, runs in peers.items()},
        "steps": options.steps,
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
