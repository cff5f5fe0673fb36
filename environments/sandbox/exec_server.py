"""Process 1 of a workspace sandbox: runs commands and moves files. Runs inside, with the standard library only.

As process 1 it cannot be killed or stopped from within; not dumpable, its memory and file descriptors are out of reach
too. It reaps every orphan. One request at a time: a length-prefixed JSON header and a binary body each way.

Started as `python3 -I -S -c SOURCE CONFIG_JSON`, with the host on file descriptors 0 and 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import selectors
import signal
import stat
import struct
import subprocess
import time
from typing import Any

FRAME = struct.Struct(">II")
PR_SET_DUMPABLE = 4
WORKSPACE = "/workspace"


class Refused(Exception):
    """A request that cannot be done; the text goes back to the caller."""


def read_exact(fd: int, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        chunk = os.read(fd, min(size - len(data), 1 << 20))
        if not chunk:
            os._exit(0)  # the host is gone: end, and everything in the sandbox with us
        data += chunk
    return bytes(data)


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def parts_of(path: str) -> list[str]:
    parts = [part for part in path.removeprefix(WORKSPACE).split("/") if part not in ("", ".")]
    if path.startswith("/") and path != WORKSPACE and not path.startswith(WORKSPACE + "/"):
        raise Refused(f"{path} is outside {WORKSPACE}")
    if ".." in parts or "\0" in path:
        raise Refused(f"{path} may not contain '..'")
    return parts


def open_beneath(path: str, flags: int, *, create_folders: bool = False) -> int:
    """Open `path` in the workspace without following a single link, so that nothing can be swapped underneath."""
    parts = parts_of(path)
    here = os.open(WORKSPACE, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            if create_folders and not last:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=here)
            how = flags if last else os.O_RDONLY | os.O_DIRECTORY
            there = os.open(part, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644, dir_fd=here)
            os.close(here)
            here = there
    except OSError as error:
        os.close(here)
        raise Refused(f"{path}: {error.strerror}{' (links are not followed)' if error.errno in (20, 40) else ''}") from error
    return here


def regular(fd: int, path: str) -> os.stat_result:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        raise Refused(f"{path} is not a regular file")
    return status


def do_read(request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    fd = open_beneath(request["path"], os.O_RDONLY)
    size = regular(fd, request["path"]).st_size
    with os.fdopen(fd, "rb") as file:
        if size > request["cap"]:
            raise Refused(f"{request['path']} has {size} bytes, more than {request['cap']}")
        return {}, file.read(request["cap"])


def do_write(request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    if not parts_of(request["path"]):
        raise Refused("the workspace itself is a folder")
    fd = open_beneath(request["path"], os.O_WRONLY | os.O_CREAT, create_folders=True)
    regular(fd, request["path"])
    try:
        os.ftruncate(fd, 0)
        write_all(fd, body)
    except OSError as error:
        raise Refused(f"{request['path']}: {error.strerror}") from error
    finally:
        os.close(fd)
    return {}, b""


def do_list(request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    fd = open_beneath(request["path"], os.O_RDONLY | os.O_DIRECTORY)
    try:
        return {"names": sorted(os.listdir(fd))}, b""
    finally:
        os.close(fd)


def do_pack(request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    import io
    import tarfile  # the slowest import here by far, and few sandboxes are ever packed

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(
            WORKSPACE, arcname=".", filter=lambda item: item if item.isreg() or item.isdir() or item.issym() or item.islnk() else None
        )
    return {}, buffer.getvalue()


def do_unpack(request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    import io
    import shutil
    import tarfile

    for name in os.listdir(WORKSPACE):
        path = os.path.join(WORKSPACE, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    # Whatever the archive holds stays in here: this process sees only the sandbox.
    with tarfile.open(fileobj=io.BytesIO(body)) as archive:
        archive.extractall(WORKSPACE)
    return {}, b""


def family(root: int) -> set[int]:
    """Living descendants of `root` and everything in its session."""
    parents: dict[int, int] = {}
    found = set()
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) > 1:
            with contextlib.suppress(OSError), open(f"/proc/{entry}/stat") as file:
                state, parent, _, session = file.read().rpartition(")")[2].split()[:4]
                if state != "Z":
                    parents[int(entry)] = int(parent)
                    if int(session) == root:
                        found.add(int(entry))
    chain = {root}
    while more := {pid for pid, parent in parents.items() if parent in chain} - chain:
        chain |= more
    return found | (chain & parents.keys())


def signal_all(pids: set[int], which: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, which)


def kill_family(root: int) -> None:
    """Stop the whole family first: killed one by one, orphans of other sessions would be lost from sight."""
    stopped: set[int] = set()
    for _ in range(50):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(root, signal.SIGSTOP)
        fresh = family(root) - stopped
        if not fresh:
            break
        signal_all(fresh, signal.SIGSTOP)
        stopped |= fresh
    else:
        stopped = {-1}  # it outruns us: everything in the sandbox goes, except this process
    signal_all(stopped, signal.SIGKILL)
    deadline = time.monotonic() + 5.0
    while family(root) and time.monotonic() < deadline:
        time.sleep(0.002)
        reap(root)


statuses: dict[int, int] = {}


def reap(keep: int = -1) -> None:
    """Collect every dead child; the status of `keep` is remembered."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        if pid == keep:
            statuses[pid] = status


