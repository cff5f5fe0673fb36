"""`RemoteSandbox`: a sandbox on another host, over E2B's wire."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import logging
import math
import posixpath
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from environments.errors import BadArgumentsError, CaptureError, ConfigError, NinefoldError, SandboxError, UnsupportedError
from environments.sandbox.base import WORKSPACE, Capabilities, ExecResult, OnOutput, PythonResult, Sandbox, SandboxConfig, Snapshot
from environments.sandbox.remote import commands, interpreter
from environments.sandbox.remote.client import Answer, E2BClient
from environments.sandbox.remote.wire import (
    INTERPRETER_PORT,
    TIMEOUT_HEADER,
    ForkRequest,
    ForkResult,
    SandboxInfo,
    SnapshotInfo,
    SnapshotRequest,
    Timeout,
    WireError,
)

if TYPE_CHECKING:
    from environments.sandbox.remote.backend import Keeper

log = logging.getLogger(__name__)

_MIB = 1 << 20
_CHECK = """p=$1; shift
for part; do p=$p/$part; [ -L "$p" ] && exit 41; done
[ -e "$p" ] && [ ! -f "$p" ] && [ ! -d "$p" ] && exit 42
exit 0"""
NOTE = "remote.json"
"""A snapshot's file: where the server keeps it."""
_CELL_MARK = "python"
"""Of our own interpreter inside: the same for whoever connects to the sandbox, so that anyone can kill it."""
T = TypeVar("T")


@dataclass(frozen=True)
class Abilities:
    """What a server offers, as it answered when it was asked."""

    capabilities: Capabilities
    ours: bool = False
    """The server is Ninefold's own: it keeps a whole SandboxConfig, guards paths, and runs Python cells where its backend does."""


