"""The client's end: a leased sandbox is a `Sandbox` like any other, and a supervisor is a `Backend`."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from environments.errors import InfrastructureError, SandboxError
from environments.sandbox.base import DEFAULT, Backend, Capabilities, ExecResult, OnOutput, PythonResult, Sandbox, SandboxConfig, Snapshot
from environments.sandbox.supervisor import wire
from environments.sandbox.supervisor.wire import Message

_CONNECT_S = 10.0
_ANSWER_S = 900.0
"""Beyond an operation's own limit: a snapshot that the supervisor takes first, a busy disk. Its death is noticed at once anyway."""
_STATE_S = 0.25
"""How soon a time-to-live that was not over yet is looked at again."""
_FIX = "start the supervisor again; acquire(snapshot=...) goes on from the last of `snapshots(lease_id)`"


class _Wire:
    """One connection to a supervisor, one request at a time."""

    def __init__(self, address: Path) -> None:
        self.address = address
        self.lock = threading.Lock()
        self._owner = os.getpid()
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(_CONNECT_S)
        try:
            self._sock.connect(str(address))
        except OSError as error:
            self._sock.close()
            raise SandboxError(f"no supervisor answers on {address} ({error.strerror})", "start one with start_supervisor") from error

    def call(
        self,
        header: Message,
        blobs: Sequence[bytes] = (),
        *,
        limit_s: float = 0.0,
        on_output: OnOutput | None = None,
    ) -> tuple[Message, list[bytes], list[int]]:
        """Ask and wait for the answer.

        Raises:
            NinefoldError: what the supervisor answers.
            SandboxError: it is gone; nothing more can be asked on this connection.
        """
        broken: Exception | None = None
        with self.lock:
            if os.getpid() != self._owner:
                raise SandboxError(
                    "a lease's connection does not survive a fork of the process", "pickle the sandbox, or attach to its lease"
                )
            try:
                self._sock.settimeout(limit_s + _ANSWER_S)
                wire.send(self._sock, header, blobs)
                while True:
                    answer, bodies, fds = wire.receive(self._sock)
                    if "stream" not in answer:
                        break
                    if on_output is not None and broken is None:
                        try:
                            on_output(answer["stream"], bodies[0])
                        except Exception as error:  # noqa: BLE001 - raised below, once the answer is read and the connection usable
                            broken = error
            except (OSError, EOFError, ValueError) as error:
                self._sock.close()
                raise SandboxError(f"the supervisor on {self.address} is gone ({error})", _FIX) from error
        if broken is not None:
            raise broken
        if "raised" in answer:
            raise wire.unpack_error(answer["raised"])
        return answer, bodies, fds

    def close(self) -> None:
        """End the connection. The supervisor then ends the lease that only this connection held; this waits for it."""
        if os.getpid() == self._owner:
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_WR)
            if self.lock.acquire(timeout=_ANSWER_S):  # an operation in another thread gets its error first
                try:
                    with contextlib.suppress(OSError):
                        while self._sock.recv(1 << 16):
                            pass
                finally:
                    self.lock.release()
        self._sock.close()


class LeasedSandbox(Sandbox):
    """A sandbox that a supervisor owns. Closing releases the lease.

    Pickling ships the lease's id: whoever unpickles holds it too, over a connection of its own. The lease ends with its last
    connection, so keep this one until the other end has attached, or `detach`.
    """

    def __init__(self, connection: _Wire, described: Message) -> None:
        super().__init__(SandboxConfig.model_validate(described["config"]))
        self._wire = connection
        self._capabilities = wire.unpack_capabilities(described["capabilities"])
        self.sandbox_id = described["sandbox_id"]
        self.seed = described["seed"]
        self.lease_id: str = described["lease_id"]
        self._started()
        if described["state"] == "paused":
            self.state = "paused"

    def __reduce__(self) -> tuple[Any, ...]:
        return _attach, (self._wire.address, self.lease_id)

    def _expire(self) -> None:
        """The supervisor's own sandbox keeps the time-to-live and wakes up by itself; this end only takes note."""
        with self._lock:
            self._timer = None
            if self.state != "running":
                return
            try:
                state = self._wire.call({"op": "state"})[0]["state"]
            except SandboxError:
                return
            if state == "paused":
                self.state, self._expired = "paused", True
            else:
                self._arm(_STATE_S)

    # --- the lease ----------------------------------------------------------------------------------------------------------------

    def renew(self, lease_s: float | None = None) -> None:
        """Count the lease's time from now, as every operation does; `lease_s` changes it.

        Raises:
            LeaseError: the lease is gone.
        """
        self._wire.call({"op": "renew", "lease_s": lease_s})

    def snapshot_every(self, every_s: float | None, keep: int = 2) -> None:
        """Have the supervisor snapshot the sandbox every so often while it is used, and keep the last `keep`; None ends it.

        They survive the supervisor and every end of the lease but its release; `SupervisorBackend.snapshots` finds them.
        """
        if keep < 1 or (every_s is not None and every_s <= 0):
            raise ValueError(f"every_s={every_s} and keep={keep} must be positive")
        self._wire.call({"op": "snapshot_every", "every_s": every_s, "keep": keep})

    def detach(self) -> str:
        """Give up this connection but not the lease, which waits for `attach` until it expires; returns its id."""
        with self._lock:
            self._wire.call({"op": "detach"})
            self.state = "closed"
            self._wire.close()
        return self.lease_id

    # --- what a backend implements ------------------------------------------------------------------------------------------------

    def capabilities(self) -> Capabilities:
        """What the supervisor's sandbox really does."""
        return self._capabilities

    def _exec(self, argv: Sequence[str], stdin: bytes, timeout_s: float, env: Mapping[str, str], on_output: OnOutput | None) -> ExecResult:
        request = {"op": "exec", "argv": list(argv), "timeout_s": timeout_s, "env": dict(env), "streamed": on_output is not None}
        answer, blobs, _ = self._wire.call(request, [stdin], limit_s=timeout_s, on_output=on_output)
        return wire.unpack_exec(answer, blobs)

    def _python(self, code: str, timeout_s: float) -> PythonResult:
        answer, blobs, _ = self._wire.call({"op": "python", "code": code, "timeout_s": timeout_s}, limit_s=timeout_s)
        return wire.unpack_python(answer, blobs)

    def _read(self, path: str) -> bytes:
        return self._wire.call({"op": "read", "path": path})[1][0]

    def _write(self, path: str, data: bytes) -> None:
        self._wire.call({"op": "write", "path": path}, [data])

    def _list(self, path: str) -> list[str]:
        return [str(name) for name in self._wire.call({"op": "list", "path": path})[0]["names"]]

    def _pause(self) -> None:
        self._wire.call({"op": "pause"})

    def _resume(self) -> None:
        if not self._expired:
            self._wire.call({"op": "resume"})

    def _fork(self, count: int) -> list[Sandbox | SandboxError]:
        children: list[Sandbox | SandboxError] = []
        for child in self._wire.call({"op": "fork", "count": count})[0]["children"]:
            if "raised" in child:
                error = wire.unpack_error(child["raised"])
                children.append(error if isinstance(error, SandboxError) else SandboxError(error.message, error.fix))
                continue
            try:
                children.append(_attach(self._wire.address, child["lease_id"]))
            except SandboxError as error:
                children.append(error)
        return children

    def _snapshot(self, directory: Path) -> Snapshot:
        return wire.unpack_snapshot(self._wire.call({"op": "snapshot", "directory": str(Path(directory).absolute())})[0])

    def _restore(self, snapshot: Snapshot) -> None:
        self._wire.call({"op": "restore", "snapshot": wire.pack_snapshot(snapshot)})

    def _serve(self, port: int) -> socket.socket:
        return socket.socket(fileno=self._wire.call({"op": "serve", "port": port})[2][0])

    def _close(self) -> None:
        if not self._wire.lock.locked():  # else an operation hangs in another thread: hanging up ends it
            with contextlib.suppress(SandboxError):
                self._wire.call({"op": "release"})
        self._wire.close()


