"""Process 1 of a forkable sandbox: makes branches, and starts interpreters whose whole memory can be forked into them.

A branch is a process of its own (`exec_server`, the branch's process 1) with a private workspace and /tmp, network, ipc and
process ids. This server alone holds mount rights; a branch gives them up, capabilities and all, and installs the strict
filter before it does anything for anybody. Interpreters live beside the branches' processes, in the server's process ids,
because a fork cannot leave its parent's; their children live in the branch. An interpreter may enter namespaces that it is
handed and nothing else: it needs that for its copy, see `interpreter.py`.
"""
# ruff: noqa: SIM105 - contextlib is a millisecond of every start

from __future__ import annotations

import _socket
import ctypes
import os
import struct
import time
from typing import Any

from environments.sandbox.exec_server import serve, settle, spawn
from environments.sandbox.file_server import Answer, Body, Refused
from environments.sandbox.wire import Closed, close_all, receive_frame, send_frame

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWPID, CLONE_NEWNET = 0x20000, 0x8000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 22, 2
CAP_SYS_CHROOT, CAP_SYS_ADMIN = 18, 21
SIGCHLD, SIG_IGN = 17, 1
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF, LANDLOCK_SCOPE_SIGNAL = 444, 446, 2
SETNS_NUMBER = {"x86_64": 308, "aarch64": 268}
CAPSET_NUMBER = {"x86_64": 126, "aarch64": 91}
machine = os.uname().machine
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source: str, target: str, kind: str | None, flags: int, data: str | None = None) -> None:
    arguments = (source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), data.encode() if data else None)
    check(libc.mount(*arguments), f"mount {target}")


def install_filter(program: bytes) -> None:
    """Put a further seccomp filter on this process; it can never be taken off."""
    code = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code)))
    check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0), "seccomp")


def keep_capabilities(mask: int) -> None:
    """Permitted, effective and inheritable become `mask`; the ambient set follows."""
    header = struct.pack("=Ii", 0x20080522, 0)
    check(libc.syscall(CAPSET_NUMBER[machine], header, struct.pack("=6I", mask, mask, mask, 0, 0, 0)), "capset")


def loopback_up() -> None:
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM, 0)
    request = ctypes.create_string_buffer(struct.pack("16sH22x", b"lo", IFF_UP))
    check(libc.ioctl(sock.fileno(), ctypes.c_ulong(SIOCSIFFLAGS), request), "loopback")
    sock.close()


def scratch(size: int) -> None:
    """Private writable folders, as large as they may get, and this branch's own /proc."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    for folder in ("/workspace", "/tmp", "/dev/shm"):
        mount("tmpfs", folder, "tmpfs", MS_NOSUID | MS_NODEV, f"size={size},mode=0755")
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in ("sys", "sysrq-trigger", "irq", "bus"):
        path = f"/proc/{name}"
        if os.path.exists(path):
            mount(path, path, None, MS_BIND | MS_REC)
            mount("none", path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)


def branch(control: int, size: int, strict: bytes, report: int) -> None:
    """The life of a branch's process 1, from namespaces to the last request. Never returns."""
    try:
        os.setsid()
        scratch(size)
        loopback_up()
        os.chdir("/workspace")
        keep_capabilities(0)
        install_filter(strict)
        sock = settle(control)
        os.close(control)
        os.close(report)
        libc.signal(SIGCHLD, None)
    except OSError as error:
        os.write(report, str(error).encode())
        os._exit(1)
    serve(sock)


