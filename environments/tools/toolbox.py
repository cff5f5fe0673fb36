"""The agent's tools over a sandbox and a browser, for any task that names them beside its family's own."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from environments.environment import ARTEFACTS, Answer, Environment, OnCall
from environments.errors import AgentError, BadArgumentsError, ConfigError, InputError, UnsupportedError
from environments.protocols import Observation
from environments.sandbox.backends import choose
from environments.sandbox.base import DEFAULT, Backend, Sandbox, SandboxConfig
from environments.task import TaskSpec, ToolCall, ToolSpec
from environments.tools.bash import BASH, run_bash
from environments.tools.browser import BROWSER_TOOLS, BrowserSession
from environments.tools.files import CREATE, EDIT, VIEW, create, edit, view
from environments.tools.python import PYTHON, run_python
from environments.tools.service import PORT, PRELUDE, ToolService, install_commands, interpreter_cell
from environments.tools.sites import Sites
from environments.tools.tunnel import Tunnel

if TYPE_CHECKING:
    from environments.resources import Resources

SANDBOX_TOOLS: dict[str, ToolSpec] = {tool.name: tool for tool in (PYTHON, BASH, VIEW, EDIT, CREATE)}
"""Tools that work on a sandbox."""
TOOLS: dict[str, ToolSpec] = {**SANDBOX_TOOLS, **BROWSER_TOOLS}
"""Every tool that a task may name beside its family's own."""

_COLLECTED_FILES = 1_000
_COLLECTED_BYTES = 64 << 20


