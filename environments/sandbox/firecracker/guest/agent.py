"""Process 1 of a guest: runs commands and moves files for the host, over a vsock port.

Commands run as `nobody` in a control group of their own, which is killed whole at a timeout; the guest's kernel and this
process are all that they could attack, and the machine is the wall around both. One request at a time; a new connection
replaces the old one, as after a restore the old one is dead.

`main(SOCKET, WORKSPACE)` serves the same protocol as an ordinary process on a Unix socket.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import selectors
import signal
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from environments.sandbox.firecracker.guest import commands
from environments.sandbox.firecracker.guest.commands import BOX, PR_SET_DUMPABLE, do_exec, do_python, libc, sweep
from environments.sandbox.firecracker.guest.files import do_list, do_read, do_write
from environments.sandbox.firecracker.guest.link import NOBODY, Connection, Refused, here

VERSION = 1
PORT = 1024
HOST_CID = 2
RNDADDENTROPY, RNDRESEEDCRNG, SIOCSIFFLAGS, IFF_UP = 0x40085203, 0x5207, 0x8914, 1


def mount(kind: str, target: str, options: str = "", flags: int = 0) -> None:
    os.makedirs(target, exist_ok=True)
    if libc.mount(kind.encode(), target.encode(), kind.encode(), flags, options.encode() or None):
        raise OSError(ctypes.get_errno(), f"mount {kind} on {target}: {os.strerror(ctypes.get_errno())}")


def configure(limits: dict[str, Any]) -> None:
    """Limits and variables, once after the boot."""
    here.configured = True
    here.env = limits["env"]
    here.file_bytes = limits["workspace_bytes"]
    if here.is_guest:
        for target in (here.workspace, "/tmp", "/dev/shm"):
            mount("tmpfs", target, f"size={limits['workspace_bytes']},mode=1777,uid={NOBODY},gid={NOBODY}", flags=6)  # nosuid, nodev
        for name, value in (("memory.max", limits["memory_bytes"]), ("pids.max", limits["processes"])):
            with open(f"{BOX}/{name}", "w") as file:
                file.write(str(value))


def do_wake(request: dict[str, Any], body: bytes, host: Connection) -> dict[str, Any]:
    """Become a machine of its own after a boot, a fork or a restore: clock, name, random numbers, seed. `body` is entropy.

    May come twice: a restore resets the connection that it was asked over.
    """
    if not here.configured:
        configure(request["limits"])
    here.env["NINEFOLD_SEED"] = str(request["seed"])
    if here.is_guest:
        time.clock_settime(time.CLOCK_REALTIME, request["time"])
        socket.sethostname(request["name"])
        with open("/dev/urandom", "wb") as file:
            fcntl.ioctl(file, RNDADDENTROPY, struct.pack("ii", len(body) * 8, len(body)) + body)
            fcntl.ioctl(file, RNDRESEEDCRNG)
    if commands.interpreter is not None:
        commands.interpreter.ask({"seed": request["seed"]}, 10.0, 0, host)
    return {"version": VERSION}


served: set[int] = set()


def do_serve(request: dict[str, Any], body: bytes, host: Connection) -> dict[str, Any]:
    """Listen on the loopback, in a process of its own that passes every connection on to the host's vsock port of that number."""
    port = request["port"]
    if not here.is_guest:
        raise Refused("only a machine has a route to the host")
    if port not in served:
        try:
            listener = socket.create_server(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            raise Refused(f"port {port}: {error}") from error
        if os.fork() == 0:
            try:
                host.sock.close()
                os.setsid()
                forward(listener, port)
            finally:
                os._exit(1)
        listener.close()
        served.add(port)
    return {}


def forward(listener: socket.socket, port: int) -> None:
    while True:
        inner, _ = listener.accept()
        outer = socket.socket(socket.AF_VSOCK)
        try:
            outer.connect((HOST_CID, port))
        except OSError:  # nobody listens on the host any more
            inner.close()
            outer.close()
            continue
        for one, other in ((inner, outer), (outer, inner)):
            threading.Thread(target=pump, args=(one, other), daemon=True).start()


def pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


OPERATIONS: dict[str, Callable[[dict[str, Any], bytes, Connection], dict[str, Any]]] = {
    "exec": do_exec,
    "python": do_python,
    "read": do_read,
    "write": do_write,
    "list": do_list,
    "ping": lambda request, body, host: {},
    "wake": do_wake,
    "serve": do_serve,
}


def serve(listener: socket.socket) -> None:
    host = Connection(accept(listener))
    selector = selectors.DefaultSelector()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        try:
            selector.register(host.sock, selectors.EVENT_READ)
            ready = {key.fd for key, _ in selector.select()}
            selector.unregister(host.sock)
            if listener.fileno() in ready:
                raise ConnectionError("a new connection replaces this one")
            request, body = host.receive()
            sweep()
            try:
                host.send({"ok": OPERATIONS[request["op"]](request, body, host)})
            except Refused as error:
                host.send({"refused": str(error)})
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001 - a failed request is an answer, not the end of the machine
                host.send({"failed": f"{type(error).__name__}: {error} {traceback.format_exc(limit=-2)}"})
        except OSError:  # the host hung up, or this machine was restored
            host.sock.close()
            host = Connection(accept(listener))


def accept(listener: socket.socket) -> socket.socket:
    """The next connection from the host; the guest's own processes may not connect."""
    while True:
        sock, peer = listener.accept()
        if not here.is_guest or peer[0] == HOST_CID:
            return sock
        sock.close()


def start_guest() -> socket.socket:
    mount("proc", "/proc")
    mount("sysfs", "/sys")
    mount("devtmpfs", "/dev")
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"/dev/{name}")
    mount("cgroup2", "/sys/fs/cgroup")
    with open("/modules/order") as file:
        order = file.read().split()
    for name in order:
        fd = os.open(f"/modules/{name}", os.O_RDONLY)
        if libc.syscall(313, fd, b"", 0) and ctypes.get_errno() != errno.EEXIST:  # finit_module
            print(f"agent: {name}: {os.strerror(ctypes.get_errno())}", flush=True)
        os.close(fd)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    for group in ("/sys/fs/cgroup", BOX):
        os.makedirs(group, exist_ok=True)
        with open(f"{group}/cgroup.subtree_control", "w") as file:
            file.write("+memory +pids")
    libc.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
    listener = socket.socket(socket.AF_VSOCK)
    listener.bind((socket.VMADDR_CID_ANY, PORT))
    return listener


def main(path: str = "", workspace: str = "") -> None:
    """Serve for ever: on the vsock port as process 1, else on the Unix socket `path`."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if here.is_guest:
        listener = start_guest()
    else:
        here.workspace = workspace
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
    listener.listen(4)
    print("agent: ready", flush=True)
    serve(listener)