def do_branch(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    """Start a branch on the socket that came along; answers with its pidfd and its mount, network, ipc and pid namespaces."""
    report_read, report_write = os.pipe()
    pid_read, pid_write = os.pipe()
    if os.fork() == 0:
        try:
            check(libc.unshare(CLONE_NEWNS | CLONE_NEWIPC | CLONE_NEWPID | CLONE_NEWNET), "unshare")
            pid = os.fork()
            if pid == 0:
                branch(fds[0], request["size"], request["strict"], report_write)
            os.write(pid_write, str(pid).encode())
        except OSError as error:
            os.write(report_write, str(error).encode())
        finally:
            os._exit(0)
    close_all([report_write, pid_write])
    pid_text, report = os.read(pid_read, 16), os.read(report_read, 4096)  # the report ends, empty, when the branch is ready
    close_all([report_read, pid_read])
    if report or not pid_text:
        raise Refused(f"no branch: {report.decode()}")
    files = [os.pidfd_open(int(pid_text))]
    files += [os.open(f"/proc/{int(pid_text)}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("mnt", "net", "ipc", "pid")]
    return {"pid": int(pid_text)}, b"", files


def setns(fd: int, kind: int) -> None:
    check(libc.syscall(SETNS_NUMBER[machine], fd, kind), f"setns {kind:#x}")


def scope_signals() -> None:
    """From now on signals reach only own descendants: no branch's process 1, no other interpreter (Landlock, Linux 6.12)."""
    ruleset = libc.syscall(LANDLOCK_CREATE_RULESET, (ctypes.c_uint64 * 3)(0, 0, LANDLOCK_SCOPE_SIGNAL), 24, 0)
    if ruleset >= 0:
        libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0)
        os.close(ruleset)


def do_branch_interpreter(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    """Start an interpreter in a branch: `fds` are its control socket, its output pipe and the branch's four namespaces."""

    def prepare() -> None:
        for fd, kind in ((net, CLONE_NEWNET), (ipc, CLONE_NEWIPC), (mnt, CLONE_NEWNS)):
            setns(fd, kind)
        keep_capabilities(1 << CAP_SYS_ADMIN | 1 << CAP_SYS_CHROOT)
        scope_signals()
        install_filter(request["filter"])
        libc.signal(SIGCHLD, None)

    control, output, mnt, net, ipc, pids = fds
    null, tree = os.open("/dev/null", os.O_RDONLY), os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
    try:
        stdio = (null, output, output, control, pids, tree)
        return {"pid": spawn(request["argv"], request["env"], request["limits"], stdio, prepare)}, b"", []
    except OSError as error:
        raise Refused(f"{request['argv'][0]}: {error}") from error
    finally:
        close_all([null, tree])


def members(branch: int, known: set[int], beside: bool) -> list[int]:
    """Processes of a branch (by the number of its mount namespace), and strays that belong to no known one.

    With `beside` only those in this server's process ids: the interpreter, and what was forked past its branch.
    """
    found, here = [], os.stat("/proc/self/ns/pid").st_ino
    for entry in os.listdir("/proc"):
        try:
            if entry.isdigit() and int(entry) > 1:
                namespace = os.stat(f"/proc/{entry}/ns/mnt").st_ino
                if (namespace == branch or namespace not in known) and (not beside or os.stat(f"/proc/{entry}/ns/pid").st_ino == here):
                    found.append(int(entry))
        except OSError:
            continue
    return found


def states(pids: list[int]) -> str:
    """Their states as letters; one that is gone counts as ended."""
    text = ""
    for pid in pids:
        try:
            with open(f"/proc/{pid}/stat") as file:
                text += file.read().rpartition(")")[2].split()[0]
        except OSError:
            text += "X"
    return text


def do_signal(request: dict[str, Any], body: Body, fds: list[int]) -> Answer:
    """Signal a whole branch, its interpreter and what that left behind, until nobody is left who has not taken it."""
    known = {*request["known"], os.stat("/proc/self/ns/mnt").st_ino}
    done = {19: "TtZXD", 9: "ZX"}.get(request["signal"], "")
    for _ in range(200):
        pids = members(request["branch"], known, request["beside"])
        for pid in pids:
            try:
                os.kill(pid, request["signal"])
            except ProcessLookupError:
                pass
        if not done or not states(pids).strip(done):
            return {}, b"", []
        time.sleep(0.002)
    raise Refused("its processes do not react")


BRANCH_OPERATIONS = {"branch": do_branch, "interpreter": do_branch_interpreter, "signal": do_signal}


def own_processes() -> None:
    """Go on in process ids that belong to this user namespace: bubblewrap's do not, and interpreters must be able to return to them."""
    check(libc.unshare(CLONE_NEWNS | CLONE_NEWPID), "unshare")
    if pid := os.fork():
        os.close(0)
        os.waitpid(pid, 0)
        os._exit(0)
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def branch_main() -> None:
    own_processes()
    sock = settle(0)
    libc.signal(SIGCHLD, ctypes.c_void_p(SIG_IGN))  # nobody waits: helpers and interpreters vanish by themselves
    import tarfile  # noqa: F401 - every branch is forked from here and packs or unpacks files

    try:
        send_frame(sock, {})
        while True:
            request, body, fds = receive_frame(sock)
            files: list[int] = []
            try:
                header, data, files = BRANCH_OPERATIONS[request["op"]](request, body, fds)
            except Refused as error:
                header, data = {"refused": str(error)}, b""
            except Exception as error:  # noqa: BLE001 - an answer, not the end of every branch
                header, data = {"failed": f"{type(error).__name__}: {error}"}, b""
            close_all(fds)
            send_frame(sock, header, data, files)
            close_all(files)
    except (Closed, OSError):
        os._exit(0)
