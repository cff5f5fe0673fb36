"""The configuration of a run: one frozen model, layered from a profile, a file of the user's, and a seed.

A profile (`flows/profiles/*.toml`) is the lowest layer; `--config file.toml` overrides single keys of it; `--seed` comes
last. An unknown key is refused, with the nearest known one and the file that holds it.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, Field, ValidationError, model_validator

from environments.errors import ConfigError
from environments.hardening import HardeningConfig
from environments.search import CorpusConfig
from environments.search.web import RetrievalConfig
from environments.task import Frozen
from kg.grow import GraphConfig
from kg.seeds import DEFAULT_SEEDS
from tasks.sampling import SynthesisConfig
from training.config import TrainingConfig

PROFILES_DIR = Path(__file__).parent / "profiles"
DEFAULT_SELECTION = "SELECT task_id FROM tasks WHERE status = 'published' AND split = 'train' ORDER BY task_id"
Layer = tuple[str, Mapping[str, Any]]
"""(where it comes from, its keys)."""


class GraphSection(GraphConfig):
    """How far the concept graph grows, from which seeds, over which corpus."""

    seeds: tuple[str, ...] = DEFAULT_SEEDS
    """May be empty where an earlier run's graph is grown further."""
    continue_from: str = ""
    """Name of another run of the workspace whose graph is grown further, from what it left open."""
    strip_links: bool = False
    """Grow from a corpus without its cross-reference markup."""
    retrieval: RetrievalConfig = RetrievalConfig()
    """Web searches and repositories that are read beside the corpus."""

    @model_validator(mode="after")
    def _somewhere(self) -> GraphSection:
        if not self.seeds and not self.continue_from:
            raise ValueError("there must be a seed, or a run to continue from")
        return self


class DatasetSection(Frozen):
    """Shares of the graph's branches by split; they sum to one."""

    train: float = 0.7
    validation: float = 0.1
    heldout: float = 0.2

    @model_validator(mode="after")
    def _shares(self) -> DatasetSection:
        total = self.train + self.validation + self.heldout
        if abs(total - 1) > 1e-6 or min(self.train, self.validation, self.heldout) <= 0:
            raise ValueError(f"train + validation + heldout must be three positive shares that sum to 1, not {total:g}")
        return self


class SelectionSection(Frozen):
    """Which training tasks reinforcement learning uses: SQL over the run's own tables."""

    query: str = DEFAULT_SELECTION
    """Its first column holds task ids; only published training tasks among them count."""


class OrchestrationSection(Frozen):
    """How the work is spread and retried."""

    dask_address: str | None = None
    """Scheduler of a cluster that runs already; without one a local cluster is started."""
    dask_workers: int = Field(default=2, ge=1)
    """Worker processes of the local cluster."""
    shards: int = Field(default=16, ge=1, le=64)
    """Pieces a stage is cut into. Prefect slows down beyond about a hundred task runs a flow."""
    retries: int = Field(default=2, ge=0)
    retry_delay_s: float = Field(default=2.0, ge=0)
    shard_timeout_s: float = Field(default=900.0, gt=0)
    step_timeout_s: float = Field(default=3600.0, gt=0)
    """For a step that is not cut into shards: the corpus, the graph, the publication."""
    trainer_processes: int = Field(default=2, ge=1)
    """Training processes that run at the same time."""
    trainer_retries: int = Field(default=2, ge=0)
    trainer_timeout_s: float = Field(default=3600.0, gt=0)
    min_free_disk_mb: int = Field(default=2000, ge=0)
    """A run does not start on a disk with less free space."""


class RunConfig(Frozen):
    """Everything that decides what a run computes."""

    profile: str
    seed: int = 0
    corpus: CorpusConfig = CorpusConfig(min_documents=10_000)
    graph: GraphSection = GraphSection()
    synthesis: SynthesisConfig = SynthesisConfig()
    hardening: HardeningConfig = HardeningConfig()
    dataset: DatasetSection = DatasetSection()
    selection: SelectionSection = SelectionSection()
    training: TrainingConfig = TrainingConfig()
    orchestration: OrchestrationSection = OrchestrationSection()


def profiles() -> list[str]:
    """Names of the profiles that ship."""
    return sorted(path.stem for path in PROFILES_DIR.glob("*.toml"))


