"""Shared set-up of all tests: quiet environment, fixtures for the heavy services, and the rule about skips in CI.

With ``NINEFOLD_REQUIRE=sglang,chromium`` a test that carries one of these markers fails instead of being skipped, and
the run fails when no test of a required marker ran at all: a machine that lost a service cannot look green.
"""

from __future__ import annotations

import os

# Before anything imports torch or prefect: both read these once.
for _name, _value in {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DS_ACCELERATOR": "cpu",
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "error",
}.items():
    os.environ.setdefault(_name, _value)

import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
]
"""A page reaches this machine or nothing."""
REQUIRE_VARIABLE = "NINEFOLD_REQUIRE"
_ran: set[str] = set()
"""Required markers of which at least one test ran."""


def required_markers() -> frozenset[str]:
    """Markers whose tests must run, from the environment."""
    return frozenset(name.strip() for name in os.environ.get(REQUIRE_VARIABLE, "").split(",") if name.strip())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip of a required test into a failure that quotes the skip's reason."""
    report = yield
    needed = required_markers().intersection(mark.name for mark in item.iter_markers())
    if needed and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped ({reason}), but {REQUIRE_VARIABLE} demands tests marked {', '.join(sorted(needed))}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A whole module that skips itself hides its markers, so under the rule it fails."""
    report = yield
    if required_markers() and report.outcome == "skipped":
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} skips itself as a module ({reason}); under {REQUIRE_VARIABLE} skip single tests instead"
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note which required markers had a test that really ran (with xdist this runs in the controller)."""
    if report.when == "call" and report.outcome in ("passed", "failed"):
        _ran.update(required_markers().intersection(report.keywords))


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail a green session in which a required marker ran no test."""
    is_worker = hasattr(session.config, "workerinput")
    if exitstatus == pytest.ExitCode.OK and not is_worker and not session.config.option.collectonly and required_markers() - _ran:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which required markers ran no test."""
    absent = sorted(required_markers() - _ran)
    if absent and not terminalreporter.config.option.collectonly:
        terminalreporter.section("required tests that did not run", red=True)
        terminalreporter.line(f"no test ran for: {', '.join(absent)} ({REQUIRE_VARIABLE})")


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The checkout."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def chromium_executable() -> str:
    """Path of a Chromium for Playwright's ``executable_path``; the distribution's one first, then Playwright's own."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        own = playwright.chromium.executable_path
    if not Path(own).exists():
        pytest.skip("no Chromium. Fix: apt-get install chromium, or .venv/bin/playwright install chromium")
    return own


@pytest.fixture(scope="module")
def browser(chromium_executable: str) -> Iterator[Any]:
    """A headless Chromium. A module's, not the session's: while Playwright is open, no other event loop runs in this thread."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium_executable, args=CHROMIUM_FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def prefect_harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One real Prefect server on a throw-away database for the whole session; yields its API address (14 s)."""
    home = tmp_path_factory.mktemp("prefect-home")
    previous = os.environ.get("PREFECT_HOME")
    os.environ["PREFECT_HOME"] = str(home)
    try:
        from prefect.settings import PREFECT_API_URL
        from prefect.testing.utilities import prefect_test_harness

        with prefect_test_harness(server_startup_timeout=120):
            yield str(PREFECT_API_URL.value())
    finally:
        if previous is None:
            os.environ.pop("PREFECT_HOME", None)
        else:
            os.environ["PREFECT_HOME"] = previous
