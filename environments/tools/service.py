"""The tool service: code inside a sandbox calls the task's tools, as functions of its interpreter or as commands.

The host answers on a port of the sandbox's own loopback, JSON lines both ways. Such a call is validated, executed and
recorded like a direct one (programmatic tool calls, as in DeepSeek's public harness).
"""

from __future__ import annotations

import contextlib
import json
import shlex
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from environments.environment import Answer, OnCall
from environments.errors import AgentError, InfrastructureError, SandboxError
from environments.protocols import Observation
from environments.sandbox.base import Sandbox
from environments.task import ToolCall, ToolSpec

PORT = 7999
"""Of the service, on the sandbox's loopback: above the ports that need rights, below those that programs pick."""
FOLDER = "/tmp/.ninefold-tools"
"""Where the commands lie inside; `PRELUDE` puts them on PATH."""
PRELUDE = f"{FOLDER}/prelude.sh"

_REQUEST_BYTES = 4 << 20
_CONNECTIONS = 16
_IDLE_S = 60.0
_CALLS = 10_000
"""Calls of one episode; more are refused unrecorded, so that a loop cannot fill the trace."""

# Builtins come before PATH: where a tool has such a name, options still go to the builtin.
_BUILTIN = (
    "{name}() {{ if [[ $# -eq 0 || ( $1 == [-+]* && $1 != --?* ) ]]; "
    'then builtin {name} "$@"; else command {folder}/bin/{name} "$@"; fi; }}'
)


@cache
def client_source() -> str:
    """The program that runs inside."""
    return Path(__file__).with_name("inside_client.py").read_text()


class ToolService:
    """Answers calls from inside until closed. It holds `step` weakly: an environment that is dropped takes its service along."""

    def __init__(self, listener: socket.socket, step: Callable[[ToolCall], Answer], on_call: Callable[[], OnCall | None]) -> None:
        """
        Args:
            listener: of `Sandbox.serve`; the service owns it from now on.
            step: a bound method that executes a call, raising AgentError or InfrastructureError.
            on_call: a bound method that says who hears of calls.
        """
        self.failure: InfrastructureError | None = None
        """A machine part that failed during a call; the episode cannot go on."""
        self._listener = listener
        self._step = weakref.WeakMethod(step)
        self._on_call = weakref.WeakMethod(on_call)
        self._lock = threading.Lock()
        self._calls = 0
        self._closed = False
        self._places = threading.BoundedSemaphore(_CONNECTIONS)
        threading.Thread(target=_accept, args=(listener, weakref.ref(self), self._places), name="tool-service", daemon=True).start()

    def close(self) -> None:
        """Stop answering, after the call that is being executed. May be called again."""
        with self._lock:
            self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts; it closes the socket

    def answer(self, line: bytes) -> dict[str, Any]:
        """Execute one request and describe its outcome."""
        try:
            request = json.loads(line)
            call = ToolCall(tool=request["tool"], arguments=request.get("arguments", {}), malformed=request.get("malformed", ""))
        except (ValueError, KeyError, TypeError, RecursionError):
            return _described("error: the request is no JSON object of tool and arguments", "MalformedCallError")
        with self._lock:  # one at a time, and heard of in the order executed
            step = self._step()
            if self._closed or step is None:
                return _described("error: the episode is over", "AgentError")
            if self._calls >= _CALLS:
                return _described(f"error: all {_CALLS} calls from inside the sandbox are used", "AgentError")
            self._calls += 1
            error = ""
            try:
                answer: Answer = step(call)
            except AgentError as refused:
                answer, error = f"error: {refused}", type(refused).__name__
            except InfrastructureError as broken:
                self.failure = broken
                return _described("error: the machine failed", "InfrastructureError")
            hears = self._on_call()
            if hears is not None and (callback := hears()) is not None:
                callback(call, answer, error)
        return _described(answer, error)


def _described(answer: Answer, error: str) -> dict[str, Any]:
    seen = answer if isinstance(answer, Observation) else Observation(answer)
    return {"text": seen.text, "error": error, "failed": seen.failed, "images": [image.data for image in seen.images]}


