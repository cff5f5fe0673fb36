"""`FirecrackerBackend`: finds the binaries and the guest's files, proves by a boot that they work, and makes sandboxes.

NINEFOLD_FIRECRACKER, NINEFOLD_FC_KERNEL and NINEFOLD_FC_ROOTFS name the binary, the kernel and the root file system
(`rootfs.py` builds the last two, and they are looked for in .cache/firecracker below the working directory as well);
NINEFOLD_FC_BOOT_ARGS adds kernel arguments, NINEFOLD_FC_BOOT_S is the limit for a boot.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from environments.errors import InfrastructureError, MissingDependencyError, SandboxError, UnsupportedError
from environments.sandbox.base import DEFAULT, Backend, Capabilities, Sandbox, SandboxConfig, Snapshot
from environments.sandbox.firecracker import memory
from environments.sandbox.firecracker.channel import Channel
from environments.sandbox.firecracker.machine import GuestConfig, Image, Machine
from environments.sandbox.firecracker.rootfs import KERNEL_NAME, ROOTFS_NAME
from environments.sandbox.firecracker.sandbox import AGENT_PORT, FirecrackerSandbox, capabilities_of
from environments.sandbox.firecracker.snapshots import read_manifest
from environments.sandbox.firecracker.vmm import Programs, fresh_path, reap_orphans

BOOT_ARGS = "console=ttyS0 reboot=k panic=-1 quiet pci=off i8042.noaux i8042.nomux i8042.dumbkbd random.trust_cpu=on"
BOOT_S = 20.0
BUILT = Path(".cache/firecracker")
_MIB = 1 << 20


@dataclass(frozen=True)
class _Guest:
    programs: Programs
    kernel: Path
    rootfs: Path
    boot_args: str
    boot_s: float


@dataclass(frozen=True)
class _Template:
    """A machine that has just booted, on disk. New sandboxes go on from here: a load takes milliseconds, a boot seconds."""

    image: Image
    memory: memory.SharedFile


_templates: dict[tuple[int, _Guest, int], _Template] = {}
_templates_lock = threading.Lock()


class FirecrackerBackend(Backend):
    """Sandboxes as microVMs. Arguments override the environment variables."""

    name = "firecracker"

    def __init__(self, kernel: Path | None = None, rootfs: Path | None = None) -> None:
        self._kernel = kernel
        self._rootfs = rootfs

    def _guest(self) -> _Guest:
        programs = Programs.find()
        if programs is None:
            raise MissingDependencyError("there is no firecracker", "bash .ci/firecracker.sh .cache/bin")
        paths = []
        for given, variable, name in (
            (self._kernel, "NINEFOLD_FC_KERNEL", KERNEL_NAME),
            (self._rootfs, "NINEFOLD_FC_ROOTFS", ROOTFS_NAME),
        ):
            path = given or Path(os.environ.get(variable) or Path.cwd() / BUILT / name)
            if not path.is_file():
                fix = f"on Debian: python -m environments.sandbox.firecracker.rootfs {BUILT}; or name one in {variable}"
                raise MissingDependencyError(f"a guest's {name} is not at {path}", fix)
            paths.append(path.resolve())
        extra = os.environ.get("NINEFOLD_FC_BOOT_ARGS", "")
        return _Guest(programs, paths[0], paths[1], f"{BOOT_ARGS} {extra}".strip(), float(os.environ.get("NINEFOLD_FC_BOOT_S", BOOT_S)))

    def probe(self) -> str:
        """See the base class. An open /dev/kvm proves nothing: on some machines it opens and no stock kernel boots."""
        if not os.access("/dev/kvm", os.R_OK | os.W_OK):
            return "/dev/kvm cannot be opened. Fix: run on a machine with KVM, as a member of its group"
        try:
            return _boots(self._guest())
        except MissingDependencyError as error:
            return str(error)

    def create(self, config: SandboxConfig = DEFAULT, snapshot: Snapshot | None = None) -> Sandbox:
        """See the base class."""
        if config.image is not None:
            raise UnsupportedError("the firecracker backend has no images", "build a root file system with the packages that you need")
        if reason := self.probe():
            message, _, fix = reason.partition(". Fix: ")
            raise MissingDependencyError(message, fix)
        guest = self._guest()
        if snapshot is not None:
            config = snapshot.config.model_copy(update={"seed": config.seed, "ttl_s": config.ttl_s})
            machine = Machine.load(guest.programs, read_manifest(snapshot.path))
        else:
            template = _template(guest, memory_mb(config, guest.rootfs))
            machine = Machine.load(guest.programs, template.image, shared=template.memory)
        sandbox = FirecrackerSandbox(config, guest.programs)
        sandbox.start(machine)
        sandbox._started()
        return sandbox

    def capabilities(self, config: SandboxConfig = DEFAULT) -> Capabilities:
        """See the base class."""
        programs = Programs.find()
        return capabilities_of(config, jailed=programs is not None and programs.jailer is not None)


def memory_mb(config: SandboxConfig, rootfs: Path) -> int:
    """A machine's memory, MiB: what the commands may use, the workspace, and the guest itself (its root lies in memory)."""
    return config.memory_mb + config.workspace_mb + 2 * (rootfs.stat().st_size // _MIB) + 64


@cache
def _boots(guest: _Guest) -> str:
    reap_orphans()
    try:
        _template(guest, memory_mb(DEFAULT, guest.rootfs))
    except InfrastructureError as error:
        return f"a guest does not boot here: {error.message}. Fix: run on a machine whose KVM boots a stock kernel"
    return ""


def _template(guest: _Guest, size_mb: int) -> _Template:
    """Boot once, keep the image; raises SandboxError when no agent answers within the limit."""
    with _templates_lock:
        key = (os.getpid(), guest, size_mb)
        if key not in _templates:
            config = GuestConfig(guest.kernel, guest.rootfs, guest.boot_args, size_mb, vsock=True)
            machine = Machine.boot(guest.programs, config)
            try:
                channel = Channel(machine.vsock_path, AGENT_PORT, _MIB)
                try:
                    channel.wait(guest.boot_s, machine.alive)
                finally:
                    channel.drop()
                folder = fresh_path(".tpl")
                folder.mkdir(mode=0o700)
                image = machine.snapshot(folder, resume=False)
                _templates[key] = _Template(image, memory.SharedFile(image.layers[0]))
            except SandboxError as error:
                raise SandboxError(f"{error.message}; the console ends with: {machine.vmm.complaint()[-300:]}", error.fix) from error
            finally:
                machine.kill()
        return _templates[key]
