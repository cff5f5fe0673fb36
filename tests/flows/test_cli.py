"""The command line: every command shows an example, a dry run plans and does nothing, errors name the thing and the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from environments.errors import SandboxError
from flows import cli
from flows.config import load_config
from flows.doctor import CHECKS, Finding
from flows.server import check_port, free_port
from flows.workspace import Workspace

COMMANDS = ("run", "grow", "synthesize", "validate", "probe", "train", "distill", "evaluate", "report", "catalog", "serve", "doctor")
STAGE_COMMANDS = COMMANDS[:8]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NINEFOLD_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "dumb")
    return tmp_path


def ninefold(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example_and_the_common_options(command: str) -> None:
    result = ninefold(command, "--help")
    assert result.exit_code == 0
    assert f"Example: ninefold {command}" in result.output
    for option in ("--profile", "--config", "--dry-run", "--resume"):
        assert option in result.output


def test_the_example_of_every_stage_command_is_a_valid_call(home: Path) -> None:
    Workspace().start("first", load_config("laptop"))
    for command in STAGE_COMMANDS:
        line = next(line for line in ninefold(command, "--help").output.splitlines() if "Example: ninefold" in line)
        words = line.split("Example: ninefold ")[1].split()
        assert ninefold(*words, "--resume", "--dry-run").exit_code == 0


def test_version() -> None:
    assert ninefold("--version").output.startswith("ninefold 0.")


@pytest.mark.parametrize("command", STAGE_COMMANDS)
def test_a_dry_run_prints_configuration_and_plan_and_writes_nothing(command: str, home: Path) -> None:
    result = ninefold(command, "--dry-run", "--seed", "41", "--name", "trial")
    assert result.exit_code == 0
    assert "seed = 41" in result.output
    assert "to do       corpus" in result.output
    assert ("to do       evaluate" in result.output) == (command in ("run", "evaluate"))
    assert list(home.iterdir()) == []


def test_a_dry_run_tells_what_is_up_to_date(home: Path) -> None:
    config = load_config("laptop")
    run = Workspace().start("trial", config)
    from flows.stages import Plan

    key = Plan(run, config).key("corpus")
    assert key is not None
    run.finish("corpus", key, [], {"corpus": "c"})
    result = ninefold("grow", "--name", "trial", "--resume", "--dry-run")
    assert "up to date  corpus" in result.output
    assert "to do       grow" in result.output


@pytest.mark.parametrize("flag", [(), ("--dry-run",)])
def test_an_existing_name_is_refused_without_resume(flag: tuple[str, ...]) -> None:
    Workspace().start("trial", load_config("laptop"))
    result = ninefold("run", "--name", "trial", *flag)
    assert result.exit_code == 2
    assert "error: a run named 'trial' exists" in result.stderr
    assert "fix: add --resume" in result.stderr


def test_an_unknown_key_is_answered_in_two_lines(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("[graph]\nmax_node = 3\n")
    result = ninefold("run", "--config", str(file), "--dry-run")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [f"error: unknown key 'graph.max_node' in {file}", "  fix: did you mean 'max_nodes'?"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "--profile", "labtop"), "did you mean laptop"),
        (("run", "--name", "../up"), "not a run name"),
        (("report", "--name", "nothing"), "no run 'nothing'"),
        (("run", "--config", "nowhere.toml"), "nowhere.toml"),
    ],
)
def test_wrong_input_exits_with_2_and_no_traceback(arguments: tuple[str, ...], said: str) -> None:
    result = ninefold(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.output


def test_a_failed_machine_exits_with_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise SandboxError("the box is gone", "install bubblewrap")

    monkeypatch.setattr(cli, "launch", broken)
    result = ninefold("run")
    assert result.exit_code == 3
    assert result.stderr.splitlines() == ["error: the box is gone", "  fix: install bubblewrap"]


def test_an_interrupt_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "launch", interrupted)
    result = ninefold("run")
    assert result.exit_code == 130
    assert "--resume" in result.stderr


def test_a_busy_port_is_named_with_a_free_one() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = ninefold("serve", "--port", str(port))
    assert result.exit_code == 3
    assert f"port {port}" in result.stderr
    assert "--port" in result.stderr
    check_port(free_port())


def test_serve_and_doctor_plan_without_doing() -> None:
    served = ninefold("serve", "--dry-run", "--port", "4321")
    assert served.exit_code == 0
    assert "http://127.0.0.1:4321" in served.output
    assert "work pool gpu" in served.output
    planned = ninefold("doctor", "--dry-run")
    assert all(f"would check {check}" in planned.output for check in CHECKS)


def test_doctor_prints_a_line_a_check_and_fails_only_for_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    def findings(*found: Finding) -> Result:
        monkeypatch.setattr("flows.doctor.check_all", lambda port: iter(found))
        return ninefold("doctor")

    good, optional = Finding("python", True, "3.11"), Finding("sglang", False, "missing", "make setup-sglang", needed=False)
    fine = findings(good, optional)
    assert fine.exit_code == 0
    assert fine.output.splitlines() == ["ok    python: 3.11", "note  sglang: missing. Fix: make setup-sglang"]
    broken = findings(good, Finding("sandbox", False, "no user namespaces", "sysctl ..."))
    assert broken.exit_code == 1
    assert "FIX   sandbox: no user namespaces. Fix: sysctl ..." in broken.output


def test_every_check_of_doctor_answers_on_this_machine() -> None:
    from flows.doctor import check_all

    found = {finding.name: finding for finding in check_all(free_port())}
    assert list(found) == list(CHECKS)
    for name in ("disk", "documents", "torch", "deepspeed", "dask", "duckdb", "port"):
        assert found[name].ok, found[name].line()
    assert all(finding.ok or finding.fix for finding in found.values())


def test_the_catalogue_of_an_empty_workspace_is_refused_and_asked_when_there_is_one(home: Path) -> None:
    assert ninefold("catalog").exit_code == 2
    Workspace().start("trial", load_config("laptop"))
    result = ninefold("catalog", "--query", "SELECT count(*) AS n FROM nodes")
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[-2:] == ["n", "0"]
    outside = ninefold("catalog", "--query", "SELECT * FROM read_text('/etc/hostname')")
    assert outside.exit_code == 2
    assert "disabled" in outside.output
    wrong = ninefold("catalog", "--query", "SELEKT 1")
    assert wrong.exit_code == 2
    assert "the query does not run" in wrong.stderr