def _accept(listener: socket.socket, service: weakref.ref[ToolService], places: threading.BoundedSemaphore) -> None:
    with listener:
        listener.settimeout(5.0)  # now and then, see whether anybody still owns the service
        while (owner := service()) is not None and not owner._closed:
            del owner
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            places.acquire()
            threading.Thread(target=_converse, args=(connection, service, places), name="tool-call", daemon=True).start()


def _converse(connection: socket.socket, service: weakref.ref[ToolService], places: threading.BoundedSemaphore) -> None:
    try:
        with connection, connection.makefile("rwb") as stream:
            connection.settimeout(_IDLE_S)
            while line := stream.readline(_REQUEST_BYTES + 1):
                owner = service()
                if owner is None:
                    return
                if len(line) > _REQUEST_BYTES:
                    answer = _described(f"error: a request holds {_REQUEST_BYTES} bytes at most", "BadArgumentsError")
                else:
                    answer = owner.answer(line)
                del owner
                stream.write(json.dumps(answer).encode() + b"\n")
                stream.flush()
                if len(line) > _REQUEST_BYTES:
                    return
    except OSError:  # the caller was killed or fell silent
        pass
    finally:
        places.release()


def _declared(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    return [tool.model_dump(mode="json") for tool in tools]


def install_commands(sandbox: Sandbox, tools: Sequence[ToolSpec]) -> None:
    """Make every tool a command in the sandbox, and `tool NAME ...` one for all.

    Raises:
        SandboxError: it has no shell or no Python, or died.
    """
    start = f"import sys; sys.path.insert(0, {FOLDER!r}); import tools_client; tools_client.main()"

    def launcher(name: str, offered: Sequence[ToolSpec], *words: str) -> str:
        rest = shlex.join(["-I", "-S", "-c", start, str(PORT), json.dumps(_declared(offered)), *words])
        return f"launcher {shlex.quote(name)} {shlex.quote(rest)}"

    launchers = "\n".join([launcher("tool", tools), *(launcher(tool.name, [tool], tool.name) for tool in tools)])
    builtin = "\n".join(_BUILTIN.format(name=tool.name, folder=FOLDER) for tool in tools)
    script = f"""set -e
mkdir -p {FOLDER}/bin
cat > {FOLDER}/tools_client.py
python=$(command -v python3 || command -v python)
launcher() {{
  printf '#!/bin/sh\\nexec %s %s "$@"\\n' "$python" "$2" > {FOLDER}/bin/"$1"
  chmod 755 {FOLDER}/bin/"$1"
}}
{launchers}
echo 'case ":$PATH:" in *:{FOLDER}/bin:*) ;; *) export PATH={FOLDER}/bin:"$PATH";; esac' > {FOLDER}/prelude.new
while IFS= read -r line; do
  name=${{line%%(*}}
  if [ "$(type -t "$name")" = builtin ]; then printf '%s\\n' "$line" >> {FOLDER}/prelude.new; fi
done <<'END'
{builtin}
END
mv {FOLDER}/prelude.new {PRELUDE}
"""
    done = sandbox.exec(["bash", "-c", script], stdin=client_source(), timeout_s=20.0)
    if done.exit_code != 0:
        raise SandboxError(
            f"the tools could not be made commands: {(done.stderr or done.stdout)[-300:]!r}", "use an image with bash and Python"
        )


def interpreter_cell(tools: Sequence[ToolSpec], take_builtins: bool) -> str:
    """A cell that makes every tool a function, once in an interpreter's life."""
    arguments = f"{PORT}, {_declared(tools)!r}, {take_builtins}"
    return (
        "if not hasattr(__import__('sys').modules.get('tools'), 'ToolError'):\n"
        f"    __client = {{'__name__': 'tools_client'}}\n"
        f"    exec({client_source()!r}, __client)\n"
        f"    __client['install'](globals(), {arguments})\n"
        "    del __client\n"
    )
