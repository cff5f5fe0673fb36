"""The code pool: what it gives back, what code in it cannot do, and what happens when a sandbox dies."""

from __future__ import annotations

import fcntl
import os
import pickle
import resource
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from environments.errors import SandboxError
from environments.sandbox import CodePool
from environments.sandbox import code_pool as module
from tests.environments.sandbox.attacks import SYSCALLS, solving

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def pool() -> Iterator[CodePool]:
    with CodePool(1) as made:
        yield made


def test_values_come_back_with_their_types(pool: CodePool) -> None:
    values = [None, True, 1, 1.0, "é\ud800", [1, [2]], {"a": {"b": []}}, -0.0, 10**40]
    result = pool.call("def solve(x):\n    return x\n", "solve", [[v] for v in values])
    assert result.outputs == values
    assert [type(v) for v in result.outputs] == [type(v) for v in values]
    assert (result.errors, result.error, result.error_kind) == ([""] * len(values), "", "")


def test_one_bad_input_does_not_spoil_the_others(pool: CodePool) -> None:
    result = pool.call("def solve(x):\n    print('got', x)\n    return 10 // x\n", "solve", [[2], [0], [5]])
    assert result.outputs == [5, None, 2]
    assert result.errors == ["", "ZeroDivisionError: integer division or modulo by zero", ""]
    assert (result.error, result.error_kind) == (result.errors[1], "exception")
    assert result.stdout == "got 2\ngot 0\ngot 5\n"


@pytest.mark.parametrize(
    ("source", "kind", "says"),
    [
        ("def solve(x):\n    return (", "syntax", "never closed"),
        ("def other(x):\n    return 1\n", "exception", "no function 'solve'"),
        ("1 / 0\n", "exception", "ZeroDivisionError"),
        ("import sys\nsys.exit(0)\n", "exception", "SystemExit"),
        ("import os\nos._exit(0)\n", "protocol", "exit code 0"),
        ("def solve(x):\n    import os\n    os._exit(3)\n", "protocol", "exit code 3"),
        ("def solve(x):\n    while True: pass\n", "timeout", "time"),
        ("import time\ndef solve(x):\n    time.sleep(60)\n", "timeout", "wall"),
        (
            "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ndef solve(x):\n    while True: time.sleep(.01)\n",
            "timeout",
            "time",
        ),
        ("def solve(x):\n    return [0] * 10**9\n", "memory", "MemoryError"),
        ("def solve(x):\n    return solve(x)\n", "exception", "RecursionError"),
        ("import ctypes\ndef solve(x):\n    ctypes.string_at(0)\n", "exception", "SIGSEGV"),
        ("def solve(x):\n    while True: print('x' * 10_000)\n", "protocol", "output was too large"),
        ("def solve(x):\n    return 'x' * 10_000_000\n", "protocol", "answer was too large"),
        ("def solve(x):\n    return (1, 2)\n", "exception", "returned a tuple"),
        ("def solve(x):\n    return {1: 2}\n", "exception", "returned a dict"),
        ("def solve(x):\n    return [object()]\n", "exception", "returned a list"),
        ("class I(int):\n    pass\ndef solve(x):\n    return I(3)\n", "exception", "returned a I"),
        ("class E(Exception):\n    def __str__(self): raise self\ndef solve(x):\n    raise E()\n", "exception", "cannot be printed"),
        ("def solve(x):\n    a = []\n    a.append(a)\n    return a\n", "exception", "RecursionError"),
    ],
)
def test_what_goes_wrong_is_named(pool: CodePool, source: str, kind: str, says: str) -> None:
    result = pool.call(source, "solve", [[1]], timeout_s=0.4, memory_mb=200)
    assert (result.error_kind, result.outputs) == (kind, [None])
    assert says in result.error
    assert pool.call("def solve(x):\n    return x\n", "solve", [[7]]).outputs == [7]


def test_answers_before_a_timeout_are_kept(pool: CodePool) -> None:
    result = pool.call("def solve(x):\n    while x == 3: pass\n    return x\n", "solve", [[1], [2], [3], [4]], timeout_s=0.3)
    assert result.outputs == [1, 2, None, None]
    assert [bool(e) for e in result.errors] == [False, False, True, True]
    assert result.error_kind == "timeout"


