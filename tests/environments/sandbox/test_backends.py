"""Backends by name, and the honest choice between them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from environments.errors import ConfigError, MissingDependencyError
from environments.sandbox import ProcessBackend, backends

pytestmark = pytest.mark.sandbox


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    backends.reason_against.cache_clear()
    yield
    backends.reason_against.cache_clear()


def test_by_name() -> None:
    assert backends.backend("process").name == "process"
    with pytest.raises(ConfigError, match="'docker'"):
        backends.backend("docker")


def test_the_strongest_that_works_is_chosen_and_the_others_reasons_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, why = backends.choose("auto")
    assert chosen.probe() == ""
    better = backends.PREFERENCE[: backends.PREFERENCE.index(chosen.name)]  # type: ignore[arg-type]
    assert why.startswith(f"{chosen.name} works here")
    for name in better:
        assert f"not {name}: {backends.reason_against(name)}" in why
        assert backends.reason_against(name)


def test_a_named_backend_that_does_not_work_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backends.choose("process")[1] == "process was asked for and works here"
    monkeypatch.setattr(ProcessBackend, "probe", lambda self: "no namespaces. Fix: allow them")
    backends.reason_against.cache_clear()
    with pytest.raises(MissingDependencyError, match=r"not process: no namespaces\. Fix: allow them"):
        backends.choose("process")
    monkeypatch.setattr(backends, "PREFERENCE", ("process",))
    with pytest.raises(MissingDependencyError, match="no sandbox backend works"):
        backends.choose("auto")


def test_the_environment_may_decide_and_give_the_remote_ones_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backends.CHOICE, "process")
    assert backends.choose()[1] == "process was asked for and works here"
    monkeypatch.delenv(backends.REMOTE_URL, raising=False)
    with pytest.raises(ConfigError, match=backends.REMOTE_URL):
        backends.backend("remote")
    monkeypatch.setenv(backends.REMOTE_URL, "http://127.0.0.1:9")
    assert backends.backend("remote").name == "remote"
    monkeypatch.setenv(backends.CHOICE, "remote")
    with pytest.raises(MissingDependencyError, match=r"not remote: .*127\.0\.0\.1:9"):
        backends.choose()
