"""The same sandboxes for an ordinary user: every attack, in both modes. As root the test becomes one in a child process first."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from environments.sandbox import CodePool, ProcessBackend, ProcessSandbox, SandboxConfig, bubblewrap
from environments.sandbox.base import Mode
from tests.environments.sandbox.attacks import ATTACKS, run_all

pytestmark = pytest.mark.sandbox

_UID = 54321


def smoke(mode: Mode, folder: Path) -> dict[str, object]:
    """What an unprivileged user gets: the attacks that got through, and what the life cycle gave."""
    for cached in (bubblewrap.available, bubblewrap.sandbox_python, bubblewrap.programs):
        cached.cache_clear()
    backend, config = ProcessBackend(), SandboxConfig(memory_mb=256, workspace_mb=16, processes=32, mode=mode)
    if reason := backend.probe():
        return {"not available": reason}
    with CodePool(1) as pool:
        pooled = pool.call(
            "import os\ndef solve(n):\n    try:\n        os.fork()\n    except OSError:\n        return n + 1\n", "solve", [[41]]
        ).outputs
    with backend.create(config) as box:
        box.write("a", b"text")
        said = box.exec(["sh", "-c", "cat a; id -u; ls /home /root 2>/dev/null | wc -l"]).stdout.split()
        box.python("x = [1]")
        box.pause()
        box.resume()
        child = box.fork(1)[0]
        assert isinstance(child, ProcessSandbox)
        forked = [child.read("a").decode(), child.python("x").stdout]
        child.close()
        snapshot = box.snapshot(folder)
    with backend.create(config, snapshot=snapshot) as again:
        restored = again.python("x").stdout
    through = {name: said for name, said in run_all(backend, config).items() if said}
    return {"pool": pooled, "said": said, "forked": forked, "restored": restored, "through": through}


@pytest.mark.parametrize("mode", ["strict", "forkable"])
def test_for_an_ordinary_user(mode: Mode, tmp_path: Path) -> None:
    for files, _ in bubblewrap.PROGRAMS.values():
        for file in files:
            bubblewrap.server_source(file)
    bubblewrap.server_source("fork_server.py")
    "localhost".encode("idna")  # what is imported late may be out of that user's reach
    folder = Path(f"/tmp/ninefold-test-{os.getpid()}-{mode}")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(_UID)
                os.setuid(_UID)
            os.environ["HOME"] = "/tmp"
            os.write(write, json.dumps(smoke(mode, folder)).encode())
        except BaseException as error:  # noqa: BLE001 - the parent asserts on the text
            os.write(write, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode())
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = json.loads(pipe.read())
    os.waitpid(child, 0)
    uid = str(_UID if os.geteuid() == 0 else os.geteuid())
    assert said == {"pool": [42], "said": [f"text{uid}", "0"], "forked": ["text", "[1]\n"], "restored": "[1]\n", "through": {}}
    assert len(ATTACKS) > 15
