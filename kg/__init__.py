"""Grows a DAG of concepts, coarse to fine, from seeds and a search corpus."""

from kg.agent import LanguageModelBrain
from kg.concept import Concept, Edge, Passage, Reject
from kg.graph import ConceptGraph
from kg.grow import GraphConfig, grow
from kg.reader import EmbeddedReader
from kg.seeds import DEFAULT_SEEDS

__all__ = [
    "DEFAULT_SEEDS",
    "Concept",
    "ConceptGraph",
    "Edge",
    "EmbeddedReader",
    "GraphConfig",
    "LanguageModelBrain",
    "Passage",
    "Reject",
    "grow",
]
