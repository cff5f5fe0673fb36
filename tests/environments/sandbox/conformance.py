"""One suite for every sandbox backend: what the contract in `environments/sandbox/base.py` promises, with real sandboxes.

A test file plugs its backend in with a subclass (`Attacks`, in `attacks.py`, is plugged in the same way):

    class TestGVisor(Conformance, Attacks):
        config = SandboxConfig(memory_mb=256, workspace_mb=16)      # optional; whatever the backend needs

        @pytest.fixture(scope="class")
        @classmethod
        def backend(cls) -> Backend:
            return GVisorBackend()

        def destroy(self, box: Sandbox) -> None:                    # end the box from outside, as a crash would
            os.kill(box._pid, signal.SIGKILL)

`config` must leave memory for a Python interpreter, `has_python = False` says that none is in the image. An operation that
`capabilities()` claims must work, and one that it does not claim must raise UnsupportedError: both are tested.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from environments.errors import BadArgumentsError, CaptureError, CorruptArtifactError, SandboxError, UnsupportedError
from environments.sandbox.base import WORKSPACE, Backend, Sandbox, SandboxConfig, Snapshot

_OWNER = """
import os, pickle, sys, time
from pathlib import Path
backend, config, directory, code = pickle.load(sys.stdin.buffer)
box = backend.create(config)
box.write("state/kept.txt", b"from the first life")
if code:
    assert box.python(code).error == ""
