"""Sandboxes over E2B's wire: our client and E2B's own against our server, and what goes wrong between them. Loopback only."""

from __future__ import annotations

import http.server
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import e2b
import e2b_code_interpreter
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Receive, Scope, Send

from environments.errors import BadArgumentsError, CaptureError, ConfigError, PortBusyError, SandboxError, UnsupportedError
from environments.sandbox.base import DEFAULT, Backend, Sandbox, SandboxConfig, Snapshot
from environments.sandbox.e2b_server import E2BServer, main
from environments.sandbox.process import ProcessBackend, ProcessSandbox
from environments.sandbox.remote import RemoteBackend, RemoteSandbox
from environments.sandbox.remote.client import E2BClient
from environments.sandbox.remote.multipart import files_in
from environments.sandbox.remote.wire import StreamReader, WireError, end_of_stream, envelope
from tests.environments.sandbox.conformance import Conformance, wait_for

pytestmark = [pytest.mark.sandbox, pytest.mark.skipif(bool(ProcessBackend().probe()), reason="process sandboxes do not work here")]
KEY = "e2b-0123456789abcdef"
WEB = httpx.Client(verify=False, timeout=30)


@pytest.fixture(scope="module", autouse=True)
def key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("E2B_API_KEY", KEY)
        yield


@pytest.fixture(scope="module")
def server(key: None) -> Iterator[E2BServer]:
    with E2BServer(ProcessBackend()) as made:
        yield made


@pytest.fixture(scope="module")
def ours(server: E2BServer) -> RemoteBackend:
    return RemoteBackend(E2BClient(server.url, backoff_s=0.01))


class TestOverProcesses(Conformance):
    """The contract holds when a process sandbox is on the other side of the wire."""

    @pytest.fixture(scope="class")
    def backend(self, ours: RemoteBackend) -> Backend:
        return ours

    def destroy(self, box: Sandbox) -> None:
        assert isinstance(box, RemoteSandbox)
        delete(box)


def delete(box: RemoteSandbox) -> None:
    """End a sandbox behind its owner's back."""
    assert box._client.control("DELETE", f"/sandboxes/{box.remote_id}", repeatable=True).status == 204


def count(server: E2BServer) -> int:
    return len(WEB.get(f"{server.url}/v2/sandboxes", headers={"X-API-Key": KEY}).json())


# --- E2B's own client --------------------------------------------------------------------------------------------------


