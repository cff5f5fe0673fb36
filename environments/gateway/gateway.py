"""`Gateway`: the sessions of the programs that play episodes, and the sockets they come in by."""

from __future__ import annotations

import hashlib
import socket
from typing import Self

from environments.gateway.app import KEEPALIVE_S, make_app
from environments.gateway.backends import Backend
from environments.gateway.serving import Listener, ServingThread
from environments.gateway.session import DEFAULT_LIMITS, Limits, Recording, Session
from environments.task import Effort


class Gateway:
    """Serves OpenAI and Anthropic clients over one backend. A context manager; thread-safe.

    `open` a session for each episode, give its program the session's token as API key (or in the path, `/s/TOKEN`) and an
    address that `listen` serves, then read the `trace`.
    """

    def __init__(self, backend: Backend, keepalive_s: float = KEEPALIVE_S) -> None:
        self.backend = backend
        self._sessions: dict[bytes, Session] = {}
        """By the hash of their token: a look-up then takes no longer the more of a token is right."""
        self._serving = ServingThread(make_app(self._find, keepalive_s), "gateway")

    def open(self, limits: Limits = DEFAULT_LIMITS, seed: int = 0, effort: Effort | None = None) -> Session:
        """A session for one episode.

        Args:
            seed: of the trajectory, for sampling.
            effort: stated to the policy in every context, behind the tools.
        """
        session = Session(self.backend, limits, seed, effort)
        self._sessions[_digest(session.token)] = session
        return session

    def _find(self, token: str) -> Session | None:
        return self._sessions.get(_digest(token))

    def trace(self, session: Session) -> Recording:
        """What was said so far."""
        return session.recording()

    def drop(self, session: Session) -> Recording:
        """Close a session, whose token then opens nothing; returns its trace."""
        self._sessions.pop(_digest(session.token), None)
        return session.recording()

    def listen(self, sock: socket.socket | None = None) -> Listener:
        """Serve on a listening socket, such as `Sandbox.serve` makes, or on a free loopback port, until it is closed.

        Raises:
            InfrastructureError: no port is free, or the socket cannot be served.
        """
        return self._serving.listen(sock)

    def close(self) -> None:
        """Stop serving. May be called again."""
        self._serving.close()
        self.backend.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
