"""Builds the guest's files from Debian packages: `vmlinux` (uncompressed, as Firecracker wants it) and `rootfs.cpio`.

    python -m environments.sandbox.firecracker.rootfs FOLDER [PACKAGE ...]

Everything is in the initial memory file system: a machine has no disk, so that its memory is all of its state and a fork
copies nothing. Needs apt-get, apt-cache and dpkg-deb; no privileges, and nothing is installed on the host.
"""

from __future__ import annotations

import compileall
import gzip
import lzma
import os
import py_compile
import re
import shutil
import stat
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from environments.errors import InputError, MissingDependencyError

KERNEL_NAME, ROOTFS_NAME = "vmlinux", "rootfs.cpio"
KERNEL = "linux-image-cloud-amd64"
PACKAGES = ("python3", "bash", "dash", "coreutils", "grep", "sed", "gawk", "findutils", "tar", "gzip", "diffutils", "procps", "util-linux")
_UNWANTED = re.compile(r"^(debconf.*|cdebconf.*|perl.*|dpkg|adduser|passwd|install-info|media-types|tzdata|init-system-helpers|gcc-.*)$")
"""Only for installing, or for what no agent's command needs."""
_PRUNED = ("usr/share/doc", "usr/share/man", "usr/share/info", "usr/share/locale", "usr/share/lintian", "usr/share/bash-completion")
_PYTHON = "python3.11"
"""Debian 12's."""
_PYTHON_PRUNED = ("idlelib", "lib2to3", "pydoc_data", "ensurepip", "test", "turtledemo", "tkinter", "distutils", "unittest/test")
_INIT = """#!/usr/bin/python3 -ISB
import sys
sys.path.insert(0, "/agent")
from environments.sandbox.firecracker.guest.agent import main
main()
"""
_MODULES = (  # in the order of their dependencies
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_mmio",
    "net/vmw_vsock/vsock",
    "net/vmw_vsock/vmw_vsock_virtio_transport_common",
    "net/vmw_vsock/vmw_vsock_virtio_transport",
    "drivers/char/hw_random/virtio-rng",
)


def _run(*command: str, cwd: Path | None = None) -> str:
    if shutil.which(command[0]) is None:
        raise MissingDependencyError(f"{command[0]} is not installed", "build the guest's files on a Debian machine")
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise InputError(f"{' '.join(command[:4])} ... failed: {done.stderr.strip()[-500:]}", "apt-get update, then try again")
    return done.stdout


def closure(packages: tuple[str, ...]) -> list[str]:
    """The packages with all that they depend on, without what only an installation needs."""
    options = ["--no-recommends", "--no-suggests", "--no-conflicts", "--no-breaks", "--no-replaces", "--no-enhances"]
    found: set[str] = set()
    todo = list(packages)
    while todo:
        fresh = sorted({name for name in todo if name not in found and not _UNWANTED.match(name)})
        found.update(fresh)
        text = _run("apt-cache", "depends", *options, *fresh) if fresh else ""
        # "|Depends:" is an alternative to the line after it, "<name>" has no package of that name.
        todo = re.findall(r"^  (?:Pre)?Depends: ([a-z0-9][^\s:<>]*)$", text, flags=re.MULTILINE)
    return sorted(found)


def unpack(packages: list[str], root: Path) -> None:
    """Download and extract packages into `root`, with /bin, /sbin and /lib as links into /usr."""
    with tempfile.TemporaryDirectory() as folder:
        _run("apt-get", "download", "-q", *packages, cwd=Path(folder))
        for archive in sorted(Path(folder).glob("*.deb")):
            _run("dpkg-deb", "-x", str(archive), str(root))
    for name in ("bin", "sbin", "lib", "lib64"):
        old, new = root / name, root / "usr" / name
        new.mkdir(parents=True, exist_ok=True)
        if old.is_dir() and not old.is_symlink():
            shutil.copytree(old, new, symlinks=True, dirs_exist_ok=True)
            shutil.rmtree(old)
        if not old.is_symlink():
            old.symlink_to(f"usr/{name}")


def compile_python(folder: Path) -> None:
    """Compile what lies below `folder`, as a package's installation would; every start would do it again, in memory.

    Only where we run the same Python. Unchecked, because the archive keeps no times to check against.
    """
    if f"python{sys.version_info.major}.{sys.version_info.minor}" == _PYTHON:
        compileall.compile_dir(folder, quiet=2, workers=1, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)


def vmlinux(image: bytes) -> bytes:
    """The ELF kernel inside a bzImage (Linux, Documentation/arch/x86/boot.rst: payload_offset and payload_length).

    Raises:
        InputError: not a bzImage, or compressed in a way that is not known here.
    """
    if image[0x202:0x206] != b"HdrS":
        raise InputError("the kernel is not a bzImage", "use Debian's")
    start = (image[0x1F1] + 1) * 512 + struct.unpack_from("<I", image, 0x248)[0]
    payload = image[start : start + struct.unpack_from("<I", image, 0x24C)[0]]
    if payload[:4] == b"\x7fELF":
        return payload
    if payload[:2] == b"\x1f\x8b":
        return gzip.decompress(payload[:-4])
    if payload[:6] == b"\xfd7zXZ\0":
        return lzma.decompress(payload[:-4])
    if payload[:4] == b"\x02\x21\x4c\x18":
        return lz4_legacy(payload[4:-4])
    raise InputError(f"the kernel's payload begins with {payload[:4].hex()}: an unknown compression", "decompress it by hand to vmlinux")


