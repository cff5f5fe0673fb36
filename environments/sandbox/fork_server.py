"""Process 1 of a code sandbox: forks a fresh child for every call. Runs inside, alone, with the standard library only.

Nothing that a later child could find is ever held here: the *child* reads the request and writes the answer straight to
the host. This process only passes fixed-size records: `CALL` in, `DONE` out. Before `DONE` everything else in the
sandbox has been killed, so that no byte can follow.

Started as `python3 -S -s -c SOURCE PAYLOAD_FD ANSWER_FD OUTPUT_FD FILTER_HEX`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import json
import os
import random
import resource
import select
import signal
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

PRELOADED = "bisect collections dataclasses datetime decimal fractions functools heapq itertools math re statistics string textwrap"
"""Imported once so that a call does not pay for them; a child may import the rest of the standard library."""

CALL = struct.Struct("<BxxxIddI")  # 1 = call, 2 = abort; payload bytes; CPU seconds; wall seconds; memory MiB
DONE = struct.Struct("<Bxxxidd")  # how the child ended (below); exit code or signal; CPU seconds; wall seconds
EXITED, SIGNALLED, CPU_OVER, WALL_OVER, ABORTED, READY, BROKEN = range(7)
PR_SET_DUMPABLE, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 4, 22, 2


def read_exact(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, min(size - len(data), 1 << 20))
        if not chunk:
            raise EOFError
        data += chunk
    return bytes(data)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def plain(value: object) -> bool:
    """True for JSON values of the builtin types themselves; a subclass could carry an `__eq__` of its own."""
    if type(value) is list:
        return all(map(plain, value))
    if type(value) is dict:
        return all(type(key) is str for key in value) and all(map(plain, value.values()))
    return value is None or type(value) in (bool, int, float, str)


def describe(error: BaseException) -> str:
    try:
        return type(error).__name__ + ": " + str(error)[:300]
    except BaseException:  # noqa: BLE001 - whatever untrusted code raises is data
        return "an error that cannot be printed"


def compute(payload: bytes, answer: int) -> None:
    """Run the request and write one JSON line an input: {"v": value} or {"e": text, "k": kind}; {"end": true} closes the answer."""

    def say(record: dict[str, Any]) -> None:
        write_all(answer, json.dumps(record).encode() + b"\n")

    request = json.loads(payload)
    entry = request["entry"]
    module: dict[str, Any] = {"__name__": "__solution__", "__builtins__": __builtins__}
    try:
        code = compile(request["source"], "<solution>", "exec")
    except (SyntaxError, ValueError) as error:
        say({"fatal": describe(error), "k": "syntax"})
        return
    except (MemoryError, RecursionError) as error:
        say({"fatal": describe(error), "k": "memory" if isinstance(error, MemoryError) else "syntax"})
        return
    try:
        exec(code, module)
        function = module[entry]
    except KeyError as error:
        say({"fatal": f"no function {entry!r}" if error.args == (entry,) else describe(error), "k": "exception"})
        return
    except BaseException as error:  # noqa: BLE001 - whatever untrusted code raises is data
        say({"fatal": describe(error), "k": "memory" if isinstance(error, MemoryError) else "exception"})
        return
    del code, module, payload
    for arguments in request.pop("inputs"):
        try:
            value = function(*arguments)
            if plain(value):
                say({"v": value})
            else:
                say({"e": f"returned a {type(value).__name__}: only plain JSON values count", "k": "exception"})
            del value
        except BaseException as error:  # noqa: BLE001 - whatever untrusted code raises is data
            say({"e": describe(error), "k": "memory" if isinstance(error, MemoryError) else "exception"})
    say({"end": True})


def child(fds: tuple[int, int, int], size: int, cpu_s: float, memory_mb: int, install_filter: Callable[[], None]) -> None:
    payload_fd, answer, output = fds
    payload = read_exact(payload_fd, size)
    os.close(payload_fd)
    read, write = os.pipe()
    os.close(write)
    os.dup2(read, 0)  # an empty standard input
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(read)
    os.close(output)
    random.seed(0)
    for limit, soft in (
        (resource.RLIMIT_AS, memory_mb << 20),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_CPU, int(cpu_s) + 2),
    ):
        resource.setrlimit(limit, (soft, soft))
    install_filter()
    compute(payload, answer)
    with contextlib.suppress(BaseException):
        sys.stdout.flush()


def supervise(pid: int, cpu_s: float, wall_s: float, started: float) -> int | None:
    """Wait for the child; returns how it ended when it was not by itself, else None."""
    pidfd = os.pidfd_open(pid)
    clock = (~pid << 3) | 2  # the CPU clock of a process, clock_getcpuclockid(3)
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.register(0, select.POLLIN)
    try:
        while True:
            wall_left = wall_s - (time.monotonic() - started)
            try:
                cpu_left = cpu_s - time.clock_gettime(clock)
            except OSError:
                cpu_left = cpu_s
            if cpu_left <= 0:
                return CPU_OVER
            if wall_left <= 0:
                return WALL_OVER
            ready = {fd for fd, _ in poller.poll(max(1, int(1000 * min(cpu_left, wall_left))))}
            if pidfd in ready:
                return None
            if 0 in ready:
                read_exact(0, CALL.size)  # only an abort can come now; EOF (the host is gone) ends us, and all with us
                return ABORTED
    finally:
        os.close(pidfd)


def clear_all(pid: int) -> tuple[int, float]:
    """Kill everything but this process (the kernel spares process 1) and reap it; the wait status and CPU seconds of `pid`."""
    status, cpu_s = 0, 0.0
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            dead, code, usage = os.wait4(-1, 0)
        except ChildProcessError:
            return status, cpu_s
        if dead == pid:
            status, cpu_s = code, usage.ru_utime + usage.ru_stime


def main() -> None:
    # The host's numbers may be large; inside they are always 3, 4 and 5, and nothing else is open.
    high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 6) for fd in sys.argv[1:4]]
    payload_fd, answer, output = (os.dup2(fd, number) for fd, number in zip(high, (3, 4, 5), strict=True))
    os.closerange(6, 1 << 20)
    program = bytes.fromhex(sys.argv[4])
    # Python installs a handler for this one; the kernel shields process 1 only from signals without a handler.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.argv[1:] = []
    sys.path[:] = [path for path in sys.path if path]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    buffer = ctypes.create_string_buffer(program, len(program))
    fprog = Program(len(program) // 8, ctypes.addressof(buffer))

    def install_filter() -> None:
        if libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(fprog), 0, 0):
            os._exit(125)

    for name in PRELOADED.split():
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    write_all(1, DONE.pack(READY, 0, 0.0, 0.0))
    while True:
        try:
            operation, size, cpu_s, wall_s, memory_mb = CALL.unpack(read_exact(0, CALL.size))
        except EOFError:
            os._exit(0)
        if operation != 1:
            continue  # an abort that crossed with the end of its call
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            try:
                child((payload_fd, answer, output), size, cpu_s, memory_mb, install_filter)
            finally:
                os._exit(0)
        ended = supervise(pid, cpu_s, wall_s, started)
        if ended is None:
            # It has ended by itself: collect its status before the rest is killed, so that the kill cannot be mistaken for its end.
            _, code, usage = os.wait4(pid, 0)
            cpu_used = usage.ru_utime + usage.ru_stime
            clear_all(-1)
        else:
            code, cpu_used = clear_all(pid)
        if ended is not None:
            record = (ended, 0)
        elif os.WIFSIGNALED(code):
            record = (SIGNALLED, os.WTERMSIG(code))
        else:
            exit_code = os.WEXITSTATUS(code)
            record = (BROKEN if exit_code == 125 else EXITED, exit_code)
        write_all(1, DONE.pack(record[0], record[1], cpu_used, time.monotonic() - started))


main()