@pytest.fixture
def e2b_environment(server: E2BServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("E2B_API_URL", server.url)
    monkeypatch.setenv("E2B_SANDBOX_URL", server.url)


@pytest.fixture
def official(e2b_environment: None) -> Iterator[e2b.Sandbox]:
    box = e2b.Sandbox.create(timeout=60, metadata={"who": "official"}, envs={"GREETING": "hallo"})
    yield box
    box.kill()


def test_the_official_client_runs_commands(official: e2b.Sandbox) -> None:
    pieces: list[str] = []
    done = official.commands.run("echo $GREETING $WORD; pwd; echo err >&2", envs={"WORD": "welt"}, on_stdout=pieces.append)
    assert (done.stdout, done.stderr, done.exit_code) == ("hallo welt\n/workspace\n", "err\n", 0)
    assert "".join(pieces) == done.stdout
    assert official.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    with pytest.raises(e2b.CommandExitException) as failed:
        official.commands.run("echo out; exit 7")
    assert (failed.value.exit_code, failed.value.stdout) == (7, "out\n")
    with pytest.raises(e2b.TimeoutException):
        official.commands.run("sleep 30", timeout=0.5)
    wait_for(lambda: official.commands.list() == [], "the command is killed on the server too")


def test_the_official_client_runs_commands_side_by_side(official: e2b.Sandbox) -> None:
    cat = official.commands.run("while read line; do echo got $line; done; echo end", background=True, stdin=True)
    said: list[str] = []
    listening = threading.Thread(target=cat.wait, kwargs={"on_stdout": said.append})
    listening.start()
    for word in ("one", "two"):
        official.commands.send_stdin(cat.pid, f"{word}\n")
        wait_for(lambda word=word: f"got {word}\n" in "".join(said), "the command answers while it runs")
    sleeper = official.commands.run("sleep 600 & wait", background=True)
    assert [process.pid for process in official.commands.list()] == [cat.pid, sleeper.pid]
    assert official.commands.run("echo beside").stdout == "beside\n"
    wait_for(lambda: official.commands.run("pgrep -c sleep || true").stdout == "1\n", "it has started something")
    assert sleeper.kill()
    with pytest.raises(e2b.CommandExitException):
        sleeper.wait()
    wait_for(lambda: official.commands.run("pgrep -c sleep || true").stdout == "0\n", "what it started is killed with it")
    assert not official.commands.kill(sleeper.pid)
    official.commands.close_stdin(cat.pid)
    listening.join(20)
    assert "".join(said).endswith("end\n")
    slow = official.commands.run("sleep 0.5; head -c 3000000 /dev/zero | tr '\\0' x", background=True)
    assert len(official.commands.connect(slow.pid).wait().stdout or "") == 3_000_000
    killer = official.commands.run("kill -9 -1", background=True)
    with pytest.raises(e2b.SandboxException):  # it has taken the runner with it, which the next command gets anew
        killer.wait()
    assert official.commands.run("echo again").stdout == "again\n"


def test_the_official_client_moves_files(official: e2b.Sandbox) -> None:
    files, data = official.files, bytes(range(256)) * 500
    assert files.write("/workspace/a/b.bin", data).path == "/workspace/a/b.bin"
    assert files.read("/workspace/a/b.bin", format="bytes") == data
    assert b"".join(files.read("a/b.bin", format="stream")) == data
    files.write_files([{"path": "/workspace/one", "data": "1"}, {"path": "/tmp/two", "data": b"\r\n--x\xff"}])
    assert (files.read("one"), files.read("/tmp/two", format="bytes")) == ("1", b"\r\n--x\xff")
    official.commands.run("ln -s one link")
    found = {entry.name: entry for entry in files.list("/workspace", depth=2)}
    assert {name: entry.type for name, entry in found.items()} == {
        "a": e2b.FileType.DIR,
        "b.bin": e2b.FileType.FILE,
        "one": e2b.FileType.FILE,
        "link": e2b.FileType.SYMLINK,
    }
    assert (found["b.bin"].size, found["link"].symlink_target, found["one"].permissions[:4]) == (len(data), "one", "-rw-")
    assert files.make_dir("/workspace/new/deep")
    assert not files.make_dir("/workspace/new/deep")
    assert files.rename("one", "/workspace/new/uno").path == "/workspace/new/uno"
    assert (files.exists("one"), files.exists("new/uno")) == (False, True)
    files.remove("new")
    assert not files.exists("new/uno")
    for missing in (lambda: files.read("nothing"), lambda: files.list("nothing"), lambda: files.get_info("nothing")):
        with pytest.raises(e2b.FileNotFoundException):
            missing()
    with pytest.raises(e2b.InvalidArgumentException, match="links are not followed"):
        files.read("link")
    host = {"Host": f"49983-{official.sandbox_id}.sandboxes.test"}  # signed URLs are for browsers: the host names the sandbox
    signed = official.download_url("/workspace/a/b.bin", use_signature_expiration=60)
    assert WEB.get(signed, headers=host).content == data
    for refused in (signed.replace("b.bin", "c.bin"), official.download_url("/workspace/a/b.bin", use_signature_expiration=-60)):
        assert WEB.get(refused, headers=host).status_code == 401
    assert WEB.post(official.upload_url("/workspace/up"), files={"file": b"loaded"}, headers=host).status_code == 200
    assert files.read("up") == "loaded"


def test_the_official_client_lives_through_the_life_cycle(official: e2b.Sandbox, server: E2BServer) -> None:
    info = official.get_info()
    assert (info.state, info.metadata, info.template_id) == (e2b.SandboxState.RUNNING, {"who": "official"}, "base")
    official.set_timeout(500)
    assert 450 < (official.get_info().end_at - info.started_at).total_seconds() < 600
    official.files.write("kept", "x")
    assert official.pause()
    assert not official.pause()
    assert official.get_info().state == e2b.SandboxState.PAUSED
    assert not official.is_running()
    with pytest.raises(e2b.TimeoutException):
        official.commands.run("true")
    paused = e2b.Sandbox.list(query=e2b.SandboxQuery(state=[e2b.SandboxState.PAUSED], metadata={"who": "official"})).next_items()
    assert [item.sandbox_id for item in paused] == [official.sandbox_id]
    again = e2b.Sandbox.connect(official.sandbox_id)
    assert again.files.read("kept") == "x"
    children = again.fork(count=2)
    for number, child in enumerate(children):
        assert isinstance(child, e2b.Sandbox)
        child.files.write("kept", str(number))
    assert [child.files.read("kept") for child in children if isinstance(child, e2b.Sandbox)] == ["0", "1"]
    assert again.files.read("kept") == "x"
    snapshot = again.create_snapshot()
    assert [item.snapshot_id for item in again.list_snapshots().next_items()] == [snapshot.snapshot_id]
    copy = e2b.Sandbox.create(snapshot.snapshot_id)
    assert copy.files.read("kept") == "x"
    assert e2b.Sandbox.delete_snapshot(snapshot.snapshot_id)
    assert not e2b.Sandbox.delete_snapshot(snapshot.snapshot_id)
    pages = e2b.Sandbox.list(limit=3)
    seen = [item.sandbox_id for item in pages.next_items()] + [item.sandbox_id for item in pages.next_items()]
    assert len(seen) == len(set(seen)) == count(server)
    for box in (*children, copy):
        assert isinstance(box, e2b.Sandbox)
        assert box.kill()
    assert not copy.kill()
    with pytest.raises(e2b.SandboxNotFoundException):
        copy.get_info()


def test_the_official_interpreter_client_runs_cells(e2b_environment: None) -> None:
    box = e2b_code_interpreter.Sandbox.create()
    try:
        box.run_code("x = 40")
        done = box.run_code("print('hello')\nx + 2")
        assert ("".join(done.logs.stdout), done.error) == ("hello\n42\n", None)
        failed = box.run_code("1 / 0")
        assert failed.error is not None
        assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero")
    finally:
        box.kill()


def test_the_official_client_is_kept_out_without_the_key(e2b_environment: None) -> None:
    with pytest.raises(e2b.AuthenticationException):
        e2b.Sandbox.create(api_key="e2b-another")


# --- the server ------------------------------------------------------------------------------------------------------------


def test_timeouts_end_or_pause_on_the_server(server: E2BServer) -> None:
    headers = {"X-API-Key": KEY}

    def state(box_id: str) -> str:
        answer = WEB.get(f"{server.url}/sandboxes/{box_id}", headers=headers)
        return str(answer.json()["state"]) if answer.status_code == 200 else "gone"

    def create(**more: Any) -> dict[str, Any]:
        made: dict[str, Any] = WEB.post(
            f"{server.url}/sandboxes", json={"templateID": "base", "timeout": 1, **more}, headers=headers
        ).json()
        return made

    ended, paused, woken = create(), create(autoPause=True), create(autoPause=True, autoResume={"enabled": True})
    wait_for(lambda: [state(box["sandboxID"]) for box in (ended, paused, woken)] == ["gone", "paused", "paused"], "their time is over")
    for box, status in ((ended, 502), (paused, 502), (woken, 200)):
        sent = {"E2b-Sandbox-Id": box["sandboxID"], "X-Access-Token": box["envdAccessToken"]}
        answer = WEB.post(f"{server.url}/filesystem.Filesystem/ListDir", json={"path": ".", "depth": 1}, headers=sent)
        assert answer.status_code == status, answer.text
    for box in (paused, woken):
        assert WEB.delete(f"{server.url}/sandboxes/{box['sandboxID']}", headers=headers).status_code == 204


def test_the_server_lets_in_by_key_and_token(server: E2BServer, ours: RemoteBackend) -> None:
    assert WEB.get(f"{server.url}/sandboxes").status_code == 401
    assert WEB.get(f"{server.url}/sandboxes", headers={"X-API-Key": "wrong"}).status_code == 401
    with ours.create() as box:
        for token in ({}, {"X-Access-Token": "wrong"}, {"X-API-Key": KEY}):
            sent = {"E2b-Sandbox-Id": box.remote_id, **token}
            assert WEB.get(f"{server.url}/files?path=x", headers=sent).status_code == 401
            assert WEB.post(f"{server.url}/process.Process/Start", content=envelope({}), headers=sent).status_code == 401
            assert WEB.post(f"{server.url}/execute", json={"code": "1"}, headers=sent).status_code == 401


def test_the_server_is_not_opened_to_others_without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("E2B_API_KEY")
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0 is open to other machines and E2B_API_KEY is not set"):
        E2BServer(ProcessBackend(), host="0.0.0.0")
    with E2BServer(ProcessBackend()) as open_server:
        assert WEB.get(f"{open_server.url}/sandboxes").status_code == 401  # no web page sends this header
        assert WEB.get(f"{open_server.url}/sandboxes", headers={"X-API-Key": "any"}).status_code == 200
        with pytest.raises(PortBusyError):
            E2BServer(ProcessBackend(), port=open_server.port)


def test_the_server_keeps_to_its_limits(key: None) -> None:
    with E2BServer(ProcessBackend(), limit=2, ceiling=SandboxConfig(memory_mb=600), templates={"base": None}) as small:
        backend = RemoteBackend(E2BClient(small.url, retries=0))
        with pytest.raises(UnsupportedError, match="memory_mb=601 is over this server's 600"):
            backend.create(SandboxConfig(memory_mb=601))
        with pytest.raises(SandboxError, match="'nonsense' not found"):
            RemoteBackend(E2BClient(small.url), "nonsense").create()
        with backend.create() as first, backend.create():
            with pytest.raises(SandboxError, match="has 2 of 2 sandboxes"):
                backend.create()
            with pytest.raises(CaptureError, match="has 2 of 2 sandboxes") as caught:
                first.fork()
            assert caught.value.recoverable
            assert first.exec(["echo", "alive"]).stdout == "alive\n"
        assert count(small) == 0


def test_nothing_is_left_of_a_sandbox_or_a_server(server: E2BServer, ours: RemoteBackend) -> None:
    def cycle() -> None:
        with ours.create() as box:
            assert box.exec(["cat"], stdin="x").stdout == "x"
            assert box.python("1").stdout == "1\n"

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    cycle()
    before = descriptors()
    for _ in range(4):
        cycle()
    wait_for(lambda: descriptors() <= before, "descriptors are given back")
    with E2BServer(ProcessBackend()) as mine:
        box = RemoteBackend(E2BClient(mine.url)).create()
        box.exec(["true"])
        kept = mine._boxes.get(box.remote_id)
        folder = mine._boxes._folder
    assert kept is not None
    assert kept.sandbox.state == "closed"
    assert not folder.exists()
    wait_for(lambda: descriptors() <= before, "descriptors are given back")


def test_the_server_is_a_program(repo_root: Path) -> None:
    command = [sys.executable, "-m", "environments.sandbox.e2b_server", "--port", "0"]
    with subprocess.Popen(command, cwd=repo_root, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        box = RemoteBackend(E2BClient(process.stdout.readline().strip())).create()
        assert box.exec(["echo", "x"]).stdout == "x\n"
        process.terminate()
        assert process.wait(30) == 0
    with pytest.raises(SystemExit, match="NO_SUCH_KEY is not set"):
        main(["--host", "0.0.0.0", "--api-key-env", "NO_SUCH_KEY"])


class WithoutServices(ProcessBackend):
    """Sandboxes into which the host has no route: their commands run one at a time."""

    def create(self, config: SandboxConfig = DEFAULT, snapshot: Snapshot | None = None) -> ProcessSandbox:
        made = super().create(config, snapshot)
        fewer = replace(made.capabilities(), services=False)
        made.capabilities = lambda: fewer  # type: ignore[method-assign]
        return made


def test_commands_run_one_at_a_time_where_the_sandbox_offers_no_services(key: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with E2BServer(WithoutServices()) as alone, RemoteBackend(E2BClient(alone.url)).create() as box:
        assert box.exec(["sh", "-c", "cat; exit 3"], stdin="in").exit_code == 3
        assert box.exec(["no-such-program"]).stderr.startswith("no-such-program")
        pieces: list[bytes] = []
        done = box.exec(["sh", "-c", "echo early; sleep 60"], timeout_s=1.0, on_output=lambda stream, data: pieces.append(data))
        assert (done.timed_out, done.stdout, pieces) == (True, "early\n", [b"early\n"])
        monkeypatch.setenv("E2B_API_URL", alone.url)
        monkeypatch.setenv("E2B_SANDBOX_URL", alone.url)
        official = e2b.Sandbox.connect(box.remote_id)
        assert official.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
        busy = official.commands.run("sleep 1; echo done", background=True)
        with pytest.raises(e2b.SandboxException, match="does one thing at a time"):
            busy.kill()
        assert official.commands.run("echo after").stdout == "after\n"
        assert busy.wait().stdout == "done\n"


def test_a_sandbox_that_is_full_of_processes_says_so_and_recovers(ours: RemoteBackend) -> None:
    with ours.create(SandboxConfig(processes=16)) as box:
        waiting = ["python3", "-S", "-c", "import os, time\nwhile not os.path.exists('go'): time.sleep(0.02)"]
        others = [threading.Thread(target=ours.connect(box.remote_id).exec, args=(waiting,), kwargs={"timeout_s": 60}) for _ in range(24)]
        for other in others:
            other.start()
        wait_for(lambda: box.exec(["true"]).exit_code in (126, 127), "there is no room for another process")
        box.write("go", b"")
        for other in others:
            other.join(30)
        wait_for(lambda: box.exec(["echo", "again"]).stdout == "again\n", "there is room again")


def test_commands_run_where_there_is_no_python(e2b_environment: None) -> None:
    box = e2b.Sandbox.create(envs={"PATH": "/nowhere"})
    try:
        assert [box.commands.run(f"echo {number}").stdout for number in (1, 2)] == ["1\n", "2\n"]
    finally:
        box.kill()


# --- leases and reconnecting ---------------------------------------------------------------------------------------------------


def test_a_sandbox_is_kept_while_it_is_held_and_reaped_when_its_owner_is_gone(server: E2BServer) -> None:
    backend = RemoteBackend(E2BClient(server.url), lease_s=1)
    held, lost = backend.create(), backend.create()
    backend.forget(lost)  # as if its owner had died
    wait_for(lambda: not server._boxes.get(lost.remote_id), "the lost one is reaped")
    time.sleep(1.5)
    assert held.exec(["echo", "kept"]).stdout == "kept\n"
    with pytest.raises(SandboxError, match="is gone"):
        lost.exec(["true"])
    held.close()


def test_a_time_to_live_reaches_the_server(server: E2BServer, ours: RemoteBackend) -> None:
    with ours.create(SandboxConfig(ttl_s=40)) as box:
        there = server._boxes.get(box.remote_id)
        assert there is not None
        assert there.auto_pause
        assert 30 < there.ends_at - time.monotonic() <= 40
        box.exec(["true"], timeout_s=300)  # it must outlive its longest command
        assert 300 < there.ends_at - time.monotonic() <= 341
        there.sandbox.pause()  # the server's clock was faster than ours
        assert box.exec(["echo", "woken"]).stdout == "woken\n"


def test_another_process_connects_to_a_sandbox(ours: RemoteBackend) -> None:
    with ours.create() as box:
        box.write("a", b"x")
        box.python("x = 5")
        box.pause()
        other = pickle.loads(pickle.dumps(ours)).connect(box.remote_id)
        assert other.read("a") == b"x"
        assert other.python("x").stdout == "5\n"
        with pytest.raises(SandboxError, match="has no sandbox nobody"):
            ours.connect("nobody")


# --- servers that are not ours --------------------------------------------------------------------------------------------------


class Plain(E2BServer):
    """A server that knows nothing of Ninefold, and not the operations that are `hidden`."""

    hidden: tuple[str, ...] = ("/ninefold/", "/execute")

    def _application(self) -> ASGIApp:
        inner = super()._application()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and any(part in scope["path"] for part in self.hidden):
                scope["path"] = "/unknown" + scope["path"]
            await inner(scope, receive, send)

        return app


class Simple(Plain):
    hidden = ("/ninefold/", "/execute", "/fork", "/snapshots", "/pause", "/no-such-operation")


@pytest.fixture(scope="module")
def plain(key: None) -> Iterator[RemoteBackend]:
    with Plain(ProcessBackend()) as made:
        yield RemoteBackend(E2BClient(made.url))


def test_a_plain_server_is_used_for_what_it_answers(plain: RemoteBackend) -> None:
    can = plain.capabilities()
    assert (can.pause, can.fork, can.snapshot, can.isolation, can.memory_limit) == ("cpu+memory", "full", "full", "none", "sandbox")
    with plain.create(SandboxConfig(env={"GREETING": "hallo"}, output_kb=4)) as box:
        assert (
            box.exec(["sh", "-c", "pwd; cat; echo $GREETING $NINEFOLD_SEED"], stdin="in\n").stdout == f"/workspace\nin\nhallo {box.seed}\n"
        )
        missing = box.exec(["no-such-program"])
        assert (missing.exit_code, "no-such-program" in missing.stderr) == (127, True)
        assert box.exec(["head", "-c", "5000", "/dev/zero"]).truncated
        done = box.exec(["sh", "-c", "setsid sh -c 'while :; do echo x >> late; sleep 0.05; done' & sleep 60"], timeout_s=1.0)
        assert (done.exit_code, done.timed_out) == (None, True)
        box.write("links/real/in", b"in")
        box.exec(["sh", "-c", "ln -s real/in links/file; ln -s real links/folder; mkfifo pipe"])
        for path in ("links/file", "links/folder/in", "pipe", "nothing", "links"):
            with pytest.raises(BadArgumentsError):
                box.read(path)
        with pytest.raises(BadArgumentsError):
            box.write("links/folder/new", b"planted")
        assert (box.read("links/real/in"), box.list("links/real")) == (b"in", ["in"])
        box.pause()
        box.resume()
        child = box.fork()[0]
        assert isinstance(child, Sandbox)
        assert child.read("links/real/in") == b"in"
        assert child.exec(["sh", "-c", "echo $NINEFOLD_SEED"]).stdout == f"{child.seed}\n"
        child.close()


def test_a_plain_server_gets_an_interpreter_of_ours(plain: RemoteBackend) -> None:
    picture = "class P:\n    def _repr_png_(self): return b'\\x89PNG' + bytes(9)\n"
    with plain.create() as box:
        assert box.python("import os\nx = [1]\nx.append(len(x))").stdout == ""
        done = box.python("print('hello', flush=True)\nos.system('echo from a child')\nx")
        assert (done.stdout, done.error, done.timed_out) == ("hello\nfrom a child\n0\n[1, 1]\n".replace("0\n", ""), "", False)
        failed = box.python("def f():\n    return 1 / 0\nf()")
        assert failed.error.startswith("Traceback")
        assert "return 1 / 0" in failed.error
        assert [len(image) for image in box.python(picture + "display(P())\nP()").images] == [13, 13]
        assert box.python("os.getcwd(), os.environ['NINEFOLD_SEED']").stdout == f"('/workspace', '{box.seed}')\n"
        again = RemoteBackend(plain.client).connect(box.remote_id)
        assert again.python("x").stdout == "[1, 1]\n"
        code = "import subprocess\nsubprocess.Popen(['sh', '-c', 'while :; do echo x >> late; sleep 0.05; done'])\nwhile True: pass"
        assert box.python(code, 1.0).timed_out
        assert "NameError" in box.python("x").error
        size = len(box.read("late"))
        assert box.python("import os; os._exit(3)").error
        assert box.python("6 * 7").stdout == "42\n"
        assert len(box.read("late")) == size


def test_what_a_server_does_not_know_is_not_claimed(key: None) -> None:
    with Simple(ProcessBackend()) as made:
        backend = RemoteBackend(E2BClient(made.url))
        can = backend.capabilities()
        assert (can.pause, can.fork, can.snapshot) == ("none", "none", "none")
        with backend.create() as box:
            for operation in (box.pause, box.fork, lambda: box.snapshot(Path("/nowhere"))):
                with pytest.raises(UnsupportedError):
                    operation()
            assert box.exec(["echo", "alive"]).stdout == "alive\n"
        for config in (SandboxConfig(memory_mb=64), SandboxConfig(mode="forkable"), SandboxConfig(image=Path("/"))):
            with pytest.raises(UnsupportedError):
                backend.create(config)


# --- what goes wrong ---------------------------------------------------------------------------------------------------------------


class Broken:
    """A server that answers as it is told, a list of answers for each path; the last one stays."""

    def __init__(self, answers: Mapping[str, list[tuple[int, str]]]) -> None:
        self.seen: list[str] = []
        self.keys: list[str | None] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.seen.append(f"{self.command} {self.path}")
                outer.keys.append(self.headers.get("x-api-key"))
                queue = answers[self.path]
                status, body = queue.pop(0) if len(queue) > 1 else queue[0]
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body.encode())

            do_GET = do_POST = do_DELETE = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Broken:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


UNKNOWN = (404, json.dumps({"code": 404, "message": "route not found"}))


def test_a_refused_key_names_the_variable_and_is_not_repeated() -> None:
    with Broken({"/ninefold/capabilities": [(401, json.dumps({"code": 401, "message": f"bad key {KEY}"}))]}) as broken:
        with pytest.raises(ConfigError, match="E2B_API_KEY") as caught:
            RemoteBackend(E2BClient(broken.url, backoff_s=0.01)).create()
        assert KEY not in str(caught.value)
        assert KEY not in repr(caught.value.__cause__) + repr(caught.value.__context__)
        assert (broken.seen, broken.keys) == (["POST /ninefold/capabilities"], [KEY])


def test_a_dead_server_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        backend = RemoteBackend(E2BClient(f"http://127.0.0.1:{port}", retries=1, backoff_s=0.01))
        with pytest.raises(SandboxError, match=rf"127\.0\.0\.1:{port} does not answer \(2 attempts\)"):
            backend.create()
        assert f"127.0.0.1:{port}" in backend.probe()


def test_only_requests_that_may_be_repeated_are() -> None:
    busy = (503, json.dumps({"code": 503, "message": "busy"}))
    answers = {"/ninefold/capabilities": [busy, busy, (200, json.dumps(_CAPABILITIES))], "/sandboxes": [busy]}
    with Broken(answers) as broken:
        with pytest.raises(SandboxError, match="status 503: 'busy'"):
            RemoteBackend(E2BClient(broken.url, backoff_s=0.01)).create()
        assert broken.seen == ["POST /ninefold/capabilities"] * 3 + ["POST /sandboxes"]


_CAPABILITIES = {"backend": "process", "isolation": "none"}


@pytest.mark.parametrize("body", ["[]", "{}", "not json", '{"sandboxID": "../../x"}', '{"sandboxID": 5}'])
def test_garbage_is_a_typed_error(body: str) -> None:
    answers = {"/ninefold/capabilities": [(200, json.dumps(_CAPABILITIES))], "/sandboxes": [(201, body)]}
    with Broken(answers) as broken, pytest.raises(SandboxError, match="answered no SandboxInfo"):
        RemoteBackend(E2BClient(broken.url, backoff_s=0.01)).create()


def json_of(**fields: Any) -> str:
    return json.dumps(fields)


def known(more: Mapping[str, list[tuple[int, str]]]) -> dict[str, list[tuple[int, str]]]:
    """Answers of a server that makes one sandbox, `s1`."""
    full = {**_CAPABILITIES, "pause": "cpu", "fork": "full", "snapshot": "full"}
    made = json_of(sandboxID="s1", envdAccessToken="sandbox-token")
    return {
        "/ninefold/capabilities": [(200, json.dumps(full))], "/sandboxes": [(201, made)],
        "/sandboxes/s1/connect": [(201, made)], "/sandboxes/s1": [(200, "{}")], "/sandboxes/s2": [(204, "")], **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    "away",
    [
        (502, json_of(code=502, message="The sandbox was not found", sandboxId="s1")),  # E2B
        (410, json_of(code=410, message="sandbox is not proxyable in its current state")),  # AgentENV, paused
        (404, json_of(code=404, message="sandbox not found")),  # AgentENV
    ],
)
def test_a_sandbox_that_the_server_has_paused_is_resumed(away: tuple[int, str]) -> None:
    with Broken(known({"/files?path=%2Fworkspace%2Fx": [away, (200, "data")]})) as broken:
        box = RemoteBackend(E2BClient(broken.url, backoff_s=0.01)).create(SandboxConfig(ttl_s=60))
        assert box.read("x") == b"data"
        box.close()
        read = "GET /files?path=%2Fworkspace%2Fx"
        assert broken.seen[2:] == [read, "POST /sandboxes/s1/connect", read, "DELETE /sandboxes/s1"]


def test_captures_fail_as_the_server_says(tmp_path: Path) -> None:
    forks = json.dumps([{"sandbox": {"sandboxID": "s2"}}, {"error": {"code": 503, "message": "no node"}}])
    failed = json_of(code=400, message=f"out of disk, said {KEY}")
    answers = known(
        {
            "/sandboxes/s1/fork": [(201, forks), (404, UNKNOWN[1])],
            "/sandboxes/s1/pause": [(400, failed)],
            "/sandboxes/s1/snapshots": [(405, "")],
        }
    )
    with Broken(answers) as broken, RemoteBackend(E2BClient(broken.url, backoff_s=0.01)).create() as box:
        child, error = box.fork(2)
        assert isinstance(child, RemoteSandbox)
        assert (child.sandbox_id, child.seed != box.seed) == ("s2", True)
        assert isinstance(error, SandboxError)
        assert "no node" in str(error)
        child.close()
        with pytest.raises(CaptureError, match="out of disk") as recoverable:
            box.pause()
        assert recoverable.value.recoverable
        assert KEY not in str(recoverable.value)
        with pytest.raises(UnsupportedError):
            box.snapshot(tmp_path)
        assert box.state == "running"
        with pytest.raises(CaptureError) as terminal:
            box.fork()
        assert not terminal.value.recoverable
        assert box.state == "closed"


def test_a_sandbox_that_keeps_out_its_owner_is_a_sandbox_error() -> None:
    refused = (401, json_of(code=401, message="bad token sandbox-token"))
    with Broken(known({"/files?path=%2Fworkspace%2Fx": [refused]})) as broken, RemoteBackend(E2BClient(broken.url)).create() as box:
        with pytest.raises(SandboxError, match="access token of a sandbox"):
            box.read("x")
        assert broken.keys == [KEY, KEY, None]  # the key goes to the control plane alone


def test_a_sandbox_is_addressed_as_its_server_says() -> None:
    client = E2BClient("http://api.sandboxes.test/")
    assert client.target("s1", "t", "sandboxes.test").url == "http://49983-s1.sandboxes.test"
    assert client.target("s1", "t", None).url == "http://api.sandboxes.test"
    assert E2BClient("http://127.0.0.1:8000", "http://127.0.0.1:9000").target("s1", None, "x.test").url == "http://127.0.0.1:9000"


def test_a_sandbox_that_is_gone_is_said_to_be(ours: RemoteBackend) -> None:
    box = ours.create()
    delete(box)
    operations: tuple[Callable[[], object], ...] = (
        lambda: box.exec(["true"]), lambda: box.read("x"), lambda: box.write("x", b""), lambda: box.list(), lambda: box.python("1"),
    )  # fmt: skip
    for operation in operations:
        with pytest.raises(SandboxError, match=f"sandbox {box.remote_id} is gone from {ours.client.where}"):
            operation()
    box.close()


def test_closing_survives_a_dead_server(key: None) -> None:
    with E2BServer(ProcessBackend()) as mine:
        box = RemoteBackend(E2BClient(mine.url, retries=0)).create()
    with pytest.raises(SandboxError, match="does not answer"):
        box.exec(["true"])
    box.close()
    assert box.state == "closed"


@pytest.mark.parametrize("url", ["ftp://host", "nonsense", "http://user:secret@host", "http://"])
def test_a_bad_url_is_a_configuration_error(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        E2BClient(url)
    assert "secret" not in str(caught.value)


# --- the wire -----------------------------------------------------------------------------------------------------------------------


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), max_size=6), st.lists(st.integers(1, 40)))
def test_a_stream_reads_the_same_however_it_is_cut(messages: list[dict[str, str]], cuts: list[int]) -> None:
    data = b"".join(map(envelope, messages)) + end_of_stream()
    reader, found, at = StreamReader(), [], 0
    for size in [*cuts, len(data)]:
        found += list(reader.feed(data[at : at + size]))
        at += size
    assert (found, reader.ended) == (messages, True)


def test_a_stream_that_fails_or_is_none() -> None:
    with pytest.raises(WireError, match="too late") as caught:
        list(StreamReader().feed(end_of_stream(WireError("deadline_exceeded", "too late"))))
    assert caught.value.code == "deadline_exceeded"
    for data in (b"HTTP/1.1 200 OK\r\n", b"\0\xff\xff\xff\xff", b"\0\0\0\0\1{", b"\0\0\0\0\2[]"):
        with pytest.raises(WireError):
            list(StreamReader().feed(data))


@given(st.lists(st.tuples(st.text("abc./-", min_size=1), st.binary(max_size=200)), min_size=1, max_size=4))
def test_uploads_arrive_byte_for_byte(files: list[tuple[str, bytes]]) -> None:
    request = httpx.Request("POST", "http://x", files=[("file", (name, data)) for name, data in files])
    assert files_in(request.headers["content-type"], request.read()) == files


@pytest.mark.parametrize("body", [b"", b"--b", b"--b\r\n\r\nx", b"--b\r\nno headers\r\n--b--"])
def test_broken_uploads_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="multipart"):
        files_in("multipart/form-data; boundary=b", body)
