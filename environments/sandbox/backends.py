"""The sandbox backends by name, and the choice of the strongest one that works on this machine."""

from __future__ import annotations

import importlib
import os
from functools import cache
from typing import Literal, get_args

from environments.errors import ConfigError, MissingDependencyError, NinefoldError
from environments.sandbox.base import Backend

Name = Literal["firecracker", "gvisor", "process", "remote"]
_CLASSES: dict[str, tuple[str, str]] = {
    "firecracker": ("environments.sandbox.firecracker", "FirecrackerBackend"),
    "gvisor": ("environments.sandbox.gvisor", "GVisorBackend"),
    "process": ("environments.sandbox.process", "ProcessBackend"),
}
CHOICE, REMOTE_URL, REMOTE_TEMPLATE = "NINEFOLD_SANDBOX", "NINEFOLD_SANDBOX_URL", "NINEFOLD_SANDBOX_TEMPLATE"
PREFERENCE: tuple[Name, ...] = ("firecracker", "gvisor", "process")
"""Strongest isolation first. `remote` needs an address and is never chosen by itself."""


def backend(name: str) -> Backend:
    """The backend of that name, whether it works here or not; its module is imported only now.

    Raises:
        ConfigError: no such backend.
        MissingDependencyError: its module needs a package that is not installed.
    """
    if name == "remote":
        return _remote()
    if name not in _CLASSES:
        raise ConfigError(f"no sandbox backend is called {name!r}", f"use one of {', '.join((*get_args(Name), 'auto'))}")
    module, kind = _CLASSES[name]
    try:
        made = getattr(importlib.import_module(module), kind)()
    except ModuleNotFoundError as error:
        said = f"the {name} backend needs {error.name}, which is not installed"
        raise MissingDependencyError(said, f"pip install {error.name}") from error
    assert isinstance(made, Backend)
    return made


def _remote() -> Backend:
    from environments.sandbox.remote import RemoteBackend
    from environments.sandbox.remote.client import E2BClient

    url = os.environ.get(REMOTE_URL, "")
    if not url:
        raise ConfigError("the remote sandbox backend has no address", f"set {REMOTE_URL} to that of an E2B-compatible server")
    return RemoteBackend(E2BClient(url), template=os.environ.get(REMOTE_TEMPLATE, "base"))


@cache
def reason_against(name: str) -> str:
    """Why a backend does not work on this machine, with the fix; empty when it does. Found by starting a sandbox, once a process."""
    try:
        return backend(name).probe()
    except NinefoldError as error:
        return str(error)


def choose(name: str = "") -> tuple[Backend, str]:
    """A backend that works, and why it was taken: with `auto` the strongest one, else the one named.

    Args:
        name: empty for what the variable NINEFOLD_SANDBOX says, or `auto`.

    Raises:
        MissingDependencyError: it, or with `auto` none at all, works on this machine; the reasons and fixes of all that were tried.
        ConfigError: no such backend.
    """
    name = name or os.environ.get(CHOICE, "") or "auto"
    tried: list[str] = []
    for candidate in PREFERENCE if name == "auto" else (name,):
        chosen = backend(candidate) if name != "auto" else None
        reason = reason_against(candidate)
        if not reason:
            why = f"{candidate} works here" if name == "auto" else f"{candidate} was asked for and works here"
            return chosen or backend(candidate), "; ".join([why, *tried])
        tried.append(f"not {candidate}: {reason}")
    raise MissingDependencyError("no sandbox backend works on this machine: " + "; ".join(tried), "run `ninefold doctor`")
