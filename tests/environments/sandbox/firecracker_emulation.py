"""A machine with working KVM, emulated: QEMU's pure software processor with AMD's virtualisation, in which Firecracker runs.

For hosts whose own KVM boots no stock guest. The host system is a Debian kernel with a root in memory: Python, what our
package imports, the binaries and the guest's files. Some thirty times slower than real.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from environments.sandbox.firecracker import Programs
from environments.sandbox.firecracker import rootfs as guest_files

MEMORY_MB = 6000
"""Half of it may hold files, the memory images of the sandboxes among them. Taken from the real machine only as it is used."""
_INIT = """#!/usr/bin/python3 -ISB
import ctypes, os, subprocess, time
libc = ctypes.CDLL(None)
for kind, target in (("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")):
    libc.mount(kind.encode(), target.encode(), kind.encode(), 0, None)
for name in open("/modules/order").read().split():
    fd = os.open(f"/modules/{name}", os.O_RDONLY)
    if libc.syscall(313, fd, b"", 0):
        print("cannot load", name)
environment = {
    "PATH": "/usr/bin", "PYTHONPATH": "/nf/site:/nf/repo", "HOME": "/tmp", "NINEFOLD_FIRECRACKER": "/nf/firecracker",
    "NINEFOLD_FC_KERNEL": "/nf/vmlinux", "NINEFOLD_FC_ROOTFS": "/nf/rootfs.cpio", "NINEFOLD_FC_BOOT_S": "900",
    # A root that was never mounted cannot be pivoted away from, as the jailer does.
    "NINEFOLD_FC_JAILER": "off", "NINEFOLD_FC_BOOT_ARGS": "no_timer_check mitigations=off",
}
done = subprocess.run(["/usr/bin/python3", COMMAND], env=environment, cwd="/nf/repo")
print("host: ended with", done.returncode, flush=True)
time.sleep(0.5)
libc.reboot(0x4321FEDC)
"""


def _imported_packages(repo: Path) -> set[Path]:
    """What using our package takes from the site-packages of this interpreter; some of it is imported by the first request."""
    code = (
        "import contextlib, pathlib, sys, environments.sandbox.firecracker.api as api\n"
        "with contextlib.suppress(api.VmmError): api.Api(pathlib.Path('/nonexistent')).get('/')\n"
        "print('\\n'.join(str(m.__file__) for m in list(sys.modules.values()) if getattr(m, '__file__', None)))"
    )
    site = Path(sysconfig.get_path("purelib"))
    listed = subprocess.run([sys.executable, "-c", code], cwd=repo, stdout=subprocess.PIPE, text=True, check=True).stdout
    found = {site / Path(line).relative_to(site).parts[0] for line in listed.splitlines() if Path(line).is_relative_to(site)}
    return {path for path in found if not path.name.startswith("__editable__")}


def build_host(folder: Path, repo: Path, programs: Programs, kernel: Path, rootfs: Path, command: list[str]) -> Path:
    """The emulated machine's root file system, which runs `python3 COMMAND` in a copy of the repository.

    Raises:
        MissingDependencyError, InputError: Debian's packages cannot be had.
    """
    root, modules = folder / "host", folder / "kernel"
    guest_files.unpack(guest_files.closure(("python3", "coreutils", "procps")), root)
    release = re.search(rb"Linux version (\S+)", kernel.read_bytes())
    assert release is not None
    guest_files.unpack([f"linux-image-{release[1].decode()}"], modules)
    for name in ("usr/share", "var/lib"):
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("proc", "sys", "dev", "tmp", "var/tmp", "etc", "modules", "nf/site"):
        (root / name).mkdir(parents=True, exist_ok=True)
    order = []
    for wanted in ("irqbypass", "ccp", "kvm", "kvm-amd"):
        for module in modules.glob(f"usr/lib/modules/*/kernel/**/{wanted}.ko"):
            shutil.copy(module, root / "modules")
            order.append(module.name)
    (root / "modules/order").write_text("\n".join(order))
    skipped = shutil.ignore_patterns("__pycache__")
    for package in _imported_packages(repo):
        if package.is_dir():
            shutil.copytree(package, root / "nf/site" / package.name, ignore=skipped)
        else:
            shutil.copy(package, root / "nf/site")
    for name in ("environments", "tests/environments/sandbox"):
        shutil.copytree(repo / name, root / "nf/repo" / name, ignore=skipped)
    guest_files.compile_python(root / "usr/lib/python3.11")
    guest_files.compile_python(root / "nf")
    shutil.copy(programs.firecracker, root / "nf/firecracker")
    shutil.copy(kernel, root / "nf/vmlinux")
    shutil.copy(rootfs, root / "nf/rootfs.cpio")
    (root / "init").write_text(_INIT.replace("COMMAND", ", ".join(map(repr, command))))
    (root / "init").chmod(0o755)
    archive = folder / "host.cpio"
    with archive.open("wb") as file:
        file.writelines(guest_files.cpio(root))
    shutil.rmtree(root)
    shutil.rmtree(modules)
    return archive


def run_host(archive: Path, kernel: Path, limit_s: float) -> str:
    """Boot it and return what its console said until its end; it is killed at the limit."""
    # Without the first two arguments the kernel waits for timer interrupts that an emulated machine never delivers in time.
    arguments = "no_timer_check tsc_early_khz=2000000 console=ttyS0 quiet panic=-1 mitigations=off"
    machine = ["-machine", "q35", "-cpu", "EPYC", "-accel", "tcg,thread=multi", "-smp", "1", "-m", str(MEMORY_MB)]
    devices = ["-nodefaults", "-display", "none", "-serial", "stdio", "-no-reboot"]
    system = ["-kernel", str(kernel), "-initrd", str(archive), "-append", arguments]
    console = archive.with_suffix(".log")
    with (
        console.open("wb") as log,
        subprocess.Popen(
            ["qemu-system-x86_64", *machine, *devices, *system], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.DEVNULL
        ) as process,
    ):
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
    return console.read_text(errors="replace")
