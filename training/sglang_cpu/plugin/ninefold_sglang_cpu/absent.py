"""Lets sglang's vision modules be imported where torchvision must not be installed.

They name torchvision at import time, although serving text calls none of it; and torchvision's wheels bring their own
torch. So a finder at the *end* of the import path (a real torchvision wins) answers for that one name with modules whose
attributes are placeholders: they can be named and subclassed, and say what is missing when called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

ABSENT = "torchvision"


class _Placeholder(type):
    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"  # an enum member read at import time

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise ImportError(f"{cls.__name__} needs {ABSENT}, which this text-only installation leaves out")


class _AbsentModule(ModuleType):
    def __getattr__(self, name: str) -> _Placeholder:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Placeholder(name, (), {})


class _AbsentFinder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] == ABSENT else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def provide_absent_torchvision() -> None:
    """Install the finder once. transformers remembers whether torchvision is there, so it is asked before."""
    if any(isinstance(finder, _AbsentFinder) for finder in sys.meta_path):
        return
    from transformers.utils import import_utils

    import_utils.is_torchvision_available()
    getattr(import_utils, "is_torchvision_v2_available", bool)()
    sys.meta_path.append(_AbsentFinder())