def _attach(address: Path, lease_id: str) -> LeasedSandbox:
    with _connected(address) as connection:
        return LeasedSandbox(connection, connection.call({"op": "attach", "lease_id": lease_id})[0])


@contextmanager
def _connected(address: Path) -> Iterator[_Wire]:
    """A connection that is closed only if the body fails."""
    connection = _Wire(address)
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


class SupervisorBackend(Backend):
    """Sandboxes that the supervisor behind `address` owns. Needs no children, so Dask workers and training processes may use it."""

    name = "supervisor"

    def __init__(self, address: Path, *, lease_s: float = 3600.0, wait_s: float = 60.0) -> None:
        """
        Args:
            address: the supervisor's socket.
            lease_s: a lease of which nothing is asked for so long ends.
            wait_s: how long `create` may wait for room.
        """
        self.address = Path(address)
        self.lease_s = lease_s
        self.wait_s = wait_s

    def probe(self) -> str:
        """Empty when a supervisor answers and its own backend works."""
        try:
            return str(self._ask({"op": "probe"})["reason"])
        except InfrastructureError as error:
            return str(error)

    def create(self, config: SandboxConfig = DEFAULT, snapshot: Snapshot | None = None) -> LeasedSandbox:
        """`acquire` with this backend's own times."""
        return self.acquire(config, snapshot)

    def acquire(
        self,
        config: SandboxConfig = DEFAULT,
        snapshot: Snapshot | None = None,
        *,
        lease_s: float | None = None,
        wait_s: float | None = None,
    ) -> LeasedSandbox:
        """A leased sandbox, empty or as `snapshot` holds it.

        Raises:
            AdmissionError: no room within `wait_s`, or ever; the message names the limit.
            SandboxError: no supervisor answers, or the sandbox could not be started.
        """
        wait_s = self.wait_s if wait_s is None else wait_s
        request = {
            "op": "acquire",
            "config": config.model_dump(mode="json"),
            "snapshot": None if snapshot is None else wire.pack_snapshot(snapshot),
            "lease_s": self.lease_s if lease_s is None else lease_s,
            "wait_s": wait_s,
        }
        with _connected(self.address) as connection:
            return LeasedSandbox(connection, connection.call(request, limit_s=wait_s)[0])

    def attach(self, lease_id: str) -> LeasedSandbox:
        """Hold a lease that another process acquired.

        Raises:
            LeaseError: there is none of that id.
        """
        return _attach(self.address, lease_id)

    def capabilities(self, config: SandboxConfig = DEFAULT) -> Capabilities:
        """What the supervisor's own backend would do."""
        return wire.unpack_capabilities(self._ask({"op": "capabilities", "config": config.model_dump(mode="json")}))

    def snapshots(self, lease_id: str) -> list[Snapshot]:
        """What `LeasedSandbox.snapshot_every` has kept of a lease, oldest first; also of one that is gone."""
        return [wire.unpack_snapshot(one) for one in self._ask({"op": "snapshots", "lease_id": lease_id})["snapshots"]]

    def status(self) -> dict[str, Any]:
        """The supervisor's numbers: `live`, `memory_mb`, `waiting`, `leases`, and how leases have `ended`."""
        return self._ask({"op": "status"})

    def _ask(self, header: Message) -> Message:
        connection = _Wire(self.address)
        try:
            return connection.call(header)[0]
        finally:
            connection.close()
