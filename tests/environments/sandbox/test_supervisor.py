"""The supervisor: leases that work like sandboxes, end as they should, and survive the death of either side."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments.errors import BadArgumentsError, CaptureError, ConfigError, MissingDependencyError, SandboxError, UnsupportedError
from environments.sandbox.base import Backend, Sandbox, SandboxConfig
from environments.sandbox.supervisor import (
    AdmissionError,
    LeasedSandbox,
    LeaseError,
    Supervisor,
    SupervisorBackend,
    SupervisorLimits,
    start_supervisor,
)
from environments.sandbox.supervisor.admission import Admission
from tests.environments.sandbox.folder_box import FolderBackend, FolderSandbox

SMALL = SandboxConfig(memory_mb=100)


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Supervisor]:
    """One in a thread, for three sandboxes; its boxes' folders are below tmp_path/boxes."""
    (tmp_path / "boxes").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "boxes"))
    with Supervisor(tmp_path / "s", FolderBackend(), SupervisorLimits(sandboxes=3, memory_mb=1000)) as running:
        yield running


@pytest.fixture
def backend(supervisor: Supervisor) -> SupervisorBackend:
    return SupervisorBackend(supervisor.address, wait_s=10)


def until(condition: Callable[[], Any], what: str = "it") -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(f"{what} did not happen")


def kept(boxes: Path) -> int:
    return len(list(boxes.glob("folder-box-*")))


# --- a lease is a sandbox -----------------------------------------------------------------------------------------------------


def test_every_operation_works_by_lease(backend: SupervisorBackend, tmp_path: Path) -> None:
    assert isinstance(backend, Backend)
    assert backend.probe() == ""
    assert backend.capabilities(SandboxConfig(mode="forkable")).mode == "forkable"
    with backend.create(SandboxConfig(memory_mb=100, env={"A": "1"}, seed=7)) as box:
        assert isinstance(box, Sandbox)
        assert (box.seed, box.capabilities().backend, box.capabilities().notes) == (7, "folder", ("one", "two"))
        done = box.exec(["sh", "-c", "cat; echo $A$B >&2; exit 3"], stdin="größe\n", env={"B": "2"})
        assert (done.exit_code, done.stdout, done.stderr, done.timed_out) == (3, "größe\n", "12\n", False)
        assert box.exec(["sleep", "50"], timeout_s=0.2).timed_out
        data = os.urandom(3 << 20)
        box.write("a/b", data)
        assert (box.read("a/b"), box.list(), box.list("a")) == (data, ["a"], ["b"])
        cell = box.python("print(6 * 7)")
        assert (cell.stdout, cell.images) == ("42\n", (b"\x89PNG one", b"\x89PNG two"))
        box.write("kept", b"one")
        snapshot = box.snapshot(tmp_path / "snapshot")
        assert (snapshot.backend, snapshot.path, snapshot.details) == ("folder", tmp_path / "snapshot", {"made": "by copying"})
        box.write("kept", b"two")
        box.restore(snapshot)
        assert box.read("kept") == b"one"
        box.pause()
        with pytest.raises(SandboxError, match="is paused"):
            box.exec(["true"])
        box.resume()
        assert box.exec(["echo", "on"]).stdout == "on\n"
        with backend.create(SMALL, snapshot) as copy:
            assert copy.read("kept") == b"one"
    assert box.state == "closed"
    with pytest.raises(SandboxError, match="closed"):
        box.exec(["true"])
    assert backend.status()["live"] == 0


def test_output_streams_while_a_command_runs(backend: SupervisorBackend) -> None:
    with backend.create(SMALL) as box:
        got: list[tuple[str, bytes]] = []

        def on_output(stream: str, data: bytes) -> None:
            got.append((stream, data))
            if b"first" in data:  # it is still running: only this lets it go on
                (next(Path(boxes).glob("folder-box-*")) / "work/go").touch()

        boxes = str(Path(box.exec(["pwd"]).stdout.strip()).parents[1])
        done = box.exec(["sh", "-c", "echo first; while [ ! -e go ]; do sleep 0.01; done; echo second"], on_output=on_output)
        assert done.stdout == "first\nsecond\n"
        assert b"".join(data for _, data in got) == b"first\nsecond\n"

        def fails(stream: str, data: bytes) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            box.exec(["echo", "x"], on_output=fails)
        assert box.exec(["echo", "usable"]).stdout == "usable\n"