class RemoteSandbox(Sandbox):
    """One sandbox on a server. Made by `RemoteBackend.create` and `connect`.

    `sandbox_id` is the server's id at creation; `remote_id` the present one, which a `restore` changes.
    """

    def __init__(
        self, client: E2BClient, info: SandboxInfo, config: SandboxConfig, abilities: Abilities, keeper: Keeper, seed: int | None = None
    ) -> None:
        super().__init__(config)
        for given in (seed, info.seed):
            if given is not None:
                self.seed = given
        self.sandbox_id = info.sandbox_id
        self._client, self._abilities, self._keeper = client, abilities, keeper
        self._target = client.target(info.sandbox_id, info.token, info.domain)
        self._until = time.monotonic() + self.lease_s
        self._own_interpreter = False

    @property
    def remote_id(self) -> str:
        """By which the server knows it, and `RemoteBackend.connect` finds it again."""
        return self._target.sandbox_id

    @property
    def lease_s(self) -> int:
        """Seconds that the server keeps it without a request: then it pauses (a time-to-live) or ends (none)."""
        return self._keeper.lease_s if self.config.ttl_s is None else max(1, math.ceil(self.config.ttl_s))

    def capabilities(self) -> Capabilities:
        """What the server says that this sandbox does."""
        return self._abilities.capabilities

    def up(self) -> RemoteSandbox:
        """It runs: take it into use. Makes the workspace where the template has none."""
        if not self._abilities.ours:
            self._make_workspace()
        self._started()
        if self.config.ttl_s is None:
            self._keeper.watch(self)
        return self

    def renew(self, needed_s: float = 0.0) -> None:
        """Have the server keep it for a lease beyond the next `needed_s` seconds, unless most of that is granted already."""
        now = time.monotonic()
        if self._until - now >= needed_s + self.lease_s / 2:
            return
        wanted = math.ceil(needed_s + self.lease_s)
        answer = self._control("POST", "/timeout", Timeout(timeout_s=wanted))
        if answer.status in (404, 409, 410):  # paused already, or gone
            self._revive()
        elif answer.status >= 400:
            raise self._failed("be kept", answer)
        else:
            self._until = now + wanted

    # --- commands --------------------------------------------------------------------------------------------------------

    def _exec(self, argv: Sequence[str], stdin: bytes, timeout_s: float, env: Mapping[str, str], on_output: OnOutput | None) -> ExecResult:
        if not argv:
            raise BadArgumentsError("the command is empty", "pass a program and its arguments")
        if any("\0" in word for word in (*argv, *env, *env.values())) or any("=" in name or not name for name in env):
            raise BadArgumentsError(f"the command {argv[0]!r:.80} cannot be started: a NUL, or a variable's bad name", "leave it out")
        variables = {**self.config.env, "NINEFOLD_SEED": str(self.seed), **env}
        return self._run(list(argv), stdin, timeout_s, variables, commands.Output(self.config.output_kb << 10, on_output))

    def _run(
        self, argv: list[str], stdin: bytes, timeout_s: float, env: Mapping[str, str], output: commands.Output, mark: str = ""
    ) -> ExecResult:
        self.renew(timeout_s)
        mark = mark or uuid.uuid4().hex
        words = argv if self._abilities.ours else commands.wrapped(argv)
        process = {"cmd": words[0], "args": words[1:], "envs": {**env, commands.MARK: mark}, "cwd": WORKSPACE}
        started = time.monotonic()
        timed_out = False
        try:
            self._awake(lambda: commands.follow(self._client, self._target, process, stdin, timeout_s, output))
        except WireError as error:
            if error.code not in ("deadline_exceeded", "canceled"):
                raise self._wire_failure("run a command", error) from None
            timed_out = True
        except SandboxError:
            raise
        except BaseException:  # the caller's listener failed, or he was interrupted: nobody waits for the command
            with contextlib.suppress(WireError, NinefoldError):
                commands.kill(self._client, self._target, mark)
            raise
        wall_s = time.monotonic() - started
        # A server that kills at the deadline may say so, or just how the command ended.
        if timed_out or (output.exit_code is not None and output.exit_code < 0 and wall_s >= timeout_s):
            timed_out = True
            try:
                commands.kill(self._client, self._target, mark)
            except WireError as error:
                raise self._wire_failure("kill a command", error) from None
        return ExecResult(
            exit_code=None if timed_out else output.exit_code,
            stdout=output.text("stdout"),
            stderr=output.text("stderr"),
            wall_s=wall_s,
            timed_out=timed_out,
            truncated=output.truncated,
        )

    # --- Python ----------------------------------------------------------------------------------------------------------

    def _python(self, code: str, timeout_s: float) -> PythonResult:
        started = time.monotonic()
        result = self._served_python(code, timeout_s) if self._abilities.ours and not self._own_interpreter else None
        if result is None:
            self._own_interpreter = True
            result = self._own_python(code, timeout_s)
        return replace(result, wall_s=time.monotonic() - started)

    def _served_python(self, code: str, timeout_s: float) -> PythonResult | None:
        """Over the wire of E2B's code interpreter, with our server's `timed_out`. None: the backend behind it runs no Python."""
        self.renew(timeout_s)
        headers = {"Content-Type": "application/json", TIMEOUT_HEADER: str(max(1, round(timeout_s * 1000)))}
        ask = functools.partial(
            self._client.data,
            self._target,
            "POST",
            "/execute",
            content=json.dumps({"code": code}).encode(),
            headers=headers,
            port=INTERPRETER_PORT,
            timeout_s=timeout_s + commands.GRACE_S,
            repeatable=False,
        )
        answer = self._awake_answer(ask)
        if answer.status == 501:
            return None
        if answer.status != 200:
            raise self._failed("run a cell", answer)
        stdout, error, images, timed_out = "", "", [], False
        try:
            for line in answer.body.splitlines():
                item = json.loads(line)
                match item.get("type"):
                    case "stdout" | "stderr":
                        stdout += str(item["text"])
                    case "result":
                        images += [base64.b64decode(item["png"])] if item.get("png") else []
                    case "error":
                        error, timed_out = str(item["traceback"]), bool(item.get("timed_out"))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SandboxError(f"{self._client.where} answered a cell with garbage", "check that it is an E2B-compatible server") from None
        return PythonResult(stdout=stdout, error=error, images=tuple(images), timed_out=timed_out)

    def _own_python(self, code: str, timeout_s: float) -> PythonResult:
        """In an interpreter of ours inside, which the first cell starts."""
        cap = self.config.output_kb << 10
        request = json.dumps({"code": code, "cap": cap, "seed": self.seed}).encode()
        variables = {**self.config.env, "NINEFOLD_SEED": str(self.seed)}
        argv = ["python3", "-c", _interpreter_source(), "/tmp/.ninefold-python"]
        result = self._run(argv, request, timeout_s, variables, commands.Output(64 * _MIB), _CELL_MARK)
        if result.timed_out:
            return PythonResult(stdout="", error=f"stopped after {timeout_s:g} s: the interpreter's variables are gone\n", timed_out=True)
        try:
            said = json.loads(result.stdout)
            images = tuple(base64.b64decode(image) for image in said["images"])
            return PythonResult(stdout=str(said["stdout"]), error=str(said["error"]), images=images)
        except (ValueError, KeyError, TypeError):
            raise SandboxError(
                f"sandbox {self.remote_id} runs no Python (exit {result.exit_code}): {(result.stderr or result.stdout)[-200:]!r}",
                "use a template with python3",
            ) from None

    # --- files -----------------------------------------------------------------------------------------------------------

    def _read(self, path: str) -> bytes:
        full = self._guarded(path)
        limit = self.config.read_mb * _MIB
        answer = self._awake_answer(lambda: self._client.data(self._target, "GET", "/files", params={"path": full}, max_bytes=limit))
        if answer.status == 200:
            if len(answer.body) > limit:
                raise BadArgumentsError(f"{path} has more than {limit} bytes", "read a part of it with a command")
            return answer.body
        raise self._file_failure(path, answer)

    def _write(self, path: str, data: bytes) -> None:
        full = self._guarded(path)
        if full == WORKSPACE:
            raise BadArgumentsError("the workspace itself is a folder", f"use a path in {WORKSPACE}")
        headers = {"Content-Type": "application/octet-stream"}
        send = functools.partial(self._client.data, self._target, "POST", "/files", content=data, params={"path": full}, headers=headers)
        answer = self._awake_answer(send)
        if answer.status != 200:
            raise self._file_failure(path, answer)

    def _list(self, path: str) -> list[str]:
        full = self._guarded(path)
        try:
            said = self._awake(lambda: self._client.rpc(self._target, "filesystem.Filesystem/ListDir", {"path": full, "depth": 1}))
        except WireError as error:
            if error.code in ("not_found", "invalid_argument", "failed_precondition"):
                raise BadArgumentsError(f"{path}: {error.message}", f"use a folder in {WORKSPACE}") from None
            raise self._wire_failure("list a folder", error) from None
        return sorted(str(entry.get("name", "")) for entry in said.get("entries") or () if isinstance(entry, dict))

    def _guarded(self, path: str) -> str:
        """The full path, if it stays in the workspace. Where the server does not look for links on the way, we do."""
        if "\0" in path or ".." in path.split("/"):
            raise BadArgumentsError(f"{path!r:.200} may not contain '..' or a NUL", f"use a path in {WORKSPACE}")
        full = posixpath.normpath(posixpath.join(WORKSPACE, path))
        if full != WORKSPACE and not full.startswith(WORKSPACE + "/"):
            raise BadArgumentsError(f"{path} is outside {WORKSPACE}", f"use a path in {WORKSPACE}")
        self.renew()
        if not self._abilities.ours and full != WORKSPACE:
            parts = full.removeprefix(WORKSPACE + "/").split("/")
            found = self._run(["/bin/sh", "-c", _CHECK, "sh", WORKSPACE, *parts], b"", 20.0, {}, commands.Output(0))
            if found.exit_code:
                why = "links are not followed" if found.exit_code == 41 else "it is not a regular file"
                raise BadArgumentsError(f"{path}: {why}", f"use a path in {WORKSPACE}")
        return full

    def _file_failure(self, path: str, answer: Answer) -> Exception:
        said = self._client.redact(answer.message, self._target)
        if answer.status in (400, 404, 413, 507):
            return BadArgumentsError(f"{path}: {said}", f"use a path in {WORKSPACE}")
        return self._failed(f"move {path}", answer)

    def _make_workspace(self) -> None:
        """As root where the template has one: its default user may not create a folder at the root."""
        process = commands.shell('mkdir -p "$1" && chmod 777 "$1"', WORKSPACE)
        said = ""
        for headers in ({"Authorization": "Basic " + base64.b64encode(b"root:").decode()}, {}):
            output = commands.Output(1 << 10)
            try:
                commands.follow(self._client, self._target, process, b"", 30.0, output, headers)
            except WireError as error:
                said = f"{error.code}: {error.message}"
            else:
                if output.exit_code == 0:
                    return
                said = output.text("stderr")[-200:]
        raise SandboxError(f"sandbox {self.remote_id} has no {WORKSPACE}: {said!r}", f"use a template with a folder {WORKSPACE}")

    # --- life cycle --------------------------------------------------------------------------------------------------------

    def _pause(self) -> None:
        self._need("pause")
        answer = self._control("POST", "/pause")
        # 409: its timeout has paused it already.
        if answer.status != 409:
            self._captured("pause", answer)

    def _resume(self) -> None:
        self._need("pause")
        self._revive()

    def _fork(self, count: int) -> list[Sandbox | SandboxError]:
        self._need("fork")
        self.renew()
        answer = self._captured("fork", self._control("POST", "/fork", ForkRequest(timeout_s=self.lease_s, count=count)))
        try:
            items = json.loads(answer.body)
        except ValueError:
            items = None
        if not isinstance(items, list):
            raise SandboxError(f"{self._client.where} answered no list of forks", "check that it is an E2B-compatible server")
        children: list[Sandbox | SandboxError] = []
        for item in items:
            result = self._client.parse(ForkResult, json.dumps(item))
            if result.sandbox is None:
                said = result.error.message if result.error else "no reason"
                children.append(SandboxError(f"a fork of {self.remote_id} did not start: {self._client.redact(said)}", "try again"))
                continue
            seed = random.SystemRandom().randrange(2**31)
            child = RemoteSandbox(self._client, result.sandbox, self.config, self._abilities, self._keeper, seed)
            child._own_interpreter = self._own_interpreter
            child._started()
            if self.config.ttl_s is None:
                self._keeper.watch(child)
            children.append(child)
        return children

    def _snapshot(self, directory: Path) -> Snapshot:
        self._need("snapshot")
        path = directory / uuid.uuid4().hex[:12]
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise CaptureError(f"{directory} cannot be written: {error.strerror}", "use another folder") from error
        try:
            self.renew()
            info = self._client.parse(SnapshotInfo, self._captured("snapshot", self._control("POST", "/snapshots", SnapshotRequest())).body)
            details = {"server": self._client.url, "snapshot": info.snapshot_id}
            size = (path / NOTE).write_bytes(note_of(details))
        except OSError as error:
            raise CaptureError(f"{path} cannot be written: {error.strerror}", "use another folder") from error
        finally:
            if not (path / NOTE).exists():
                path.rmdir()
        kind = self.capabilities().snapshot
        assert kind != "none"
        return Snapshot(path.name, "remote", kind, path, size, self.config, details=details)

    def _restore(self, snapshot: Snapshot) -> None:
        fresh = self._keeper.start(self.config, snapshot, self.seed)
        self._keeper.forget(fresh)
        if fresh._timer is not None:
            fresh._timer.cancel()
        old = self._target
        self._target, self._until = fresh._target, fresh._until
        if self._client.control("DELETE", f"/sandboxes/{old.sandbox_id}", repeatable=True).status not in (200, 204, 404):
            log.warning("sandbox %s stays on %s until its timeout", old.sandbox_id, self._client.where)

    def _close(self) -> None:
        self._keeper.forget(self)
        try:
            answer = self._control("DELETE", "")
        except (SandboxError, ConfigError) as error:
            log.warning("sandbox %s may stay until its timeout of %d s: %s", self.remote_id, self.lease_s, error)
            return
        if answer.status not in (200, 204, 404):
            log.warning("sandbox %s may stay until its timeout of %d s: status %d", self.remote_id, self.lease_s, answer.status)

    # --- the server's answers -------------------------------------------------------------------------------------------------

    def _control(self, method: str, path: str, body: Timeout | ForkRequest | SnapshotRequest | None = None) -> Answer:
        repeatable = not path or path in ("/timeout", "/connect", "/pause")
        return self._client.control(method, f"/sandboxes/{self.remote_id}{path}", body, repeatable=repeatable)

    def _need(self, operation: str) -> None:
        found = self.capabilities()
        if {"pause": found.pause, "fork": found.fork, "snapshot": found.snapshot}[operation] == "none":
            raise self._unsupported(operation)

    def _captured(self, what: str, answer: Answer) -> Answer:
        """An answer to a capture, or the error that it stands for."""
        if answer.status < 300:
            return answer
        if answer.status in (405, 501):
            raise UnsupportedError(f"{self._client.where} cannot {what}: {self._client.redact(answer.message)}", "ask capabilities() first")
        recoverable = answer.status != 404 and self._control("GET", "").status == 200
        said = self._client.redact(answer.message)
        raise CaptureError(
            f"sandbox {self.remote_id} on {self._client.where} did not {what}: status {answer.status}: {said!r}",
            "try again" if recoverable else "create another",
            recoverable,
        )

    def _revive(self) -> None:
        """Resume it on the server, whatever paused it there."""
        answer = self._control("POST", "/connect", Timeout(timeout_s=self.lease_s))
        if answer.status not in (200, 201):
            raise self._failed("be resumed", answer)
        info = self._client.parse(SandboxInfo, answer.body)
        self._target = self._client.target(self.remote_id, info.token or self._target.token, info.domain)
        self._until = time.monotonic() + self.lease_s

    def _awake(self, call: Callable[[], T]) -> T:
        """Repeat a call once that found the sandbox paused: the server's clock may pause it just before ours does."""
        try:
            return call()
        except WireError as error:
            if error.code != "unavailable":
                raise
        self._revive()
        return call()

    def _awake_answer(self, call: Callable[[], Answer]) -> Answer:
        answer = call()
        if answer.away:
            self._revive()
            answer = call()
        return answer

    def _wire_failure(self, what: str, error: WireError) -> Exception:
        if error.code == "invalid_argument":
            return BadArgumentsError(f"sandbox {self.remote_id} cannot {what}: {error.message}", "change the arguments")
        said = f"{error.code}: {error.message}"
        return SandboxError(f"sandbox {self.remote_id} on {self._client.where} could not {what}: {said}", "try again")

    def _failed(self, what: str, answer: Answer) -> SandboxError:
        if answer.status == 404:
            return SandboxError(f"sandbox {self.remote_id} is gone from {self._client.where}", "create another")
        said = f"status {answer.status}: {self._client.redact(answer.message, self._target)!r}"
        return SandboxError(f"sandbox {self.remote_id} on {self._client.where} could not {what}: {said}", "try again")


def note_of(details: Mapping[str, str]) -> bytes:
    """What a snapshot's file says."""
    return json.dumps(dict(details), indent=1).encode()


@functools.cache
def _interpreter_source() -> str:
    return Path(interpreter.__file__).read_text()
