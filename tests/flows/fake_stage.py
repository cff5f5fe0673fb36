"""A training process for tests: counts steps, writes metrics and a checkpoint a step, resumes, and dies when it is told to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STEPS = 6


def main() -> int:
    stage = sys.argv[1] if "--domain" not in sys.argv else f"expert-{sys.argv[3]}-{sys.argv[5]}"
    stage = {"mopd": "student"}.get(stage, stage)
    run = Path(sys.argv[sys.argv.index("--run-dir") + 1])
    where = run / "training" / stage
    begun_at = time.monotonic()
    where.mkdir(parents=True, exist_ok=True)
    state = where / "state.txt"
    begun = int(state.read_text()) if state.exists() else 0
    order = json.loads((run / "order.json").read_text()) if (run / "order.json").exists() else {}
    with (where / "starts.txt").open("a") as file:
        file.write(f"{begun} {os.getpid()}\n")
    if order.get("child"):
        child = subprocess.Popen(["sleep", "300"])
        (where / "child.pid").write_text(str(child.pid))
    for step in range(begun, STEPS):
        if order.get("exit_at") == step:
            print("the input is wrong: no tasks", file=sys.stderr)
            return int(order["code"])
        time.sleep(float(order.get("sleep_s", 0.05)))
        with (where / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"step": step, "total": STEPS, "loss": 1.0 / (step + 1)}) + "\n")
        state.write_text(str(step + 1))
        if order.get("kill_at") == step and begun == 0:
            print("about to die", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
    (where / "final").mkdir(exist_ok=True)
    (where / "final" / "model.txt").write_text("weights")
    (where / "done.json").write_text(
        json.dumps(
            {"checkpoint_id": f"of-{stage}", "steps": STEPS, "began": time.time() - time.monotonic() + begun_at, "ended": time.time()}
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