@pytest.mark.parametrize(
    "writes",
    [
        b'{"v": 1}\n',
        b'{"v": 1}\n{"end": true}\n',
        b"garbage\n",
        b'{"end": true}\n',
        b"[" * 100_000 + b"\n",
        b'{"v": 1, "e": "x"}\n',
        b'{"v": ' + b"9" * 5_000 + b"}\n",
        b"\xff\xfe\n",
    ],
)
def test_what_is_written_into_the_answer_is_at_most_a_value(pool: CodePool, writes: bytes) -> None:
    source = (
        f"import os\ndef solve(x):\n    for fd in range(64):\n        try: os.write(fd, {writes!r})\n"
        "        except OSError: pass\n    return 'honest'\n"
    )
    result = pool.call(source, "solve", [[1], [2]])
    assert result.error_kind == "protocol"
    assert result.outputs == [None, None]


def test_closing_every_descriptor_is_no_answer(pool: CodePool) -> None:
    result = pool.call("import os\ndef solve(x):\n    os.closerange(0, 256)\n    return 1\n", "solve", [[1]])
    assert (result.error_kind, result.outputs) == ("protocol", [None])


def test_only_the_agreed_descriptors_are_open_whatever_their_numbers_outside() -> None:
    source = (
        "import os\ndef solve():\n    found = []\n    for fd in range(4096):\n        try: os.fstat(fd)\n"
        "        except OSError: continue\n        found.append(fd)\n    return found\n"
    )
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits[1], 4_096), limits[1]))
    read, write = os.pipe()
    spare = [fcntl.fcntl(read, fcntl.F_DUPFD, n) for n in range(3, 1_100)]
    try:
        with CodePool(1) as crowded:
            assert crowded.call(source, "solve", [[]]).outputs == [[0, 1, 2, 4]]
            assert min(next(iter(crowded._live))._ours) > 1_024  # where select(2) would fail
    finally:
        for fd in (read, write, *spare):
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@settings(max_examples=300)
@example([b'{"v": 1}\n', b'{"v": 1}\n'])
@example([b'{"v": 1}\n', b'{"v": 1}\n', b'{"end": true}\n'])
@given(
    st.lists(
        st.sampled_from([b'{"v": 1}\n', b'{"end": true}\n', b'{"e": "x", "k": "exception"}\n', b"{}\n", b"\n", b"[", b"\xff"])
        | st.binary(max_size=20)
    )
)
def test_any_answer_gives_one_output_and_one_error_an_input(pieces: list[bytes]) -> None:
    result = module._result(2, (module._EXITED, 0, 0.0, 0.0), b"".join(pieces), b"", "")
    assert len(result.outputs) == len(result.errors) == 2
    assert bool(result.error) == bool(result.error_kind)
    assert all(output is None for output, error in zip(result.outputs, result.errors, strict=True) if error)
    if any(result.errors):
        assert result.error
    if not result.error:
        assert b"".join(pieces).translate(None, b" \t\r") == b'{"v":1}\n{"v":1}\n{"end":true}\n'


def test_threads_work_and_the_standard_library_is_there(pool: CodePool) -> None:
    source = (
        "import threading, statistics\ndef solve(xs):\n    out = []\n"
        "    ts = [threading.Thread(target=out.append, args=(x,)) for x in xs]\n"
        "    for t in ts: t.start()\n    for t in ts: t.join()\n    return statistics.median(out)\n"
    )
    assert pool.call(source, "solve", [[[5, 1, 3]]]).outputs == [3]


def test_each_call_starts_afresh_and_deterministically(pool: CodePool) -> None:
    source = (
        "import json, random\nseen = getattr(json, 'seen', 0)\njson.seen = 1\n"
        "def solve():\n    return [seen, random.random(), list({'a', 'b', 'c'})]\n"
    )
    first = pool.call(source, "solve", [[]]).outputs
    assert first == pool.call(source, "solve", [[]]).outputs
    with CodePool(1) as other:
        assert first == other.call(source, "solve", [[]]).outputs


