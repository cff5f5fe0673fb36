"""The data plane of our E2B server: processes, files and Python cells of one sandbox, as E2B's daemon envd offers them."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import json
import logging
import posixpath
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from environments.errors import BadArgumentsError, NinefoldError, SandboxError
from environments.sandbox.base import WORKSPACE, ExecResult, Stream
from environments.sandbox.remote.boxes import Box, Boxes
from environments.sandbox.remote.control import Runner, body_of, failure
from environments.sandbox.remote.multipart import files_in
from environments.sandbox.remote.processes import Processes, timeout_of, wire_error
from environments.sandbox.remote.wire import (
    MAX_MESSAGE,
    SANDBOX_HEADER,
    STATUS_OF_CODE,
    TOKEN_HEADER,
    StreamReader,
    WireError,
)

log = logging.getLogger(__name__)

_STAT = r"%p\0%y\0%s\0%m\0%M\0%u\0%g\0%T@\0%l\0"
_FIELDS = 9
_TYPES = {"f": "FILE_TYPE_FILE", "d": "FILE_TYPE_DIRECTORY", "l": "FILE_TYPE_SYMLINK"}


class Envd:
    """Handlers; `blocking` runs what may block."""

    def __init__(self, boxes: Boxes, blocking: Runner) -> None:
        self._boxes, self._blocking = boxes, blocking
        self.processes = Processes(boxes, blocking)

    def routes(self) -> list[Route]:
        unary = {
            "process.Process/List": self.processes.running,
            "process.Process/SendInput": self.processes.send_input,
            "process.Process/CloseStdin": self.processes.close_stdin,
            "process.Process/SendSignal": self.processes.send_signal,
            "filesystem.Filesystem/Stat": self.stat,
            "filesystem.Filesystem/ListDir": self.list_dir,
            "filesystem.Filesystem/MakeDir": self.make_dir,
            "filesystem.Filesystem/Move": self.move,
            "filesystem.Filesystem/Remove": self.remove,
        }
        return [
            Route("/process.Process/Start", self._streaming(self.processes.start), methods=["POST"]),
            Route("/process.Process/Connect", self._streaming(self.processes.attach), methods=["POST"]),
            *(Route(f"/{name}", self._unary(handler), methods=["POST"]) for name, handler in unary.items()),
            Route("/health", self.health),
            Route("/files", self.download),
            Route("/files", self.upload, methods=["POST"]),
            Route("/execute", self.execute, methods=["POST"]),
        ]

    # --- who is asked, and by whom --------------------------------------------------------------------------------------------

    async def _box(self, request: Request, operation: str = "") -> Box:
        """The sandbox that the request is for, awake.

        Raises:
            WireError: it is gone or paused, or the caller may not.
        """
        box_id = sandbox_id(request)
        box = self._boxes.get(box_id)
        if box is not None and not _allowed(request, box, operation):
            raise WireError("unauthenticated", "the access token of the sandbox is missing or wrong")
        if box is not None and box.paused and box.auto_resume:
            box.keep(box.timeout_s)
            with contextlib.suppress(SandboxError):  # another request may have resumed it
                await self._blocking(box.sandbox.resume)
        if box is None or box.paused:
            raise WireError("unavailable", f"The sandbox {box_id} was not found")
        return box

    def _unary(self, handler: Callable[[Box, dict[str, Any]], Awaitable[dict[str, Any]]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                box = await self._box(request)
                message = json.loads(await body_of(request, MAX_MESSAGE) or b"{}")
                return JSONResponse(await handler(box, message))
            except WireError as error:
                return plain(error)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                return plain(WireError("invalid_argument", f"{type(error).__name__}: {error}"))
            except NinefoldError as error:
                return plain(wire_error(error))

        return answer

    def _streaming(
        self, handler: Callable[[Box, dict[str, Any], Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                box = await self._box(request)
                return await handler(box, _first(await body_of(request, MAX_MESSAGE)), request)
            except WireError as error:
                return plain(error)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                return plain(WireError("invalid_argument", f"{type(error).__name__}: {error}"))

        return answer

    async def health(self, request: Request) -> Response:
        """Of the sandbox that is named, else of the server."""
        box_id = sandbox_id(request)
        box = self._boxes.get(box_id)
        if box_id and (box is None or box.paused):
            return failure(502, f"The sandbox {box_id} was not found")
        return Response(status_code=204)

    # --- files --------------------------------------------------------------------------------------------------------------------

    async def _script(self, box: Box, script: str, *arguments: str, stdin: str = "") -> ExecResult:
        result: ExecResult = await self._blocking(
            lambda: box.sandbox.exec(["/bin/sh", "-c", script, "sh", *arguments], stdin=stdin, timeout_s=60.0)
        )
        if result.timed_out or result.truncated:
            raise WireError("resource_exhausted", "too much to look at in one request")
        return result

    async def _entries(self, box: Box, path: str, low: int, high: int) -> list[dict[str, Any]]:
        depths = ["-mindepth", str(low), *(["-maxdepth", str(high)] if high >= low else [])]
        script = 'p=$1; shift; [ -e "$p" ] || [ -L "$p" ] || exit 44; exec find "$p" "$@"'
        result = await self._script(box, script, path, *depths, "-printf", _STAT)
        if result.exit_code == 44:
            raise WireError("not_found", f"path {path} not found")
        values = result.stdout.split("\0")
        return [_entry(values[i : i + _FIELDS]) for i in range(0, len(values) - _FIELDS + 1, _FIELDS)]

    async def stat(self, box: Box, message: dict[str, Any]) -> dict[str, Any]:
        return {"entry": (await self._entries(box, _full(message["path"]), 0, 0))[0]}

    async def list_dir(self, box: Box, message: dict[str, Any]) -> dict[str, Any]:
        path = _full(message["path"])
        entries = await self._entries(box, path, 1, int(message.get("depth", 0)))
        if path.startswith(WORKSPACE):
            await self._blocking(box.sandbox.list, path)  # refuses a link on the way, or what is no folder
        return {"entries": entries}

    async def make_dir(self, box: Box, message: dict[str, Any]) -> dict[str, Any]:
        path = _full(message["path"])
        result = await self._script(box, '[ -e "$1" ] && exit 44; mkdir -p -- "$1"', path)
        if result.exit_code == 44:
            raise WireError("already_exists", f"path {path} already exists")
        _done(result, path)
        return {"entry": (await self._entries(box, path, 0, 0))[0]}

    async def move(self, box: Box, message: dict[str, Any]) -> dict[str, Any]:
        source, destination = _full(message["source"]), _full(message["destination"])
        script = '[ -e "$1" ] || [ -L "$1" ] || exit 44; mkdir -p -- "$(dirname -- "$2")" && mv -T -- "$1" "$2"'
        result = await self._script(box, script, source, destination)
        if result.exit_code == 44:
            raise WireError("not_found", f"path {source} not found")
        _done(result, source)
        return {"entry": (await self._entries(box, destination, 0, 0))[0]}

    async def remove(self, box: Box, message: dict[str, Any]) -> dict[str, Any]:
        path = _full(message["path"])
        if path in ("/", WORKSPACE):
            raise WireError("invalid_argument", f"{path} stays")
        _done(await self._script(box, 'rm -rf -- "$1"', path), path)
        return {}

    async def download(self, request: Request) -> Response:
        try:
            box = await self._box(request, "read")
            path = _full(request.query_params.get("path", ""))
            data = await self._read(box, path)
        except WireError as error:
            return failure(502 if error.code == "unavailable" else STATUS_OF_CODE[error.code], error.message)
        return Response(data, media_type="application/octet-stream")

    async def _read(self, box: Box, path: str) -> bytes:
        try:
            if path.startswith(WORKSPACE + "/"):
                data: bytes = await self._blocking(box.sandbox.read, path)
                return data
            found = bytearray()
            take: Callable[[Stream, bytes], None] = lambda stream, data: found.extend(data) if stream == "stdout" else None  # noqa: E731
            script = 'test -f "$1" && exec cat -- "$1"'
            result: ExecResult = await self._blocking(
                lambda: box.sandbox.exec(["/bin/sh", "-c", script, "sh", path], timeout_s=60.0, on_output=take)
            )
            if result.truncated:
                raise WireError("resource_exhausted", f"{path} is outside {WORKSPACE} and too long to be read from there")
            if result.exit_code == 0:
                return bytes(found)
            raise BadArgumentsError(f"{path} cannot be read: {result.stderr[-200:]}")
        except BadArgumentsError as error:
            await self._entries(box, path, 0, 0)  # not found is said otherwise than what may not be read
            raise WireError("invalid_argument", str(error)) from None
        except NinefoldError as error:
            raise wire_error(error) from None

    async def upload(self, request: Request) -> Response:
        try:
            box = await self._box(request, "write")
            limit = (box.sandbox.config.workspace_mb + 1) << 20
            body = await body_of(request, limit)
            path = request.query_params.get("path")
            kind = request.headers.get("content-type", "")
            if request.headers.get("content-encoding", "identity") != "identity":
                raise WireError("invalid_argument", "uploads are taken uncompressed")
            if kind.startswith("multipart/form-data"):
                files = [(path or name, data) for name, data in files_in(kind, body)]
            else:
                files = [(path or "", body)]
            written = [await self._write(box, _full(name), data) for name, data in files]
        except WireError as error:
            return failure(502 if error.code == "unavailable" else STATUS_OF_CODE[error.code], error.message)
        except ValueError as error:
            return failure(400, str(error))
        return JSONResponse(written)

    async def _write(self, box: Box, path: str, data: bytes) -> dict[str, str]:
        try:
            if path.startswith(WORKSPACE + "/"):
                await self._blocking(box.sandbox.write, path, data)
            else:
                script = 'mkdir -p -- "$(dirname -- "$1")" && base64 -d > "$1"'
                _done(await self._script(box, script, path, stdin=base64.b64encode(data).decode()), path)
        except NinefoldError as error:
            raise wire_error(error) from None
        return {"name": posixpath.basename(path), "type": "file", "path": path}

    # --- Python -------------------------------------------------------------------------------------------------------------------

    async def execute(self, request: Request) -> Response:
        """A cell, on the wire of E2B's code interpreter. What a last expression is worth is part of the output."""
        try:
            box = await self._box(request)
            message = json.loads(await body_of(request, MAX_MESSAGE))
            if message.get("language") not in (None, "python") or message.get("context_id"):
                raise WireError("unimplemented", "there is one context, and it speaks Python")
            code, timeout_s = str(message["code"]), timeout_of(request)
            result = await self._blocking(box.sandbox.python, code, timeout_s)
        except WireError as error:
            return failure(502 if error.code == "unavailable" else STATUS_OF_CODE[error.code], error.message)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return failure(400, f"{type(error).__name__}: {error}")
        lines: list[dict[str, Any]] = []
        if result.stdout:
            lines.append({"type": "stdout", "text": result.stdout, "timestamp": time.time_ns()})
        lines += [{"type": "result", "png": base64.b64encode(image).decode(), "is_main_result": False} for image in result.images]
        if result.error or result.timed_out:
            name, _, value = result.error.strip().rpartition("\n")[2].partition(": ")
            lines.append(
                {"type": "error", "name": name, "value": value, "traceback": result.error, "timed_out": result.timed_out},
            )
        return Response("".join(json.dumps(line) + "\n" for line in lines), media_type="application/x-ndjson")


