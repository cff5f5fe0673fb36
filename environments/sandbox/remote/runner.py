"""Runs commands inside a sandbox for our E2B server, side by side. Runs inside, with the standard library only.

Started as `python3 -c SOURCE` with a JSON line on standard input: the port on which the host answers, and a token. It stays
behind, and opens a connection for each command that the host asks for on the first one. JSON lines both ways.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
MARK = "NINEFOLD_RUN"
MAX_PENDING = 64 << 20
CHUNK = 32 << 10


def marked(value: bytes) -> list[int]:
    """Processes that were started by a command, wherever they have moved."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry}/environ", "rb") as file:
                if value in file.read().split(b"\0"):
                    found.append(int(entry))
    return found


def kill_all(mark: str) -> None:
    for _ in range(50):
        pids = marked(f"{MARK}={mark}".encode())
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)


ours: set[int] = set()
"""Processes for which a Command waits."""
births = threading.Lock()
"""Held while a process is started and entered into `ours`, and while orphans are collected."""


def bury_orphans() -> None:
    """Collect what commands have left behind and has ended: the dead count against the sandbox's limit too."""
    me = str(os.getpid())
    with births:
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) not in ours:
                with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
                    if (state, parent) == ("Z", me):
                        os.waitpid(int(entry), os.WNOHANG)


class Command:
    """One command, and the connection over which the host follows it."""

    def __init__(self, link: socket.socket, number: int) -> None:
        self.link, self.mark = link, f"{os.getpid()}-{number}"
        self.received, self.pending = bytearray(), bytearray()
        self.process: subprocess.Popen[bytes] | None = None
        self.closing = False
        self.selector = selectors.DefaultSelector()

    def say(self, message: dict[str, Any]) -> None:
        self.link.setblocking(True)
        self.link.sendall(json.dumps(message).encode() + b"\n")
        self.link.setblocking(False)

    def first(self) -> dict[str, Any]:
        while b"\n" not in self.received:
            chunk = self.link.recv(1 << 16)
            if not chunk:
                raise OSError("the host hung up")
            self.received += chunk
        line, _, rest = bytes(self.received).partition(b"\n")
        self.received = bytearray(rest)
        request: dict[str, Any] = json.loads(line)
        return request

    def run(self) -> None:
        request = self.first()
        env = {**os.environ, **request["env"], MARK: self.mark}
        stdin = subprocess.PIPE if request["stdin"] else subprocess.DEVNULL
        try:
            with births:
                self.process = process = subprocess.Popen(
                    request["argv"],
                    env=env,
                    cwd=request["cwd"],
                    stdin=stdin,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,
                )
                ours.add(process.pid)
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            said = f"{request['argv'][0]}: {getattr(error, 'strerror', None) or error}\n"
            self.say({"pid": 0, "stderr": base64.b64encode(said.encode()).decode(), "exit_code": 127})
            return
        assert process.stdout is not None
        assert process.stderr is not None
        self.say({"pid": process.pid})
        pidfd = os.pidfd_open(process.pid)
        names = {process.stdout.fileno(): "stdout", process.stderr.fileno(): "stderr"}
        for fd in (*names, pidfd, self.link.fileno()):
            if fd != pidfd:
                os.set_blocking(fd, False)
            self.selector.register(fd, selectors.EVENT_READ)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
        deadline, timed_out = time.monotonic() + request["timeout_s"], False
        self.obey()
        ended = False
        while not ended:
            left = deadline - time.monotonic()
            if left <= 0 and not timed_out:
                timed_out = True
                kill_all(self.mark)
            for key, _ in self.selector.select(max(0.0, left) if not timed_out else 5.0):
                if key.fd == pidfd:
                    ended = True
                elif key.fd in names:
                    if self.pass_on(key.fd, names[key.fd]) is False:
                        self.selector.unregister(key.fd)
                elif key.fd == self.link.fileno():
                    self.listen()
                else:
                    self.feed()
        for fd, name in names.items():
            for _ in range(64):  # what it had written; a background child that holds the pipe may go on for ever
                if not self.pass_on(fd, name):
                    break
        code = process.wait()
        os.close(pidfd)
        bury_orphans()
        self.say({"exit_code": code, "timed_out": timed_out})

    def pass_on(self, fd: int, name: str) -> bool | None:
        """Read once: True for data, False at the end, None when there is nothing yet."""
        try:
            chunk = os.read(fd, CHUNK)
        except BlockingIOError:
            return None
        if chunk:
            self.say({name: base64.b64encode(chunk).decode()})
        return bool(chunk)

    def listen(self) -> None:
        try:
            chunk = self.link.recv(1 << 16)
        except BlockingIOError:
            return
        if not chunk:  # nobody will ever hear of this command
            self.selector.unregister(self.link.fileno())
            kill_all(self.mark)
        self.received += chunk
        self.obey()

    def obey(self) -> None:
        """Do what the host has asked for."""
        while b"\n" in self.received:
            line, _, rest = bytes(self.received).partition(b"\n")
            self.received = bytearray(rest)
            message = json.loads(line)
            if "signal" in message and self.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, message["signal"])
            self.pending += base64.b64decode(message.get("stdin", ""))
            self.closing = self.closing or bool(message.get("close"))
            if len(self.pending) > MAX_PENDING:
                kill_all(self.mark)
        self.feed()

    def feed(self) -> None:
        """Give the command as much of its input as it takes."""
        stdin = self.process.stdin if self.process is not None else None
        if stdin is None or stdin.closed:
            self.pending.clear()
            return
        try:
            while self.pending:
                del self.pending[: os.write(stdin.fileno(), self.pending[: 1 << 16])]
        except BlockingIOError:
            pass
        except OSError:
            self.pending.clear()
            self.closing = True
        waiting = stdin.fileno() in self.selector.get_map()
        if self.pending and not waiting:
            self.selector.register(stdin.fileno(), selectors.EVENT_WRITE)
        elif not self.pending and waiting:
            self.selector.unregister(stdin.fileno())
        if self.closing and not self.pending:
            stdin.close()

    def end(self) -> None:
        self.selector.close()
        self.link.close()
        if self.process is not None:
            if self.process.poll() is None:  # the host hung up in the middle
                kill_all(self.mark)
                self.process.wait()
            with births:
                ours.discard(self.process.pid)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr) if self.process is not None else ():
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


