"""Runs inside a sandbox: pytest over named files, one line a test on a copy of standard output, an end line last.

Sent as `python3 -s -S -P -c`, so nothing of the tree is imported before pytest is: no sitecustomize, no shadowed module, no
plugin of the tree's own. Every line carries the request's nonce; what prints without it is not a record.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """One request on standard input: `nonce`, `packages`, `roots`, `paths`, `plugins`, `options`."""
    request = json.loads(sys.stdin.buffer.read())
    channel = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for path in reversed(request["packages"]):
        if path not in sys.path:
            sys.path.insert(0, path)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    def say(**record: Any) -> None:
        channel.write(json.dumps({"nonce": request["nonce"], **record}) + "\n")
        channel.flush()

    class Recorder:
        """One outcome a test: the worst of its phases."""

        def __init__(self) -> None:
            self.outcomes: dict[str, str] = {}

        def pytest_runtest_logreport(self, report: Any) -> None:
            outcome = "xfailed" if hasattr(report, "wasxfail") else str(report.outcome)
            known = self.outcomes.get(report.nodeid, "")
            if report.when == "call" or outcome != "passed":
                self.outcomes[report.nodeid] = known if known == "failed" else outcome

        def pytest_runtest_logfinish(self, nodeid: str) -> None:
            say(id=nodeid, outcome=self.outcomes.get(nodeid, "failed"))

        def pytest_collectreport(self, report: Any) -> None:
            if report.failed:
                say(broken=report.nodeid, why=str(report.longrepr)[-600:])

        def pytest_sessionfinish(self, exitstatus: int) -> None:
            say(end=int(exitstatus))

    sys.path += request["roots"]
    options = ["-q", "-p", "no:cacheprovider", "--continue-on-collection-errors", "-o", "addopts=", "--rootdir", os.getcwd(), "--tb=line"]
    for name in request["plugins"]:
        options += ["-p", name]
    code = pytest.main([*options, *request["options"], *request["paths"]], plugins=[Recorder()])
    channel.close()
    sys.stdout.flush()
    os._exit(int(code))


if __name__ == "__main__":
    main()
