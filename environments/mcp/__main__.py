"""`python -m environments.mcp --task FILE --vault FOLDER`: one episode's environment as an MCP server on stdio."""

from __future__ import annotations

import argparse
from pathlib import Path

from pydantic import ValidationError

from environments.errors import ConfigError, NinefoldError
from environments.families import make_environment
from environments.mcp.server import environment_server, serve_stdio
from environments.resources import Resources
from environments.search.index import Corpus
from environments.task import TaskSpec
from environments.vault import Vault


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m environments.mcp", description=__doc__)
    parser.add_argument("--task", type=Path, required=True, help="a TaskSpec as JSON")
    parser.add_argument("--vault", type=Path, required=True, help="folder of the vault")
    parser.add_argument("--corpus", type=Path, help="folder of the search index, for search tasks")
    given = parser.parse_args()
    try:
        task = read_task(given.task)
        corpus = Corpus.load(given.corpus) if given.corpus else None
        with Resources(Vault(given.vault), corpus=corpus) as resources, make_environment(task, resources) as environment:
            environment.setup()
            serve_stdio(environment_server(environment))
    except NinefoldError as error:
        raise SystemExit(f"error: {error}") from None


def read_task(path: Path) -> TaskSpec:
    """The task that a file holds. Raises ConfigError."""
    try:
        return TaskSpec.model_validate_json(path.read_text())
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise ConfigError(f"{path} holds no task ({type(error).__name__})", "pass a TaskSpec as JSON") from error


if __name__ == "__main__":
    main()
