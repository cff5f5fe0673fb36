"""`Supervisor`: one owner of all sandboxes of a host; its clients hold leases and need no children of their own.

A lease lives until it is released, until nothing was asked of it for its `lease_s`, or until the last connection that holds
it ends. A paused, idle sandbox's lease costs the supervisor a descriptor and no thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from environments.errors import NinefoldError, SandboxError
from environments.sandbox.base import Backend, ExecResult, Sandbox, SandboxConfig
from environments.sandbox.supervisor import wire
from environments.sandbox.supervisor.admission import Admission, SupervisorLimits
from environments.sandbox.supervisor.hub import Connection, Hub, Reply, check_address
from environments.sandbox.supervisor.orphans import JOURNAL, ProcessJournal, reap_processes, remove_folder
from environments.sandbox.supervisor.shelf import SnapshotShelf
from environments.sandbox.supervisor.wire import LeaseError, Message

_LOG = logging.getLogger(__name__)
SOCKET = "supervisor.sock"
_CHANGES = frozenset({"exec", "python", "write", "restore"})


@dataclass(eq=False)
class _Claims:
    """What a connection holds."""

    lease: _Lease | None = None
    unclaimed: set[_Lease] = field(default_factory=set)
    """Forked children that their client has not attached to yet."""
    waiting: _Request | None = None


_Connection = Connection[_Claims]


@dataclass(eq=False)
class _Lease:
    lease_id: str
    sandbox: Sandbox
    lease_s: float
    used_at: float
    connections: set[_Connection] = field(default_factory=set)
    running: int = 0
    """Operations in progress; the lease does not expire meanwhile."""
    detached: bool = False
    """No connection is needed: a client has said that another will come."""
    released: bool = False
    snapshot_every_s: float | None = None
    snapshots_kept: int = 2
    snapshot_at: float = 0.0
    snapshotting: bool = False
    changed: bool = True
    """Something ran since the last snapshot."""


@dataclass(eq=False)
class _Request:
    """One request. `lease` is the connection's; operations on a sandbox have one."""

    connection: _Connection
    header: Message
    blobs: list[bytes]

    @property
    def lease(self) -> _Lease:
        lease = self.connection.claims.lease
        if lease is None:
            raise _gone()
        return lease

    @property
    def sandbox(self) -> Sandbox:
        return self.lease.sandbox

    @property
    def config(self) -> SandboxConfig:
        return SandboxConfig.model_validate(self.header["config"])


def _gone() -> LeaseError:
    return LeaseError("the lease is gone: it was released, its sandbox died, or nothing was asked of it for too long", "acquire another")


