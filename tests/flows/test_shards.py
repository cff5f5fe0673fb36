"""Shards over a real Dask cluster under a real Prefect server: nothing finished is done twice, nothing lost stays lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from prefect import flow

from environments.errors import ConfigError, InfrastructureError
from flows.config import OrchestrationSection
from flows.steps.cluster import dask_cluster
from flows.steps.shards import cut, do_step, run_shards
from flows.workspace import RunDirectory, StepRecord, Workspace
from tests.flows.shard_functions import begun

FUNCTIONS = "tests.flows.shard_functions"
FAST = OrchestrationSection(dask_workers=2, shards=4, retries=1, retry_delay_s=0.1)


SEEN: list[tuple[int, int]] = []


def shards(count: int = 4) -> dict[str, tuple[str, dict[str, Any]]]:
    return {f"s/shard-{i:04d}": (f"key-{i}", {"number": i}) for i in range(count)}


@flow(name="test-shards")
def work(run_dir: str, function: str, count: int = 4, timeout_s: float = 600.0) -> list[StepRecord]:
    config = FAST.model_copy(update={"shard_timeout_s": timeout_s})
    return run_shards(
        RunDirectory(Path(run_dir)), "s", shards(count), f"{FUNCTIONS}:{function}", config, lambda done, of: SEEN.append((done, of))
    )


@flow(name="test-step")
def one(run_dir: str, function: str, number: int) -> StepRecord:
    return do_step(RunDirectory(Path(run_dir)), "s", "key", f"{FUNCTIONS}:{function}", {"number": number}, FAST)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = Workspace(tmp_path).run("r")
    run.root.mkdir(parents=True)
    return run


def test_items_are_dealt_so_that_no_shard_is_empty_and_nothing_is_lost() -> None:
    assert cut([1, 2, 3, 4, 5], 2) == [[1, 3, 5], [2, 4]]
    assert cut([1], 16) == [[1]]
    assert cut([], 16) == []


@pytest.mark.dask
@pytest.mark.prefect
@pytest.mark.slow
@pytest.mark.usefixtures("prefect_harness")
class TestOverDask:
    def test_a_killed_worker_costs_its_shard_a_second_start_and_no_finished_shard_anything(self, run: RunDirectory) -> None:
        SEEN.clear()
        records = work(str(run.root), "dies_once")
        assert [record.result["number"] for record in records] == [0, 1, 2, 3]
        assert begun(run, "s/shard-0002") >= 2
        assert SEEN[0] == (0, 4)
        assert SEEN[-1] == (4, 4)
        counts = [begun(run, step) for step in shards()]
        again = work(str(run.root), "dies_once")
        assert [begun(run, step) for step in shards()] == counts  # everything was there already
        assert again == records

    def test_only_the_damaged_shard_is_done_again(self, run: RunDirectory) -> None:
        work(str(run.root), "plain")
        run.part("nodes", "s/shard-0001").write_text("damage")
        run.step_file("s/shard-0003").write_text("{")
        work(str(run.root), "plain")
        assert [begun(run, step) for step in shards()] == [1, 2, 1, 2]
        assert run.part("nodes", "s/shard-0001").read_text() == "1"

    def test_a_failed_machine_is_retried_and_wrong_input_is_not(self, run: RunDirectory) -> None:
        with dask_cluster(FAST, run.workspace.data / "dask"):
            work(str(run.root), "machine_fails_once", 2)
            assert begun(run, "s/shard-0001") == 2
            other = Workspace(run.workspace.root).run("other")
            other.root.mkdir(parents=True)
            with pytest.raises(ConfigError, match="number 1 is wrong"):
                work(str(other.root), "wrong_input", 2)
            assert begun(other, "s/shard-0001") == 1

    def test_a_step_of_the_flow_itself_is_done_once(self, run: RunDirectory) -> None:
        first = one(str(run.root), "plain", 7)
        assert one(str(run.root), "plain", 7) == first
        assert begun(run, "s") == 1

    def test_no_scheduler_at_the_address_is_named(self, run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("flows.steps.cluster.CONNECT_TIMEOUT_S", 1.0)
        config = FAST.model_copy(update={"dask_address": "tcp://127.0.0.1:9"})
        with pytest.raises(InfrastructureError, match=r"127\.0\.0\.1:9"), dask_cluster(config, run.root):
            pass

    def test_a_shard_that_hangs_is_ended_and_done_again(self, run: RunDirectory) -> None:
        records = work(str(run.root), "hangs_once", 2, 25.0)
        assert [record.result["number"] for record in records] == [0, 1]
        assert begun(run, "s/shard-0000") >= 2

    def test_an_inner_block_shares_the_outer_cluster(self, run: RunDirectory) -> None:
        with dask_cluster(FAST, run.workspace.data / "dask") as outer, dask_cluster(FAST, run.root) as inner:
            assert inner == outer
