"""Commands over envd's process service: following one to its end, feeding it, and killing all that it started."""

from __future__ import annotations

import base64
import contextlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from environments.errors import ConfigError, SandboxError
from environments.sandbox.base import OnOutput, Stream
from environments.sandbox.remote.client import E2BClient, Target
from environments.sandbox.remote.wire import WireError

log = logging.getLogger(__name__)

GRACE_S = 20.0
"""How long a command may go on beyond its own limit before we hang up and kill it ourselves."""
MARK = "NINEFOLD_EXEC"
"""Set for each command: everything that it starts carries the value, and is found by it, whatever session it moves to."""
_CHUNK = 1 << 18
_STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")
_KILL = """i=0
while [ $i -lt 50 ]; do
  found=$(grep -lsa -- "$1" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3)
  [ -z "$found" ] && exit 0
  kill -9 $found 2>/dev/null
  i=$((i+1))
done"""
_SIGNALS = {
    "hangup": 1,
    "interrupt": 2,
    "quit": 3,
    "illegal instruction": 4,
    "aborted": 6,
    "bus error": 7,
    "floating point exception": 8,
    "killed": 9,
    "segmentation fault": 11,
    "broken pipe": 13,
    "terminated": 15,
}
"""Go's names of signals, in which envd says how a command ended."""


class Output:
    """What a command has said so far, of each stream up to a cap in bytes."""

    def __init__(self, cap: int, on_output: OnOutput | None = None) -> None:
        self._cap, self._on_output = cap, on_output
        self.kept: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self.truncated = False
        self.exit_code: int | None = None
        """None until it ended; minus the signal's number if one ended it."""

    def text(self, stream: Stream) -> str:
        return self.kept[stream].decode(errors="replace")

    def take(self, message: Mapping[str, Any]) -> int | None:
        """One event of the stream; the process's id, when this is its start.

        Raises:
            WireError: it is no event of a process.
        """
        try:
            event = message.get("event") or {}
            if "start" in event:
                return int(event["start"].get("pid", 0))
            pieces = {stream: base64.b64decode(data) for stream in _STREAMS if (data := (event.get("data") or {}).get(stream))}
            if "end" in event:
                end = event["end"]
                code = int(end.get("exitCode", 0))
                if code == -1:  # envd's for any signal
                    code = -_SIGNALS.get(str(end.get("status", "")).removeprefix("signal: ").split(" (")[0], 1)
                self.exit_code = code
                self.truncated = self.truncated or bool(end.get("truncated"))
        except (ValueError, TypeError, AttributeError):
            raise WireError("internal", f"no event of a process: {message!r:.200}") from None
        for stream, chunk in pieces.items():
            room = max(0, self._cap - len(self.kept[stream]))
            self.truncated = self.truncated or len(chunk) > room
            self.kept[stream] += chunk[:room]
            if self._on_output is not None:
                self._on_output(stream, chunk)
        return None


def shell(script: str, *arguments: str) -> dict[str, Any]:
    """A script as envd's process configuration, outside the workspace and without variables."""
    return {"cmd": "/bin/sh", "args": ["-c", script, "sh", *arguments], "envs": {}, "cwd": "/"}


def wrapped(argv: Sequence[str]) -> list[str]:
    """A command that does not exist then ends with 127 like everywhere; envd would refuse it."""
    return ["/bin/sh", "-c", 'exec "$@"', "sh", *argv]


def follow(
    client: E2BClient,
    target: Target,
    process: Mapping[str, Any],
    stdin: bytes,
    timeout_s: float,
    output: Output,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Run a command to its end.

    Raises:
        WireError: `deadline_exceeded` at its timeout; others as the sandbox says.
        SandboxError: the server is dead, or broke off.
    """
    deadline = time.monotonic() + timeout_s + GRACE_S
    message = {"process": process, "stdin": bool(stdin)}
    started = False
    try:
        with contextlib.closing(client.stream(target, "process.Process/Start", message, timeout_s, headers)) as events:
            for event in events:
                pid = output.take(event)
                started = started or pid is not None
                if pid is not None and stdin:
                    threading.Thread(target=_feed, args=(client, target, pid, stdin), daemon=True).start()
                if time.monotonic() > deadline and output.exit_code is None:
                    raise WireError("deadline_exceeded", "the server did not end it")
    except WireError as error:
        if started and error.code == "unavailable":  # `unavailable` before the start can be repeated, this cannot
            raise SandboxError(f"sandbox {target.sandbox_id} was lost while it ran a command: {error.message}", "create another") from None
        raise
    if output.exit_code is None:
        raise SandboxError(f"{client.where} ended a command of sandbox {target.sandbox_id} without its status", "try again")


def kill(client: E2BClient, target: Target, mark: str) -> None:
    """Kill everything that carries the mark."""
    follow(client, target, shell(_KILL, f"{MARK}={mark}"), b"", GRACE_S, Output(0))


def _feed(client: E2BClient, target: Target, pid: int, stdin: bytes) -> None:
    """Send standard input, beside the reading of output: either may fill up and wait for the other."""
    selector = {"pid": pid}
    try:
        for start in range(0, len(stdin), _CHUNK):
            message = {"process": selector, "input": {"stdin": base64.b64encode(stdin[start : start + _CHUNK]).decode()}}
            client.rpc(target, "process.Process/SendInput", message, repeatable=False)
        client.rpc(target, "process.Process/CloseStdin", {"process": selector})
    except (WireError, SandboxError, ConfigError) as error:
        log.debug("a command of %s did not take its input to the end: %s", target.sandbox_id, error)
