"""One watched process: its group dies with it or with the watcher, its metrics are read, its last words are kept."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from environments.errors import InputError
from flows.steps.supervise import MetricsTail, ProcessFailedError, run_process
from flows.steps.training import claim_folder, position, stage_arguments

ROOT = Path(__file__).parents[2]
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


def alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


def wait_until(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def fake(run: Path, **order: object) -> list[str]:
    (run / "order.json").write_text(json.dumps(order))
    return [sys.executable, "-m", "tests.flows.fake_stage", "cold_start", "--run-dir", str(run)]


def test_metrics_arrive_while_it_runs_and_all_of_them(tmp_path: Path) -> None:
    seen: list[int] = []
    metrics = tmp_path / "training" / "cold_start" / "metrics.jsonl"
    result = run_process(
        fake(tmp_path),
        log_file=tmp_path / "log",
        metrics_file=metrics,
        on_metrics=lambda rows: seen.extend(r["step"] for r in rows),
        env=ENV,
    )
    assert seen == list(range(6))
    assert result.metrics_seen == 6


def test_kill_9_is_an_error_with_the_last_lines_and_the_next_start_resumes(tmp_path: Path) -> None:
    argv = fake(tmp_path, kill_at=2)
    with pytest.raises(ProcessFailedError, match=r"signal 9(.|\n)*about to die"):
        run_process(argv, log_file=tmp_path / "log", env=ENV)
    run_process(argv, log_file=tmp_path / "log", env=ENV)
    starts = (tmp_path / "training" / "cold_start" / "starts.txt").read_text().split("\n")
    assert [line.split()[0] for line in starts if line] == ["0", "3"]


@pytest.mark.parametrize(("code", "error"), [(2, InputError), (3, ProcessFailedError), (1, ProcessFailedError)])
def test_the_exit_code_tells_wrong_input_from_a_failed_machine(code: int, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match="no tasks") as caught:
        run_process(fake(tmp_path, exit_at=1, code=code), log_file=tmp_path / "log", env=ENV)
    assert type(caught.value) is error


def test_a_timeout_ends_the_whole_group(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailedError, match="longer than"):
        run_process(fake(tmp_path, sleep_s=30, child=True), log_file=tmp_path / "log", env=ENV, timeout_s=3.0)
    child = int((tmp_path / "training" / "cold_start" / "child.pid").read_text())
    assert wait_until(lambda: not alive(child))


def test_cancelling_ends_the_process(tmp_path: Path) -> None:
    cancelled = threading.Event()
    threading.Timer(1.5, cancelled.set).start()
    with pytest.raises(ProcessFailedError, match="cancelled"):
        run_process(fake(tmp_path, sleep_s=30), log_file=tmp_path / "log", env=ENV, cancelled=cancelled)


WATCHER = """
import sys
from pathlib import Path
from flows.server import terminate_on_sigterm
from flows.steps.supervise import run_process
terminate_on_sigterm()
run_process(sys.argv[2:], log_file=Path(sys.argv[1]))
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_the_process_ends_when_its_watcher_does(how: signal.Signals, tmp_path: Path) -> None:
    watcher = subprocess.Popen(
        [sys.executable, "-c", WATCHER, str(tmp_path / "log"), *fake(tmp_path, sleep_s=1)],
        env=ENV,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    starts = tmp_path / "training" / "cold_start" / "starts.txt"
    assert wait_until(starts.exists)
    pid = int(starts.read_text().split()[1])
    assert alive(pid)
    watcher.send_signal(how)
    watcher.wait(timeout=20)
    assert wait_until(lambda: not alive(pid))


def test_a_half_written_line_waits_and_rubbish_is_skipped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.read() == []
    path.write_text('{"step": 0}\n{"st')
    assert tail.read() == [{"step": 0}]
    path.write_text('{"step": 0}\n{"step": 1}\nrubbish\n3\n')
    assert tail.read() == [{"step": 1}]
    path.write_text('{"step": 9}\n')  # rewritten shorter, as a resumed trainer does
    assert tail.read() == [{"step": 9}]


def test_a_folder_of_other_inputs_is_trained_anew_and_one_of_the_same_is_kept(tmp_path: Path) -> None:
    where = tmp_path / "cold_start"
    assert claim_folder(where, "one")
    (where / "checkpoint").touch()
    assert not claim_folder(where, "one")
    assert (where / "checkpoint").exists()
    claim_folder(where, "two")
    assert not (where / "checkpoint").exists()
    (where / "key.txt").unlink()
    (where / "checkpoint").touch()
    claim_folder(where, "two")
    assert not (where / "checkpoint").exists()


def test_names_of_stages_as_arguments_and_places() -> None:
    assert stage_arguments("expert-coding-low") == ["expert", "--domain", "coding", "--effort", "low"]
    assert stage_arguments("distill") == ["mopd"]
    assert stage_arguments("cold_start") == ["cold_start"]
    assert position({"step": 3, "total": 12}) == (3.0, 12.0)
    assert position({"progress": 0.25}) == (0.25, 1.0)
