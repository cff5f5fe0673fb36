"""Process 1 of a gVisor sandbox: runs commands and cells, moves files. Runs inside, with built-in modules only.

It is root in there and the code is user `nobody`, which can neither signal nor read it. Requests are frames of `wire.py` on
descriptor 0, a socket that survives checkpoints; output that streams goes before its answer. Connections to the host's
services go over descriptor 1. Modules beyond the built-in ones would cost some 10 ms of each sandbox's start.

The program is the text of wire.py, gvisor_link.py, gvisor_processes.py and this, in one.
"""

from __future__ import annotations

import _socket
import marshal
import os
import select
import stat
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

from environments.sandbox.gvisor_processes import (
    INNER_WORKSPACE,
    NOBODY,
    SIGKILL,
    WATCH_S,
    forwarder,
    kill_since,
    look_every_ms,
    pids,
    reap,
    settings,
    spawn,
    spawner,
    watch_memory,
)
from environments.sandbox.wire import FRAME, Closed, receive_exact, receive_frame, send_frame

MAX_HEADER, MAX_ANSWER = 1 << 20, 32 << 20
"""Of the interpreter's answers, which code inside may forge."""
Answer = tuple[dict[str, Any], bytes]
programs: dict[str, Any] = {}
"""Filled by the bootstrap that starts this program: texts, and what the host compiled from them."""
REIDENTIFY = """
import os, random, sys
os.environ.update(env)
random.seed(seed)
if "numpy.random" in sys.modules: sys.modules["numpy.random"].seed(seed % 2**32)
if "torch" in sys.modules: sys.modules["torch"].manual_seed(seed)
"""


class Refused(Exception):
    """A request that cannot be done; the text goes back to the caller."""


environment: dict[str, str] = {}
host = _socket.socket(fileno=os.dup(0))


# --- files -------------------------------------------------------------------------------------------------------------------


def parts_of(path: str) -> list[str]:
    parts = [part for part in path.removeprefix(INNER_WORKSPACE).split("/") if part not in ("", ".")]
    if path.startswith("/") and path != INNER_WORKSPACE and not path.startswith(INNER_WORKSPACE + "/"):
        raise Refused(f"{path} is outside {INNER_WORKSPACE}")
    if ".." in parts or "\0" in path:
        raise Refused(f"{path!r} may not contain '..' or NUL")
    return parts


