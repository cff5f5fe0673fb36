"""The gateway's routes: who asks, in which wire, and what goes back. Nothing blocks the event loop, nothing logs a token."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from environments.errors import EngineError, NinefoldError
from environments.gateway.anthropic_messages import AnthropicMessages
from environments.gateway.backends import Draft
from environments.gateway.messages import ChatRequest, RequestError, read_json
from environments.gateway.openai_chat import OpenAIChat
from environments.gateway.openai_responses import OpenAIResponses
from environments.gateway.session import Asked, Reply, Session

MAX_BODY_BYTES = 64 * 2**20
KEEPALIVE_S = 10.0
"""A streaming client that has heard nothing for so long is told that the answer is on its way."""


class Wire(Protocol):
    """One wire format."""

    keepalive: str

    def parse(self, payload: dict[str, Any], session: Session) -> ChatRequest: ...
    def body(self, reply: Reply, request: ChatRequest, session: Session) -> dict[str, Any]: ...
    def events(self, reply: Reply, request: ChatRequest, session: Session) -> Any: ...
    def error(self, error: RequestError) -> dict[str, Any]: ...
    def failed(self, error: RequestError) -> str: ...


Find = Callable[[str], Session | None]
"""The session that a token opens."""


def make_app(find: Find, keepalive_s: float = KEEPALIVE_S) -> Starlette:
    """The ASGI app over the sessions that `find` knows."""
    chat, responses, messages = OpenAIChat(), OpenAIResponses(), AnthropicMessages()
    handlers = _Handlers(find, keepalive_s)

    def answers(wire: Wire) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(http: Request) -> Response:
            return await handlers.answer(http, wire)

        return endpoint

    routes = []
    for prefix in ("", "/s/{token}"):
        routes += [
            Route(f"{prefix}/v1/chat/completions", answers(chat), methods=["POST"]),
            Route(f"{prefix}/v1/responses", answers(responses), methods=["POST"]),
            Route(f"{prefix}/v1/messages", answers(messages), methods=["POST"]),
            Route(f"{prefix}/v1/messages/count_tokens", handlers.count, methods=["POST"]),
            Route(f"{prefix}/v1/models", handlers.models, methods=["GET"]),
            Route(f"{prefix}/v1/models/{{model:path}}", handlers.models, methods=["GET"]),
        ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _no_route})


async def _no_route(http: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = RequestError(f"{http.method} is not served at this path", "see the gateway's routes", "not_found")
    return _json(_wire_of(http).error(said), error.status_code)


def _wire_of(http: Request) -> OpenAIChat | AnthropicMessages:
    """Whose errors a client reads, where the path does not say."""
    return AnthropicMessages() if "anthropic-version" in http.headers else OpenAIChat()


def _json(value: Mapping[str, Any], status: int = 200) -> Response:
    # Our errors are final: neither of the official clients then asks again.
    headers = {"x-should-retry": "false"} if status >= 400 else None
    return Response(json.dumps(value, ensure_ascii=False), status, headers, "application/json")


class _Handlers:
    def __init__(self, find: Find, keepalive_s: float) -> None:
        self.find, self.keepalive_s = find, keepalive_s

    def session(self, http: Request) -> Session:
        """By the path, the bearer token or the API key. Raises RequestError."""
        scheme, _, bearer = http.headers.get("authorization", "").partition(" ")
        tokens = [http.path_params.get("token", ""), http.headers.get("x-api-key", "")]
        tokens += [bearer.strip()] if scheme.lower() == "bearer" else []
        for token in filter(None, tokens):
            if (found := self.find(token)) is not None:
                return found
        raise RequestError("the API key opens no session", "use the key that the episode was given", "auth")

    async def _payload(self, http: Request) -> dict[str, Any]:
        body = bytearray()
        async for chunk in http.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise RequestError(f"the request is over {MAX_BODY_BYTES >> 20} MiB", "shorten the history", "too_large")
        return await run_in_threadpool(read_json, bytes(body))

    async def answer(self, http: Request, wire: Wire) -> Response:
        """One turn."""
        try:
            session = self.session(http)
            payload = await self._payload(http)
            request, asked = await run_in_threadpool(_begin, wire, payload, session)
        except RequestError as error:
            return _json(wire.error(error), error.status)
        except ClientDisconnect:
            return Response(status_code=499)
        draft = asyncio.wrap_future(session.backend.ask(asked.turn))
        if request.stream:
            await asyncio.wait([draft], timeout=self.keepalive_s)
            if not draft.done():
                return _events(self._waited(wire, session, request, asked, draft))
        try:
            reply = await _reply(session, asked, draft, http)
        except RequestError as error:
            return _json(wire.error(error), error.status)
        if request.stream:
            return _events(_each(wire, reply, request, session))
        return _json(wire.body(reply, request, session))

    async def _waited(
        self, wire: Wire, session: Session, request: ChatRequest, asked: Asked, draft: asyncio.Future[Draft]
    ) -> AsyncIterator[str]:
        """A stream that began before the answer was there: from now on errors stand within it."""
        settled = False
        try:
            while not draft.done():
                yield wire.keepalive
                await asyncio.wait([draft], timeout=self.keepalive_s)
            reply = await _reply(session, asked, draft)
            settled = True
        except RequestError as error:
            settled = True
            yield wire.failed(error)
            return
        finally:
            if not settled:  # the client went away
                draft.add_done_callback(lambda done: _unheard(session, asked, done))
        async for text in _each(wire, reply, request, session):
            yield text

    async def count(self, http: Request) -> Response:
        """Tokens of a prompt, without an answer."""
        wire = AnthropicMessages()
        try:
            session = self.session(http)
            request = wire.parse(await self._payload(http), session, counting=True)
            return _json({"input_tokens": await run_in_threadpool(session.count, request)})
        except RequestError as error:
            return _json(wire.error(error), error.status)
        except ClientDisconnect:
            return Response(status_code=499)

    async def models(self, http: Request) -> Response:
        """The one model behind the gateway; requests may call it what they like."""
        wire = _wire_of(http)
        try:
            name = http.path_params.get("model") or self.session(http).backend.name
            self.session(http)
        except RequestError as error:
            return _json(wire.error(error), error.status)
        if isinstance(wire, AnthropicMessages):
            model: dict[str, Any] = {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
            page = {"data": [model], "has_more": False, "first_id": name, "last_id": name}
        else:
            model = {"id": name, "object": "model", "created": 0, "owned_by": "ninefold"}
            page = {"object": "list", "data": [model]}
        return _json(model if "model" in http.path_params else page)


def _begin(wire: Wire, payload: dict[str, Any], session: Session) -> tuple[ChatRequest, Asked]:
    try:
        session.check()
        request = wire.parse(payload, session)
        return request, session.ask(request)
    except RecursionError:
        raise RequestError("the request is nested too deeply", "send flatter values") from None


async def _reply(session: Session, asked: Asked, draft: asyncio.Future[Draft], http: Request | None = None) -> Reply:
    """Wait for an answer and record it. Raises RequestError when what is behind the gateway failed."""
    try:
        done = await asyncio.shield(draft)
    except NinefoldError as error:
        session.fail(error)
        raise RequestError(f"the policy failed: {error.message}", "start another session", "engine") from error
    except asyncio.CancelledError:
        if not draft.cancelled():
            raise  # the client went away
        closed = EngineError("the gateway was closed", "keep it open until the program ends")
        session.fail(closed)
        raise RequestError(closed.message, closed.fix, "engine") from None
    heard = http is None or not await http.is_disconnected()
    return await run_in_threadpool(session.commit, asked, done, heard)


def _unheard(session: Session, asked: Asked, draft: asyncio.Future[Draft]) -> None:
    """An answer that nobody waits for any more: it counts, or what failed does."""
    if draft.cancelled():
        return
    error = draft.exception()
    if error is None:
        session.commit(asked, draft.result(), delivered=False)
    elif isinstance(error, NinefoldError):
        session.fail(error)


async def _each(wire: Wire, reply: Reply, request: ChatRequest, session: Session) -> AsyncIterator[str]:
    for text in wire.events(reply, request, session):
        yield text


def _events(body: AsyncIterator[str]) -> StreamingResponse:
    return StreamingResponse(body, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})