def test_nothing_of_an_earlier_call_can_be_found(pool: CodePool) -> None:
    marker = "marker" + "-of-the-first-call"
    assert pool.call(f"def solve(x):\n    return x + {marker!r}\n", "solve", [[marker]]).outputs == [marker * 2]
    hunt = (
        "import gc, sys\ndef solve(start, rest):\n    wanted, found, frame = start + rest, [], sys._getframe()\n"
        "    while frame:\n        spaces = {**frame.f_locals, **frame.f_globals}\n"
        "        found += [k for k, v in spaces.items() if k not in ('wanted', 'spaces') and wanted in repr(v)[:10**6]]\n"
        "        frame = frame.f_back\n"
        "    for thing in gc.get_objects(0) + gc.get_objects(1) + gc.get_objects(2):\n"
        "        if type(thing) in (dict, list, tuple, bytes) and thing is not found:\n"
        "            for item in (thing.values() if type(thing) is dict else thing):\n"
        "                if type(item) in (str, bytes) and item is not wanted and wanted in str(item): found.append('gc')\n"
        "    return found\n"
    )
    assert pool.call(hunt, "solve", [["marker", "-of-the-first-call"]], timeout_s=5).outputs == [[]]
    # The hunt itself works: what this very call was given it does find.
    assert pool.call(f"{hunt}# {marker}\n", "solve", [["marker", "-of-the-first-call"]], timeout_s=5).outputs[0]


@pytest.mark.parametrize("name", SYSCALLS)
def test_kernel_interfaces_are_refused(pool: CodePool, name: str) -> None:
    result = pool.call(solving(SYSCALLS[name]), "solve", [[]])
    assert str(result.outputs[0]).startswith("blocked"), result


PURE: dict[str, str] = {
    "a process": "os.fork()",
    "a program": "os.posix_spawn('/bin/true', ['true'], {})",
    "exec": "os.execv('/bin/true', ['true'])",
    "a subprocess": "__import__('subprocess').run(['true'])",
    "multiprocessing": "__import__('multiprocessing').get_context('fork').Process(target=print).start()",
    "a socket": "socket.socket()",
    "a socket pair": "socket.socketpair()",
    "a memory file": "os.memfd_create('x')",
    "a file in /": "open('/x', 'w')",
    "a file in /tmp": "open('/tmp/x', 'w')",
    "a file in /usr": "open('/usr/x', 'w')",
    "a file here": "open('x', 'w')",
    "a folder": "os.mkdir('/usr/local/x')",
    "shared memory": "sysc(29, 1234, 4096, 0o1777)",
    "the proc folder": "os.listdir('/proc')",
    "passwords": "open('/etc/shadow').read()",
    "root's home": "os.listdir('/root')",
    "home folders": "os.listdir('/home')",
    "devices": "os.listdir('/dev')",
    "a device node": "os.mknod('/x', 0o060666, 0)",
    "this checkout": f"os.listdir({os.getcwd()!r})",
    "the host's processes": f"os.kill({os.getpid()}, 0)",
    "priority of process 1": "os.setpriority(os.PRIO_PROCESS, 1, 19)",
    "more memory": "__import__('resource').setrlimit(__import__('resource').RLIMIT_AS, (-1, -1))",
}


@pytest.mark.parametrize("name", PURE)
def test_pure_code_can_do_nothing_but_compute(pool: CodePool, name: str) -> None:
    result = pool.call(solving(PURE[name]), "solve", [[]])
    assert str(result.outputs[0]).startswith("blocked"), result


def test_process_1_shrugs_off_signals(pool: CodePool) -> None:
    worker = next(iter(pool._live))
    source = (
        "import os\ndef solve():\n    for s in range(1, 65):\n        try: os.kill(1, s)\n        except OSError: pass\n"
        "    return os.getppid()\n"
    )
    assert pool.call(source, "solve", [[]]).outputs == [1]
    assert pool.call("def solve():\n    return 5\n", "solve", [[]]).outputs == [5]
    assert next(iter(pool._live)) is worker


