"""Commands and cells, each in a control group that is killed whole."""

import base64
import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import struct
import subprocess
import sys
import time
from typing import Any

from environments.sandbox.firecracker.guest.link import NOBODY, Connection, Refused, here

BOX = "/sys/fs/cgroup/box"
BASE_ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", "TMPDIR": "/tmp", "MPLBACKEND": "Agg"}
ANSWER_BYTES = 24 << 20
PR_SET_DUMPABLE, PR_SET_NO_NEW_PRIVS = 4, 38
INTERPRETER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "interpreter.py")

libc = ctypes.CDLL(None, use_errno=True)
numbers = iter(range(1 << 62))


def environment(extra: dict[str, str]) -> dict[str, str]:
    return {**BASE_ENV, "HOME": here.workspace, **here.env, **extra}


class Group:
    """A control group for one command and all that it starts."""

    def __init__(self) -> None:
        self.path = f"{BOX}/{next(numbers)}"
        if here.is_guest:
            os.mkdir(self.path)

    def confine(self) -> None:
        """In the child, before its program starts: enter the group and give up every privilege."""
        for name, value in ((resource.RLIMIT_FSIZE, here.file_bytes), (resource.RLIMIT_CORE, 0), (resource.RLIMIT_NOFILE, 1024)):
            resource.setrlimit(name, (value, value))
        if here.is_guest:
            with open(f"{self.path}/cgroup.procs", "w") as file:
                file.write("0")
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)

    def kill(self, leader: int) -> None:
        if here.is_guest:
            with open(f"{self.path}/cgroup.kill", "w") as file:
                file.write("1")
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(leader, signal.SIGKILL)


def spawn(argv: list[str], env: dict[str, str], **streams: Any) -> tuple[subprocess.Popen[bytes], Group]:
    group = Group()
    process = subprocess.Popen(argv, env=env, cwd=here.workspace, start_new_session=True, preexec_fn=group.confine, **streams)
    return process, group


def do_exec(request: dict[str, Any], body: bytes, host: Connection) -> dict[str, Any]:
    started = time.monotonic()
    pipe = subprocess.PIPE
    try:
        process, group = spawn(request["argv"], environment(request["env"]), stdin=pipe, stdout=pipe, stderr=pipe)
    except OSError as error:
        host.send({"stream": "stderr"}, f"{request['argv'][0]}: {error.strerror}\n".encode())
        return {"exit_code": 127, "timed_out": False, "truncated": False, "wall_s": 0.0}
    except (ValueError, subprocess.SubprocessError) as error:
        raise Refused(f"the command cannot be started: {error}") from error
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    pidfd = os.pidfd_open(process.pid)
    names = {process.stdout.fileno(): "stdout", process.stderr.fileno(): "stderr"}
    room = dict.fromkeys(names, request["cap"])
    view, truncated, timed_out, finished = memoryview(body), False, False, False
    selector = selectors.DefaultSelector()
    for stream in (process.stdin, process.stdout, process.stderr):
        os.set_blocking(stream.fileno(), False)
    for fd in (*names, pidfd, host.sock.fileno()):
        selector.register(fd, selectors.EVENT_READ)
    if view:
        selector.register(process.stdin.fileno(), selectors.EVENT_WRITE)
    else:
        process.stdin.close()

    def take(fd: int) -> bool:
        """Pass on what one read gives; False when there is nothing (more)."""
        nonlocal truncated
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        kept = chunk[: room[fd]]
        truncated = truncated or len(kept) < len(chunk)
        room[fd] -= len(kept)
        if kept:
            host.send({"stream": names[fd]}, kept)
        return bool(chunk)

    try:
        while not finished and not timed_out:
            left = request["timeout_s"] - (time.monotonic() - started)
            timed_out = left <= 0
            for key, _ in selector.select(max(0.0, left)):
                if key.fd == pidfd:
                    finished = True
                elif key.fd == host.sock.fileno():
                    raise ConnectionError("the host hung up, as it sends nothing before it has the answer")
                elif key.fd in names:
                    if not take(key.fd):
                        selector.unregister(key.fd)
                else:
                    try:
                        view = view[os.write(key.fd, view[: 1 << 16]) :]
                    except OSError:
                        view = view[:0]
                    if not view:
                        selector.unregister(key.fd)
                        process.stdin.close()
        timed_out = timed_out and not finished
    except BaseException:
        timed_out = True  # the host hung up: nobody waits for the command
        raise
    finally:
        if timed_out:
            group.kill(process.pid)
        code = process.wait()
        os.close(pidfd)
        selector.close()
    for fd in names:
        for _ in range(64):  # what it had written; a background process that holds the pipe may go on for ever
            if not take(fd):
                break
    for stream in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(OSError):
            stream.close()
    return {"exit_code": None if timed_out else code, "timed_out": timed_out, "truncated": truncated, "wall_s": time.monotonic() - started}


