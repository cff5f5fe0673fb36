"""How gVisor's `runsc` is found and run: without privileges, each sandbox with a folder and a process of its own.

As root the privileges are dropped first, so that nothing here runs as the host's root; then a user namespace gives runsc what it
needs (`runsc --rootless` would refuse to restore). Whoever dies takes the rest along: this process -> runsc -> the sandbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from environments.errors import MissingDependencyError, SandboxError
from environments.sandbox.base import SandboxConfig
from environments.sandbox.bubblewrap import NOBODY, _keeper
from environments.sandbox.gvisor_area import area
from environments.sandbox.gvisor_bundle import bundle, hard_limit_gib

VARIABLE = "NINEFOLD_RUNSC"
INSTALL = "bash .ci/gvisor.sh .cache/bin"
USERNS = "allow unprivileged user namespaces: sysctl -w kernel.unprivileged_userns_clone=1 kernel.apparmor_restrict_unprivileged_userns=0"
OLDEST = 20240729
"""The oldest release (its date) that was tried; those of 2022 cannot go on after a checkpoint."""
Platform = Literal["systrap", "ptrace"]
"""How gVisor catches system calls: systrap is its default; ptrace costs twice as much a call and no CPU while idle."""


def find_runsc() -> Path:
    """The runsc program: $NINEFOLD_RUNSC, `.cache/bin/runsc` of the repository or the working folder, or the PATH's.

    Raises:
        MissingDependencyError: there is none.
    """
    if named := os.environ.get(VARIABLE):
        if os.access(named, os.X_OK):
            return Path(named)
        raise MissingDependencyError(f"{VARIABLE}={named} is not a program", f"unset it, or {INSTALL}")
    for folder in (Path(__file__).parents[2], Path.cwd()):
        if os.access(path := folder / ".cache" / "bin" / "runsc", os.X_OK):
            return path
    if found := shutil.which("runsc"):
        return Path(found)
    raise MissingDependencyError("gVisor (runsc) is not installed", INSTALL)


@cache
def runsc_version(path: Path) -> str:
    """Its release, as it says it.

    Raises:
        MissingDependencyError: it does not run, or is too old.
    """
    try:
        said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingDependencyError(f"{path} does not run ({error})", INSTALL) from error
    version = said.split("\n")[0].removeprefix("runsc version ").strip()
    date = re.search(r"20\d{6}", version)
    if date and int(date.group()) < OLDEST:
        raise MissingDependencyError(f"{path} is release {version}; {OLDEST} or later is needed", INSTALL)
    return version


# --- running it --------------------------------------------------------------------------------------------------------------------


def _launcher(limit_gib: int | None) -> list[str]:
    """What comes before runsc: privileges dropped, limits set, a user namespace, death together with the starting thread."""
    programs = {}
    for name in ("setpriv", "prlimit", "unshare"):
        found = shutil.which(name)
        if found is None:
            raise MissingDependencyError(f"{name} is not installed", "apt-get install -y util-linux")
        programs[name] = found
    line = []
    if os.geteuid() == 0:
        line += [programs["setpriv"], "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--inh-caps=-all"]
        line += ["--bounding-set=-all"]
    line += [programs["prlimit"], "--core=0"]
    if limit_gib is not None:
        line.append(f"--fsize={limit_gib << 30}")
    return [*line, programs["unshare"], "-Ur", programs["setpriv"], "--pdeathsig", "KILL"]


def _runsc(folder: Path, binary: int, platform: Platform) -> list[str]:
    # By descriptor: the program may lie where the sandbox's user cannot go.
    flags = [f"--platform={platform}", "--network=none", "--ignore-cgroups", "--overlay2=none"]
    return [f"/proc/self/fd/{binary}", "--root", str(folder / "state"), "--log", str(folder / "runsc.log"), *flags]


@dataclass
class Box:
    """A running sandbox as the host sees it."""

    folder: Path
    outer: subprocess.Popen[bytes]
    control: socket.socket
    services: socket.socket
    platform: Platform
    pidfds: list[int] = field(default_factory=list)
    """Of the sandbox's kernel and its file server, known once it answers."""
    pids: tuple[int, ...] = ()
    owner_pid: int = field(default_factory=os.getpid)

    def complaint(self) -> str:
        """What runsc said, for an error message."""
        with contextlib.suppress(OSError):
            return (self.folder / "stderr").read_text(errors="replace").strip()[-400:]
        return ""

    def learn(self) -> None:
        """Note the processes, to see them off at the end."""
        for path in (self.folder / "state").glob("*.state"):
            state = json.loads(path.read_text())
            found = [int(state.get("sandbox", {}).get("pid", 0)), int(state.get("goferPid", 0))]
            self.pids = tuple(pid for pid in found if pid > 0)
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                self.pidfds.append(os.pidfd_open(pid))

    def run(self, *command: str, folder: Path | None = None, timeout_s: float = 300.0) -> str:
        """A runsc command about this sandbox; empty when it went well, else what it said. `folder` is passed as {folder}."""
        fds = [os.open(find_runsc(), os.O_RDONLY)]
        try:
            if folder is not None:
                fds.append(os.open(folder, os.O_RDONLY | os.O_DIRECTORY))
            words = [word.format(folder=f"/proc/self/fd/{fds[-1]}") for word in command]
            argv = [*_launcher(None), *_runsc(self.folder, fds[0], self.platform), words[0], *words[1:], "box"]
            done = subprocess.run(
                argv, stdin=subprocess.DEVNULL, capture_output=True, env={}, cwd="/", pass_fds=fds, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired:
            return f"runsc {command[0]} did not end within {timeout_s} s"
        except OSError as error:
            return f"runsc {command[0]} did not start: {error}"
        finally:
            for fd in fds:
                os.close(fd)
        said = (done.stderr + done.stdout).decode(errors="replace").strip()[-400:]
        return "" if done.returncode == 0 else said or f"runsc {command[0]} ended with {done.returncode}"

    def freeze(self) -> str:
        """Stop everything; empty, or what went wrong. gVisor only stops its tasks, and its kernel would go on ticking.

        Its file server idles by itself; stopped, it would not notice the death of the others.
        """
        if said := self.run("pause"):
            return said
        self._signal(signal.SIGSTOP, self.pidfds[:1])
        return ""

    def thaw(self) -> str:
        """Let everything run again; empty, or what went wrong."""
        self._signal(signal.SIGCONT, self.pidfds[:1])
        return self.run("resume")

    def _signal(self, which: signal.Signals, pidfds: Sequence[int]) -> None:
        for fd in pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(fd, which)

    def kill(self) -> None:
        """Kill everything and wait until it is gone; remove the folder. Only the process that started it may; else no effect.

        `control` stays open for its user to close.
        """
        if os.getpid() != self.owner_pid:
            return
        if not self.pidfds:  # it had not come up
            with contextlib.suppress(OSError, ValueError):
                self.learn()
        self.outer.kill()
        self.outer.wait()
        self._signal(signal.SIGKILL, self.pidfds)
        while self.pidfds:
            fd = self.pidfds.pop()
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            poller.poll(10_000)
            os.close(fd)
        self.services.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def start(name: str, config: SandboxConfig, platform: Platform, image: Path | None = None) -> Box:
    """Start a sandbox whose process 1 waits for its program, or restore one from a checkpoint's folder. It does not wait.

    Raises:
        MissingDependencyError: runsc or a program of util-linux is missing.
        SandboxError: it could not be started.
    """
    folder = area().new_folder(name)
    ours: list[socket.socket] = []
    theirs: list[socket.socket] = []
    fds: list[int] = []
    try:
        bundle(folder, config)
        fds.append(os.open(find_runsc(), os.O_RDONLY))
        argv = [*_launcher(hard_limit_gib(config)), *_runsc(folder, fds[0], platform)]
        if image is None:
            argv += ["run", "--bundle", str(folder), "box"]
        else:
            fds.append(os.open(image, os.O_RDONLY | os.O_DIRECTORY))
            argv += ["restore", "--bundle", str(folder), "--image-path", f"/proc/self/fd/{fds[1]}", "box"]
        for _ in range(2):
            one, other = socket.socketpair()
            ours.append(one)
            theirs.append(other)
        with (folder / "stderr").open("wb") as errors:
            outer = _keeper.start(
                lambda: subprocess.Popen(
                    argv,
                    stdin=theirs[0].fileno(),
                    stdout=theirs[1].fileno(),
                    stderr=errors,
                    env={},
                    cwd="/",
                    pass_fds=fds,
                    start_new_session=True,
                )
            )
    except BaseException as error:
        for end in ours:
            end.close()
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise SandboxError(f"runsc could not be started ({error})", "see `ninefold doctor`") from error
        raise
    finally:
        for end in theirs:
            end.close()
        for fd in fds:
            os.close(fd)
    return Box(folder, outer, ours[0], ours[1], platform)
