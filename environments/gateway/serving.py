"""ASGI apps on listening sockets, from one thread of our own with its event loop."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from concurrent.futures import Future, wait
from typing import Any, Literal

import uvicorn

from environments.errors import InfrastructureError, PortBusyError

_START_S = 10.0


class _Server(uvicorn.Server):
    """Tells when it accepts connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up: Future[None] = Future()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set_result(None)


class Listener:
    """A socket that is served until it is closed."""

    def __init__(self, url: str, server: uvicorn.Server, done: Future[None]) -> None:
        self.url = url
        """Base URL, as its clients see it."""
        self._server, self._done = server, done

    def close(self) -> None:
        """Serve it no more; requests under way get a second. May be called again."""
        self._server.should_exit = True
        wait([self._done])


class ServingThread:
    """Serves one app on any number of sockets until it is closed."""

    def __init__(self, app: Any, name: str, lifespan: Literal["on", "off"] = "off") -> None:
        """
        Args:
            lifespan: `on` for an app that must be started; it then takes one socket.
        """
        self._app = app
        self._lifespan: Literal["on", "off"] = lifespan
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._listeners: list[Listener] = []
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.close()

    def listen(self, sock: socket.socket | None = None) -> Listener:
        """Serve on a listening socket, or on a free loopback port. The socket is ours from now on.

        Raises:
            PortBusyError: no loopback port is free.
            InfrastructureError: the socket cannot be served.
        """
        if sock is None:
            sock = socket.socket()
            try:
                sock.bind(("127.0.0.1", 0))
            except OSError as error:
                sock.close()
                raise PortBusyError(f"no loopback port is free ({error.strerror})", "end what holds the ports") from error
        # asyncio sends small packets at once (TCP_NODELAY) only where a socket says that it is TCP, as one from a descriptor does:
        # otherwise each answer waits 40 ms for an acknowledgement.
        sock = socket.socket(fileno=sock.detach())
        port = sock.getsockname()[1]
        # A log line of a request would hold the secrets of its path.
        config = uvicorn.Config(
            self._app,
            access_log=False,
            log_config=None,
            log_level=logging.WARNING,
            lifespan=self._lifespan,
            timeout_graceful_shutdown=1,
            ws="none",
        )
        server = _Server(config)
        done = asyncio.run_coroutine_threadsafe(server.serve([sock]), self._loop)
        wait([server.up, done], _START_S, "FIRST_COMPLETED")
        if not server.up.done():
            done.cancel()
            sock.close()
            raise InfrastructureError(f"port {port} cannot be served", "pass a listening TCP socket")
        listener = Listener(f"http://127.0.0.1:{port}", server, done)
        self._listeners = [known for known in self._listeners if not known._done.done()] + [listener]
        return listener

    def close(self) -> None:
        """Stop serving. May be called again."""
        if self._loop.is_closed():
            return
        for listener in self._listeners:
            listener._server.should_exit = True
        for listener in self._listeners:
            listener.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
