"""What sandboxes cost: life cycle and state on every backend that works on this machine, beside a plain subprocess.

    python benchmarks/sandbox.py --idle 1000 --cycles 10000

Times are medians in milliseconds. Fork and checkpoint are measured with 10, 200 and 1,000 MB of incompressible state in the
memory of the sandbox's interpreter. The process backend forks in its `forkable` mode, under that mode's final filter; all its
other figures are of the strict mode. `idle_mb` is what a further idle sandbox takes of the machine's available memory. `leaks`
counts what is left after `--cycles` sandboxes of the process backend were made and killed: descriptors, processes, mounts,
temporary files, cgroups. Prints one JSON object as its last line. For comparison, published figures of AgentENV
(github.com/kvcache-ai/AgentENV): checkpoint 133 ms, resume 49 ms.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from environments.errors import SandboxError, UnsupportedError
from environments.sandbox.backends import backend
from environments.sandbox.base import Backend, Sandbox, SandboxConfig

SIZES_MB = (10, 200, 1000)
LOCAL = ("process", "gvisor", "firecracker")


def p50(action: Callable[[], Any], count: int) -> float:
    """Median milliseconds of `count` runs."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        action()
        times.append(1000 * (time.perf_counter() - started))
    return round(statistics.median(times), 3)


@contextmanager
def made(maker: Backend, **settings: Any) -> Iterator[Sandbox]:
    box = maker.create(SandboxConfig(**settings))
    try:
        yield box
    finally:
        box.close()


def life_cycle(maker: Backend, count: int) -> dict[str, Any]:
    """Create, exec, pause and resume."""
    out: dict[str, Any] = {}
    boxes: list[Sandbox] = []
    out["create_ms"] = p50(lambda: boxes.append(maker.create()), count)
    for box in boxes[1:]:
        box.close()
    box = boxes[0]
    out["exec_ms"] = p50(lambda: box.exec(["/bin/true"]), 5 * count)
    if box.capabilities().pause != "none":
        pauses, resumes = [], []
        for _ in range(count):
            pauses.append(p50(box.pause, 1))
            resumes.append(p50(box.resume, 1))
        out["pause_ms"], out["resume_ms"] = statistics.median(pauses), statistics.median(resumes)
    box.close()
    return out


def with_state(maker: Backend, size_mb: int, count: int, mode: str) -> dict[str, float]:
    """Fork and checkpoint of a sandbox whose interpreter holds `size_mb`."""
    out: dict[str, float] = {}
    settings: dict[str, Any] = {"memory_mb": 2 * size_mb + 400, "workspace_mb": size_mb + 200, "mode": mode, "read_mb": size_mb + 200}
    with made(maker, **settings) as box, tempfile.TemporaryDirectory() as folder:
        held = box.python(f"import os\nstate = b''.join(os.urandom(1 << 20) for _ in range({size_mb}))\nlen(state)", timeout_s=120)
        assert str(size_mb << 20) in held.stdout, held.error or held.stdout
        can = box.capabilities()
        if can.fork != "none":
            children: list[Any] = []
            times = []
            for _ in range(count):
                times.append(p50(lambda: children.extend(box.fork(1)), 1))
                child = children.pop()
                if isinstance(child, SandboxError):
                    raise child
                assert str(size_mb << 20) in child.python("len(state)", timeout_s=60).stdout
                child.close()
            out["fork_ms"] = round(statistics.median(times), 3)
        if can.snapshot != "none" and mode == "strict":
            out["checkpoint_ms"] = p50(lambda: box.snapshot(Path(folder)), max(1, count // 2))
    return out


def available_mb() -> float:
    return psutil.virtual_memory().available / 2**20


def idle_mb(maker: Backend, count: int) -> float:
    """Memory that a further idle sandbox takes."""
    first = maker.create()  # what all share is there
    before = available_mb()
    boxes = [maker.create() for _ in range(count)]
    time.sleep(1.0)
    used = (before - available_mb()) / count
    for box in [first, *boxes]:
        box.close()
    return round(used, 2)


def plain(count: int) -> dict[str, Any]:
    """The same of a subprocess without any isolation."""
    started: list[subprocess.Popen[bytes]] = []
    create = p50(lambda: started.append(subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])), count)
    process = started[0]

    def spawn() -> None:
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)

    pause = p50(lambda: process.send_signal(signal.SIGSTOP), count)
    resume = p50(lambda: process.send_signal(signal.SIGCONT), count)
    for p in started:
        p.kill()
        p.wait()
    return {
        "create_ms": create,
        "exec_ms": p50(lambda: subprocess.run(["/bin/true"], capture_output=True), 5 * count),
        "spawn_ms": p50(spawn, 5 * count),  # what no exec can go below: vfork, exec, wait
        "pause_ms": pause,
        "resume_ms": resume,
    }