def lz4_legacy(data: bytes) -> bytes:
    """Blocks of the LZ4 legacy frame, each behind its length (lz4 block format description)."""
    out, at = bytearray(), 0
    while at + 4 <= len(data):
        end = at + 4 + struct.unpack_from("<I", data, at)[0]
        at += 4
        while at < end:
            token = data[at]
            at += 1
            literals = token >> 4
            if literals == 15:
                while True:
                    literals += (more := data[at])
                    at += 1
                    if more != 255:
                        break
            out += data[at : at + literals]
            at += literals
            if at >= end:  # the last sequence has no match
                break
            back = data[at] | data[at + 1] << 8
            at += 2
            length = (token & 15) + 4
            if length == 19:
                while True:
                    length += (more := data[at])
                    at += 1
                    if more != 255:
                        break
            source = len(out) - back
            if back >= length:
                out += out[source : source + length]
            else:  # overlapping: the pattern repeats
                out += (out[source:] * (length // back + 1))[:length]
    return bytes(out)


def cpio(root: Path) -> Iterator[bytes]:
    """`root` as a newc archive owned by root (Linux, Documentation/driver-api/early-userspace/buffer-format.rst)."""

    def entry(number: int, name: str, mode: int, data: bytes) -> bytes:
        encoded = name.encode() + b"\0"
        fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
        return head + bytes(-len(head) % 4) + data + bytes(-len(data) % 4)

    paths = sorted(path for path in root.rglob("*"))
    for number, path in enumerate(paths, 1):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            data = os.readlink(path).encode()
        elif stat.S_ISREG(mode):
            data = path.read_bytes()
        elif stat.S_ISDIR(mode):
            data = b""
        else:
            continue
        yield entry(number, str(path.relative_to(root)), mode & ~0o6000, data)  # nothing set-uid
    yield entry(0, "TRAILER!!!", 0, b"")


def build(folder: Path, extra: tuple[str, ...] = ()) -> tuple[Path, Path]:
    """Write `vmlinux` and `rootfs.cpio` into `folder`, with `extra` packages; their paths. Takes about a minute.

    Raises:
        MissingDependencyError: a Debian program is missing.
        InputError: a package could not be had.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        root, kernel_root = Path(scratch, "root"), Path(scratch, "kernel")
        unpack(closure((*PACKAGES, *extra)), root)
        unpack([name for name in closure((KERNEL,)) if name.startswith("linux-image-")], kernel_root)
        kernel = next(kernel_root.glob("boot/vmlinuz-*"))
        modules = kernel_root / "usr/lib/modules" / kernel.name.removeprefix("vmlinuz-") / "kernel"
        for name in _PRUNED:
            shutil.rmtree(root / name, ignore_errors=True)
        library = root / "usr/lib" / _PYTHON
        for name in _PYTHON_PRUNED:
            shutil.rmtree(library / name, ignore_errors=True)
        compile_python(library)
        (root / "modules").mkdir()
        order = []
        for name in _MODULES:
            if (found := modules / f"{name}.ko").is_file():  # else built in
                shutil.copy(found, root / "modules")
                order.append(found.name)
        (root / "modules/order").write_text("\n".join(order))
        for name in ("proc", "sys", "dev", "tmp", "workspace", "etc", "root", "run", "var/tmp"):
            (root / name).mkdir(parents=True, exist_ok=True)
        (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/workspace:/bin/sh\n")
        (root / "etc/group").write_text("root:x:0:\nnogroup:x:65534:\n")
        (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
        for link, target in (("usr/bin/sh", "dash"), ("usr/bin/awk", "gawk"), ("usr/bin/python3", _PYTHON)):
            if not (root / link).exists() and (root / "usr/bin" / target).exists():
                (root / link).symlink_to(target)
        agent = root / "agent/environments/sandbox/firecracker/guest"
        shutil.copytree(Path(__file__).with_name("guest"), agent, ignore=shutil.ignore_patterns("__pycache__"))
        compile_python(agent)
        (root / "init").write_text(_INIT)
        (root / "init").chmod(0o755)
        paths = folder / KERNEL_NAME, folder / ROOTFS_NAME
        for path, parts in zip(paths, (iter([vmlinux(kernel.read_bytes())]), cpio(root)), strict=True):
            fresh = path.with_suffix(".new")
            with fresh.open("wb") as file:
                file.writelines(parts)
            fresh.replace(path)
    return paths


if __name__ == "__main__":
    kernel_path, rootfs_path = build(Path(sys.argv[1]), tuple(sys.argv[2:]))
    print(f"export NINEFOLD_FC_KERNEL={kernel_path.resolve()} NINEFOLD_FC_ROOTFS={rootfs_path.resolve()}")
