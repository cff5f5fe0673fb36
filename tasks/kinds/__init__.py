"""Task types. A type turns documents that were retrieved for sampled nodes into a draft with a prompt, a verifier and demonstrations."""

from tasks.kinds.constraints import CONSTRAINTS
from tasks.kinds.draft import STYLE_EFFORT, Demonstration, Draft, KindSpec, Material
from tasks.kinds.function import FUNCTION
from tasks.kinds.general_agent import GENERAL_AGENT
from tasks.kinds.general_agent.office import OFFICE
from tasks.kinds.knowledge.questions import KNOWLEDGE
from tasks.kinds.lookup import LOOKUP
from tasks.kinds.notebook import NOTEBOOK
from tasks.kinds.professional import PROFESSIONAL
from tasks.kinds.reasoning import REASONING
from tasks.kinds.reimplement import REIMPLEMENT
from tasks.kinds.repository import REPOSITORY
from tasks.kinds.research import RESEARCH
from tasks.kinds.settings import SETTINGS
from tasks.kinds.vision import VISION

KINDS: dict[str, KindSpec] = {
    kind.name: kind
    for kind in (
        LOOKUP,
        KNOWLEDGE,
        RESEARCH,
        REASONING,
        NOTEBOOK,
        PROFESSIONAL,
        VISION,
        SETTINGS,
        OFFICE,
        GENERAL_AGENT,
        FUNCTION,
        CONSTRAINTS,
        REIMPLEMENT,
        REPOSITORY,
    )
}

__all__ = ["KINDS", "STYLE_EFFORT", "Demonstration", "Draft", "KindSpec", "Material"]