snapshot = box.snapshot(Path(directory))
sys.stdout.buffer.write(pickle.dumps(snapshot))
sys.stdout.buffer.flush()
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
time.sleep(600)
"""
_TICKER = "while :; do echo x >> ticks; sleep 0.02; done"


def wait_for(condition: object, what: str, seconds: float = 20.0) -> None:
    """Poll until `condition()` holds; a busy machine may need a while."""
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def boxes_of(results: object) -> list[Sandbox]:
    """The sandboxes that `fork` gave; fails on an error among them."""
    found = []
    for result in results:  # type: ignore[attr-defined]
        assert isinstance(result, Sandbox), result
        found.append(result)
    return found


class Conformance:
    """The contract. See the module's text for how to plug a backend in."""

    config: ClassVar[SandboxConfig] = SandboxConfig(memory_mb=512, workspace_mb=16, processes=48)
    has_python: ClassVar[bool] = True

    def destroy(self, box: Sandbox) -> None:
        """End the box from outside, without telling `box`."""
        raise NotImplementedError("say how a sandbox of this backend is killed from outside")

    @pytest.fixture(scope="class")
    @classmethod
    def backend(cls) -> Backend:
        raise NotImplementedError

    @pytest.fixture(scope="class")
    @classmethod
    def shared(cls, backend: Backend) -> Iterator[Sandbox]:
        """One sandbox for the tests that leave it usable."""
        with backend.create(cls.config) as made:
            yield made

    @pytest.fixture
    def box(self, shared: Sandbox) -> Sandbox:
        assert shared.state == "running", "an earlier test broke the shared sandbox"
        return shared

    @pytest.fixture
    def own(self, backend: Backend) -> Iterator[Sandbox]:
        """A sandbox of the test's own."""
        with backend.create(self.config) as made:
            yield made

    # --- commands ------------------------------------------------------------------------------------------------------

    def test_commands(self, box: Sandbox) -> None:
        done = box.exec(["sh", "-c", "cat; echo $WORD >&2; exit 3"], stdin="in", env={"WORD": "err"})
        assert (done.exit_code, done.stdout, done.stderr, done.timed_out, done.truncated) == (3, "in", "err\n", False, False)
        assert done.wall_s > 0
        assert box.exec(["sh", "-c", "kill -9 $$"]).exit_code == -9
        missing = box.exec(["no-such-program"])
        assert missing.exit_code == 127
        assert "no-such-program" in missing.stderr
        assert box.exec(["pwd"]).stdout == f"{WORKSPACE}\n"
        for argv in ([], ["echo", "a\0b"]):
            with pytest.raises(BadArgumentsError):
                box.exec(argv)
        assert box.exec(["echo", "still here"]).stdout == "still here\n"

    def test_the_environment(self, backend: Backend, box: Sandbox) -> None:
        assert box.exec(["sh", "-c", "echo $NINEFOLD_SEED"]).stdout == f"{box.seed}\n"
        config = self.config.model_copy(update={"env": {"GREETING": "hallo"}, "seed": 17})
        with backend.create(config) as other:
            assert other.exec(["sh", "-c", "echo $GREETING $NINEFOLD_SEED"]).stdout == "hallo 17\n"
            assert other.exec(["sh", "-c", "echo $GREETING"], env={"GREETING": "moin"}).stdout == "moin\n"
            assert other.sandbox_id != box.sandbox_id

    def test_large_standard_input_and_output(self, box: Sandbox) -> None:
        text = "0123456789" * 60_000
        assert box.exec(["cat"], stdin=text).stdout == text
        assert box.exec(["true"], stdin=text).exit_code == 0

    def test_output_arrives_while_the_command_runs(self, box: Sandbox) -> None:
        if not box.capabilities().streaming:
            pytest.skip("this backend does not claim streaming")
        pieces: list[tuple[str, bytes]] = []
        times: list[float] = []

        def on_output(stream: str, data: bytes) -> None:
            pieces.append((stream, data))
            times.append(time.monotonic())

        done = box.exec(["sh", "-c", "echo one; echo oops >&2; sleep 1; echo two"], on_output=on_output)
        ended = time.monotonic()
        assert b"".join(data for stream, data in pieces if stream == "stdout") == b"one\ntwo\n"
        assert b"".join(data for stream, data in pieces if stream == "stderr") == b"oops\n"
        assert (done.stdout, done.stderr) == ("one\ntwo\n", "oops\n")
        assert ended - times[0] > 0.7, "the first piece came only at the end"

    def test_an_error_of_the_listener_reaches_the_caller_and_the_sandbox_runs_on(self, box: Sandbox) -> None:
        def on_output(stream: str, data: bytes) -> None:
            raise LookupError(stream)

        with pytest.raises(LookupError, match="stdout"):
            box.exec(["echo", "x"], on_output=on_output)
        assert box.exec(["echo", "still here"]).stdout == "still here\n"

    def test_a_command_is_killed_at_its_timeout_with_what_it_started(self, box: Sandbox) -> None:
        done = box.exec(
            ["sh", "-c", "(while :; do echo x >> late1; sleep 0.05; done) & setsid sh -c 'while :; do echo x >> late2; sleep 0.05; done' &"
             " echo early; sleep 60"], timeout_s=1.0,
        )  # fmt: skip
        assert (done.exit_code, done.timed_out, done.stdout) == (None, True, "early\n")
        assert done.wall_s < 30
        sizes = box.exec(["sh", "-c", "cat late1 late2 | wc -c; sleep 0.5; cat late1 late2 | wc -c; rm late1 late2"]).stdout.split()
        assert sizes[0] == sizes[1]

    def test_output_is_capped(self, backend: Backend) -> None:
        with backend.create(self.config.model_copy(update={"output_kb": 4})) as small:
            done = small.exec(["sh", "-c", "head -c 5000 /dev/zero; echo short >&2"])
            assert (len(done.stdout), done.stderr, done.truncated, done.exit_code) == (4096, "short\n", True, 0)
            assert not small.exec(["head", "-c", "4096", "/dev/zero"]).truncated

    def test_a_background_command_goes_on(self, box: Sandbox) -> None:
        started = time.monotonic()
        box.exec(["sh", "-c", "(sleep 0.3; echo later > later.txt) > /dev/null 2>&1 &"], timeout_s=30)
        assert time.monotonic() - started < 25
        wait_for(lambda: "later.txt" in box.list() and box.read("later.txt") == b"later\n", "the background command ended")

    # --- files ---------------------------------------------------------------------------------------------------------

    def test_files(self, box: Sandbox) -> None:
        data = bytes(range(256)) * 1000
        box.write("a/b/c.bin", data)
        assert box.read("a/b/c.bin") == data
        assert box.read(f"{WORKSPACE}/a/b/c.bin") == data
        assert (box.list("a"), box.list(f"{WORKSPACE}/a/b")) == (["b"], ["c.bin"])
        box.write("a/b/c.bin", b"short")
        assert box.exec(["cat", "a/b/c.bin"]).stdout == "short"
        box.write("empty", b"")
        assert box.read("empty") == b""
        for path in ("nothing", "a", "a/b/c.bin/d"):
            with pytest.raises(BadArgumentsError):
                box.read(path)
        for path in ("nothing", "a/b/c.bin"):
            with pytest.raises(BadArgumentsError):
                box.list(path)
        with pytest.raises(BadArgumentsError):
            box.write(".", b"x")

    def test_paths_that_leave_the_workspace_are_refused(self, box: Sandbox) -> None:
        for path in ("../etc/passwd", "/etc/passwd", "a/../../x", f"{WORKSPACE}/../tmp/x", "a\0b"):
            with pytest.raises(BadArgumentsError):
                box.read(path)
            with pytest.raises(BadArgumentsError):
                box.write(path, b"x")
        with pytest.raises(BadArgumentsError):
            box.list("..")

    def test_links_are_not_followed(self, box: Sandbox) -> None:
        box.exec(["sh", "-c", "mkdir -p links/real; echo in > links/real/in; ln -s real/in links/file; ln -s real links/folder"])
        assert box.read("links/real/in") == b"in\n"
        for path in ("links/file", "links/folder/in"):
            with pytest.raises(BadArgumentsError):
                box.read(path)
            with pytest.raises(BadArgumentsError):
                box.write(path, b"planted")
        with pytest.raises(BadArgumentsError):
            box.list("links/folder")
        assert box.read("links/real/in") == b"in\n"

    def test_big_files(self, backend: Backend) -> None:
        with backend.create(self.config.model_copy(update={"read_mb": 1, "workspace_mb": 8})) as small:
            data = os.urandom(1 << 20)
            small.write("fits", data)
            assert small.read("fits") == data
            small.exec(["sh", "-c", "head -c 1048577 /dev/zero > big"])
            with pytest.raises(BadArgumentsError):
                small.read("big")
            with pytest.raises(BadArgumentsError):
                small.write("huge", b"x" * (9 << 20))
            assert small.read("fits") == data

    # --- the interpreter -------------------------------------------------------------------------------------------------

    def test_the_interpreter_keeps_its_variables(self, box: Sandbox) -> None:
        if not self.has_python:
            pytest.skip("no Python in this image")
        assert box.python("x = 20").stdout == ""
        done = box.python("print('hello')\nx * 2 + 2")
        assert (done.stdout, done.error, done.images, done.timed_out) == ("hello\n42\n", "", (), False)
        failed = box.python("print('before')\n1 / 0")
        assert failed.stdout == "before\n"
        assert "ZeroDivisionError" in failed.error
        assert "SyntaxError" in box.python("def (").error
        assert box.python("import os; os.getcwd(), os.environ['NINEFOLD_SEED']").stdout == f"('{WORKSPACE}', '{box.seed}')\n"
        assert box.python("open('cell.txt', 'w').write('x' * 3)").stdout == "3\n"
        assert box.read("cell.txt") == b"xxx"

    def test_the_interpreter_is_killed_at_its_timeout(self, own: Sandbox) -> None:
        if not self.has_python:
            pytest.skip("no Python in this image")
        own.python("x = 1")
        done = own.python(
            "import subprocess\nsubprocess.Popen(['sh', '-c', 'while :; do echo x >> late; sleep 0.05; done'])\nwhile True: pass", 2.0
        )
        assert done.timed_out
        assert "NameError" in own.python("x").error
        assert own.exec(["sh", "-c", "wc -c < late; sleep 0.4; wc -c < late"]).stdout.split()[0] == str(len(own.read("late")))

    def test_an_interpreter_that_ends_is_reported_and_replaced(self, own: Sandbox) -> None:
        if not self.has_python:
            pytest.skip("no Python in this image")
        assert own.python("import os; os._exit(7)").error
        assert own.python("6 * 7").stdout == "42\n"

    def test_pictures_come_back(self, box: Sandbox) -> None:
        if not self.has_python:
            pytest.skip("no Python in this image")
        code = "class Picture:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + bytes(1000)\n"
        done = box.python(code + "display(Picture())\nPicture()")
        assert [image[:4] for image in done.images] == [b"\x89PNG"] * 2
        assert [len(image) for image in done.images] == [1008] * 2

    # --- pausing -----------------------------------------------------------------------------------------------------------

    def test_pause_and_resume(self, own: Sandbox) -> None:
        if own.capabilities().pause == "none":
            with pytest.raises(UnsupportedError):
                own.pause()
            assert own.exec(["echo", "x"]).stdout == "x\n"
            return
        own.exec(["sh", "-c", f"({_TICKER}) > /dev/null 2>&1 &"])
        wait_for(lambda: "ticks" in own.list(), "the ticker started")
        count = len(own.read("ticks"))
        own.pause()
        assert own.state == "paused"
        with pytest.raises(SandboxError, match="paused"):
            own.exec(["true"])
        with pytest.raises(SandboxError, match="paused"):
            own.pause()
        time.sleep(1.0)
        own.resume()
        before = len(own.read("ticks"))
        assert before - count < 2 * (1.0 / 0.02) * 0.9, "it ticked while it was paused"
        wait_for(lambda: len(own.read("ticks")) > before, "it ticks again")
        with pytest.raises(SandboxError, match="running"):
            own.resume()

    def test_a_time_to_live_pauses_and_a_request_resumes(self, backend: Backend) -> None:
        if backend.capabilities(self.config).pause == "none":
            pytest.skip("this backend does not claim pausing")
        with backend.create(self.config.model_copy(update={"ttl_s": 0.5})) as box:
            box.write("kept", b"x")
            wait_for(lambda: box.state == "paused", "it pauses by itself")
            assert box.read("kept") == b"x"
            assert box.state == "running"
            wait_for(lambda: box.state == "paused", "it pauses again")

    # --- fork --------------------------------------------------------------------------------------------------------------

    def test_fork(self, own: Sandbox) -> None:
        can = own.capabilities()
        if can.fork == "none":
            with pytest.raises(UnsupportedError):
                own.fork()
            return
        with pytest.raises(ValueError, match="count=0"):
            own.fork(0)
        own.write("folder/a.txt", b"one")
        own.exec(["sh", "-c", "chmod 750 folder/a.txt; ln -s a.txt folder/link"])
        if self.has_python:
            assert own.python("x = [1, 2]\ny = x\nimport math\ndef twice(v): return 2 * v").error == ""
        children = boxes_of(own.fork(3))
        try:
            assert len({own.sandbox_id, *(child.sandbox_id for child in children)}) == 4
            assert len({own.seed, *(child.seed for child in children)}) == 4
            for child in children:
                assert child.state == "running"
                assert child.exec(["sh", "-c", "echo $NINEFOLD_SEED"]).stdout == f"{child.seed}\n"
                assert (
                    child.exec(["sh", "-c", "readlink folder/link; stat -c %a folder/a.txt; cat folder/a.txt"]).stdout == "a.txt\n750\none"
                )
            children[0].write("folder/a.txt", b"two")
            children[0].write("new", b"x")
            own.write("folder/a.txt", b"three")
            assert [box.read("folder/a.txt") for box in (own, *children)] == [b"three", b"two", b"one", b"one"]
            assert "new" not in children[1].list()
            if self.has_python:
                self._independent_interpreters(own, children)
            children[0].close()
            assert children[1].exec(["echo", "alive"]).stdout == "alive\n"
            grandchild = boxes_of(children[1].fork())[0]
            children[1].close()
            assert grandchild.read("folder/a.txt") == b"one"
            if self.has_python:
                assert grandchild.python("x").stdout == "[1, 2, 1]\n"
            grandchild.close()
            own.close()
            assert children[2].exec(["echo", "alive"]).stdout == "alive\n"
            assert children[2].read("folder/a.txt") == b"one"
        finally:
            for child in children:
                child.close()

    def _independent_interpreters(self, own: Sandbox, children: list[Sandbox]) -> None:
        for number, child in enumerate(children):
            assert child.python(f"x.append({number})").error == ""
            assert child.python("import os; os.environ['NINEFOLD_SEED']").stdout == f"'{child.seed}'\n"
        assert own.python("x, y is x, twice(4), math.floor(2.5)").stdout == "([1, 2], True, 8, 2)\n"
        assert [child.python("x, y is x, twice(4), math.floor(2.5)").stdout for child in children] == [
            f"([1, 2, {number}], True, 8, 2)\n" for number in range(len(children))
        ]
        draws = {child.python("import random; random.random()").stdout for child in (own, *children)}
        assert len(draws) == 4, "forked interpreters draw the same random numbers"

    # --- snapshots ---------------------------------------------------------------------------------------------------------

    def test_snapshot_and_restore(self, backend: Backend, own: Sandbox, tmp_path: Path) -> None:
        if own.capabilities().snapshot == "none":
            with pytest.raises(UnsupportedError):
                own.snapshot(tmp_path / "s")
            return
        own.write("folder/a.txt", b"one")
        own.exec(["sh", "-c", "chmod 750 folder/a.txt; ln -s a.txt folder/link"])
        if self.has_python:
            own.python("x = [1]")
        snapshot = own.snapshot(tmp_path / "s")
        assert own.state == "running"
        assert pickle.loads(pickle.dumps(snapshot)) == snapshot
        assert snapshot.path.is_relative_to(tmp_path / "s")
        assert snapshot.size_bytes > 0
        again = own.snapshot(tmp_path / "s")
        assert again.snapshot_id != snapshot.snapshot_id
        own.write("folder/a.txt", b"two")
        own.write("new", b"x")
        if self.has_python:
            own.python("x.append(2); z = 1")
        own.restore(snapshot)
        assert (own.read("folder/a.txt"), own.list()) == (b"one", ["folder"])
        assert own.exec(["sh", "-c", "readlink folder/link; stat -c %a folder/a.txt"]).stdout == "a.txt\n750\n"
        if self.has_python:
            assert own.python("x").stdout == "[1]\n"
            assert "NameError" in own.python("z").error
        with backend.create(self.config, snapshot=snapshot) as other:
            assert other.sandbox_id != own.sandbox_id
            assert other.read("folder/a.txt") == b"one"
            assert other.exec(["sh", "-c", "echo $NINEFOLD_SEED"]).stdout == f"{other.seed}\n"

    def test_a_snapshot_outlives_the_process_that_made_it(self, backend: Backend, tmp_path: Path, repo_root: Path) -> None:
        if backend.capabilities(self.config).snapshot == "none":
            pytest.skip("this backend does not claim snapshots")
        code = "import math\nx = {'a': [1, 2]}" if self.has_python else ""
        owner = subprocess.Popen(
            [sys.executable, "-c", _OWNER],
            cwd=repo_root,
            env={**os.environ, "PYTHONPATH": str(repo_root)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert owner.stdin is not None
        assert owner.stdout is not None
        try:
            owner.stdin.write(pickle.dumps((backend, self.config, str(tmp_path / "s"), code)))
            owner.stdin.close()
            snapshot = pickle.loads(owner.stdout.read())
        finally:
            owner.send_signal(signal.SIGKILL)
            owner.wait(30)
            owner.stdout.close()
        assert isinstance(snapshot, Snapshot)
        with backend.create(self.config, snapshot=snapshot) as box:
            assert box.read("state/kept.txt") == b"from the first life"
            if self.has_python:
                assert box.python("x, math.floor(1.5)").stdout == "({'a': [1, 2]}, 1)\n"

    def test_a_damaged_snapshot_is_a_typed_error(self, backend: Backend, own: Sandbox, tmp_path: Path) -> None:
        if own.capabilities().snapshot == "none":
            pytest.skip("this backend does not claim snapshots")
        own.write("a", os.urandom(100_000))
        for damage in ("cut", "changed", "gone"):
            snapshot = own.snapshot(tmp_path / damage)
            largest = max((file for file in snapshot.path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)
            data = bytearray(largest.read_bytes())
            if damage == "cut":
                largest.write_bytes(data[: len(data) // 2])
            elif damage == "changed":
                data[len(data) // 2] ^= 1
                largest.write_bytes(data)
            else:
                largest.unlink()
            with pytest.raises((SandboxError, CorruptArtifactError)):
                backend.create(self.config, snapshot=snapshot)
            with pytest.raises((SandboxError, CorruptArtifactError)):
                own.restore(snapshot)
            assert own.exec(["wc", "-c", "a"]).stdout.split()[0] == "100000", "a refused restore changed the sandbox"

    def test_a_snapshot_of_another_backend_is_refused(self, own: Sandbox, tmp_path: Path) -> None:
        stranger = Snapshot("id", "another", "files", tmp_path, 0, self.config)
        with pytest.raises(SandboxError, match="another"):
            own.restore(stranger)

    # --- capture errors and the end ---------------------------------------------------------------------------------------

    def test_a_snapshot_that_cannot_be_written_is_recoverable(self, own: Sandbox, tmp_path: Path) -> None:
        if own.capabilities().snapshot == "none":
            pytest.skip("this backend does not claim snapshots")
        (tmp_path / "file").write_text("in the way")
        with pytest.raises(CaptureError) as caught:
            own.snapshot(tmp_path / "file" / "below")
        assert caught.value.recoverable
        assert own.exec(["echo", "alive"]).stdout == "alive\n"

    def test_a_sandbox_that_died_says_so(self, backend: Backend, tmp_path: Path) -> None:
        can = backend.capabilities(self.config)
        with backend.create(self.config) as box:
            self.destroy(box)
            with pytest.raises(SandboxError):
                box.exec(["true"])
        if can.snapshot != "none":
            with backend.create(self.config) as box:
                self.destroy(box)
                with pytest.raises(CaptureError) as caught:
                    box.snapshot(tmp_path / "s")
                assert not caught.value.recoverable
                assert box.state == "closed"
        if can.fork != "none":
            with backend.create(self.config) as box:
                self.destroy(box)
                with pytest.raises(CaptureError) as caught:
                    box.fork(2)
                assert not caught.value.recoverable
                assert box.state == "closed"

    def test_closing(self, backend: Backend) -> None:
        box = backend.create(self.config)
        box.close()
        box.close()
        assert box.state == "closed"
        for operation in (lambda: box.exec(["true"]), lambda: box.read("a"), box.pause, box.fork):
            with pytest.raises(SandboxError, match="closed"):
                operation()

    def test_close_ends_an_operation_that_hangs(self, backend: Backend) -> None:
        box = backend.create(self.config)
        errors: list[BaseException] = []

        def hang() -> None:
            try:
                box.exec(["sleep", "300"], timeout_s=300)
            except BaseException as error:  # noqa: BLE001 - its type is what the test asks
                errors.append(error)

        thread = threading.Thread(target=hang)
        thread.start()
        time.sleep(0.5)
        box.close()
        thread.join(30)
        assert not thread.is_alive()
        assert [isinstance(error, SandboxError) for error in errors] == [True]
        assert box.state == "closed"

    # --- honesty ------------------------------------------------------------------------------------------------------------

    def test_the_backend_and_its_sandboxes_claim_the_same(self, backend: Backend, box: Sandbox) -> None:
        assert backend.probe() == ""
        assert backend.capabilities(self.config) == box.capabilities()
        assert box.capabilities().backend == backend.name
        assert pickle.loads(pickle.dumps(backend)).name == backend.name

    def test_services_inside_are_answered_by_the_host(self, box: Sandbox) -> None:
        if not box.capabilities().services:
            with pytest.raises(UnsupportedError):
                box.serve(8123)
            return
        with box.serve(8123) as listener:
            listener.settimeout(30)

            def answer() -> None:
                connection, _ = listener.accept()
                with connection:
                    while b"\r\n\r\n" not in connection.recv(65536):
                        pass
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")

            thread = threading.Thread(target=answer)
            thread.start()
            code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8123/x', timeout=20).read())"
            done = box.exec(["python3", "-c", code], timeout_s=30)
            thread.join(30)
            assert done.stdout == "b'hello'\n", done.stderr