def sandbox_id(request: Request) -> str:
    """From the header, or from a host such as 49983-<id>.<domain>; empty when the request is for no sandbox."""
    if found := request.headers.get(SANDBOX_HEADER):
        return found
    label, dot, _ = request.headers.get("host", "").partition(".")
    port, dash, box_id = label.partition("-")
    return box_id if dot and dash and port.isdigit() else ""


def plain(error: WireError) -> Response:
    """An error before a stream has begun. A missing sandbox is told as E2B's proxy tells it."""
    if error.code == "unavailable":
        return failure(502, error.message)
    return JSONResponse({"code": error.code, "message": error.message}, STATUS_OF_CODE.get(error.code, 500))


def _allowed(request: Request, box: Box, operation: str) -> bool:
    if hmac.compare_digest(request.headers.get(TOKEN_HEADER, "").encode(), box.token.encode()):
        return True
    query = request.query_params
    if not operation or "signature" not in query:
        return False
    ends = query.get("signature_expiration", "")
    if ends and not (ends.isdigit() and int(ends) >= time.time()):
        return False
    raw = ":".join([query.get("path", ""), operation, query.get("username", ""), box.token, *([ends] if ends else [])])
    wanted = "v1_" + base64.b64encode(hashlib.sha256(raw.encode()).digest()).rstrip(b"=").decode()
    return hmac.compare_digest(query["signature"].encode(), wanted.encode())


def _first(body: bytes) -> dict[str, Any]:
    """The one message of a request to a streaming method."""
    for message in StreamReader().feed(body):
        return message
    raise WireError("invalid_argument", "the request holds no message")


def _full(path: str) -> str:
    if "\0" in path or not path:
        raise WireError("invalid_argument", "the path is empty or holds a NUL")
    return posixpath.normpath(posixpath.join(WORKSPACE, path))


def _done(result: ExecResult, path: str) -> None:
    if result.exit_code != 0:
        raise WireError("invalid_argument", f"{path}: {result.stderr.strip()[-200:] or f'exit {result.exit_code}'}")


def _entry(values: list[str]) -> dict[str, Any]:
    path, kind, size, mode, permissions, owner, group, seconds, link = values
    when = datetime.fromtimestamp(float(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    entry = {
        "name": posixpath.basename(path),
        "type": _TYPES.get(kind, "FILE_TYPE_UNSPECIFIED"),
        "path": path,
        "size": size,
        "mode": int(mode, 8),
        "permissions": permissions,
        "owner": owner,
        "group": group,
        "modifiedTime": when,
    }
    return entry | ({"symlinkTarget": link, "isSymlink": True} if kind == "l" else {})
