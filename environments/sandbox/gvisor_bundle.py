"""What a gVisor sandbox consists of: an OCI bundle with a read-only root, three file systems in memory, and process 1's program."""

from __future__ import annotations

import ast
import importlib.util
import json
import marshal
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from environments.errors import UnsupportedError
from environments.sandbox.base import SandboxConfig
from environments.sandbox.bubblewrap import NOBODY, sandbox_python, server_source
from environments.sandbox.gvisor_area import hand_over

_OWN_MB = 256
"""Process 1, its children, and what fragments."""
_ROOT_FOLDERS = ("bin", "lib", "lib32", "lib64", "sbin", "usr")
_OWN_FOLDERS = frozenset({"dev", "proc", "sys", "tmp", "workspace"})
_CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"]
"""Of process 1 inside. They count for nothing outside."""


def binds(config: SandboxConfig) -> tuple[dict[str, str], dict[str, str]]:
    """(destination -> folder of the host, link -> its target) of a sandbox's read-only root."""
    folders: dict[str, str] = {}
    links: dict[str, str] = {}

    def add(root: Path, names: Sequence[str]) -> None:
        for name in names:
            path = root / name
            if path.is_symlink():
                links[name] = os.readlink(path)
                folders.pop(name, None)
            elif path.is_dir():
                folders[name] = str(path)
                links.pop(name, None)

    add(Path("/"), _ROOT_FOLDERS)
    if config.image is not None:
        if not config.image.is_dir():
            raise UnsupportedError(f"image {config.image} is not a folder", "build it with environments.sandbox.images")
        add(config.image, sorted(set(os.listdir(config.image)) - _OWN_FOLDERS))
    if config.image is None or not (config.image / "usr").is_dir():
        _, prefix = sandbox_python()
        if prefix:
            folders[prefix.lstrip("/")] = prefix
    return folders, links


def inner_python(config: SandboxConfig) -> str:
    """The interpreter's path inside; process 1 is a Python program."""
    if config.image is None or not (config.image / "usr").is_dir():
        return sandbox_python()[0]
    for name in ("usr/local/bin/python3", "usr/bin/python3"):
        if os.path.lexists(config.image / name):
            return f"/{name}"
    raise UnsupportedError(f"image {config.image} has a /usr without python3", "add python3 to the image: the sandbox's process 1 needs it")


_PROGRAM = ("wire.py", "gvisor_link.py", "gvisor_processes.py", "gvisor_agent.py")
_BOOTSTRAP = """
import sys, marshal, os
def take(size):
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk: os._exit(0)
        data += chunk
    return data
program = marshal.loads(take(int.from_bytes(take(4), "big")))
if program["magic"] != sys.modules["_frozen_importlib_external"].MAGIC_NUMBER:
    program["agent"] = program["interpreter"] = None
exec(marshal.loads(program["agent"]) if program["agent"] else compile(program["agent_text"], "agent", "exec"))
programs.update(program)
agent_main()
"""
"""Process 1's command: it takes its program from the host, compiled if both are of the same Python. Compiling takes 50 ms inside."""


def _joined(*names: str) -> str:
    """One program from the texts of several modules, without their imports of each other."""
    nodes: list[ast.stmt] = []
    for name in names:
        tree = ast.parse(server_source(name))
        nodes += [
            node
            for node in tree.body
            if not (isinstance(node, ast.ImportFrom) and str(node.module).startswith(("__future__", "environments.")))
        ]
    return "from __future__ import annotations\n" + ast.unparse(ast.Module(nodes, []))


@cache
def programs() -> bytes:
    """What runs inside, for `_BOOTSTRAP`."""
    agent, interpreter = _joined(*_PROGRAM), _joined("wire.py", "interpreter.py") + "\nmain()"
    return marshal.dumps(
        {
            "magic": importlib.util.MAGIC_NUMBER,
            "agent": marshal.dumps(compile(agent, "agent", "exec", dont_inherit=True)),
            "agent_text": agent,
            "interpreter": marshal.dumps(compile(interpreter, "interpreter", "exec", dont_inherit=True)),
            "interpreter_text": interpreter,
        },
        2,
    )


def hard_limit_gib(config: SandboxConfig) -> int:
    """All memory of a sandbox is one file of its kernel, which grows by a GiB at a time; beyond this size the sandbox ends."""
    return -(-(config.memory_mb + 3 * config.workspace_mb + _OWN_MB) // 1024)


def bundle(folder: Path, config: SandboxConfig) -> None:
    """Write an OCI bundle, and the folder of runsc's state."""
    folders, links = binds(config)
    root = folder / "rootfs"
    for name in (*_OWN_FOLDERS, "etc", *folders):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name, target in links.items():
        (root / name).symlink_to(target)
    size = f"size={config.workspace_mb << 20}"
    mounts: list[dict[str, Any]] = [{"destination": "/proc", "type": "proc", "source": "proc"}]
    mounts += [
        {"destination": f"/{name}", "type": "bind", "source": path, "options": ["rbind", "ro", "nosuid", "nodev"]}
        for name, path in folders.items()
    ]
    for place, mode in (("/workspace", f"mode=0755,uid={NOBODY},gid={NOBODY}"), ("/tmp", "mode=1777"), ("/dev/shm", "mode=1777")):
        mounts.append({"destination": place, "type": "tmpfs", "source": "tmpfs", "options": [size, *mode.split(","), "nosuid", "nodev"]})
    spec = {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "root": {"path": "rootfs", "readonly": True},
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": [inner_python(config), "-I", "-S", "-c", _BOOTSTRAP],
            "env": ["PATH=/usr/local/bin:/usr/bin:/bin"],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES),
            "noNewPrivileges": True,
        },
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")]},
    }
    (folder / "config.json").write_text(json.dumps(spec))
    (folder / "state").mkdir()
    for path in (folder / "config.json", folder / "state", root, *root.rglob("*")):
        hand_over(path)
