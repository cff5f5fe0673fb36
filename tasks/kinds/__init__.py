"""Task types: one module each. A type turns documented facts into a draft with a prompt, a verifier and demonstrations."""

from tasks.kinds.draft import STYLE_EFFORT, Demonstration, Draft, KindSpec, Material
from tasks.kinds.function import FUNCTION
from tasks.kinds.lookup import LOOKUP
from tasks.kinds.settings import SETTINGS

KINDS: dict[str, KindSpec] = {k.name: k for k in (LOOKUP, SETTINGS, FUNCTION)}

__all__ = ["KINDS", "STYLE_EFFORT", "Demonstration", "Draft", "KindSpec", "Material"]