def traces_left() -> dict[str, int]:
    """What this process and its sandboxes hold of the machine."""
    cgroups = 0
    for root in Path("/sys/fs/cgroup").glob("*"):
        with contextlib.suppress(OSError):
            cgroups += sum(1 for path in root.rglob("*ninefold*") if path.is_dir())
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "processes": len(psutil.Process().children(recursive=True)),
        "mounts": len(Path("/proc/self/mountinfo").read_text().splitlines()),
        "temporary_files": len(os.listdir(tempfile.gettempdir())),
        "cgroups": cgroups,
    }


def leaks(maker: Backend, cycles: int) -> dict[str, int]:
    """What is more after `cycles` sandboxes than after the first ones."""
    for _ in range(3):
        maker.create().close()
    before = traces_left()
    for i in range(cycles):
        box = maker.create()
        if i % 2:
            box.exec(["/bin/sh", "-c", "echo x > f; sleep 100 &"])
        box.close()
    after = traces_left()
    return {name: max(0, after[name] - before[name]) for name in before}


def measure(name: str, count: int, idle: int) -> dict[str, Any] | str:
    """Figures of one backend; the reason where it does not work here."""
    maker = backend(name)
    if reason := maker.probe():
        return reason
    out = life_cycle(maker, count)
    for size in SIZES_MB:
        modes = ["strict"]
        if maker.capabilities(SandboxConfig(mode="forkable")).fork == "interpreter":
            modes.append("forkable")
        for mode in modes:
            try:
                found = with_state(maker, size, max(3, count // 4), mode)
            except (SandboxError, UnsupportedError) as error:
                print(f"{name}, {size} MB, {mode}: {error}", file=sys.stderr)
                continue
            for key, value in found.items():  # the forkable mode comes last: its fork is the one that counts
                out.setdefault(key, {})[str(size)] = value
        print(f"{name}, {size} MB: {out.get('fork_ms')} {out.get('checkpoint_ms')}", file=sys.stderr)
    out["idle_mb"] = idle_mb(maker, idle)
    return out


def bare_machine(count: int) -> dict[str, Any] | str:
    """Firecracker's life cycle with a guest of a few hundred bytes, for machines that boot no stock guest: 128 MB, 10 MB dirtied.

    `create_ms` is to the guest's first byte, `fork_ms` of a machine that has dirtied 10 MB, `checkpoint_ms` an incremental one.
    """
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from environments.sandbox.firecracker.machine import GuestConfig, Machine
    from environments.sandbox.firecracker.vmm import Programs
    from tests.environments.sandbox.bare_guest import write_guest

    programs = Programs.find()
    if programs is None or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "no firecracker or no /dev/kvm"
    times: dict[str, list[float]] = {"create": [], "pause": [], "resume": [], "fork": [], "checkpoint": []}
    with tempfile.TemporaryDirectory() as folder:
        guest = GuestConfig(write_guest(Path(folder) / "kernel"), memory_mb=128)
        for i in range(count):
            started = time.perf_counter()
            machine = Machine.boot(programs, guest)
            assert machine.vmm.line(20) == "R"
            times["create"].append(1000 * (time.perf_counter() - started))
            times["pause"].append(p50(machine.pause, 1))
            times["resume"].append(p50(machine.resume, 1))
            base, diff = Path(folder) / f"base{i}", Path(folder) / f"diff{i}"
            base.mkdir()
            diff.mkdir()
            machine.snapshot(base, "full")
            machine.vmm.send("idj")
            assert machine.vmm.line(20) == "D"  # 2,560 pages
            times["checkpoint"].append(p50(lambda machine=machine, diff=diff: machine.snapshot(diff), 1))
            machine.vmm.send("idj")
            assert machine.vmm.line(20) == "D"
            children: list[Any] = []
            times["fork"].append(p50(lambda machine=machine, children=children: children.extend(machine.fork(1)), 1))
            for child in children:
                child.kill()
            machine.kill()
    middle = {name: round(statistics.median(values), 3) for name, values in times.items()}
    return {
        "create_ms": middle["create"],
        "pause_ms": middle["pause"],
        "resume_ms": middle["resume"],
        "fork_ms": {"10": middle["fork"]},
        "checkpoint_ms": {"10": middle["checkpoint"]},
        "guest": "bare metal, 128 MB",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20, help="repetitions of each measurement")
    parser.add_argument("--idle", type=int, default=30, help="idle sandboxes for the memory of one")
    parser.add_argument("--cycles", type=int, default=1000, help="sandboxes to make and kill for the leak count")
    parser.add_argument("--backends", nargs="*", default=LOCAL)
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a sandbox takes three descriptors
    figures: dict[str, Any] = {"subprocess": plain(options.count)}
    missing: dict[str, str] = {}
    for name in options.backends:
        found = measure(name, options.count, options.idle if name == "process" else min(options.idle, 5))
        if isinstance(found, str):
            missing[name] = found.replace(f"{Path.cwd()}/", "")
            found = bare_machine(options.count) if name == "firecracker" else found
        if not isinstance(found, str):
            figures[name] = found
        print(f"{name}: {found}", file=sys.stderr)
    left = leaks(backend("process"), options.cycles)
    report = {
        "backends": figures,
        "leaks": left,
        "cycles": options.cycles,
        "missing": missing,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Linux {platform.release()}",
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