def test_errors_keep_their_types(backend: SupervisorBackend, tmp_path: Path) -> None:
    with backend.create(SMALL) as box:
        with pytest.raises(BadArgumentsError, match=r"may not contain '..'") as caught:
            box.read("../x")
        assert caught.value.fix == "use a path in /workspace"
        with pytest.raises(BadArgumentsError, match="empty"):
            box.exec([])
        box.write("no-snapshot", b"")
        with pytest.raises(CaptureError, match="tired") as captured:
            box.snapshot(tmp_path / "x")
        assert captured.value.recoverable
        assert box.exec(["echo", "on"]).stdout == "on\n"
        box.write("no-fork", b"")
        with pytest.raises(CaptureError) as captured:
            box.fork()
        assert not captured.value.recoverable
        assert box.state == "closed"
    assert backend.status()["live"] == 0
    with pytest.raises(UnsupportedError, match="no forkable mode"):
        backend.create(SandboxConfig(mode="forkable"))
    with pytest.raises(SandboxError, match="RuntimeError: a backend's own bug"):
        backend.create(SandboxConfig(env={"BREAK": "1"}))
    assert backend.status()["live"] == 0


def test_forks_are_leases_of_their_own_within_the_limits(backend: SupervisorBackend) -> None:
    box = backend.create(SMALL)
    box.write("a", b"x")
    one, two, three = box.fork(3)
    assert isinstance(one, LeasedSandbox)
    assert isinstance(two, LeasedSandbox)
    assert isinstance(three, AdmissionError)
    assert "limit of 3 live sandboxes" in str(three)
    assert len({box.sandbox_id, one.sandbox_id, two.sandbox_id}) == 3
    assert len({box.seed, one.seed, two.seed}) == 3
    box.close()
    one.write("a", b"y")
    assert (one.read("a"), two.read("a")) == (b"y", b"x")
    one.close()
    two.write("one-fails", b"")
    good, bad = two.fork(2)
    assert isinstance(good, LeasedSandbox)
    assert isinstance(bad, SandboxError)
    assert "did not come up" in str(bad)
    assert backend.status()["live"] == 2
    good.close()
    two.close()
    assert backend.status()["live"] == 0


def test_a_service_socket_reaches_the_client(backend: SupervisorBackend) -> None:
    with backend.create(SMALL) as box:
        with box.serve(0) as listener, socket.create_connection(listener.getsockname()) as there:
            here, _ = listener.accept()
            with here:
                there.sendall(b"through")
                assert here.recv(10) == b"through"
        assert box.exec(["echo", "on"]).stdout == "on\n"


def test_a_time_to_live_pauses_and_the_next_operation_wakes(backend: SupervisorBackend, supervisor: Supervisor) -> None:
    with backend.create(SandboxConfig(memory_mb=100, ttl_s=0.1)) as box:
        (lease,) = supervisor._leases.values()
        until(lambda: lease.sandbox.state == "paused", "the pause")
        assert box.exec(["echo", "awake"]).stdout == "awake\n"


# --- how a lease ends ---------------------------------------------------------------------------------------------------------


def test_a_lease_expires_unless_it_is_used_or_renewed(backend: SupervisorBackend, tmp_path: Path) -> None:
    box = backend.acquire(SMALL, lease_s=0.5)
    for _ in range(4):
        time.sleep(0.25)
        box.renew()
    assert box.exec(["sleep", "1"]).exit_code == 0, "an operation in progress is a use"
    until(lambda: kept(tmp_path / "boxes") == 0, "the expiry")
    assert backend.status()["ended"] == {"expired": 1}
    with pytest.raises(LeaseError, match="gone"):
        box.exec(["true"])
    with pytest.raises(LeaseError, match="gone"):
        box.renew(5)
    box.close()


def test_a_forgotten_sandbox_is_reaped(backend: SupervisorBackend, tmp_path: Path) -> None:
    box = backend.create(SMALL)
    assert kept(tmp_path / "boxes") == 1
    del box
    until(lambda: kept(tmp_path / "boxes") == 0 and backend.status()["live"] == 0, "the reaping")
    assert backend.status()["ended"] == {"disconnected": 1}


