"""The process service of our E2B server: commands of one sandbox, and whoever listens to them.

Where the sandbox offers services and has Python, commands run side by side under a `runner` inside. Elsewhere each is one operation of the
sandbox: they wait for one another, get their standard input whole, and only their timeouts end them.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import posixpath
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from environments.errors import BadArgumentsError, NinefoldError, SandboxError
from environments.sandbox.base import WORKSPACE, ExecResult, Stream
from environments.sandbox.remote.boxes import Box, Boxes
from environments.sandbox.remote.control import Runner
from environments.sandbox.remote.inside import Inside, NoPythonError, Wire
from environments.sandbox.remote.wire import KEEPALIVE_HEADER, MAX_MESSAGE, STREAM_JSON, TIMEOUT_HEADER, WireError, end_of_stream, envelope

_LONGEST_S = 24 * 3600.0
"""For a command or cell without a timeout of its own."""
_SILENCE_S = 90.0
"""Between keep-alives, where the client names no interval."""
_SIGNALS = {"SIGNAL_SIGKILL": 9, "SIGNAL_SIGTERM": 15, 9: 9, 15: 15}
_STREAMS: tuple[Stream, Stream] = ("stdout", "stderr")


@dataclass(eq=False)
class Command:
    """A command that runs."""

    box_id: str
    pid: int
    argv: list[str]
    env: Mapping[str, str]
    cwd: str
    takes_input: bool
    timeout_s: float
    config: Mapping[str, Any]
    """As the client wrote it."""
    tag: str | None = None
    listeners: list[asyncio.Queue[bytes | None]] = field(default_factory=list)
    stdin: bytearray = field(default_factory=bytearray)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Its standard input is complete."""
    link: asyncio.StreamWriter | None = None
    """To the runner inside; None while the command is an operation of the sandbox."""

    def listen(self) -> asyncio.Queue[bytes | None]:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(64)
        self.listeners.append(queue)
        return queue

    async def say(self, message: bytes | None) -> None:
        """To every listener; waits for slow ones, not for those who left. None ends the stream."""
        for queue in list(self.listeners):
            while queue in self.listeners:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(queue.put(message), 0.5)
                    break

    async def tell(self, message: Mapping[str, Any]) -> None:
        """To the runner inside."""
        assert self.link is not None
        with contextlib.suppress(OSError):
            self.link.write(json.dumps(message).encode() + b"\n")
            await self.link.drain()