def open_beneath(path: str, flags: int, *, create_folders: bool = False) -> int:
    """Open `path` in the workspace without following a single link, so that nothing can be swapped underneath."""
    parts = parts_of(path)
    here = os.open(INNER_WORKSPACE, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            if create_folders and not last:
                try:
                    os.mkdir(part, 0o755, dir_fd=here)
                    os.chown(part, NOBODY, NOBODY, dir_fd=here, follow_symlinks=False)
                except FileExistsError:
                    pass
            # Without O_DIRECTORY: gVisor forgets O_NOFOLLOW over it. A wrong kind is noticed by whoever uses it next.
            there = os.open(part, (flags if last else os.O_RDONLY) | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644, dir_fd=here)
            os.close(here)
            here = there
    except OSError as error:
        os.close(here)
        raise Refused(f"{path}: {error.strerror}{' (links are not followed)' if error.errno in (20, 40) else ''}") from error
    return here


def regular(fd: int, path: str) -> int:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise Refused(f"{path} is not a regular file")
    return status.st_size


def do_read(request: dict[str, Any], body: bytes | bytearray) -> Answer:
    fd = open_beneath(request["path"], os.O_RDONLY)
    size = regular(fd, request["path"])
    with os.fdopen(fd, "rb") as file:
        if size > request["cap"]:
            raise Refused(f"{request['path']} has {size} bytes, more than {request['cap']}")
        return {}, file.read(request["cap"])


def do_write(request: dict[str, Any], body: bytes | bytearray) -> Answer:
    if not parts_of(request["path"]):
        raise Refused("the workspace itself is a folder")
    fd = open_beneath(request["path"], os.O_WRONLY | os.O_CREAT, create_folders=True)
    regular(fd, request["path"])
    try:
        os.fchown(fd, NOBODY, NOBODY)
        os.ftruncate(fd, 0)
        view = memoryview(body)
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise Refused(f"{request['path']}: {error.strerror}") from error
    finally:
        os.close(fd)
    return {}, b""


def do_list(request: dict[str, Any], body: bytes | bytearray) -> Answer:
    fd = open_beneath(request["path"], os.O_RDONLY)
    try:
        return {}, b"\0".join(sorted(os.fsencode(name) for name in os.listdir(fd)))
    except OSError as error:
        raise Refused(f"{request['path']}: {error.strerror}") from error
    finally:
        os.close(fd)


# --- commands ------------------------------------------------------------------------------------------------------------------


class Output:
    """What comes out of a pipe, up to a cap, passed to the host as it comes."""

    def __init__(self, name: str, fd: int, cap: int) -> None:
        self.name, self.fd, self.room, self.truncated = name, fd, cap, False
        os.set_blocking(fd, False)

    def take(self) -> bool:
        """Read once; False when there is nothing (more) to read."""
        try:
            chunk = os.read(self.fd, 1 << 16)
        except BlockingIOError:
            return False
        self.truncated = self.truncated or len(chunk) > self.room
        if kept := chunk[: self.room]:
            self.room -= len(kept)
            send_frame(host, {"piece": self.name}, kept)
        return bool(chunk)

    def drain(self) -> None:
        """What was written so far; a background process that holds the pipe may go on for ever."""
        for _ in range(64):
            if not self.take():
                return


def do_exec(request: dict[str, Any], body: bytes | bytearray) -> Answer:
    argv, env = request["argv"], {**environment, **request["env"]}
    if not argv or any("\0" in word for word in [*argv, *env, *env.values()]):
        raise Refused("the command cannot be started: it is empty or has a NUL inside")
    started = time.monotonic()
    older = pids()
    pipes = [os.pipe() for _ in range(3)]
    theirs = (pipes[0][0], pipes[1][1], pipes[2][1])
    (feed, out, err) = (pipes[0][1], pipes[1][0], pipes[2][0])
    outputs = {out: Output("stdout", out, request["cap"]), err: Output("stderr", err, request["cap"])}
    try:
        spawn(argv, env, theirs, wait=True)
    except OSError as error:
        for fd in (*theirs, feed, out, err):
            os.close(fd)
        send_frame(host, {"piece": "stderr"}, f"{argv[0]}: {error.strerror}\n".encode()[: request["cap"]])
        return {"exit_code": 127, "timed_out": False, "truncated": False, "wall_s": time.monotonic() - started}, b""
    for fd in theirs:
        os.close(fd)
    status, timed_out = run_to_end(outputs, feed, memoryview(body), started + request["timeout_s"], older)
    for output in outputs.values():
        output.drain()
        os.close(output.fd)
    return {
        "exit_code": None if timed_out else os.waitstatus_to_exitcode(status),
        "timed_out": timed_out,
        "truncated": any(output.truncated for output in outputs.values()),
        "wall_s": time.monotonic() - started,
    }, b""


def run_to_end(outputs: dict[int, Output], feed: int, view: memoryview, deadline: float, older: set[int]) -> tuple[int, bool]:
    """Move data until the spawner reports the end: its wait status, and whether it was killed at the deadline."""
    assert spawner.link is not None
    waiting = spawner.link.fileno()
    poller = select.poll()
    for fd in (*outputs, waiting):
        poller.register(fd, select.POLLIN)
    os.set_blocking(feed, False)
    feeding = bool(view)
    if feeding:
        poller.register(feed, select.POLLOUT)
    else:
        os.close(feed)
    status, timed_out = SIGKILL, False
    while True:
        now = time.monotonic()
        if now >= deadline:
            timed_out = True
            kill_since(older)
            break
        watch_memory()
        ended = False
        for fd, _ in poller.poll(max(1, int(1000 * min(deadline - now, WATCH_S)))):
            if fd == waiting:
                ended = True
            elif fd in outputs:
                if not outputs[fd].take():
                    poller.unregister(fd)
            else:
                try:
                    view = view[os.write(feed, view[: 1 << 16]) :]
                except BlockingIOError:
                    continue
                except OSError:
                    view = view[:0]
                if not view:
                    poller.unregister(feed)
                    os.close(feed)
                    feeding = False
        if ended:
            break
    if feeding:
        os.close(feed)
    try:
        status = struct.unpack("i", receive_exact(spawner.link, 4))[0]
    except (Closed, OSError):
        spawner.stop()  # somebody inside killed it; the command goes with it
        kill_since(older)
    return status, timed_out


# --- the interpreter -----------------------------------------------------------------------------------------------------------


class Interpreter:
    """`interpreter.py`, started at the first cell, with its output in a pipe."""

    def __init__(self) -> None:
        self.pid, self.out = 0, -1
        self.link: _socket.socket | None = None

    def start(self) -> None:
        self.stop(pids())
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self.out, writer = os.pipe()
        null = os.open("/dev/null", os.O_RDONLY)
        try:
            argv = [sys.executable, "-u", "-X", "utf8", "-c", settings["bootstrap"]]
            self.pid = spawn(argv, {"MPLBACKEND": "Agg", **environment}, (null, writer, writer, theirs.fileno()), wait=False)
            self.link = ours
        except OSError as error:
            ours.close()
            raise Refused(f"the interpreter cannot be started: {error.strerror}") from error
        finally:
            theirs.close()
            os.close(null)
            os.close(writer)
        code = programs["interpreter"] or marshal.dumps(compile(programs["interpreter_text"], "interpreter", "exec", dont_inherit=True))
        try:
            ours.sendall(len(code).to_bytes(4, "big") + code)
            if self.ask(None, time.monotonic() + settings["start_s"]) is None:
                raise Closed
        except (Closed, OSError) as error:
            self.stop(pids())
            raise Refused("the interpreter did not start; give the sandbox more memory or processes") from error

    def stop(self, older: set[int]) -> None:
        """Kill it with all it started; `older` are processes that stay unless they are its offspring."""
        if self.pid:
            kill_since(older, (self.pid,))
        if self.link is not None:
            self.link.close()
        if self.out >= 0:
            os.close(self.out)
        self.pid, self.out, self.link = 0, -1, None

    def ask(self, request: dict[str, Any] | None, deadline: float, output: Output | None = None) -> Answer | None:
        """Its answer, unread; None at the deadline. Raises Closed when it ended or does not keep to the protocol."""
        link = self.link
        if link is None:
            raise Closed
        poller = select.poll()
        poller.register(link.fileno(), select.POLLIN)
        if output is not None:
            poller.register(output.fd, select.POLLIN)
        got = bytearray()
        try:
            if request is not None:
                send_frame(link, request)
            while (now := time.monotonic()) < deadline:
                watch_memory()
                for fd, _ in poller.poll(max(1, int(1000 * min(deadline - now, WATCH_S)))):
                    if output is not None and fd == output.fd:
                        if not output.take():
                            poller.unregister(fd)
                        continue
                    chunk = link.recv(1 << 18)
                    if not chunk:
                        raise Closed
                    got += chunk
                if len(got) >= FRAME.size:
                    header, body = FRAME.unpack_from(got)
                    if header > MAX_HEADER or body > MAX_ANSWER:
                        raise Closed
                    if len(got) >= FRAME.size + header + body:
                        return {"header": header}, bytes(got[FRAME.size : FRAME.size + header + body])
        except OSError as error:
            raise Closed from error
        return None


interpreter = Interpreter()


def do_python(request: dict[str, Any], body: bytes | bytearray) -> Answer:
    started = time.monotonic()
    if interpreter.link is None:
        interpreter.start()
    older = pids()
    output = Output("stdout", interpreter.out, request["cap"])
    ended, reply = False, None
    try:
        reply = interpreter.ask({"op": "cell", "code": request["code"]}, started + request["timeout_s"], output)
    except Closed:
        ended = True
    output.drain()
    if reply is None:
        interpreter.stop(older)
    header, data = reply or ({"header": 0}, b"")
    timed_out = reply is None and not ended
    return {**header, "ended": ended, "timed_out": timed_out, "truncated": output.truncated, "wall_s": time.monotonic() - started}, data


# --- life cycle ------------------------------------------------------------------------------------------------------------------


def do_identity(request: dict[str, Any], body: bytes | bytearray) -> Answer:
    """After a restore: connections to the former host are gone, and perhaps this is another sandbox now."""
    forwarder.stop()
    if request["env"]:
        environment.update(request["env"])
        if interpreter.link is not None:
            code = f"exec({REIDENTIFY!r}, {{'seed': {request['seed']!r}, 'env': {request['env']!r}}})"
            try:
                reply = interpreter.ask({"op": "cell", "code": code}, time.monotonic() + settings["start_s"])
            except Closed:
                reply = None
            if reply is None:  # better none than one that draws the original's random numbers
                interpreter.stop(pids())
    return {}, b""


def do_serve(request: dict[str, Any], body: bytes | bytearray) -> Answer:
    """Listen on the loopback; the forwarder carries each connection to the host."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", request["port"]))
        listener.listen(64)
        listener.setblocking(False)
        send_frame(forwarder.link or forwarder.start(), {"port": request["port"]}, fds=[listener.fileno()])
    except OSError as error:
        raise Refused(f"port {request['port']}: {error.strerror}") from error
    finally:
        listener.close()
    return {}, b""


def do_ping(request: dict[str, Any], body: bytes | bytearray) -> Answer:
    return {}, b""


OPERATIONS: dict[str, Callable[[dict[str, Any], bytes | bytearray], Answer]] = {
    "exec": do_exec,
    "python": do_python,
    "read": do_read,
    "write": do_write,
    "list": do_list,
    "ping": do_ping,
    "identity": do_identity,
    "serve": do_serve,
}


def wait_for_request() -> None:
    """Idle sandboxes use no CPU; one with an interpreter or a process in the background looks at its memory now and then."""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    while not poller.poll(look_every_ms(interpreter.pid)):
        reap()
        watch_memory()
    watch_memory()  # requests may come so fast that the wait is never over


def agent_main() -> None:
    os.umask(0o022)
    settings.update(receive_frame(host)[0])
    environment.update(settings["environment"])
    spawner.start()
    send_frame(host, {})
    while True:
        wait_for_request()
        try:
            request, body, _ = receive_frame(host)
        except Closed:
            os._exit(0)  # the host is gone: end, and everything in the sandbox with us
        reap()
        try:
            header, data = OPERATIONS[request["op"]](request, body)
        except Refused as error:
            header, data = {"refused": str(error)}, b""
        except Exception as error:  # noqa: BLE001 - no memory or no process to spare is an answer, not the end of the sandbox
            spawner.stop()  # it may still wait for a command that nobody listens to
            header, data = {"failed": f"{type(error).__name__}: {error}"}, b""
        send_frame(host, header, data)
