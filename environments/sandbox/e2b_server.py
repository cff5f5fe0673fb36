"""`E2BServer`: serves a local backend's sandboxes over E2B's wire, for clients on other hosts, ours or E2B's own.

Paths of the control plane and of the data plane share one port; a request that names a sandbox (a header, or the host) is for its
data plane. There are no terminals, watchers and volumes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hmac
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from environments.errors import ConfigError, NinefoldError, PortBusyError
from environments.sandbox.base import Backend, SandboxConfig
from environments.sandbox.process import ProcessBackend
from environments.sandbox.remote.boxes import CEILING, Boxes
from environments.sandbox.remote.control import Control, failure, failure_of
from environments.sandbox.remote.envd import Envd, sandbox_id
from environments.sandbox.remote.wire import KEY_HEADER

log = logging.getLogger(__name__)

TEMPLATES: Mapping[str, Path | None] = {"base": None, "code-interpreter-v1": None}
"""The templates that E2B's clients ask for by default."""
_REAP_S = 0.2
_START_S = 30.0
_THREADS = 512
"""Operations at a time; each blocks a thread."""


class E2BServer:
    """A server in a thread of this process. A context manager.

    The key is read from the environment at each request. On loopback it may be missing: then any key will do, but one has to be
    sent, which a web page cannot.

    Args:
        host: an address to listen on; other than loopback needs a key, and wants a certificate.
        port: 0 takes a free one.
        templates: names that clients may ask for, with the root folder of the image of each; None is the backend's bare system.
        ceiling: the most that one sandbox may ask for.
        limit: sandboxes at a time.

    Raises:
        ConfigError: the address is open to others and no key is set.
        PortBusyError: the port is taken.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        api_key_env: str = "E2B_API_KEY",
        templates: Mapping[str, Path | None] = TEMPLATES,
        ceiling: SandboxConfig = CEILING,
        limit: int = 1000,
        certificate: Path | None = None,
        private_key: Path | None = None,
    ) -> None:
        self.api_key_env = api_key_env
        self._secure = certificate is not None
        if not _is_loopback(host):
            if not self._key():
                raise ConfigError(f"{host} is open to other machines and {api_key_env} is not set", f"set {api_key_env}, or use 127.0.0.1")
            if not self._secure:
                log.warning("keys and files travel to %s unencrypted: give a certificate, or put a TLS proxy before it", host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # With the protocol named, asyncio sends small answers at once; else they wait 40 ms for the client's delayed ACK.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise PortBusyError(f"{host}:{port} cannot be listened on: {error.strerror}", "use another port") from error
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._boxes = Boxes(backend, templates, ceiling, limit)
        config = uvicorn.Config(
            self._application(),
            log_level="warning",
            access_log=False,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,
            ssl_certfile=certificate,
            ssl_keyfile=private_key,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    @property
    def url(self) -> str:
        """For clients, as control plane and as data plane."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self._secure else 'http'}://{host}:{self.port}"

    def start(self) -> Self:
        """Returns when it answers."""
        self._thread.start()
        deadline = time.monotonic() + _START_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.close()
                raise PortBusyError(f"the sandbox server at {self.url} did not start", "look into the log")
            time.sleep(0.005)
        return self

    def close(self) -> None:
        """Stop answering and end every sandbox. May be called again."""
        self._server.should_exit = True
        # Sandboxes first: their ends let the commands' threads go.
        self._boxes.close()
        if self._thread.ident is not None:
            self._thread.join(_START_S)
        self._socket.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- inside ---------------------------------------------------------------------------------------------------------------

    def _key(self) -> str:
        return os.environ.get(self.api_key_env, "").strip()

    def _application(self) -> ASGIApp:
        control, self._envd = Control(self._boxes, self._blocking), Envd(self._boxes, self._blocking)
        app = Starlette(
            routes=[*control.routes(), *self._envd.routes()],
            lifespan=self._lifespan,
            exception_handlers={NinefoldError: _on_error, 404: _on_unknown, 405: _on_unknown},
        )
        return _Gate(app, self._key)

    async def _blocking(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await anyio.to_thread.run_sync(work, *arguments, limiter=self._limiter)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self._limiter = anyio.CapacityLimiter(_THREADS)
        reaper = asyncio.create_task(self._reap())
        yield
        reaper.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reaper
        await asyncio.to_thread(self._boxes.close)
        await self._envd.processes.sweep()

    async def _reap(self) -> None:
        """Pause or end the sandboxes whose time is over."""
        running: set[asyncio.Task[None]] = set()
        while True:
            for task in self._boxes.due():
                ending = asyncio.create_task(self._blocking(task))
                running.add(ending)
                ending.add_done_callback(running.discard)
            await self._envd.processes.sweep()
            await asyncio.sleep(_REAP_S)


class _Gate:
    """Lets requests of the control plane in by their key. Those of the data plane need their sandbox's token, which `Envd` checks."""

    def __init__(self, app: ASGIApp, key: Callable[[], str]) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (refusal := self._refusal(Request(scope))) is not None:
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        path = request.url.path
        data_plane = path in ("/files", "/execute") or path.startswith(("/process.", "/filesystem."))
        if data_plane or path == "/health":
            return None
        if sandbox_id(request):
            return failure(404, f"route not found: {request.method} {path} of a sandbox")
        given, wanted = request.headers.get(KEY_HEADER, ""), self._key()
        if not given or (wanted and not hmac.compare_digest(given.encode(), wanted.encode())):
            return failure(401, f"the key in the header {KEY_HEADER} is missing or wrong")
        return None


async def _on_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, NinefoldError)
    return failure_of(error)


async def _on_unknown(request: Request, error: Exception) -> Response:
    return failure(404, f"route not found: {request.method} {request.url.path}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def main(arguments: Sequence[str] | None = None) -> None:
    """`python -m environments.sandbox.e2b_server`: serve process sandboxes until SIGINT or SIGTERM."""
    parser = argparse.ArgumentParser(prog="e2b_server", description="Serve process sandboxes over E2B's wire.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; other than loopback needs a key")
    parser.add_argument("--port", type=int, default=3000, help="0 takes a free one")
    parser.add_argument("--api-key-env", default="E2B_API_KEY", help="variable that holds the key")
    parser.add_argument("--limit", type=int, default=1000, help="sandboxes at a time")
    parser.add_argument("--certificate", type=Path, help="TLS certificate, PEM")
    parser.add_argument("--private-key", type=Path, help="its key, PEM")
    options = parser.parse_args(arguments)
    stop = threading.Event()
    try:
        backend = ProcessBackend()
        if reason := backend.probe():
            raise ConfigError(reason)
        with E2BServer(backend, **vars(options)) as server:
            for which in (signal.SIGINT, signal.SIGTERM):
                signal.signal(which, lambda *_: stop.set())
            print(server.url, flush=True)
            stop.wait()
    except NinefoldError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