def test_no_environment_and_no_host_files_inside(pool: CodePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hunter2")
    with CodePool(1) as fresh:
        source = "import os\ndef solve():\n    return [sorted(os.environ), sorted(os.listdir('/')), os.getuid()]\n"
        environment, root, uid = fresh.call(source, "solve", [[]]).outputs[0]
    assert set(environment) <= {"PYTHONHASHSEED", "LANG", "PWD", "LC_CTYPE"}
    assert set(root) <= {"usr", "bin", "sbin", "lib", "lib32", "lib64", "opt"}
    assert uid != 0


def test_a_dead_sandbox_is_replaced_and_two_deaths_are_an_infrastructure_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with CodePool(1) as pool:
        assert pool.call("def solve():\n    return 1\n", "solve", [[]]).outputs == [1]
        worker = next(iter(pool._live))
        assert worker._box is not None
        os.kill(worker._box.inner_pid, signal.SIGKILL)
        assert pool.call("def solve():\n    return 2\n", "solve", [[]]).outputs == [2]
        assert next(iter(pool._live)) is not worker

        def dies(self: Any, *arguments: Any) -> Any:
            raise module._WorkerDied("it ended")

        monkeypatch.setattr(module._Worker, "call", dies)
        with pytest.raises(SandboxError, match="died twice"):
            pool.call("def solve():\n    return 3\n", "solve", [[]])
        monkeypatch.undo()
        assert pool.call("def solve():\n    return 4\n", "solve", [[]]).outputs == [4]


def test_a_sandbox_that_falls_silent_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE_S", 3.0)
    with CodePool(1) as pool:
        pool.call("def solve():\n    return 1\n", "solve", [[]])
        worker = next(iter(pool._live))
        assert worker._box is not None
        os.kill(worker._box.inner_pid, signal.SIGSTOP)
        assert pool.call("def solve():\n    return 2\n", "solve", [[]], timeout_s=0.2).outputs == [2]


def test_many_threads_share_two_sandboxes() -> None:
    with CodePool(2) as pool, ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: pool.call("def solve(n):\n    return n * n\n", "solve", [[n]]).outputs[0], range(60)))
        assert results == [n * n for n in range(60)]
        assert len(pool._live) <= 2
        assert pool.calls == 60


def test_a_sandbox_outlives_the_thread_that_started_it() -> None:
    with CodePool(1) as pool:
        thread = threading.Thread(target=pool.call, args=("def solve():\n    return 1\n", "solve", [[]]))
        thread.start()
        thread.join()
        worker = next(iter(pool._live))
        assert pool.call("def solve():\n    return 2\n", "solve", [[]]).outputs == [2]
        assert next(iter(pool._live)) is worker


def test_a_forked_process_gets_sandboxes_of_its_own() -> None:
    with CodePool(1) as pool:
        assert pool.call("def solve():\n    return 1\n", "solve", [[]]).outputs == [1]
        mine = next(iter(pool._live))._box
        assert mine is not None
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                outputs = pool.call("def solve():\n    return 2\n", "solve", [[]]).outputs
                box = next(iter(pool._live))._box
                assert box is not None
                os.write(write, f"{outputs} {box.inner_pid}".encode())
                pool.close()
            finally:
                os._exit(0)
        os.close(write)
        said = os.read(read, 1000).decode()
        os.close(read)
        os.waitpid(child, 0)
        outputs, _, pid = said.rpartition(" ")
        assert outputs == "[2]"
        assert int(pid) != mine.inner_pid
        assert mine.alive()
        assert pool.call("def solve():\n    return 3\n", "solve", [[]]).outputs == [3]


def test_a_pickled_pool_is_an_empty_pool_of_the_same_size() -> None:
    with CodePool(3) as pool:
        pool.call("def solve():\n    return 1\n", "solve", [[]])
        with pickle.loads(pickle.dumps(pool)) as copy:
            assert (copy.workers, len(copy._live)) == (3, 0)
            assert copy.call("def solve():\n    return 2\n", "solve", [[]]).outputs == [2]


def test_a_remembering_pool_asks_once(pool: CodePool) -> None:
    source = "import os\ndef solve():\n    return os.urandom(8).hex()\n"
    remembering = module.RememberingPool(pool)
    before = pool.calls
    first = remembering.call(source, "solve", [[]])
    assert remembering.call(source, "solve", [[]]) == first
    assert pool.calls == before + 1
    assert remembering.call(source, "solve", [[]], timeout_s=0.9) != first
    assert pool.calls == before + 2


def test_close_kills_and_a_later_call_starts_again() -> None:
    pool = CodePool(1)
    pool.call("def solve():\n    return 1\n", "solve", [[]])
    worker = next(iter(pool._live))
    assert worker._box is not None
    pid = worker._box.inner_pid
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert pool.call("def solve():\n    return 2\n", "solve", [[]]).outputs == [2]
    pool.close()
    with pytest.raises(ValueError, match="workers=0"):
        CodePool(0)
