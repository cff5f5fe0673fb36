"""From a configuration to a source."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import SecretStr

from environments.errors import ConfigError
from environments.protocols import SearchSource
from environments.search.web.apis import find_key
from environments.search.web.config import RetrievalConfig
from environments.search.web.guard import Guard
from environments.search.web.outcome import NotRetrievedError
from environments.search.web.repository import open_repository
from environments.search.web.source import MergedSource, WebSource

log = logging.getLogger(__name__)


def open_sources(
    config: RetrievalConfig, folder: Path, *, local: Sequence[SearchSource] = (), keys: Mapping[str, SecretStr] | None = None
) -> SearchSource:
    """One source over everything a configuration names.

    Args:
        folder: cache that all processes share; made when it is not there.
        local: sources that are there already, such as the corpus; asked first.
        keys: by name, what the caller has resolved (a Prefect Secret, say); others come from environment variables.

    A repository that cannot be fetched is left out with a warning and an outcome in the journal: the others go on.

    Raises:
        ConfigError: nothing is configured, nothing of it could be opened, or a key is missing.
        InputError: a local repository that does not exist.
    """
    sources: list[SearchSource] = list(local)
    folder = Path(folder)
    secrets = dict(keys or {})
    for api in config.apis:
        if api.key and not config.fetch.offline:
            find_key(api.key, secrets)
    if config.searxng or config.apis:
        sources.append(WebSource(config, folder, secrets))
    guard = Guard(config.fetch)
    for repository in config.git:
        try:
            sources.append(open_repository(repository, guard, folder))
        except NotRetrievedError as error:
            log.warning("%s", error)
    if not sources:
        raise ConfigError("no source to search", "name a searxng, apis or git entry that can be reached, or give a local corpus")
    return sources[0] if len(sources) == 1 else MergedSource(sources)