class Interpreter:
    """The process that runs cells; its variables last until it is killed."""

    def __init__(self) -> None:
        requests, self.requests = os.pipe()
        self.answers, answers = os.pipe()
        self.output, output = os.pipe()
        argv = [sys.executable or "/usr/bin/python3", "-u", INTERPRETER, str(requests), str(answers)]
        streams = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        self.process, self.group = spawn(argv, environment({}), pass_fds=(requests, answers), **streams)
        for fd in (requests, answers, output):
            os.close(fd)
        os.set_blocking(self.output, False)
        os.set_blocking(self.answers, False)

    def ask(self, request: dict[str, Any], timeout_s: float, cap: int, host: Connection) -> tuple[dict[str, Any] | None, bytes]:
        """(answer, output); the answer is None when the interpreter ended or must be killed, as nobody waits for it any more."""
        started, output, answer = time.monotonic(), bytearray(), bytearray()
        data = json.dumps(request).encode()
        try:
            os.write(self.requests, struct.pack(">I", len(data)))
            view = memoryview(data)
            while view:
                view = view[os.write(self.requests, view) :]
        except BrokenPipeError:
            return None, b"the interpreter has ended\n"
        selector = selectors.DefaultSelector()
        selector.register(self.output, selectors.EVENT_READ)
        selector.register(self.answers, selectors.EVENT_READ)
        selector.register(host.sock, selectors.EVENT_READ)
        whole = False
        with selector:
            while not whole and (left := timeout_s - (time.monotonic() - started)) > 0:
                for key, _ in selector.select(left):
                    if key.fileobj is host.sock:
                        return None, b""
                    chunk = os.read(key.fd, 1 << 16)
                    if not chunk:
                        selector.unregister(key.fd)
                        whole = whole or key.fd == self.answers
                    elif key.fd == self.output:
                        output += chunk[: max(0, cap - len(output))]
                    else:
                        answer += chunk
                        if len(answer) > ANSWER_BYTES:
                            return None, b"more pictures than can be shown"
                        whole = len(answer) >= 4 and len(answer) >= 4 + struct.unpack_from(">I", answer)[0]
            with contextlib.suppress(BlockingIOError):
                while len(output) < cap and (chunk := os.read(self.output, 1 << 16)):
                    output += chunk[: cap - len(output)]
        return (sound(bytes(answer[4:])) if whole else None), bytes(output)

    def end(self) -> int:
        self.group.kill(self.process.pid)
        code = self.process.wait()
        for fd in (self.requests, self.answers, self.output):
            os.close(fd)
        return code


def sound(data: bytes) -> dict[str, Any] | None:
    """An interpreter's answer; None when the cells have made it say something else."""
    try:
        answer = json.loads(data)
        for image in answer["images"]:
            base64.b64decode(image, validate=True)
        return {"error": str(answer["error"]), "images": answer["images"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


interpreter: Interpreter | None = None


def do_python(request: dict[str, Any], body: bytes, host: Connection) -> dict[str, Any]:
    global interpreter
    started = time.monotonic()
    interpreter = interpreter or Interpreter()
    answer, output = interpreter.ask({"code": body.decode()}, request["timeout_s"], request["cap"], host)
    host.send({"stream": "stdout"}, output)
    wall_s = time.monotonic() - started
    if answer is None:
        timed_out = wall_s >= request["timeout_s"]
        code = interpreter.end()
        interpreter = None
        error = f"killed after {request['timeout_s']} s" if timed_out else f"the interpreter ended with {code}"
        return {"error": f"{error}; its variables are gone\n", "images": [], "timed_out": timed_out, "wall_s": wall_s}
    return {**answer, "timed_out": False, "wall_s": wall_s}


def sweep() -> None:
    """Reap orphans and remove the groups that have become empty."""
    if interpreter is not None:
        interpreter.process.poll()  # its exit code is still wanted
    if here.is_guest:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        for name in os.listdir(BOX):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    os.rmdir(f"{BOX}/{name}")
