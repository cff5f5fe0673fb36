"""`RemoteBackend`: makes sandboxes on an E2B-compatible server, asks it what they do, and keeps them alive there."""

from __future__ import annotations

import logging
import threading
import uuid
import weakref
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pydantic import TypeAdapter, ValidationError

from environments.errors import CorruptArtifactError, NinefoldError, SandboxError, UnsupportedError
from environments.sandbox.base import DEFAULT, Backend, Capabilities, SandboxConfig, Snapshot
from environments.sandbox.remote.client import Answer, E2BClient
from environments.sandbox.remote.sandbox import NOTE, Abilities, RemoteSandbox, note_of
from environments.sandbox.remote.wire import CAPABILITIES_PATH, NewSandbox, SandboxInfo, Timeout

log = logging.getLogger(__name__)

CAPABILITIES = TypeAdapter(Capabilities)


class Keeper(Protocol):
    """What a sandbox needs of its backend."""

    lease_s: int

    def watch(self, sandbox: RemoteSandbox) -> None: ...
    def forget(self, sandbox: RemoteSandbox) -> None: ...
    def start(self, config: SandboxConfig, snapshot: Snapshot | None, seed: int | None = None) -> RemoteSandbox: ...


@dataclass
class RemoteBackend(Backend):
    """Sandboxes of one server and template.

    A sandbox without a time-to-live is kept by renewed leases: should this process die, the server ends it within one.
    """

    client: E2BClient
    template: str = "base"
    """Name or id of the template, on servers that have several."""
    lease_s: int = 300
    """How long the server keeps a sandbox of which it hears nothing, s. E2B allows up to an hour or a day."""
    metadata: dict[str, str] = field(default_factory=dict)
    """Told to the server about each sandbox, for its listing."""

    name = "remote"

    def __post_init__(self) -> None:
        if self.lease_s < 1:
            raise ValueError(f"lease_s={self.lease_s} must be at least 1")
        self._prepare()

    def _prepare(self) -> None:
        self._lock = threading.Lock()
        self._asked: dict[str, Abilities] = {}
        self._why: str | None = None
        self._watched: weakref.WeakSet[RemoteSandbox] = weakref.WeakSet()
        self._thread: threading.Thread | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"client": self.client, "template": self.template, "lease_s": self.lease_s, "metadata": self.metadata}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._prepare()

    # --- what it can do ---------------------------------------------------------------------------------------------------

    def probe(self) -> str:
        """Empty when a sandbox could be created on the server and ran a command, else the reason. Cached."""
        if self._why is None:
            try:
                with self.create() as sandbox:
                    code = sandbox.exec(["true"]).exit_code
                self._why = "" if code == 0 else f"{self.client.where}: `true` ended with {code}. Fix: use another template"
            except NinefoldError as error:
                self._why = str(error)
        return self._why

    def capabilities(self, config: SandboxConfig = DEFAULT) -> Capabilities:
        """What the server says. Ours answers in full; of others we learn which operations they know, at an id that does not exist."""
        return self._abilities(config).capabilities

    def _abilities(self, config: SandboxConfig) -> Abilities:
        key = config.mode
        with self._lock:
            if key not in self._asked:
                self._asked[key] = self._ask(config)
            return self._asked[key]

    def _ask(self, config: SandboxConfig) -> Abilities:
        answer = self.client.control("POST", CAPABILITIES_PATH, config, repeatable=True)
        if answer.status == 200:
            try:
                found: Capabilities = CAPABILITIES.validate_json(answer.body)
            except ValidationError as error:
                raise SandboxError(f"{self.client.where} answered no capabilities", "run the same version of Ninefold there") from error
            notes = (f"on {self.client.where}, backend {found.backend}", *found.notes)
            return Abilities(replace(found, backend="remote", services=False, images=False, notes=notes), True)
        nobody = str(uuid.uuid4())
        unknown = self._look(nobody, "no-such-operation")
        pause, fork, snapshot = (self._look(nobody, operation) != unknown for operation in ("pause", "fork", "snapshots"))
        return Abilities(
            Capabilities(
                backend="remote",
                isolation="none",
                mode=config.mode,
                pause="cpu+memory" if pause else "none",
                fork="full" if fork else "none",
                snapshot="full" if snapshot else "none",
                memory_limit="sandbox",
                notes=(
                    f"on {self.client.where}, which does not say what isolates its sandboxes: none is claimed",
                    "pause, fork and snapshot are taken to do what the E2B API promises of them",
                    "memory, processors and disk are the template's; the network is asked to be closed",
                ),
            )
        )

    def _look(self, sandbox_id: str, operation: str) -> tuple[int, str]:
        """How the server answers an operation on a sandbox that does not exist: a path that it does not know sounds different."""
        answer: Answer = self.client.control("POST", f"/sandboxes/{sandbox_id}/{operation}", Timeout(timeout_s=1), repeatable=True)
        if answer.status in (405, 501):
            return 404, ""
        return answer.status, answer.message.replace(operation, "OPERATION")

    # --- sandboxes ----------------------------------------------------------------------------------------------------------

    def create(self, config: SandboxConfig = DEFAULT, snapshot: Snapshot | None = None) -> RemoteSandbox:
        """A running sandbox on the server, from the template or a snapshot that this server holds.

        Raises:
            ConfigError: the key is refused.
            UnsupportedError: the configuration asks for what the server cannot keep.
            SandboxError: the server is dead, or did not create it.
        """
        return self.start(config, snapshot)

    def start(self, config: SandboxConfig, snapshot: Snapshot | None, seed: int | None = None) -> RemoteSandbox:
        """As `create`, with the seed of the sandbox that this one replaces."""
        abilities = self._abilities(config)
        self._check(config, snapshot, abilities)
        template = self.template if snapshot is None else snapshot.details["snapshot"]
        draft = RemoteSandbox(self.client, SandboxInfo(sandbox_id="draft"), config, abilities, self, seed)
        body = NewSandbox(
            template=template,
            timeout_s=draft.lease_s,
            auto_pause=config.ttl_s is not None,
            internet=False,
            metadata=self.metadata,
            env={**config.env, "NINEFOLD_SEED": str(draft.seed)},
            config=config.model_copy(update={"seed": draft.seed}).model_dump(mode="json") if abilities.ours else None,
        )
        answer = self.client.control("POST", "/sandboxes", body, repeatable=False)
        if answer.status == 501:
            raise UnsupportedError(f"{self.client.where}: {self.client.redact(answer.message)}", "change the configuration")
        if answer.status not in (200, 201):
            said = self.client.redact(answer.message)
            raise SandboxError(f"{self.client.where} made no sandbox of {template}: status {answer.status}: {said!r}", "check the template")
        info = self.client.parse(SandboxInfo, answer.body)
        return self._up(RemoteSandbox(self.client, info, config, abilities, self, draft.seed))

    def connect(self, remote_id: str, config: SandboxConfig = DEFAULT) -> RemoteSandbox:
        """A sandbox that exists already, by its `remote_id`; it is resumed if it was paused. Its limits stay as they were made.

        Raises:
            SandboxError: there is none of that id.
        """
        abilities = self._abilities(config)
        timeout_s = RemoteSandbox(self.client, SandboxInfo(sandbox_id=remote_id), config, abilities, self).lease_s
        answer = self.client.control("POST", f"/sandboxes/{remote_id}/connect", Timeout(timeout_s=timeout_s), repeatable=True)
        if answer.status not in (200, 201):
            said = self.client.redact(answer.message)
            raise SandboxError(f"{self.client.where} has no sandbox {remote_id}: status {answer.status}: {said!r}", "create another")
        info = self.client.parse(SandboxInfo, answer.body)
        return self._up(RemoteSandbox(self.client, info, config, abilities, self))

    def _up(self, sandbox: RemoteSandbox) -> RemoteSandbox:
        try:
            return sandbox.up()
        except BaseException:
            sandbox.close()
            raise

    def _check(self, config: SandboxConfig, snapshot: Snapshot | None, abilities: Abilities) -> None:
        if snapshot is not None:
            if snapshot.backend != self.name or snapshot.details.get("server") != self.client.url:
                raise SandboxError(
                    f"snapshot {snapshot.snapshot_id} of backend {snapshot.backend} is not on {self.client.where}",
                    "restore it where it was made",
                )
            try:
                whole = (snapshot.path / NOTE).read_bytes() == note_of(snapshot.details)
            except OSError:
                whole = False
            if not whole:
                raise CorruptArtifactError(
                    f"{snapshot.path / NOTE} is not what snapshot {snapshot.snapshot_id} wrote", "use another snapshot"
                )
            if abilities.capabilities.snapshot == "none":
                raise UnsupportedError(f"{self.client.where} keeps no snapshots", "ask capabilities() first")
        if config.image is not None:
            raise UnsupportedError(f"the remote backend cannot mount the image {config.image}", "make a template of it on the server")
        if not abilities.ours:
            for name in ("memory_mb", "processes", "workspace_mb"):
                if getattr(config, name) != getattr(DEFAULT, name):
                    raise UnsupportedError(
                        f"{self.client.where} cannot set {name}={getattr(config, name)} for one sandbox", "use a template with that limit"
                    )
            if config.mode == "forkable" and abilities.capabilities.fork == "none":
                raise UnsupportedError(f"{self.client.where} cannot fork, as mode forkable asks", "use mode strict")

    # --- leases ---------------------------------------------------------------------------------------------------------------

    def watch(self, sandbox: RemoteSandbox) -> None:
        """Renew this sandbox's lease until it is forgotten or paused."""
        with self._lock:
            self._watched.add(sandbox)
            if self._thread is None:
                self._thread = threading.Thread(target=_renew_all, args=(weakref.ref(self), self.lease_s / 3), daemon=True)
                self._thread.start()

    def forget(self, sandbox: RemoteSandbox) -> None:
        """Let its lease run out."""
        with self._lock:
            self._watched.discard(sandbox)

    def renew_all(self) -> None:
        """Renew the leases that are due, of running sandboxes."""
        with self._lock:
            watched = list(self._watched)
        for sandbox in watched:
            if sandbox.state not in ("paused", "pausing", "killing", "closed"):
                try:
                    sandbox.renew()
                except NinefoldError as error:
                    log.warning("the lease of sandbox %s was not renewed: %s", sandbox.remote_id, error)


def _renew_all(backend: weakref.ref[RemoteBackend], every_s: float) -> None:
    tick = threading.Event()
    while not tick.wait(every_s):
        here = backend()
        if here is None:
            return
        here.renew_all()
        del here