def load_config(
    profile: str = "laptop", config: Path | None = None, seed: int | None = None, options: Mapping[str, Any] | None = None
) -> RunConfig:
    """Layer profile, file, options of the command line and seed into one validated configuration.

    Raises:
        ConfigError: no such profile or file, not TOML, an unknown key (names the nearest one and the file), a bad value.
    """
    if profile not in profiles():
        near = _nearest(profile, profiles())
        raise ConfigError(
            f"there is no profile {profile!r}", f"use one of: {', '.join(profiles())}" + (f" (did you mean {near}?)" if near else "")
        )
    layers: list[Layer] = [_read(PROFILES_DIR / f"{profile}.toml")]
    if config is not None:
        layers.append(_read(Path(config)))
    if options:
        layers.append(("the command line", options))
    if seed is not None:
        layers.append(("--seed", {"seed": seed}))
    merged: dict[str, Any] = {}
    for _, values in layers:
        merged = _merge(merged, values)
    merged["profile"] = profile
    return _validate(merged, layers)


def config_from_toml(path: Path) -> RunConfig:
    """Read back a run's resolved `config.toml`.

    Raises:
        ConfigError: as for `load_config`.
    """
    name, values = _read(path)
    return _validate(values, [(name, values)])


def to_toml(config: BaseModel) -> str:
    """The configuration as TOML; keys without a value are left out."""
    lines: list[str] = []
    _emit(config.model_dump(mode="json"), (), lines)
    return "\n".join(lines).strip() + "\n"


def _read(path: Path) -> Layer:
    try:
        return str(path), tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {path}", "check the path given to --config") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}", "correct that line") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", "give a readable TOML file to --config") from None


def _merge(low: Mapping[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for key, value in high.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _validate(values: Mapping[str, Any], layers: Sequence[Layer]) -> RunConfig:
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise _config_error(tuple(first["loc"]), first["type"], first["msg"], first["input"], layers) from None


def _config_error(loc: tuple[int | str, ...], kind: str, message: str, value: Any, layers: Sequence[Layer]) -> ConfigError:
    key, file = ".".join(map(str, loc)), _origin(loc, layers)
    if kind == "extra_forbidden":
        known = _known_keys(loc[:-1])
        near = _nearest(str(loc[-1]), known)
        place = f"[{'.'.join(map(str, loc[:-1]))}] takes" if len(loc) > 1 else "the top level takes"
        return ConfigError(f"unknown key {key!r} in {file}", f"did you mean {near!r}?" if near else f"{place}: {', '.join(known)}")
    if kind == "missing":
        return ConfigError(f"key {key!r} is missing in {file}", "set it there or choose a profile that does")
    return ConfigError(f"bad value for {key!r} in {file}: {message.removeprefix('Value error, ')}, got {value!r:.80}", "correct that value")


def _origin(loc: Iterable[int | str], layers: Sequence[Layer]) -> str:
    """The highest layer that holds the key or, failing that, its section."""
    path = [p for p in loc if isinstance(p, str)]
    for depth in range(len(path), 0, -1):
        for name, values in reversed(layers):
            node: Any = values
            for part in path[:depth]:
                node = node.get(part) if isinstance(node, Mapping) else None
            if node is not None:
                return name
    return layers[0][0]


def _known_keys(path: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] = RunConfig
    for part in path:
        info = model.model_fields.get(str(part))
        candidates = [] if info is None else [info.annotation, *get_args(info.annotation)]
        nested = [c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel)]
        if not nested:
            return []
        model = nested[0]
    return list(model.model_fields)


def _nearest(word: str, known: Sequence[str]) -> str | None:
    matches = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    return matches[0] if matches else None


def _emit(table: Mapping[str, Any], path: tuple[str, ...], lines: list[str]) -> None:
    plain = {k: v for k, v in table.items() if v is not None and not isinstance(v, Mapping)}
    if path and (plain or not table):
        lines += ["", f"[{'.'.join(_key(p) for p in path)}]"]
    lines += [f"{_key(k)} = {json.dumps(v, ensure_ascii=False)}" for k, v in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            _emit(value, (*path, key), lines)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


__all__ = ["RunConfig", "config_from_toml", "load_config", "profiles", "to_toml"]