class Processes:
    """Handlers; `blocking` runs what may block."""

    def __init__(self, boxes: Boxes, blocking: Runner) -> None:
        self._boxes, self._blocking = boxes, blocking
        self._commands: dict[tuple[str, int], Command] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._insides: dict[str, Inside] = {}
        self._numbers = itertools.count(1000)
        """Process ids that we give out: those inside are nobody's business."""

    # --- requests ---------------------------------------------------------------------------------------------------------------

    async def start(self, box: Box, message: dict[str, Any], request: Request) -> Response:
        """Start a command and stream what it says. It runs on if the caller hangs up."""
        if message.get("pty"):
            raise WireError("unimplemented", "there are no terminals here: run a command")
        config = message["process"]
        command = Command(
            box_id=box.box_id,
            pid=next(self._numbers),
            argv=[str(config["cmd"]), *map(str, config.get("args", ()))],
            env={str(k): str(v) for k, v in config.get("envs", {}).items()},
            cwd=posixpath.normpath(posixpath.join(WORKSPACE, config.get("cwd") or ".")),
            takes_input=bool(message.get("stdin")),
            timeout_s=timeout_of(request),
            config=config,
            tag=message.get("tag"),
        )
        if not command.takes_input:
            command.closed.set()
        wire = await self._link(box, command)
        run = self._run_alone(box, command) if wire is None else self._run_inside(box, command, wire)
        self._commands[box.box_id, command.pid] = command
        queue = command.listen()
        task = asyncio.create_task(self._to_its_end(box, command, run))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return _stream(request, command, queue)

    async def attach(self, box: Box, message: dict[str, Any], request: Request) -> Response:
        """Listen to a command from now on."""
        command = self._command(box, message)
        return _stream(request, command, command.listen())

    async def running(self, box: Box, message: dict[str, Any]) -> dict[str, Any]:
        found = [command for (box_id, _), command in self._commands.items() if box_id == box.box_id]
        return {
            "processes": [{"pid": c.pid, "config": dict(c.config)} | ({"tag": c.tag} if c.tag is not None else {}) for c in found],
        }

    async def send_input(self, box: Box, message: dict[str, Any]) -> dict[str, Any]:
        command, data = self._command(box, message), message["input"]["stdin"]
        if command.closed.is_set():
            raise WireError("failed_precondition", "the command was started without standard input, or it is closed")
        if command.link is not None:
            await command.tell({"stdin": data})
            return {}
        command.stdin += base64.b64decode(data, validate=True)
        if len(command.stdin) > MAX_MESSAGE:
            raise WireError("resource_exhausted", f"standard input is over {MAX_MESSAGE >> 20} MiB")
        return {}

    async def close_stdin(self, box: Box, message: dict[str, Any]) -> dict[str, Any]:
        command = self._command(box, message)
        command.closed.set()
        if command.link is not None:
            await command.tell({"close": True})
        return {}

    async def send_signal(self, box: Box, message: dict[str, Any]) -> dict[str, Any]:
        command, wanted = self._command(box, message), _SIGNALS.get(message.get("signal", 0))
        if wanted is None:
            raise WireError("unimplemented", f"signal {message.get('signal')}: there are SIGKILL and SIGTERM")
        if command.link is None:
            raise WireError("unimplemented", "this sandbox does one thing at a time: give commands a timeout, or end the sandbox")
        await command.tell({"signal": wanted})
        return {}

    def _command(self, box: Box, message: Mapping[str, Any]) -> Command:
        selector = message["process"]
        for (box_id, pid), command in self._commands.items():
            if box_id == box.box_id and (selector.get("pid") == pid or (command.tag is not None and selector.get("tag") == command.tag)):
                return command
        raise WireError("not_found", f"process {dict(selector)} not found")

    async def sweep(self) -> None:
        """Let go of what belonged to sandboxes that have ended."""
        for box_id in [box_id for box_id in self._insides if self._boxes.get(box_id) is None]:
            await self._insides.pop(box_id).close()

    # --- running ------------------------------------------------------------------------------------------------------------------

    async def _to_its_end(self, box: Box, command: Command, run: Any) -> None:
        last = end_of_stream(WireError("internal", "the command was not run"))
        try:
            last = await run
        except WireError as error:
            last = end_of_stream(error)
        except UnicodeDecodeError:
            last = end_of_stream(WireError("invalid_argument", "standard input must be UTF-8 in this sandbox"))
        except NinefoldError as error:
            gone = self._boxes.get(box.box_id) is None
            last = end_of_stream(WireError("unavailable", f"The sandbox {box.box_id} was not found") if gone else wire_error(error))
        finally:
            del self._commands[box.box_id, command.pid]
            for message in (last, None):
                await command.say(message)

    async def _link(self, box: Box, command: Command) -> Wire | None:
        """To the runner inside; None where there can be none."""
        if not box.sandbox.capabilities().services:
            return None
        inside = self._insides.setdefault(box.box_id, Inside(box.sandbox, self._blocking))
        try:
            wire = await inside.connection()
        except NoPythonError:
            return None
        except NinefoldError as error:
            raise wire_error(error) from None
        command.link = wire[1]
        return wire

    async def _run_inside(self, box: Box, command: Command, wire: Wire) -> bytes:
        reader, writer = wire
        try:
            await command.tell(
                {
                    "argv": command.argv,
                    "env": dict(command.env),
                    "cwd": command.cwd,
                    "stdin": command.takes_input,
                    "timeout_s": command.timeout_s,
                }
            )
            while True:
                try:
                    said = json.loads(await reader.readline())
                    # Nothing inside is trusted to keep to the protocol.
                    if not (
                        isinstance(said, dict)
                        and type(said.get("exit_code", 0)) is int
                        and all(type(said.get(s, "")) is str for s in _STREAMS)
                    ):
                        raise ValueError("no message of a runner")
                except (OSError, ValueError):
                    raise SandboxError(f"the runner in sandbox {box.box_id} lost a command", "try again") from None
                for stream in _STREAMS:
                    if stream in said:
                        await command.say(envelope({"event": {"data": {stream: said[stream]}}}))
                if said.get("timed_out"):
                    raise WireError("deadline_exceeded", f"the command was killed after {command.timeout_s:g} s")
                if "exit_code" in said:
                    return _end(said["exit_code"]) + end_of_stream()
        finally:
            writer.close()

    async def _run_alone(self, box: Box, command: Command) -> bytes:
        started, loop = time.monotonic(), asyncio.get_running_loop()
        try:
            await asyncio.wait_for(command.closed.wait(), command.timeout_s)
        except TimeoutError:
            raise WireError("deadline_exceeded", "standard input was not closed in time") from None
        left_s = max(0.001, command.timeout_s - (time.monotonic() - started))
        argv, stdin = command.argv, command.stdin.decode()
        if command.cwd != WORKSPACE:
            argv = ["/bin/sh", "-c", 'cd -- "$1" && shift && exec "$@"', "sh", command.cwd, *argv]
        heard: set[Stream] = set()

        def on_output(stream: Stream, data: bytes) -> None:
            heard.add(stream)
            asyncio.run_coroutine_threadsafe(command.say(_data(stream, data)), loop).result()

        result: ExecResult = await self._blocking(
            lambda: box.sandbox.exec(argv, stdin=stdin, timeout_s=left_s, env=command.env, on_output=on_output)
        )
        streams: tuple[tuple[Stream, str], ...] = (("stdout", result.stdout), ("stderr", result.stderr))
        for stream, text in streams:  # what the sandbox itself has to say, of a command that does not exist
            if text and stream not in heard:
                await command.say(_data(stream, text.encode()))
        if result.timed_out:
            raise WireError("deadline_exceeded", f"the command was killed after {command.timeout_s:g} s")
        return _end(result.exit_code or 0, result.truncated) + end_of_stream()


