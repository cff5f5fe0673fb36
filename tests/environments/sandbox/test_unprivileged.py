"""The same sandboxes for an ordinary user. As root the test becomes one in a child process first."""

from __future__ import annotations

import os

import pytest

from environments.sandbox import CodePool, ProcessSandbox, bubblewrap

pytestmark = pytest.mark.sandbox

_UID = 54321


def smoke() -> str:
    """What an unprivileged user gets from both kinds of sandbox, as one line."""
    for cached in (bubblewrap.available, bubblewrap.sandbox_python):
        cached.cache_clear()
    if reason := bubblewrap.available():
        return f"not available: {reason}"
    with CodePool(1) as pool:
        outputs = pool.call(
            "import os\ndef solve(n):\n    try:\n        os.fork()\n    except OSError:\n        return n + 1\n", "solve", [[41]]
        ).outputs
    with ProcessSandbox.create() as box:
        box.write("a", b"text")
        said = box.exec(
            ["sh", "-c", "cat a; id -u; ls /home /root 2>/dev/null | wc -l; grep -c 'CapEff:.0000000000000000' /proc/self/status"]
        ).stdout
        box.pause()
        box.resume()
        child = box.fork(1)[0]
        assert isinstance(child, ProcessSandbox)
        forked = child.read("a").decode()
        child.close()
    return f"{outputs} {said.split()} {forked}"


def test_both_sandboxes_work_for_an_ordinary_user() -> None:
    bubblewrap.server_source("exec_server.py")
    bubblewrap.server_source("fork_server.py")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(_UID)
                os.setuid(_UID)
            os.write(write, smoke().encode())
        except BaseException as error:  # noqa: BLE001 - the parent asserts on the text
            os.write(write, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    uid = _UID if os.geteuid() == 0 else os.geteuid()
    assert said == f"[42] ['text{uid}', '0', '1'] text"