class Supervisor:
    """Owns the sandboxes of `backend` and answers on a Unix socket in `root`. A context manager; `start` and `stop` it.

    In a process of its own (`start_supervisor`) a supervisor also journals its children, so that after a `kill -9` the next
    one on the same root ends what is left; as a thread it relies on its backend's sandboxes to die with the process.
    """

    def __init__(self, root: Path, backend: Backend, limits: SupervisorLimits | None = None, *, own_process: bool = False) -> None:
        self.root = Path(root)
        self.backend = backend
        self.limits = limits or SupervisorLimits()
        self.orphans_reaped = 0
        """Processes of a killed predecessor that were ended at the start."""
        self._own_process = own_process
        self._lock = threading.RLock()
        self._leases: dict[str, _Lease] = {}
        self._admission: Admission[_Request] = Admission(self.limits)
        self._ended: Counter[str] = Counter()
        self._journal: ProcessJournal | None = None
        self._hub: Hub[_Claims]
        self._started = self._stopping = False

    @property
    def address(self) -> Path:
        """The socket that clients connect to."""
        return self.root / SOCKET

    def start(self) -> Self:
        """Take over the root, clean up after a killed predecessor, and listen.

        Raises:
            SandboxError: another supervisor runs on this root.
            ConfigError: the root's path is too long for a socket.
        """
        check_address(self.address)
        self.root.mkdir(parents=True, exist_ok=True)
        self.root.chmod(0o711)  # a sandbox's user may have to pass through to its own files; the rest is closed
        self._root_lock = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._root_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._root_lock)
            raise SandboxError(f"another supervisor runs on {self.root}", "use that one, or another root") from error
        try:
            self._shelf = SnapshotShelf(self.root / "snapshots")
            self._clean_up()
            self.instance = self.root / f"instance-{uuid.uuid4().hex[:12]}"
            """This run's own folder; `tmp` in it is for the backend's temporary files."""
            (self.instance / "tmp").mkdir(parents=True)
            for folder in (self.instance, self.instance / "tmp"):
                folder.chmod(0o711)
            if self._own_process:
                self._journal = ProcessJournal(self.instance / JOURNAL)
            # As many threads as can have something to do at once: an operation and a snapshot of each sandbox, and some.
            self._hub = Hub(self.address, self, 2 * self.limits.sandboxes + 16)
        except BaseException:
            os.close(self._root_lock)
            raise
        self._started = True
        self._hub.start()
        return self

    def stop(self) -> None:
        """Close every sandbox and the socket. May be called again."""
        with self._lock:
            if not self._started or self._stopping:
                return
            self._stopping = True
        self._hub.quiesce()
        for lease in list(self._leases.values()):
            self._hub.submit(partial(self._end, lease, "stopped"))
        with self._lock:
            refused = self._admission.late(float("inf"))
        for request, _ in refused:
            self._hub.answer(request.connection, SandboxError("the supervisor is stopping", "start it again"))
        self._hub.close()
        shutil.rmtree(self.instance, ignore_errors=True)
        os.close(self._root_lock)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _clean_up(self) -> None:
        for folder in self.root.glob("instance-*"):
            self.orphans_reaped += reap_processes(folder)
            remove_folder(folder)
        self._shelf.remove_old()
        if self.orphans_reaped:
            _LOG.warning("ended %d processes of a supervisor that was killed", self.orphans_reaped)

    # --- connections ----------------------------------------------------------------------------------------------------------

    def claims(self) -> _Claims:
        """Of a new connection."""
        return _Claims()

    def hung_up(self, connection: _Connection) -> tuple[bool, Callable[[], None] | None]:
        """Drop a connection's claims; the leases that nobody else holds end."""
        with self._lock:
            held = connection.claims.unclaimed | ({connection.claims.lease} if connection.claims.lease is not None else set())
            for lease in held:
                lease.connections.discard(connection)
            abandoned = [lease for lease in held if not lease.connections and not lease.detached]
            queued = connection.claims.waiting is not None and self._admission.leave(connection.claims.waiting)
        if queued:  # whoever stood behind it may fit
            self._admit()

        def end() -> None:
            for lease in abandoned:
                self._end(lease, "disconnected")

        return queued, end if abandoned else None

    def handle(self, connection: _Connection, header: Message, blobs: list[bytes]) -> NinefoldError | Reply | None:
        """Answer one request; None for one that waits for room."""
        name = str(header.get("op"))
        try:
            return self._operation(name, _Request(connection, header, blobs))
        except NinefoldError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a backend's surprise is an answer to its client, not the end of all others
            _LOG.exception("%s failed", name)
            return SandboxError(f"{name} failed: {type(error).__name__}: {error}", "see the supervisor's log")

    # --- operations -----------------------------------------------------------------------------------------------------------

    def _operation(self, name: str, request: _Request) -> Reply | None:
        header = request.header
        match name:
            case "acquire":
                with self._lock:
                    request.connection.claims.waiting = request
                    self._admission.ask(request, request.config.memory_mb, time.monotonic(), header["wait_s"])
                self._admit()
                return None
            case "attach":
                return self._attach(request.connection, header["lease_id"]), [], []
            case "probe":
                return {"reason": self.backend.probe()}, [], []
            case "capabilities":
                return wire.pack_capabilities(self.backend.capabilities(request.config)), [], []
            case "status":
                return self.status(), [], []
            case "snapshots":
                return {"snapshots": [wire.pack_snapshot(one) for one in self._shelf.stored(header["lease_id"])]}, [], []
            case "state":  # no use of the lease
                return {"state": request.sandbox.state}, [], []
            case "release":
                if (held := request.connection.claims.lease) is not None:
                    held.released = True
                    self._end(held, "released")
                    if not held.snapshotting:
                        self._shelf.remove(held.lease_id)
                return {}, [], []
        lease = request.lease
        with self._lock:
            if lease.lease_id not in self._leases:
                raise _gone()
            lease.running += 1
        try:
            return self._of_sandbox(name, request)
        finally:
            with self._lock:
                lease.running -= 1
                lease.used_at = time.monotonic()
                lease.changed = lease.changed or name in _CHANGES
            if lease.sandbox.state == "closed":
                self._end(lease, "died")

    def _of_sandbox(self, name: str, request: _Request) -> Reply:
        header, sandbox = request.header, request.sandbox
        match name:
            case "exec":
                return *wire.pack_exec(self._exec(request)), []
            case "python":
                return *wire.pack_python(sandbox.python(header["code"], header["timeout_s"])), []
            case "read":
                return {}, [sandbox.read(header["path"])], []
            case "write":
                sandbox.write(header["path"], request.blobs[0])
            case "list":
                return {"names": sandbox.list(header["path"])}, [], []
            case "pause":
                sandbox.pause()
            case "resume":
                sandbox.resume()
            case "fork":
                return {"children": self._fork(request, header["count"])}, [], []
            case "snapshot":
                return wire.pack_snapshot(sandbox.snapshot(Path(header["directory"]))), [], []
            case "restore":
                sandbox.restore(wire.unpack_snapshot(header["snapshot"]))
                self._note_processes()
            case "serve":
                return {}, [], [sandbox.serve(header["port"]).detach()]
            case "renew":
                request.lease.lease_s = header["lease_s"] or request.lease.lease_s
            case "detach":
                with self._lock:
                    lease, request.connection.claims.lease = request.lease, None
                    lease.detached = True
                    lease.connections.discard(request.connection)
            case "snapshot_every":
                with self._lock:
                    request.lease.snapshot_every_s, request.lease.snapshots_kept = header["every_s"], header["keep"]
                    request.lease.snapshot_at = time.monotonic() + (header["every_s"] or 0.0)
            case _:
                raise SandboxError(f"this supervisor knows no {name!r}", "use a client of the same version")
        return {}, [], []

    def _exec(self, request: _Request) -> ExecResult:
        header = request.header

        def on_output(stream: str, data: bytes) -> None:
            with contextlib.suppress(OSError):  # the client is gone: the loop sees it and ends the lease
                wire.send(request.connection.sock, {"stream": stream}, [data])

        return request.sandbox.exec(
            header["argv"],
            stdin=request.blobs[0].decode("utf-8", "surrogatepass"),
            timeout_s=header["timeout_s"],
            env=header["env"],
            on_output=on_output if header["streamed"] else None,
        )

    def _fork(self, request: _Request, count: int) -> list[Message]:
        memory_mb = request.sandbox.config.memory_mb
        with self._lock:
            refusals = [self._admission.take(memory_mb) for _ in range(count)]
        refused = [refusal for refusal in refusals if refusal is not None]
        admitted = count - len(refused)
        results: list[Sandbox | SandboxError] = []
        try:
            results = list(request.sandbox.fork(admitted)) if admitted else []
        finally:
            with self._lock:
                for _ in range(admitted - sum(isinstance(result, Sandbox) for result in results)):
                    self._admission.give(memory_mb)
            self._admit()
        self._note_processes()
        return [
            {"lease_id": self._lease(result, request.lease.lease_s, request.connection).lease_id}
            if isinstance(result, Sandbox)
            else {"raised": wire.pack_error(result)}
            for result in [*results, *refused]
        ]

    # --- leases ---------------------------------------------------------------------------------------------------------------

    def _admit(self) -> None:
        with self._lock:
            ready = self._admission.admit()
        for request in ready:
            self._hub.submit(partial(self._create, request))

    def _create(self, request: _Request) -> None:
        answer: NinefoldError | Reply
        config, header, connection = request.config, request.header, request.connection
        sandbox: Sandbox | None = None
        try:
            if connection.dead or self._stopping:
                raise SandboxError("the client is gone", "")
            snapshot = wire.unpack_snapshot(header["snapshot"]) if header["snapshot"] else None
            sandbox = self.backend.create(config, snapshot)
            self._note_processes()
            answer = self._describe(self._lease(sandbox, header["lease_s"], connection)), [], []
        except NinefoldError as error:
            answer = error
        except Exception as error:  # noqa: BLE001 - as in `handle`
            _LOG.exception("create failed")
            answer = SandboxError(f"a sandbox could not be created: {type(error).__name__}: {error}", "see the supervisor's log")
        if sandbox is None:
            with self._lock:
                self._admission.give(config.memory_mb)
            self._admit()
        self._hub.answer(connection, answer)

    def _lease(self, sandbox: Sandbox, lease_s: float, connection: _Connection) -> _Lease:
        """A new lease held by `connection`; ended at once when that has gone meanwhile. A forked child is held by its
        parent's connection until the client attaches to it with one of its own."""
        lease = _Lease(uuid.uuid4().hex, sandbox, lease_s, time.monotonic())
        with self._lock:
            self._leases[lease.lease_id] = lease
            held = not connection.dead and not self._stopping
            if held:
                lease.connections.add(connection)
                if connection.claims.lease is None:
                    connection.claims.lease = lease
                else:
                    connection.claims.unclaimed.add(lease)
        if not held:
            self._end(lease, "disconnected")
        return lease

    def _attach(self, connection: _Connection, lease_id: str) -> Message:
        with self._lock:
            lease = self._leases.get(lease_id)
            if lease is None:
                raise LeaseError(f"there is no lease {lease_id}", "it was released, has expired, or its supervisor is another")
            if connection.dead:
                raise _gone()
            if connection.claims.lease is not None:
                raise SandboxError("this connection holds another lease", "use one connection for each")
            for other in list(lease.connections):
                if lease in other.claims.unclaimed:
                    other.claims.unclaimed.discard(lease)
                    lease.connections.discard(other)
            lease.connections.add(connection)
            lease.detached = False
            lease.used_at = time.monotonic()
            connection.claims.lease = lease
        return self._describe(lease)

    def _describe(self, lease: _Lease) -> Message:
        return {
            "lease_id": lease.lease_id,
            "sandbox_id": lease.sandbox.sandbox_id,
            "seed": lease.sandbox.seed,
            "state": lease.sandbox.state,
            "config": lease.sandbox.config.model_dump(mode="json"),
            "capabilities": wire.pack_capabilities(lease.sandbox.capabilities()),
        }

    def _end(self, lease: _Lease, why: str) -> None:
        """Close a lease's sandbox, whatever it is doing, and make room for who waits."""
        with self._lock:
            if self._leases.pop(lease.lease_id, None) is None:
                return
            self._ended[why] += 1
        try:
            lease.sandbox.close()
        except Exception:  # noqa: BLE001 - its room is free all the same; the log says what stayed
            _LOG.exception("sandbox %s did not close", lease.sandbox.sandbox_id)
        with self._lock:
            self._admission.give(lease.sandbox.config.memory_mb)
        if not self._stopping:
            self._admit()

    def tick(self, now: float) -> None:
        """Everything that time brings: late waiters, expired leases, snapshots that are due."""
        with self._lock:
            late = self._admission.late(now)
            expired = [one for one in self._leases.values() if not one.running and one.used_at + one.lease_s <= now]
            due = [one for one in self._leases.values() if one.snapshot_every_s is not None and one.snapshot_at <= now]
            for lease in due:
                lease.snapshot_at = now + (lease.snapshot_every_s or 0.0)
            # One that its time-to-live has paused wakes up for it once; one that was paused on request is left alone.
            due = [one for one in due if one.changed and not one.snapshotting and (one.sandbox.state == "running" or one.sandbox._expired)]
            for lease in due:
                lease.snapshotting = True
        for request, error in late:
            self._hub.submit(partial(self._hub.answer, request.connection, error))
        for lease in expired:
            self._hub.submit(partial(self._end, lease, "expired"))
        for lease in due:
            self._hub.submit(partial(self._keep_snapshot, lease))

    def _keep_snapshot(self, lease: _Lease) -> None:
        lease.changed = False
        try:
            self._shelf.take(lease.lease_id, lease.sandbox, lease.snapshots_kept)
        except (NinefoldError, OSError) as error:
            lease.changed = True
            if not lease.released:
                _LOG.warning("a snapshot of lease %s failed: %s", lease.lease_id, error)
            if lease.sandbox.state == "closed":
                self._end(lease, "died")
        finally:
            lease.snapshotting = False
            if lease.released:
                self._shelf.remove(lease.lease_id)

    def status(self) -> dict[str, Any]:
        """Numbers: live, memory_mb, waiting, and how leases have ended so far."""
        with self._lock:
            return {
                "pid": os.getpid(),
                "backend": self.backend.name,
                "live": self._admission.live,
                "memory_mb": self._admission.memory_mb,
                "waiting": len(self._admission),
                "leases": sorted(self._leases),
                "ended": dict(self._ended),
                "orphans_reaped": self.orphans_reaped,
            }

    def _note_processes(self) -> None:
        if self._journal is not None:
            self._journal.note()
