from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from environments.search.web import FetchConfig, Outcome, RetrievalConfig


def test_the_examples_of_the_documentation_are_valid(repo_root: Path) -> None:
    text = (repo_root / "docs" / "retrieval.md").read_text()
    merged: dict[str, Any] = {}
    for block in re.findall(r"```toml\n(.*?)```", text, re.S):
        merged |= tomllib.loads(block)
    config = RetrievalConfig.model_validate(merged)
    assert [api.name for api in config.apis] == ["brave", "serper", "tavily"]
    assert len(config.git) == 2
    assert not config.empty
    (line,) = re.findall(r"```json\n(.*?)\n```", text, re.S)
    assert Outcome.model_validate(json.loads(line)).kind == "too_large"


def test_every_bound_that_the_documentation_names_exists(repo_root: Path) -> None:
    text = (repo_root / "docs" / "retrieval.md").read_text()
    named = set(re.findall(r"`([a-z]+(?:_[a-z]+)*)`", text.partition("## Bounds")[2]))
    known = set(FetchConfig.model_fields) | set(RetrievalConfig.model_fields) | {"retrieved", "cached", "revalidated", "stale", "unknown"}
    assert named - known == set()