def connect(port: int) -> socket.socket:
    link = socket.create_connection(("127.0.0.1", port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def serve_one(port: int, token: str, number: int) -> None:
    with contextlib.suppress(OSError, ValueError, KeyError):
        command = Command(connect(port), number)
        try:
            command.say({"token": token, "number": number})
            command.link.setblocking(True)
            command.run()
        finally:
            command.end()


def refuse(port: int, token: str, number: int) -> None:
    with contextlib.suppress(OSError), connect(port) as link:
        said = base64.b64encode(b"the sandbox has as many processes as it may\n").decode()
        for message in ({"token": token, "number": number}, {"stderr": said, "exit_code": 126}):
            link.sendall(json.dumps(message).encode() + b"\n")
        link.shutdown(socket.SHUT_WR)
        link.settimeout(5.0)
        while link.recv(1 << 16):  # what was asked; closing on it would take our answer back
            pass


def main() -> None:
    request = json.loads(sys.stdin.readline())
    port, token = request["port"], request["token"]
    control = connect(port)
    control.sendall(json.dumps({"token": token, "number": 0}).encode() + b"\n")
    if os.fork():
        os._exit(0)
    os.setsid()
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)  # the token and the connections are no command's business
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    for line in control.makefile("rb"):
        number = json.loads(line)["number"]
        try:
            threading.Thread(target=serve_one, args=(port, token, number), daemon=True).start()
        except RuntimeError:  # the sandbox has all the processes that it may have
            refuse(port, token, number)
    os._exit(0)  # the host is gone


if __name__ == "__main__":
    main()