_CLIENT = """
import sys, time
from environments.sandbox.base import SandboxConfig
from environments.sandbox.supervisor import SupervisorBackend
box = SupervisorBackend(sys.argv[1]).create(SandboxConfig(memory_mb=100))
children = box.fork(1)
print("ready", flush=True)
box.exec(["sleep", "500"], timeout_s=500)
"""


def test_a_client_that_is_killed_in_an_operation_loses_its_leases(backend: SupervisorBackend, tmp_path: Path, repo_root: Path) -> None:
    client = subprocess.Popen([sys.executable, "-c", _CLIENT, str(backend.address)], cwd=repo_root, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"ready\n"
    until(lambda: kept(tmp_path / "boxes") == 2)
    client.kill()
    client.wait()
    client.stdout.close()
    until(lambda: kept(tmp_path / "boxes") == 0 and backend.status()["live"] == 0, "the reaping")


def test_closing_ends_an_operation_that_hangs(backend: SupervisorBackend, tmp_path: Path) -> None:
    box = backend.create(SMALL)
    with ThreadPoolExecutor(1) as pool:
        hanging = pool.submit(box.exec, ["sleep", "500"], timeout_s=500)
        until(lambda: box._wire.lock.locked())
        time.sleep(0.1)
        box.close()
        with pytest.raises(SandboxError):
            hanging.result(30)
    assert kept(tmp_path / "boxes") == 0
    assert box.state == "closed"


# --- a lease by id ------------------------------------------------------------------------------------------------------------


def _use(box: Sandbox) -> bytes:
    """Runs in another process."""
    box.write("from", str(os.getpid()).encode())
    return box.read("there")


def test_leases_and_backends_pickle_into_other_processes(backend: SupervisorBackend) -> None:
    box = pickle.loads(pickle.dumps(backend)).create(SMALL)
    box.write("there", b"shared")
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(_use, box).result(60) == b"shared"
    assert int(box.read("from")) != os.getpid()
    again = backend.attach(box.lease_id)
    again._wire.close()  # one of two connections: the lease stays
    time.sleep(0.3)
    assert box.read("there") == b"shared"
    box.close()
    with pytest.raises(LeaseError, match="there is no lease"):
        backend.attach(box.lease_id)


def test_a_detached_lease_waits(backend: SupervisorBackend, tmp_path: Path) -> None:
    lease_id = backend.acquire(SMALL, lease_s=30).detach()
    time.sleep(0.3)
    with backend.attach(lease_id) as box:
        assert box.exec(["echo", "on"]).stdout == "on\n"
    backend.acquire(SMALL, lease_s=0.2).detach()
    until(lambda: kept(tmp_path / "boxes") == 0, "the expiry")


def test_a_fork_of_the_process_cannot_mix_up_the_connection(backend: SupervisorBackend) -> None:
    with backend.create(SMALL) as box:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                box.exec(["true"])
            except SandboxError as error:
                os.write(write, str(error).encode())
            box.close()
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as said:
            assert "does not survive a fork" in said.read()
        os.waitpid(child, 0)
        assert box.exec(["echo", "on"]).stdout == "on\n"


# --- limits -------------------------------------------------------------------------------------------------------------------


def test_the_number_of_sandboxes_is_limited_and_a_wait_ends_with_a_release(backend: SupervisorBackend) -> None:
    boxes = [backend.create(SMALL) for _ in range(3)]
    with pytest.raises(AdmissionError, match=r"no sandbox within 0.2 s: the limit of 3 live sandboxes \(SupervisorLimits.sandboxes\)"):
        backend.acquire(SMALL, wait_s=0.2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(backend.create, SMALL)
        until(lambda: backend.status()["waiting"] == 1)
        assert boxes[1].exec(["echo", "on"]).stdout == "on\n", "others go on meanwhile"
        boxes[0].close()
        waiting.result(30).close()
    for box in boxes:
        box.close()


def test_memory_is_limited_and_the_queue_is_fair(backend: SupervisorBackend) -> None:
    with pytest.raises(AdmissionError, match="a sandbox of 1001 MB is beyond the supervisor's limit of 1000 MB"):
        backend.create(SandboxConfig(memory_mb=1001))
    large = backend.create(SandboxConfig(memory_mb=700))
    with pytest.raises(AdmissionError, match=r"memory limit .* 700 of 1000 MB are taken and 400 more"):
        backend.acquire(SandboxConfig(memory_mb=400), wait_s=0.1)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(backend.create, SandboxConfig(memory_mb=900))
        until(lambda: backend.status()["waiting"] == 1)
        with pytest.raises(AdmissionError, match="others were before it"):
            backend.acquire(SMALL, wait_s=0.2)
        second = pool.submit(backend.create, SandboxConfig(memory_mb=200))
        until(lambda: backend.status()["waiting"] == 2)
        large.close()
        held = first.result(30)
        assert not second.done()
        held.close()
        second.result(30).close()


def test_a_waiting_client_that_goes_away_leaves_the_queue(backend: SupervisorBackend, tmp_path: Path, repo_root: Path) -> None:
    boxes = [backend.create(SMALL) for _ in range(3)]
    waiting = subprocess.Popen([sys.executable, "-c", _CLIENT, str(backend.address)], cwd=repo_root, stderr=subprocess.DEVNULL)
    until(lambda: backend.status()["waiting"] == 1)
    waiting.kill()
    waiting.wait()
    until(lambda: backend.status()["waiting"] == 0)
    for box in boxes:
        box.close()
    assert backend.status()["live"] == 0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.tuples(st.just("ask"), st.integers(32, 120)), st.tuples(st.just("give"), st.just(0))), max_size=40))
