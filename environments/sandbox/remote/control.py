"""The control plane of our E2B server: sandboxes and snapshots over REST."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import parse_qsl, unquote

from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from environments.errors import BadArgumentsError, CaptureError, ConfigError, NinefoldError, UnsupportedError
from environments.sandbox.base import SandboxConfig
from environments.sandbox.remote.boxes import Box, Boxes, MissingError, TooManyError
from environments.sandbox.remote.wire import CAPABILITIES_PATH, ForkRequest, NewSandbox, Refresh, SnapshotRequest, Timeout

ENVD_VERSION = "0.5.7"
"""The envd whose behaviour our data plane follows: default users, closing of standard input, plain uploads; no file metadata."""
MAX_BODY = 1 << 20
Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")
Runner = Callable[..., Awaitable[Any]]
"""Runs a blocking function in a thread."""


def failure(status: int, message: str) -> JSONResponse:
    """An error as the E2B API words it."""
    return JSONResponse({"code": status, "message": message}, status)


def failure_of(error: NinefoldError) -> JSONResponse:
    status = {MissingError: 404, UnsupportedError: 501, BadArgumentsError: 400, ConfigError: 400, TooManyError: 429}.get(type(error), 500)
    if isinstance(error, CaptureError) and error.recoverable:
        status = 409
    return failure(status, str(error))


async def body_of(request: Request, limit: int) -> bytes:
    """The whole body.

    Raises:
        ConfigError: it is longer than `limit` bytes.
    """
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise ConfigError(f"the request has more than {limit} bytes", "send less at a time")
    return bytes(data)


class Control:
    """Handlers; `blocking` runs what may block."""

    def __init__(self, boxes: Boxes, blocking: Runner) -> None:
        self._boxes, self._blocking = boxes, blocking

    def routes(self) -> list[Route]:
        one = "/sandboxes/{box_id}"
        found = [
            Route(CAPABILITIES_PATH, self.capabilities, methods=["POST"]),
            Route("/snapshots", self.list_snapshots),
            Route("/templates/{template:path}", self.delete_snapshot, methods=["DELETE"]),
            Route(one, self.show),
            Route(one, self.delete, methods=["DELETE"]),
        ]
        for prefix in ("", "/v2"):
            found += [
                Route(f"{prefix}/sandboxes", self.list),
                Route(f"{prefix}/sandboxes", self.create, methods=["POST"]),
                Route(f"{prefix}{one}/connect", self.connect, methods=["POST"]),
            ]
        operations = {
            "pause": self.pause,
            "resume": self.connect,
            "timeout": self.timeout,
            "refreshes": self.refresh,
            "fork": self.fork,
            "snapshots": self.snapshot,
        }
        return found + [Route(f"{one}/{name}", handler, methods=["POST"]) for name, handler in operations.items()]

    # --- shapes -------------------------------------------------------------------------------------------------------------

    @staticmethod
    async def _body(request: Request, model: type[Model]) -> Model:
        try:
            return model.model_validate_json(await body_of(request, MAX_BODY) or b"{}")
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(f"bad request: {'.'.join(map(str, first['loc']))}: {first['msg']}", "see the E2B API") from None

    def _box(self, request: Request) -> Box:
        box = self._boxes.get(request.path_params["box_id"])
        if box is None:
            raise MissingError(f"sandbox {request.path_params['box_id']} not found")
        return box

    @staticmethod
    def _brief(box: Box) -> dict[str, Any]:
        return {
            "templateID": box.template,
            "sandboxID": box.box_id,
            "clientID": "ninefold",
            "envdVersion": ENVD_VERSION,
            "envdAccessToken": box.token,
            "seed": box.sandbox.seed,
        }

    @staticmethod
    def _detail(box: Box) -> dict[str, Any]:
        return {
            "templateID": box.template,
            "sandboxID": box.box_id,
            "clientID": "ninefold",
            "envdVersion": ENVD_VERSION,
            "startedAt": _stamp(box.started_at),
            "endAt": _stamp(box.end_time),
            "state": "paused" if box.paused else "running",
            "cpuCount": os.cpu_count() or 1,
            "memoryMB": box.sandbox.config.memory_mb,
            "diskSizeMB": box.sandbox.config.workspace_mb,
            "metadata": dict(box.metadata),
            "lifecycle": {"autoResume": box.auto_resume, "onTimeout": "pause" if box.auto_pause else "kill"},
        }

    # --- handlers -----------------------------------------------------------------------------------------------------------

    async def capabilities(self, request: Request) -> Response:
        config = await self._body(request, SandboxConfig)
        found = await self._blocking(self._boxes.backend.capabilities, config.model_copy(update={"image": None}))
        return JSONResponse(dataclasses.asdict(found))

    async def create(self, request: Request) -> Response:
        new = await self._body(request, NewSandbox)
        return JSONResponse(self._brief(await self._blocking(self._boxes.create, new)), 201)

    async def list(self, request: Request) -> Response:
        states = request.query_params.get("state", "running,paused" if request.url.path.startswith("/v2") else "running").split(",")
        wanted = {unquote(k): unquote(v) for k, v in parse_qsl(request.query_params.get("metadata", ""))}
        found = [
            detail
            for detail in map(self._detail, self._boxes.all())
            if detail["state"] in states and wanted.items() <= detail["metadata"].items()
        ]
        return _page(request, found)

    async def show(self, request: Request) -> Response:
        box = self._box(request)
        return JSONResponse({**self._detail(box), "envdAccessToken": box.token})

    async def delete(self, request: Request) -> Response:
        await self._blocking(self._boxes.kill, self._box(request))
        return Response(status_code=204)

    async def pause(self, request: Request) -> Response:
        box = self._box(request)
        if box.paused:
            return failure(409, f"sandbox {box.box_id} is already paused")
        await self._blocking(box.sandbox.pause)
        return Response(status_code=204)

    async def connect(self, request: Request) -> Response:
        box, wanted = self._box(request), await self._body(request, Timeout)
        paused = box.paused
        if not paused and request.url.path.endswith("/resume"):
            return failure(409, f"sandbox {box.box_id} is already running")
        if paused:
            box.keep(wanted.timeout_s)
            await self._blocking(box.sandbox.resume)
        # A running sandbox's life is only ever made longer here.
        box.keep(max(wanted.timeout_s, box.left_s))
        return JSONResponse(self._brief(box), 201 if paused else 200)

    async def timeout(self, request: Request) -> Response:
        box, wanted = self._box(request), await self._body(request, Timeout)
        if box.paused:
            return failure(404, f"sandbox {box.box_id} not found: it is paused")
        box.keep(wanted.timeout_s)
        return Response(status_code=204)

    async def refresh(self, request: Request) -> Response:
        box, wanted = self._box(request), await self._body(request, Refresh)
        box.keep(max(wanted.duration_s, box.left_s))
        return Response(status_code=204)

    async def fork(self, request: Request) -> Response:
        box, wanted = self._box(request), await self._body(request, ForkRequest)
        children = await self._blocking(self._boxes.fork, box, wanted.count, wanted.timeout_s)
        results = [
            {"sandbox": self._brief(child)} if isinstance(child, Box) else {"error": {"code": 500, "message": str(child)}}
            for child in children
        ]
        return JSONResponse(results, 201)

    async def snapshot(self, request: Request) -> Response:
        box, wanted = self._box(request), await self._body(request, SnapshotRequest)
        snapshot_id = await self._blocking(self._boxes.snapshot, box, wanted.name)
        return JSONResponse({"snapshotID": snapshot_id, "names": [wanted.name] if wanted.name else []}, 201)

    async def list_snapshots(self, request: Request) -> Response:
        of = request.query_params.get("sandboxID")
        found = [{"snapshotID": name, "names": []} for name, box_id in self._boxes.snapshots() if of in (None, box_id)]
        return _page(request, found)

    async def delete_snapshot(self, request: Request) -> Response:
        name = request.path_params["template"]
        if await self._blocking(self._boxes.drop_snapshot, name):
            return Response(status_code=204)
        return failure(404, f"snapshot {name} not found")


def _stamp(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _page(request: Request, items: list[dict[str, Any]]) -> Response:
    query = request.query_params
    start, size = (int(query[name]) if query.get(name, "").isdigit() else default for name, default in (("nextToken", 0), ("limit", 100)))
    more = {"X-Next-Token": str(start + size)} if start + size < len(items) else {}
    return JSONResponse(items[start : start + size], headers=more)
