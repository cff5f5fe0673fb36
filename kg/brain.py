"""Which brain reads: chosen by configuration, behind one interface."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field, model_validator

from environments.policies import OpenAIChatPolicy
from environments.protocols import Brain, Reading, SearchSource
from kg.agent import LanguageModelBrain
from kg.reader import EmbeddedReader
from kg.view import GraphView


@runtime_checkable
class ConsultingBrain(Brain, Protocol):
    """A brain that looks into the graph while it reads. It waits for an endpoint, so its readers are threads, not processes."""

    parallel: int

    def read(self, concept: str, ancestors: Sequence[str], source: SearchSource, graph: GraphView | None = None) -> Reading: ...


class BrainConfig(BaseModel):
    """The embedded reader, or a language model behind an OpenAI-compatible endpoint (hosted, sglang, vLLM)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    kind: Literal["embedded", "language-model"] = "embedded"
    endpoint: str = ""
    """Base URL up to and including the version, for example `http://127.0.0.1:30000/v1`."""
    model: str = ""
    """Name under which the endpoint serves it."""
    api_key_env: str = "OPENAI_API_KEY"
    """Name of the variable that holds the key; the key itself is never kept."""
    interface: Literal["native", "json", "xml", "fence"] = "native"
    """`native`: the endpoint's own tools field; the others write calls into the text, for servers without one."""
    max_steps: int = Field(default=24, ge=1)
    """Assistant messages a node."""
    max_malformed: int = Field(default=4, ge=1)
    """Refused calls or silent turns after which a node is given up."""
    max_answer_tokens: int = Field(default=1024, ge=1)
    temperature: float | None = Field(default=None, ge=0)
    """None leaves it to the endpoint."""
    timeout_s: float = Field(default=180.0, gt=0)
    """For one answer."""
    retries: int = Field(default=4, ge=0)
    parallel: int = Field(default=8, ge=1, le=256)
    """Nodes read at the same time."""

    @model_validator(mode="after")
    def _whole(self) -> BrainConfig:
        if self.kind == "language-model" and not (self.endpoint and self.model):
            raise ValueError("a language-model brain needs endpoint and model")
        if self.kind == "embedded" and (self.endpoint or self.model):
            raise ValueError("the embedded brain has no endpoint or model; set kind to language-model")
        return self


def make_brain(config: BrainConfig) -> Brain:
    """The brain of a configuration. Raises ConfigError when the endpoint is no URL."""
    if config.kind == "embedded":
        return EmbeddedReader()
    policy = OpenAIChatPolicy(
        config.endpoint,
        config.model,
        api_key_env=config.api_key_env,
        timeout_s=config.timeout_s,
        retries=config.retries,
        temperature=config.temperature,
        max_tokens=config.max_answer_tokens,
    )
    return LanguageModelBrain(policy, config.max_steps, config.max_malformed, config.interface, config.parallel)