def test_admission_keeps_its_limits_and_its_order(steps: list[tuple[str, int]]) -> None:
    admission: Admission[int] = Admission(SupervisorLimits(sandboxes=3, memory_mb=128))
    asked: list[int] = []
    admitted: list[int] = []
    live: list[int] = []
    for number, (step, memory_mb) in enumerate(steps):
        if step == "ask":
            asked.append(number)
            admission.ask(number, memory_mb, 0.0, 1.0)
        elif live:
            admission.give(steps[live.pop(0)][1])
        fresh = admission.admit()
        admitted += fresh
        live += fresh
        used = sum(steps[one][1] for one in live)
        assert (admission.live, admission.memory_mb) == (len(live), used)
        assert len(live) <= 3
        assert used <= 128
        assert admitted == asked[: len(admitted)]
        if len(admitted) < len(asked):
            assert len(live) == 3 or used + steps[asked[len(admitted)]][1] > 128, "nobody waits without a reason"
    assert [item for item, _ in admission.late(2.0)] == asked[len(admitted) :]


# --- snapshots and crashes ----------------------------------------------------------------------------------------------------


def test_periodic_snapshots_are_kept_while_something_changes(backend: SupervisorBackend, supervisor: Supervisor) -> None:
    box = backend.create(SMALL)
    box.snapshot_every(0.1, keep=2)
    seen: set[str] = set()
    for i in range(5):
        box.write("n", str(i).encode())
        until(lambda known=frozenset(seen): {s.snapshot_id for s in backend.snapshots(box.lease_id)} - known, "a snapshot")
        seen |= {s.snapshot_id for s in backend.snapshots(box.lease_id)}
    stored = backend.snapshots(box.lease_id)
    assert len(stored) == 2
    assert (stored[-1].path / "n").read_bytes() == b"4"
    time.sleep(0.4)
    assert backend.snapshots(box.lease_id) == stored, "nothing changed"
    box.write("no-snapshot", b"")
    time.sleep(0.4)
    assert backend.snapshots(box.lease_id) == stored, "one that fails costs nothing"
    assert box.exec(["rm", "no-snapshot"]).exit_code == 0
    until(lambda: backend.snapshots(box.lease_id) != stored)
    box.snapshot_every(None)
    folder = supervisor.root / "snapshots" / box.lease_id
    assert folder.is_dir()
    box.close()
    assert not folder.exists()
    for wrong in ("../x", "", "0" * 31):
        with pytest.raises(LeaseError, match="is no lease"):
            backend.snapshots(wrong)
    with pytest.raises(ValueError, match="keep=0"):
        box.snapshot_every(1, keep=0)