class Toolbox:
    """The tools of one episode. The sandbox is made at `open`, the browser's page at its first use; `close` ends both."""

    def __init__(
        self,
        task: TaskSpec,
        names: Sequence[str],
        backend: Backend | None = None,
        config: SandboxConfig = DEFAULT,
        sites: Sites | None = None,
        carriers: Collection[str] = (),
    ) -> None:
        """
        Args:
            names: the tools to offer, of `TOOLS`.
            backend: makes the sandbox; None chooses the strongest that works here.
            sites: what the browser reaches; by default what the sandbox serves or, without one, the task's files.
            carriers: `bash` or `python` where a harness calls all others through it: their names then go before builtins.

        Raises:
            ConfigError: there is no such tool.
        """
        if unknown := [name for name in names if name not in TOOLS]:
            raise ConfigError(f"there is no tool {unknown[0]!r}", f"use {', '.join(TOOLS)}")
        self.specs: Mapping[str, ToolSpec] = {name: TOOLS[name] for name in names}
        self.sandbox: Sandbox | None = None
        self._task = task
        self._backend = backend
        self._config = config
        self._sites = sites
        self._carriers = frozenset(carriers)
        self._served: tuple[ToolSpec, ...] = ()
        self._service: ToolService | None = None
        self._tunnel: Tunnel | None = None
        self._browser: BrowserSession | None = None
        self._has_functions = False
        """Whether the interpreter is known to have the tools as functions."""
        self._environment: weakref.ref[Environment] | None = None
        self._things = contextlib.ExitStack()
        self._finalizer = weakref.finalize(self, self._things.close)

    # --- life cycle --------------------------------------------------------------------------------------------------------

    def open(self, environment: Environment) -> None:
        """Bring up what the tools need: sandbox, the task's files in it, tool service.

        Raises:
            InputError: a file of the task cannot be in a workspace, or no sandbox works on this machine.
            SandboxError: the sandbox could not be started, or its backend cannot carry this harness's calls.
        """
        self._environment = weakref.ref(environment)
        browses = any(name in BROWSER_TOOLS for name in self.specs)
        if any(name in SANDBOX_TOOLS for name in self.specs):
            self.sandbox = self._things.enter_context(self._make_sandbox())
            for path, text in self._task.initial_state.files.items():
                try:
                    self.sandbox.write(path, text.encode())
                except BadArgumentsError as error:
                    raise InputError(f"task {self._task.task_id}: {error.message}", "name its files by paths in the workspace") from error
            services = self.sandbox.capabilities().services
            if self._carriers and not services:
                raise UnsupportedError(
                    f"the {self.sandbox.capabilities().backend} backend has no services, and this harness calls all tools through them",
                    "use the process backend, or a harness that calls tools directly",
                )
            if services:
                self._serve(environment)
                if browses and self._sites is None:
                    self._tunnel = self._things.enter_context(Tunnel(self.sandbox))
        if browses:
            self._browser = self._things.enter_context(BrowserSession(self._sites or self._own_sites()))

    def _make_sandbox(self) -> Sandbox:
        if self._backend is None:
            self._backend, _ = choose()
        return self._backend.create(self._config)

    def _own_sites(self) -> Sites:
        if self.sandbox is None:
            return Sites(files={path: text.encode() for path, text in self._task.initial_state.files.items()})
        return Sites(sandbox=self._tunnel)

    def _serve(self, environment: Environment) -> None:
        """Offer to code inside what it cannot do by itself: the family's tools and the browser."""
        self._served = tuple(tool for tool in environment.tools if tool.name not in SANDBOX_TOOLS or tool.name in environment.TOOLS)
        if not self._served or not self.specs.keys() & {PYTHON.name, BASH.name}:
            return
        assert self.sandbox is not None
        self._service = ToolService(self.sandbox.serve(PORT), self._step_nested, self._hears)
        self._things.callback(self._service.close)
        if BASH.name in self.specs:  # now, while no code of the agent's can stand in the way
            install_commands(self.sandbox, self._served)
        if not self._carriers:
            ways = {PYTHON.name: ("functions", "tools.NAME(...) where Python has that name"), BASH.name: ("commands", "tool NAME ...")}
            said = {
                name: f" The other tools are {what} here, with their arguments in order or by name ({also})"
                for name, (what, also) in ways.items()
            }
            self.specs = {
                name: spec.model_copy(update={"description": f"{spec.description}{said[name]}."}) if name in said else spec
                for name, spec in self.specs.items()
            }

    def close(self) -> None:
        """End sandbox, service and browser. May be called again."""
        self._things.close()

    # --- calls -------------------------------------------------------------------------------------------------------------

    def call(self, tool: str, arguments: dict[str, Any], nested: bool = False) -> Answer:
        """Execute a valid call of one of `specs`.

        Args:
            nested: it comes from code in the sandbox, which cannot do anything else meanwhile.

        Raises:
            AgentError: arguments that cannot be, or a nested call of a tool that works on the sandbox.
            InfrastructureError: sandbox or browser failed.
        """
        if tool in BROWSER_TOOLS:
            assert self._browser is not None
            if self._tunnel is not None and not nested:
                self._tunnel.ensure()
            return self._browser.call(tool, arguments)
        if nested:
            raise AgentError(f"{tool} cannot be called from inside the sandbox", "do it there by other means")
        assert self.sandbox is not None
        answer = self._run(self.sandbox, tool, arguments)
        if self._service is not None and self._service.failure is not None:
            raise self._service.failure
        return answer

    def _run(self, sandbox: Sandbox, tool: str, arguments: dict[str, Any]) -> Observation:
        if tool == PYTHON.name:
            if self._service is not None and not self._has_functions:
                sandbox.python(interpreter_cell(self._served, take_builtins=tool in self._carriers))
            seen = run_python(sandbox, arguments["code"], arguments.get("timeout_s"))
            self._has_functions = not seen.failed  # a failure may have ended the interpreter
            return seen
        if tool == BASH.name:
            return run_bash(sandbox, arguments["command"], arguments.get("timeout_s"), PRELUDE)
        if tool == VIEW.name:
            return view(sandbox, arguments["path"], arguments.get("start"), arguments.get("end"))
        if tool == EDIT.name:
            return edit(sandbox, arguments["path"], arguments["old"], arguments["new"], arguments.get("all", False))
        return create(sandbox, arguments["path"], arguments["text"], arguments.get("overwrite", False))

    def _step_nested(self, call: ToolCall) -> Answer:
        environment = self._environment() if self._environment is not None else None
        if environment is None:
            raise AgentError("the episode is over", "make no calls after the end")
        return environment.step(call, nested=True)

    def _hears(self) -> OnCall | None:
        environment = self._environment() if self._environment is not None else None
        return environment.on_call if environment is not None else None

    # --- outcome -----------------------------------------------------------------------------------------------------------

    def collect(self) -> dict[str, bytes]:
        """The declared files that exist; what is no regular file, too large or beyond the bounds is left out.

        Raises:
            SandboxError: the sandbox died.
        """
        found: dict[str, bytes] = {}
        paths = [str(row["path"]) for row in self._task.initial_state.tables.get(ARTEFACTS, ())]
        room = _COLLECTED_BYTES
        while paths and self.sandbox is not None and len(found) < _COLLECTED_FILES:
            path = paths.pop(0)
            with contextlib.suppress(BadArgumentsError):
                if path.endswith("/"):
                    # A name may be a folder's or a file's: as a file it cannot be listed, as a folder not be read.
                    for name in self.sandbox.list(path):
                        paths += [f"{path}{name}", f"{path}{name}/"]
                elif len(data := self.sandbox.read(path)) <= room:
                    found[path] = data
                    room -= len(data)
        return found


def toolbox_for(
    task: TaskSpec, own: Mapping[str, ToolSpec], resources: Resources, extra: Sequence[str] = (), carrier: str | None = None
) -> Toolbox | None:
    """The toolbox that a task needs beside its family's `own` tools; None when it needs none.

    Args:
        extra: further tools to offer.
        carrier: the tool that a harness calls all others through.

    Raises:
        ConfigError: there is no such tool.
    """
    names = [name for name in task.tools if name in TOOLS and name not in own]
    names += [name for name in dict.fromkeys([*extra, *([carrier] if carrier else [])]) if name not in names and name not in own]
    return Toolbox(task, names, resources.sandboxes, carriers=(carrier,) if carrier else ()) if names else None
