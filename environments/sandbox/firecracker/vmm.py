"""The Firecracker process: found, started in a folder of its own (in a jail where we are root), and ended without a trace.

A process that owns VMMs has one folder with a lock that ends with it; in there each VMM has a folder with `pid`, `errors`
and its root, in which all that it reads and writes lies under a relative name. A snapshot therefore restores anywhere,
jailed or not.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import itertools
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from environments.errors import SandboxError
from environments.sandbox.firecracker import memory

API_SOCKET = "api.sock"
START_S = 20.0
"""A VMM listens after some 5 ms; this much patience is for a machine that is busy with other work."""
_KEPT = 1 << 16
_uids = itertools.count(secrets.randbelow(1 << 14))
_UID_BASE, _UID_RANGE = 200_000, 1 << 16
"""Each jailed VMM runs as a user of its own, above all that Debian hands out."""


@dataclass(frozen=True)
class Programs:
    """The binaries, and whether the jailer wraps every VMM."""

    firecracker: Path
    jailer: Path | None = None

    @classmethod
    def find(cls) -> Programs | None:
        """NINEFOLD_FIRECRACKER, then .cache/bin/firecracker below the working directory, then the path.

        A `jailer` beside it is used where we are root, unless NINEFOLD_FC_JAILER is `off` (it cannot pivot from an initramfs).
        """
        named = os.environ.get("NINEFOLD_FIRECRACKER")
        on_path = shutil.which("firecracker") or "/nonexistent"
        candidates = [Path(named)] if named else [Path.cwd() / ".cache/bin/firecracker", Path(on_path)]
        for path in candidates:
            if path.is_file() and os.access(path, os.X_OK):
                jailer = path.resolve().with_name("jailer")
                jailed = os.geteuid() == 0 and os.access(jailer, os.X_OK) and os.environ.get("NINEFOLD_FC_JAILER") != "off"
                return cls(path.resolve(), jailer if jailed else None)
        return None


def _runs() -> Path:
    # /tmp may lie in memory, where the file of a paused machine would save nothing.
    place = "/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()
    folder = Path(os.environ.get("NINEFOLD_FC_RUNS") or f"{place}/nf-fc-{os.geteuid()}")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.geteuid():
        raise SandboxError(f"{folder} belongs to somebody else", "set NINEFOLD_FC_RUNS to a folder of your own")
    return folder


@cache
def _owned(pid: int) -> Path:
    """The folder of this process. A fork gets one of its own: the lock goes with the process that took it."""
    folder = _runs() / secrets.token_hex(4)
    folder.mkdir(mode=0o700)
    fcntl.flock(os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC), fcntl.LOCK_EX)
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == pid else None)
    return folder


def fresh_path(suffix: str) -> Path:
    """A new path in this process's folder: short, as a socket's path may have 108 bytes, and swept up if the process dies."""
    return _owned(os.getpid()) / (secrets.token_hex(6) + suffix)


class Vmm:
    """One running Firecracker process. `kill` it; a VMM whose owner died is found by `reap_orphans`."""

    def __init__(self, programs: Programs) -> None:
        """Raises SandboxError when it does not come up; nothing is left then."""
        self.folder = fresh_path("")
        self.folder.mkdir(mode=0o700)
        self.name = self.folder.name
        self._owner = os.getpid()
        self._jailed = programs.jailer is not None
        self.root = self.folder / "j" / programs.firecracker.name / self.name / "root" if self._jailed else self.folder / "root"
        self.root.mkdir(parents=True)
        self._uid = _UID_BASE + next(_uids) % _UID_RANGE if self._jailed else os.geteuid()
        self.console_tail = bytearray()
        self._unread = bytearray()
        command = [str(programs.firecracker)]
        if programs.jailer is not None:
            jail = ["--id", self.name, "--exec-file", *command, "--uid", str(self._uid), "--gid", str(self._uid)]
            command = [str(programs.jailer), *jail, "--chroot-base-dir", str(self.folder / "j"), "--"]
        command += ["--api-sock", API_SOCKET, "--level", "Error", *([] if self._jailed else ["--id", self.name])]
        theirs_in, self._console_in = os.pipe()
        self._console_out, theirs_out = os.pipe()
        # A guest that writes more than is read loses output; a VMM that waited would stop the guest.
        for fd in (theirs_out, self._console_out):
            os.set_blocking(fd, False)
        try:
            with (self.folder / "errors").open("wb") as errors:
                self.process = subprocess.Popen(
                    command, stdin=theirs_in, stdout=theirs_out, stderr=errors, cwd=self.root, env={}, start_new_session=True
                )
        except OSError as error:
            self._forget()
            raise SandboxError(f"{command[0]} does not start ({error})", "check it with --version") from error
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        (self.folder / "pid").write_text(str(self.process.pid))
        self._await_socket()

    def _await_socket(self) -> None:
        deadline = time.monotonic() + START_S
        while not _listens(self.root / API_SOCKET):
            if not self.alive() or time.monotonic() > deadline:
                said = self.complaint()
                self.kill()
                raise SandboxError(f"Firecracker did not come up: {said or 'no word from it'}", "see `ninefold doctor`")
            time.sleep(0.0005)

    def alive(self) -> bool:
        """The process runs."""
        return self.process.poll() is None

    def resident_bytes(self) -> int:
        """Memory that the process has to itself, bytes; 0 when it is gone. Pages of a shared memory file do not count."""
        try:
            fields = Path("/proc", str(self.process.pid), "status").read_text().split("\n")
        except OSError:
            return 0
        return sum(int(line.split()[1]) << 10 for line in fields if line.startswith("RssAnon:"))

    def complaint(self) -> str:
        """The last that the VMM and its guest's console said."""
        with contextlib.suppress(OSError):
            self._drain()
            self.console_tail += (self.folder / "errors").read_bytes()[-2000:]
        return self.console_tail[-1000:].decode(errors="replace").strip()

    # --- files ------------------------------------------------------------------------------------------------------------

    def bring(self, path: Path) -> str:
        """The name under which the VMM can read a file, which must not change while it lives.

        Raises:
            SandboxError: there is no such file.
        """
        path = path.resolve()
        if not path.is_file():
            raise SandboxError(f"{path} is missing", "restore from another snapshot, or build the guest's files again")
        if not self._jailed:
            return str(path)
        inside = self.root / f"{len(os.listdir(self.root))}-{path.name}"
        if path.stat().st_mode & 0o004:
            try:
                os.link(path, inside)
                return inside.name
            except OSError:
                pass  # another file system: copy
        with path.open("rb") as source, inside.open("xb") as target:
            os.truncate(inside, path.stat().st_size)
            memory.lay_over(source.fileno(), target.fileno())
        os.chown(inside, self._uid, self._uid)
        return inside.name

    def outgoing(self, name: str) -> str:
        """A fresh name in its root for the VMM to write to."""
        (self.root / name).unlink(missing_ok=True)
        return name

    def collect(self, name: str, target: Path) -> None:
        """Move a file that the VMM wrote to `target`, for anybody to read."""
        source = self.root / name
        try:
            os.rename(source, target)
        except OSError:  # another file system
            with source.open("rb") as file, target.open("wb") as out:
                os.truncate(target, source.stat().st_size)
                memory.lay_over(file.fileno(), out.fileno())
            source.unlink()
        if self._jailed:
            os.chown(target, os.geteuid(), os.getegid())
        target.chmod(0o644)

    # --- the guest's serial console ------------------------------------------------------------------------------------------

    def send(self, text: str) -> None:
        """Type on the guest's console."""
        data = text.encode()
        while data:
            try:
                data = data[os.write(self._console_in, data) :]
            except OSError as error:
                raise SandboxError(f"machine {self.name} is gone ({error.strerror})", "load its last snapshot") from error

    def line(self, timeout_s: float) -> str:
        """The next line that the guest writes on its console, without what Firecracker writes there itself.

        Raises:
            SandboxError: the machine ended, or wrote none within the limit; the message carries the console's end.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            while b"\n" in self._unread:
                line, _, rest = bytes(self._unread).partition(b"\n")
                self._unread[:] = rest
                text = line.decode(errors="replace").strip()
                if f"[{self.name}:" not in text:  # Firecracker's own lines carry its id
                    return text
            ended = not self.alive()
            if not self._drain(max(0.0, deadline - time.monotonic())) and (ended or time.monotonic() >= deadline):
                how = f"ended with {self.process.returncode}" if ended else f"wrote nothing on its console within {timeout_s} s"
                raise SandboxError(f"machine {self.name} {how}: {self.complaint() or 'no output'}", "check the kernel and its arguments")

    def _drain(self, timeout_s: float = 0.0) -> bool:
        if self._console_out < 0:
            return False
        poller = select.poll()
        poller.register(self._console_out, select.POLLIN)
        if not poller.poll(min(timeout_s, 0.2) * 1000):
            return False
        data = os.read(self._console_out, _KEPT)
        self._unread += data
        self.console_tail += data
        del self._unread[:-_KEPT], self.console_tail[:-_KEPT]
        return bool(data)

    # --- the end -------------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End the VMM with its guest and remove its folder. Idempotent; without effect in a fork of the process that owns it."""
        if os.getpid() != self._owner or self._console_in < 0:
            return
        self.process.kill()
        self.process.wait()
        self._forget()

    def _forget(self) -> None:
        os.close(self._console_in)
        os.close(self._console_out)
        self._console_in = self._console_out = -1
        shutil.rmtree(self.folder, ignore_errors=True)


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def _end(pid: int, name: str) -> bool:
    """Kill the process and wait for its end, if it is still the VMM of that name."""
    pidfd = os.pidfd_open(pid)
    try:
        ours = name.encode() in Path("/proc", str(pid), "cmdline").read_bytes()
        if ours:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            poller.poll(10_000)
        return ours
    finally:
        os.close(pidfd)


def reap_orphans() -> int:
    """Kill the VMMs whose owning process died and remove its folder with all files; the number of VMMs."""
    found = 0
    for folder in _runs().iterdir():
        try:
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # just being made or removed
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # its owner lives
        else:
            for record in folder.glob("*/pid"):
                with contextlib.suppress(OSError, ValueError):
                    found += _end(int(record.read_text()), record.parent.name)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
    return found
