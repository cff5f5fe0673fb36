"""`ninefold grow`: its options as keys of the configuration, and what it prints in the end."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from environments.errors import InputError, UnknownSeedError
from flows.workspace import RunDirectory, StepRecord
from kg.equivalence import name_key

_MAX_SEED = 100
"""Characters; a concept's name is no longer."""


def parse_seeds(text: str) -> list[str]:
    """Seeds from a comma list or from a file with one a line (`#` begins a comment), each once.

    Raises:
        InputError: the file cannot be read, or there are no seeds.
        UnknownSeedError: a seed is no name.
    """
    path = Path(text)
    if os.path.isfile(text):  # Unlike Path's, it takes any text.
        try:
            lines = path.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"the seeds in {path} cannot be read ({type(error).__name__})", "give a UTF-8 text file, one seed a line"
            ) from None
        found = [line.partition("#")[0].strip() for line in lines]
    elif path.suffix == ".txt":
        raise InputError(f"there is no file of seeds at {path}", "give a comma list, or a file with one seed a line")
    else:
        found = [seed.strip() for seed in text.split(",")]
    seeds: dict[str, str] = {}
    for seed in filter(None, found):
        if len(seed) > _MAX_SEED or not seed.isprintable() or not any(c.isalnum() for c in seed):
            raise UnknownSeedError(f"the seed {seed!r:.80} is no name", f"use a term of at most {_MAX_SEED} characters with letters in it")
        seeds.setdefault(name_key(seed), seed)
    if not seeds:
        raise InputError("no seeds are given", "for example --seeds 'statistics,graph algorithms'")
    return list(seeds.values())


def graph_options(
    seeds: str | None = None,
    nodes: int | None = None,
    depth: int | None = None,
    searches: int | None = None,
    tokens: int | None = None,
    seconds: float | None = None,
    brain: str | None = None,
    endpoint: str | None = None,
    model: str | None = None,
    interface: str | None = None,
    start: str | None = None,
) -> dict[str, Any]:
    """The options that are given, as a layer of the configuration. An endpoint or a model means a language model.

    Raises:
        InputError: as `parse_seeds`.
    """
    graph: dict[str, Any] = {
        "seeds": [] if seeds is None and start else None if seeds is None else parse_seeds(seeds),
        "continue_from": start,
        "max_nodes": nodes,
        "max_level": depth,
        "max_searches": searches,
        "max_tokens": tokens,
        "max_wall_s": seconds,
    }
    kind = brain or ("language-model" if endpoint or model else None)
    reader = {"kind": kind, "endpoint": endpoint, "model": model, "interface": interface}
    given = {key: value for key, value in graph.items() if value is not None}
    if chosen := {key: value for key, value in reader.items() if value is not None}:
        given["brain"] = chosen
    return {"graph": given} if given else {}


def growth_lines(run: RunDirectory, record: StepRecord, profile: str) -> Iterator[str]:
    """What was grown, what stopped it, and how to go on."""
    got: Mapping[str, Any] = record.result
    yield (
        f"graph: {got['nodes']} nodes ({got['seeds']} seeds, {got['atomic']} atomic, {got['open']} open), "
        f"{got['edges']} edges, {got['levels']} levels"
    )
    spent = f"{got['readings']} readings ({got['failed']} failed), {got['searches']} searches, {got['tokens']} tokens"
    yield f"  read by {got['brain']}: {spent}"
    for name, nodes in got["by_seed"].items():
        yield f"  {nodes:>6}  below {name}"
    if got["merged"]:
        yield f"  {got['merged']:>6}  nodes merged into another that is the same concept"
    for seed in got["unknown_seeds"]:
        yield f"  seed without a document: {seed}"
    for reason, count in got["rejects_by_reason"].items():
        yield f"  {count:>6}  proposals rejected: {reason}"
    for stop in got["stops"]:
        yield f"stopped: {stop}"
    if not got["stops"]:
        yield "stopped: nothing more to read"
    yield f"tables: {run.tables}"
    options = "" if profile == "laptop" else f" --profile {profile}"
    yield f"next: ninefold synthesize --name {run.name}{options} --resume --config {run.root / 'config.toml'}"
