"""`ninefold serve` for real: server, pools, workers, deployments; a scheduled run goes through, the UI shows it, its retry resumes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.serve import service
from flows.server import QUIET, free_port, healthy, running_server
from flows.workspace import Workspace

ROOT = Path(__file__).parents[2]
SMALL = """
[corpus]
packages = ["networkx"]
foldoc = false
python_manual = false
linux_manual = false
embeddings = false
min_documents = 100

[graph]
seeds = ["graph algorithms"]
max_nodes = 12

[orchestration]
dask_workers = 1
min_free_disk_mb = 100
"""
pytestmark = [pytest.mark.slow, pytest.mark.prefect, pytest.mark.dask]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    root = tmp_path_factory.mktemp("served")
    (root / "small.toml").write_text(SMALL)
    return Workspace(root)


@pytest.fixture(scope="module")
def ui(workspace: Workspace) -> Iterator[str]:
    with service(free_port(), workspace) as address:
        yield address


def script(workspace: Workspace, ui: str, text: str) -> str:
    """Run Python against the served API in a process of its own, since Prefect reads its address once."""
    env = {
        **os.environ,
        **QUIET,
        "PREFECT_API_URL": f"{ui}/api",
        "PREFECT_HOME": str(workspace.prefect_home),
        "PREFECT_LOGGING_LEVEL": "ERROR",
    }
    env.pop("PREFECT_SERVER_DATABASE_CONNECTION_URL", None)
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, env=env, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


RUN = """
import datetime
from prefect.deployments import run_deployment
run = run_deployment(
    "grow-graph/grow-graph",
    parameters={{"name": "smoke", "config": {config!r}, "resume": False}},
    scheduled_time=datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=4),
    timeout=300,
)
print(run.id, run.state.type.value, run.run_count)
"""
RETRY = """
import time
from uuid import UUID
from prefect.client.orchestration import get_client
from prefect.states import AwaitingRetry
with get_client(sync_client=True) as client:
    client.set_flow_run_state(UUID({run!r}), AwaitingRetry(), force=True)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        found = client.read_flow_run(UUID({run!r}))
        if found.state.is_final() and found.run_count > 1:
            break
        time.sleep(1)
print(found.state.type.value, found.run_count)
"""
DEPLOYMENTS = """
from prefect.client.orchestration import get_client
with get_client(sync_client=True) as client:
    found = client.read_deployments()
    pools = {p.name: p.concurrency_limit for p in client.read_work_pools()}
def nights(deployment):
    return [(s.schedule.cron, s.schedule.timezone) for s in deployment.schedules]
print(sorted((d.name, d.work_pool_name, d.entrypoint, nights(d)) for d in found), "|", pools)
"""


@pytest.fixture(scope="module")
def scheduled_run(workspace: Workspace, ui: str) -> str:
    """Id of a run of the growth flow that was scheduled and came to its end."""
    said = script(workspace, ui, RUN.format(config=str(workspace.root / "small.toml")))
    run, state, count = said.split()
    assert (state, count) == ("COMPLETED", "1")
    return run


def test_every_flow_is_deployed_by_path_and_three_run_at_night(workspace: Workspace, ui: str) -> None:
    said, pools = script(workspace, ui, DEPLOYMENTS).split(" | ")
    found = eval(said)
    data = {"grow-graph", "synthesize-tasks", "harden-environments", "publish-dataset"}
    training = {"train-experts", "distill-student", "evaluate-student", "post-train"}
    assert {name: pool for name, pool, *_ in found} == dict.fromkeys(data, "cpu") | dict.fromkeys(training, "gpu")
    assert {name: schedules for name, _, _, schedules in found if schedules} == {
        "grow-graph": [("0 1 * * *", "Etc/UTC")],
        "synthesize-tasks": [("0 2 * * *", "Etc/UTC")],
        "harden-environments": [("0 3 * * *", "Etc/UTC")],
    }
    assert all((ROOT / entrypoint.split(":")[0]).is_file() for _, _, entrypoint, _ in found)
    assert eval(pools) == {"cpu": 2, "gpu": 1}
    assert running_server(workspace) == f"{ui}/api"


def test_a_scheduled_run_grows_a_graph_and_its_retry_resumes(workspace: Workspace, ui: str, scheduled_run: str) -> None:
    run = workspace.existing("smoke")
    record = run.finished("grow")
    assert record is not None
    assert 1 < record.result["nodes"] <= 12
    # What the UI's retry button does: the same flow run again, with its own parameters, into the folder it made.
    assert script(workspace, ui, RETRY.format(run=scheduled_run)) == "COMPLETED 2"
    assert run.finished("grow") == record


@pytest.mark.chromium
def test_the_ui_shows_the_run_in_a_real_browser(ui: str, scheduled_run: str, browser: Any) -> None:
    from playwright.sync_api import expect

    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{ui}/runs/flow-run/{scheduled_run}", wait_until="domcontentloaded", timeout=60_000)
    expect(page.get_by_text("grow smoke").first).to_be_visible(timeout=60_000)
    expect(page.get_by_text("Completed").first).to_be_visible(timeout=60_000)
    page.goto(f"{ui}/deployments", wait_until="domcontentloaded", timeout=60_000)
    expect(page.get_by_text("harden-environments").first).to_be_visible(timeout=60_000)
    page.close()


def test_ctrl_c_stops_everything_it_started(tmp_path: Path) -> None:
    port = free_port()
    env = {**os.environ, "NINEFOLD_HOME": str(tmp_path)}
    process = subprocess.Popen(
        [sys.executable, "-m", "flows.cli", "serve", "--port", str(port)],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    said = [process.stdout.readline()]
    assert f"http://127.0.0.1:{port}" in said[0]
    assert healthy(f"http://127.0.0.1:{port}/api", timeout_s=10)
    process.send_signal(2)
    assert process.wait(timeout=180) == 130  # a worker that is still starting gets its grace
    deadline = time.monotonic() + 20
    while healthy(f"http://127.0.0.1:{port}/api", timeout_s=1) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not healthy(f"http://127.0.0.1:{port}/api", timeout_s=1)
    left = subprocess.run(
        ["pgrep", "-f", f"server start --host 127.0.0.1 --port {port}"], capture_output=True, text=True, check=False
    ).stdout
    assert left == ""
