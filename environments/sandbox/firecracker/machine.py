"""A microVM's life: boot, pause, resume, full and diff snapshots, load, fork, kill. Knows nothing of what runs in the guest.

Speeds of the design: a diff snapshot writes only the pages dirtied since the last one; a loaded machine maps the memory file
privately, so that children of one file share every page that they do not write (Firecracker, docs/snapshotting).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from environments.errors import CaptureError, SandboxError
from environments.sandbox.firecracker import memory
from environments.sandbox.firecracker.api import Api
from environments.sandbox.firecracker.vmm import API_SOCKET, Programs, Vmm, fresh_path

VSOCK = "v.sock"
GUEST_CID = 3
CHAIN = 16
"""Diffs on top of each other before a lasting snapshot writes everything again: a restore has to read them all."""
_MIB = 1 << 20


@dataclass(frozen=True)
class GuestConfig:
    """What boots. The kernel is an uncompressed ELF file, as Firecracker wants it on x86-64."""

    kernel: Path
    initrd: Path | None = None
    boot_args: str = ""
    memory_mb: int = 128
    vcpus: int = 1
    vsock: bool = False


@dataclass(frozen=True)
class Image:
    """A machine on disk: the VMM's state, and memory files to be laid over each other, the complete one first."""

    state: Path
    layers: tuple[Path, ...]
    memory_mb: int
    written_bytes: int = 0
    """What making it wrote."""