def test_an_increment_keeps_what_it_needs(backend: SupervisorBackend) -> None:
    with backend.create(SMALL) as box:
        box.write("increments", b"")
        box.snapshot_every(0.05, keep=1)
        for i in range(1, 4):
            box.write("n", str(i).encode())
            until(lambda i=i: len(backend.snapshots(box.lease_id)) == i, "a snapshot")
        chain = backend.snapshots(box.lease_id)
        assert [s.parent_id for s in chain] == [None, chain[0].snapshot_id, chain[1].snapshot_id]


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            if Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(pid)
        except OSError:
            continue
    return found


def children_of(pid: int) -> list[int]:
    out = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True).stdout
    return [int(word) for word in out.split()]


def test_after_a_kill_the_next_supervisor_reaps_and_the_lease_is_restored(tmp_path: Path) -> None:
    limits = SupervisorLimits(sandboxes=4)
    first = start_supervisor(tmp_path / "s", FolderBackend(), limits)
    backend = first.backend()
    box = backend.create(SMALL)
    temporary = str(Path(box.exec(["pwd"]).stdout.strip()).parents[1])
    assert Path(temporary).is_relative_to(tmp_path / "s")
    detached = int(box.exec(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 </dev/null & echo $!"], env={"TMPDIR": temporary}).stdout)
    box.write("state", b"precious")
    box.snapshot_every(0.1)
    until(lambda: backend.snapshots(box.lease_id) and (backend.snapshots(box.lease_id)[-1].path / "state").exists())
    lease_id, pid = box.lease_id, first.process.pid
    orphans = [*children_of(pid), detached]
    assert len(orphans) > 1
    os.kill(pid, signal.SIGKILL)
    first.process.wait()
    with pytest.raises(SandboxError, match="is gone") as caught:
        box.exec(["true"])
    assert "acquire(snapshot=...)" in caught.value.fix
    with pytest.raises(SandboxError, match="no supervisor answers"):
        backend.create(SMALL)
    assert "no supervisor answers" in backend.probe()
    box.close()
    first.stop()
    assert alive(orphans) == orphans, "the test's backend lets them live"
    with start_supervisor(tmp_path / "s", FolderBackend(), limits) as second:
        assert alive(orphans) == []
        assert second.backend().status()["orphans_reaped"] >= len(orphans)
        assert len(list((tmp_path / "s").glob("instance-*"))) == 1, "its temporary files are gone too"
        with second.backend().acquire(SMALL, second.backend().snapshots(lease_id)[-1]) as restored:
            assert restored.read("state") == b"precious"
        assert second.backend().status()["live"] == 0
    assert not (tmp_path / "s/supervisor.sock").exists()
    assert list((tmp_path / "s").glob("instance-*")) == []


_STARTER = """
import os, sys, time
from pathlib import Path
from environments.sandbox.base import SandboxConfig
from environments.sandbox.supervisor import start_supervisor
from tests.environments.sandbox.folder_box import FolderBackend
started = start_supervisor(Path(sys.argv[1]), FolderBackend())
box = started.backend().create(SandboxConfig(memory_mb=100))
print(started.process.pid, flush=True)
time.sleep(500)
"""


def test_a_supervisor_ends_with_the_process_that_started_it(tmp_path: Path, repo_root: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", _STARTER, str(tmp_path / "s")], cwd=repo_root, stdout=subprocess.PIPE)
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    pids = [pid, *children_of(pid)]
    assert len(pids) > 1
    starter.kill()
    starter.wait()
    starter.stdout.close()
    until(lambda: not alive(pids), "its end")


# --- the supervisor itself ----------------------------------------------------------------------------------------------------


def test_one_supervisor_a_root_and_only_its_user_may_connect(supervisor: Supervisor, tmp_path: Path) -> None:
    with pytest.raises(SandboxError, match="another supervisor runs"):
        Supervisor(supervisor.root, FolderBackend()).start()
    assert supervisor.address.stat().st_mode & 0o777 == 0o600
    assert (supervisor.root / "snapshots").stat().st_mode & 0o777 == 0o700
    with pytest.raises(ConfigError, match="too long for a Unix socket"):
        Supervisor(tmp_path / ("x" * 100), FolderBackend()).start()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_another_user_is_turned_away_even_from_an_open_socket(supervisor: Supervisor) -> None:
    supervisor.address.chmod(0o666)
    for folder in supervisor.root.parents:
        if str(folder).startswith("/tmp/") and folder.stat().st_uid == 0:
            folder.chmod(folder.stat().st_mode | 0o011)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setgid(54321)
        os.setuid(54321)
        os.write(write, SupervisorBackend(supervisor.address).probe().encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        assert "gone" in said.read()
    os.waitpid(child, 0)
    assert SupervisorBackend(supervisor.address).probe() == ""


def test_garbage_on_the_socket_harms_nobody(supervisor: Supervisor, backend: SupervisorBackend) -> None:
    with backend.create(SMALL) as box:
        for text in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\0\0\0\2\0\0\0\0\0\0\0\0{}",
            b"\0\0\0\4\0\0\0\0\0\0\0\0null",
            b"\xff" * 12,
            b"\0",
            b'\0\0\0\x0d\0\0\0\0\0\0\0\0{"blobs": [1]}',
        ):
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(supervisor.address))
                sock.sendall(text)
                sock.shutdown(socket.SHUT_WR)
                sock.settimeout(20)
                with contextlib.suppress(ConnectionResetError):
                    assert sock.recv(100) == b""
        with pytest.raises(SandboxError, match="knows no 'dance'"):
            box._wire.call({"op": "dance"})
        with pytest.raises(SandboxError, match="write failed"):
            box._wire.call({"op": "write"})
        assert box.exec(["echo", "on"]).stdout == "on\n"


def test_a_backend_that_does_not_work_says_so(tmp_path: Path) -> None:
    with Supervisor(tmp_path / "s", FolderBackend("there is no floppy drive")) as supervisor:
        backend = SupervisorBackend(supervisor.address)
        assert backend.probe() == "there is no floppy drive"
        with pytest.raises(MissingDependencyError, match="floppy"):
            backend.create()
    with pytest.raises(SandboxError, match=r"did not come up: ConfigError: .*too long"):
        start_supervisor(tmp_path / ("x" * 100), FolderBackend())


def test_stopping_ends_what_runs_and_who_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boxes").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "boxes"))
    supervisor = Supervisor(tmp_path / "s", FolderBackend(), SupervisorLimits(sandboxes=1)).start()
    backend = SupervisorBackend(supervisor.address)
    box = backend.create(SMALL)
    with ThreadPoolExecutor(2) as pool:
        hanging = pool.submit(box.exec, ["sleep", "500"], timeout_s=500)
        waiting = pool.submit(backend.create, SMALL)
        until(lambda: backend.status()["waiting"] == 1 and next(iter(supervisor._leases.values())).running)
        time.sleep(0.1)
        supervisor.stop()
        supervisor.stop()
        with pytest.raises(SandboxError):
            hanging.result(30)
        with pytest.raises(SandboxError, match="stopping"):
            waiting.result(30)
    assert kept(tmp_path / "boxes") == 0
    box.close()


def test_many_leases_leave_nothing_and_need_no_thread_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "boxes").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "boxes"))

    def census() -> tuple[int, int, int]:
        return len(os.listdir("/proc/self/fd")), threading.active_count(), len(children_of(os.getpid()))

    with Supervisor(tmp_path / "warm", FolderBackend()) as warm:
        SupervisorBackend(warm.address).create(SMALL).close()
    before = census()
    with Supervisor(tmp_path / "s", FolderBackend(), SupervisorLimits(sandboxes=40)) as supervisor:
        backend = SupervisorBackend(supervisor.address)
        held = [backend.create(SMALL) for _ in range(30)]
        assert threading.active_count() - before[1] < 10
        for box in held:
            box.close()

        def cycle(i: int) -> str:
            with backend.create(SMALL) as box:
                box.write("n", str(i).encode())
                (child,) = box.fork()
                assert isinstance(child, LeasedSandbox)
                if i % 3 == 0:
                    child._wire._sock.close()  # as if its client had died
                else:
                    child.close()
                return box.read("n").decode()

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(cycle, range(60))) == [str(i) for i in range(60)]
        until(lambda: backend.status()["live"] == 0)
        assert backend.status()["memory_mb"] == 0
        until(lambda: len(supervisor._hub) == 0)
        assert kept(tmp_path / "boxes") == 0
    until(lambda: census() == before, f"a census as before {before}: {census()}")


def test_the_in_test_backend_is_what_it_claims() -> None:
    box = FolderSandbox(SMALL)
    assert box.capabilities().isolation == "none"
    box.close()