def _stream(request: Request, command: Command, queue: asyncio.Queue[bytes | None]) -> Response:
    given = request.headers.get(KEEPALIVE_HEADER, "")
    ping_s = float(given) if given.isdigit() and int(given) > 0 else _SILENCE_S

    async def events() -> AsyncIterator[bytes]:
        try:
            yield envelope({"event": {"start": {"pid": command.pid}}})
            while True:
                try:
                    message = await asyncio.wait_for(queue.get(), ping_s)
                except TimeoutError:
                    message = envelope({"event": {"keepalive": {}}})
                if message is None:
                    return
                yield message
        finally:
            with contextlib.suppress(ValueError):
                command.listeners.remove(queue)

    return StreamingResponse(events(), media_type=STREAM_JSON)


def timeout_of(request: Request) -> float:
    """Seconds that the client gives a call."""
    given = request.headers.get(TIMEOUT_HEADER, "")
    return min(int(given) / 1000, _LONGEST_S) if given.isdigit() and int(given) > 0 else _LONGEST_S


def wire_error(error: NinefoldError) -> WireError:
    """An error of a sandbox, in Connect's terms."""
    return WireError("invalid_argument" if isinstance(error, BadArgumentsError) else "internal", str(error))


def _data(stream: Stream, data: bytes) -> bytes:
    return envelope({"event": {"data": {stream: base64.b64encode(data).decode()}}})


def _end(code: int, truncated: bool = False) -> bytes:
    status = f"exit status {code}" if code >= 0 else f"signal {-code}"
    end = {"exitCode": code, "exited": code >= 0, "status": status, "truncated": truncated}
    return envelope({"event": {"end": end | ({"error": status} if code else {})}})
