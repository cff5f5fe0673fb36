"""Self-test of a task's environment: is the solution, or a copy of the package, anywhere that an agent can read?

Looked for in a sandbox made as the agent's: an importable copy of the package, its documentation, and the fix's own lines in
any file (also as constants in byte code, which keeps strings as they are) where packages, caches and documents lie.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from environments.errors import SandboxError
from environments.sandbox.base import Backend, SandboxConfig
from tasks.repository.candidate import Candidate
from tasks.repository.tree import text_of

MIN_CHARS = 24
"""Shorter lines (`return None`) occur everywhere and tell nothing."""
MAX_LINES = 60
PLACES = (
    "/workspace",
    "/opt",
    "/usr/lib/python3",
    "/usr/local/lib",
    "/usr/share/doc",
    "/usr/share/python3",
    "/var",
    "/tmp",
    "/home",
    "/etc",
)

_SEARCH = r"""
import importlib.metadata, importlib.util, json, os, site, sys, sysconfig
request = json.loads(sys.stdin.buffer.read())
found = []
outside = [p for p in sys.path if p and not p.startswith("/workspace")]
sys.path[:] = outside
for name in request["names"]:
    try:
        spec = importlib.util.find_spec(name)
    except Exception:
        spec = None
    if spec is not None:
        found.append("an installed copy of %s: %s" % (name, spec.origin))
lines = [line.encode() for line in request["lines"]]
places = dict.fromkeys([*request["places"], *outside, *site.getsitepackages(), sysconfig.get_path("purelib")])
seen = set()
for place in places:
    for folder, folders, files in os.walk(place):
        folders[:] = sorted(f for f in folders if os.path.join(folder, f) not in seen)
        seen.update(os.path.join(folder, f) for f in folders)
        for file in sorted(files):
            path = os.path.join(folder, file)
            try:
                if os.path.getsize(path) > 8 << 20 or not os.path.isfile(path):
                    continue
                with open(path, "rb") as stream:
                    data = stream.read()
            except OSError:
                continue
            hits = [line for line in lines if line in data]
            if len(hits) >= request["least"]:
                found.append("%d lines of the fix in %s" % (len(hits), path))
            if len(found) >= 20:
                break
print(json.dumps(found))
"""


def telling_lines(candidate: Candidate) -> list[str]:
    """Lines of the fix that stand nowhere in the package before it, longest first; those long enough to be its own, if there are any."""
    old = "\n".join(text_of(data) or "" for path, data in candidate.before.items() if candidate.layout.holds(path))
    new = sorted((line for line in candidate.added_lines if line not in old), key=len, reverse=True)
    return [line for line in new if len(line) >= MIN_CHARS][:MAX_LINES] or [line for line in new if len(line) >= 8][:MAX_LINES]


def find_leaks(backend: Backend, config: SandboxConfig, view: Mapping[str, str], candidate: Candidate, names: Sequence[str]) -> list[str]:
    """What gives the solution away in an agent's sandbox with its files; empty when nothing does. Some seconds.

    Raises:
        SandboxError: the sandbox failed, or the search in it did not end.
    """
    lines = telling_lines(candidate)
    # One line alone may be said elsewhere by chance; a fix of one line has no second.
    request = {"names": list(names), "lines": lines, "places": PLACES, "least": min(2, max(1, len(lines)))}
    with backend.create(config) as box:
        for path, text in view.items():
            box.write(path, text.encode())
        done = box.exec(["python3", "-s", "-P", "-c", _SEARCH], stdin=json.dumps(request), timeout_s=300)
    try:
        found: list[str] = json.loads(done.stdout)
    except ValueError as error:
        raise SandboxError(f"the search for leaks did not end: {done.stderr[-200:]}", "run the build again") from error
    return found