def do_exec(request: dict[str, Any], body: bytes) -> tuple[dict[str, Any], bytes]:
    limits = request["limits"]

    def confine() -> None:
        memory, processes, file_size = limits["memory"], limits["processes"], limits["file"]
        for name, value in ((resource.RLIMIT_AS, memory), (resource.RLIMIT_NPROC, processes), (resource.RLIMIT_FSIZE, file_size)):
            resource.setrlimit(name, (value, value))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    started = time.monotonic()
    try:
        process = subprocess.Popen(
            request["argv"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **request["env"]},
            cwd=WORKSPACE,
            start_new_session=True,
            preexec_fn=confine,
        )
    except OSError as error:
        return {
            "exit_code": 127,
            "timed_out": False,
            "truncated": False,
            "wall_s": 0.0,
            "stdout": 0,
        }, f"{request['argv'][0]}: {error.strerror}\n".encode()
    except (ValueError, subprocess.SubprocessError) as error:
        raise Refused(f"the command cannot be started: {error}") from error
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    pidfd = os.pidfd_open(process.pid)
    output: dict[int, bytearray] = {process.stdout.fileno(): bytearray(), process.stderr.fileno(): bytearray()}
    view, truncated, timed_out = memoryview(body), False, False
    selector = selectors.DefaultSelector()
    for stream in (process.stdin, process.stdout, process.stderr):
        os.set_blocking(stream.fileno(), False)
    selector.register(process.stdout.fileno(), selectors.EVENT_READ)
    selector.register(process.stderr.fileno(), selectors.EVENT_READ)
    selector.register(pidfd, selectors.EVENT_READ)
    if view:
        selector.register(process.stdin.fileno(), selectors.EVENT_WRITE)
    else:
        process.stdin.close()

    def take(fd: int) -> bool:
        """Read once; False when there is nothing (more) to read."""
        nonlocal truncated
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            return False
        if not chunk:
            return False
        room = request["cap"] - len(output[fd])
        truncated = truncated or len(chunk) > room
        output[fd] += chunk[: max(0, room)]
        return True

    finished = False
    while not finished:
        left = request["timeout_s"] - (time.monotonic() - started)
        if left <= 0:
            timed_out = True
            break
        for key, _ in selector.select(left):
            if key.fd == pidfd:
                finished = True
            elif key.fd in output:
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
    if timed_out:
        kill_family(process.pid)
        dead = select.poll()
        dead.register(pidfd, select.POLLIN)
        dead.poll(5_000)
    for fd in output:
        for _ in range(64):  # what it had written; a background child that holds the pipe may go on for ever
            if not take(fd):
                break
    reap(process.pid)
    status = statuses.pop(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    selector.close()
    os.close(pidfd)
    for stream in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(OSError):
            stream.close()
    stdout, stderr = (bytes(data) for data in output.values())
    header = {
        "exit_code": None if timed_out else process.returncode,
        "timed_out": timed_out,
        "truncated": truncated,
        "wall_s": time.monotonic() - started,
        "stdout": len(stdout),
    }
    return header, stdout + stderr


OPERATIONS = {"exec": do_exec, "read": do_read, "write": do_write, "list": do_list, "pack": do_pack, "unpack": do_unpack}


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    host_in, host_out = os.dup(0), os.dup(1)  # duplicates are not inherited by the commands
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    # Python installs a handler for SIGINT; the kernel shields process 1 only from signals without one.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    write_all(host_out, FRAME.pack(2, 0) + b"{}")
    while True:
        header_size, body_size = FRAME.unpack(read_exact(host_in, FRAME.size))
        request = json.loads(read_exact(host_in, header_size))
        body = read_exact(host_in, body_size)
        reap()
        try:
            answer, data = OPERATIONS[request["op"]](request, body)
        except Refused as error:
            answer, data = {"refused": str(error)}, b""
        except Exception as error:  # noqa: BLE001 - a broken archive or a full workspace is an answer, not the end of the sandbox
            answer, data = {"failed": f"{type(error).__name__}: {error}"}, b""
        header = json.dumps(answer).encode()
        write_all(host_out, FRAME.pack(len(header), len(data)) + header + data)


main()
