"""A small task's environment on stdio, as a process of its own: `stdio_server.py FAMILY VAULT`."""

from __future__ import annotations

import sys
from pathlib import Path

from environments.families import make_environment
from environments.mcp.server import environment_server, serve_stdio
from environments.vault import Vault
from tests.environments import small_tasks

if __name__ == "__main__":
    family, folder = sys.argv[1:]
    vault = Vault(Path(folder))
    task = small_tasks.search_task(vault) if family == "search" else small_tasks.coding_task(vault)
    with small_tasks.make_resources(vault) as resources, make_environment(task, resources) as environment:
        environment.setup()
        serve_stdio(environment_server(environment))