class Machine:
    """One microVM. Not thread-safe. `kill` it, or let it be collected."""

    def __init__(self, programs: Programs, memory_mb: int) -> None:
        self.programs = programs
        self.memory_mb = memory_mb
        self.vmm = Vmm(programs)
        self.api = Api(self.vmm.root / API_SOCKET)
        self.layers: tuple[Path, ...] = ()
        """What the guest's memory was when last captured; empty: all zeros."""
        self._lost = False
        """The VMM counts dirty pages from a capture that no file holds."""
        self._held: list[memory.SharedFile] = []
        self._finalizer = weakref.finalize(self, _end, self.vmm, self.api, self._held)

    @classmethod
    def boot(cls, programs: Programs, guest: GuestConfig) -> Machine:
        """Start a machine; its kernel may still be booting.

        Raises:
            SandboxError: the VMM refuses; the message says why.
        """
        machine = cls(programs, guest.memory_mb)
        with machine._or_kill():
            source = {"kernel_image_path": machine.vmm.bring(guest.kernel), "boot_args": guest.boot_args}
            if guest.initrd is not None:
                source["initrd_path"] = machine.vmm.bring(guest.initrd)
            machine.api.put(
                "/machine-config", {"vcpu_count": guest.vcpus, "mem_size_mib": guest.memory_mb, "smt": False, "track_dirty_pages": True}
            )
            machine.api.put("/boot-source", source)
            if guest.vsock:
                machine.api.put("/vsock", {"guest_cid": GUEST_CID, "uds_path": VSOCK})
                machine.api.put("/entropy", {})
            machine.api.put("/actions", {"action_type": "InstanceStart"})
        return machine

    @classmethod
    def load(cls, programs: Programs, image: Image, *, shared: memory.SharedFile | None = None, resume: bool = True) -> Machine:
        """A machine that goes on where `image` was taken. A single layer is mapped where it lies, and must then stay as it is.

        Args:
            shared: the image's only layer, when it is to go away with its last user.

        Raises:
            SandboxError: a file is missing or damaged, or the VMM refuses.
        """
        memory.check(image.layers, image.memory_mb * _MIB)
        machine = cls(programs, image.memory_mb)
        with machine._or_kill():
            if shared is not None:
                machine._held.append(shared.hold())
            layers = image.layers
            if len(layers) > 1:
                flat = memory.SharedFile(fresh_path(".mem"))
                machine._held.append(flat)
                try:
                    memory.flatten(layers, flat.path, image.memory_mb * _MIB)
                except OSError as error:
                    raise SandboxError(f"{flat.path} could not be written ({error.strerror})", "free disk space, then try again") from error
                flat.path.chmod(0o644)
                layers = (flat.path,)
            body = {
                "snapshot_path": machine.vmm.bring(image.state),
                "mem_backend": {"backend_type": "File", "backend_path": machine.vmm.bring(layers[0])},
                "enable_diff_snapshots": True,
                "resume_vm": resume,
            }
            machine.api.put("/snapshot/load", body)
            machine.layers = layers
        return machine

    @property
    def vsock_path(self) -> Path:
        """Unix socket on which the VMM answers for the guest's vsock ports."""
        return self.vmm.root / VSOCK

    def answer_on(self, port: int, path: Path) -> None:
        """Let a listening Unix socket answer the guest's connections to the host's vsock `port` (Firecracker, docs/vsock.md)."""
        link = self.vmm.root / f"{VSOCK}_{port}"
        link.unlink(missing_ok=True)
        os.link(path, link)

    def alive(self) -> bool:
        """The VMM runs."""
        return self.vmm.alive()

    def pause(self) -> None:
        """Stop the guest's processors; its memory stays. Raises SandboxError."""
        self.api.patch("/vm", {"state": "Paused"})

    def resume(self) -> None:
        """Let the guest go on. Raises SandboxError."""
        self.api.patch("/vm", {"state": "Resumed"})

    def snapshot(self, directory: Path, kind: Literal["full", "diff"] = "diff", *, resume: bool = True, lasting: bool = False) -> Image:
        """Write `state` and `memory` into an existing folder; the guest is stopped meanwhile.

        A diff holds what changed since the last capture, whose files it needs; where they are gone, and after one that
        failed half-way, the whole memory is written instead.

        Args:
            resume: let the guest go on afterwards.
            lasting: the image must outlive this process: no file that goes away with a machine may be among its layers.

        Raises:
            CaptureError: nothing was captured; `recoverable` when the guest runs on.
        """
        state, target = directory / "state", directory / "memory"
        if self._lost or not self._whole():
            kind = "full"
        self._lost = True
        try:
            self.pause()
            self.api.put(
                "/snapshot/create",
                {
                    "snapshot_type": kind.capitalize(),
                    "snapshot_path": self.vmm.outgoing("state.new"),
                    "mem_file_path": self.vmm.outgoing("memory.new"),
                },
            )
            self.vmm.collect("state.new", state)
            self.vmm.collect("memory.new", target)
        except (SandboxError, OSError) as error:
            raise self._capture_error(error) from error
        self._lost = False
        if resume:
            try:
                self.resume()
            except SandboxError as error:
                raise CaptureError(str(error), "load the snapshot that was written", recoverable=False) from error
        self.layers = (*(self.layers if kind == "diff" else ()), target)
        if lasting and (len(self.layers) > CHAIN or {held.path for held in self._held}.intersection(self.layers)):
            self._settle(target)
        return Image(state, self.layers, self.memory_mb, memory.allocated_bytes(target) + state.stat().st_size)

    def _settle(self, target: Path) -> None:
        """Make the last layer hold everything."""
        whole = target.with_suffix(".whole")
        try:
            memory.flatten(self.layers, whole, self.memory_mb * _MIB)
            whole.replace(target)
        except (SandboxError, OSError) as error:
            self._lost = True
            raise CaptureError(f"{target} could not be written: {error}", "free disk space, then try again") from error
        self._hold(target, None)

    def sleep(self) -> Sleeping:
        """Write what was dirtied and end the machine: from now on it is files.

        Raises:
            CaptureError: it could not be written.
        """
        folder = fresh_path(".cap")
        folder.mkdir(mode=0o700)
        try:
            image = self.snapshot(folder, resume=False)
        except BaseException:
            shutil.rmtree(folder)
            raise
        sleeping = Sleeping(self.programs, image, folder, [*self._held])
        self._held.clear()
        self.kill()
        return sleeping

    def fork(self, count: int) -> list[Machine | SandboxError]:
        """`count` machines that go on from here, as does this one; one result each.

        Raises:
            CaptureError: nothing could be captured.
        """
        folder = fresh_path(".cap")
        folder.mkdir(mode=0o700)
        try:
            image = self.snapshot(folder)
            base = _laid_in_place(image, self._held)
            if base is not None:
                self.layers = (base.path,)
            else:
                base = memory.SharedFile(fresh_path(".mem"))
                if len(image.layers) == 1:
                    image.layers[0].rename(base.path)
                else:
                    memory.flatten(image.layers, base.path, self.memory_mb * _MIB)
                    base.path.chmod(0o644)
                self._hold(base.path, base)
            image = Image(image.state, (base.path,), self.memory_mb)
            with ThreadPoolExecutor(min(count, 8)) as pool:
                return list(pool.map(lambda _: _load(self.programs, image, base), range(count)))
        except (SandboxError, OSError) as error:
            self._lost = True
            if isinstance(error, CaptureError):
                raise
            raise self._capture_error(error) from error
        finally:
            shutil.rmtree(folder)

    def _hold(self, base: Path, ours: memory.SharedFile | None) -> None:
        """Count the next diff from `base`, which holds the guest's whole memory; earlier files of ours are not needed."""
        while self._held:
            self._held.pop().release()
        if ours is not None:
            self._held.append(ours)
        self.layers = (base,)

    def kill(self) -> None:
        """End the machine and free everything. Idempotent."""
        self._finalizer()

    def _whole(self) -> bool:
        """The files that a diff would need are there."""
        try:
            memory.check(self.layers, self.memory_mb * _MIB)
        except SandboxError:
            return False
        return True

    def _capture_error(self, error: Exception) -> CaptureError:
        with contextlib.suppress(SandboxError):
            self.resume()
            return CaptureError(f"machine {self.vmm.name} could not be captured: {error}", "free disk space, then try again")
        return CaptureError(f"machine {self.vmm.name} is gone: {error}", "load its last snapshot", recoverable=False)

    @contextmanager
    def _or_kill(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            said = self.vmm.complaint()
            self.kill()
            if isinstance(error, SandboxError) and said:
                raise type(error)(f"{error.message}; it said: {said}", error.fix) from error
            raise


class Sleeping:
    """A machine that uses neither processor nor memory. `wake` or `discard` it."""

    def __init__(self, programs: Programs, image: Image, folder: Path, held: list[memory.SharedFile]) -> None:
        self._programs = programs
        self._image = image
        self._held = held
        self._finalizer = weakref.finalize(self, _discard, folder, held, os.getpid())

    def wake(self) -> Machine:
        """The machine, where it was.

        Raises:
            SandboxError: it could not be loaded; it sleeps on.
        """
        image = self._image
        try:
            base = _laid_in_place(image, self._held)
        except OSError as error:  # the diff is still whole, and laid over it again next time
            raise SandboxError(
                f"{image.layers[0]} could not be written ({error.strerror})", "free disk space, then resume it again"
            ) from error
        if base is None and len(image.layers) == 1:
            base = next((held for held in self._held if held.path == image.layers[0]), None)  # tried before, in vain
            if base is None:
                base = memory.SharedFile(fresh_path(".mem"))
                image.layers[0].rename(base.path)
                self._held.append(base)
        if base is not None:
            image = self._image = Image(image.state, (base.path,), image.memory_mb)
        machine = Machine.load(self._programs, image, shared=base)
        self.discard()
        return machine

    def discard(self) -> None:
        """Forget it. Idempotent."""
        self._finalizer()


def _laid_in_place(image: Image, held: list[memory.SharedFile]) -> memory.SharedFile | None:
    """Lay a diff over the file below it when only this machine uses that: what was dirtied is then all that is copied.

    The machine may go on meanwhile: it has copies of its own of the pages that it dirtied, and no others change.
    """
    if len(held) != 1 or not held[0].exclusive or len(image.layers) != 2 or image.layers[0] != held[0].path:
        return None
    with image.layers[1].open("rb") as diff, held[0].path.open("r+b") as whole:
        memory.lay_over(diff.fileno(), whole.fileno())
    return held[0]


def _load(programs: Programs, image: Image, base: memory.SharedFile) -> Machine | SandboxError:
    try:
        return Machine.load(programs, image, shared=base)
    except SandboxError as error:
        return error


def _discard(folder: Path, held: list[memory.SharedFile], owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
    while held:
        held.pop().release()


def _end(vmm: Vmm, api: Api, held: list[memory.SharedFile]) -> None:
    api.close()
    vmm.kill()
    while held:
        held.pop().release()
