"""A task's tools over a sandbox: there when the task names them, gone at every end, and honest about who failed."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from environments.environment import ARTEFACTS, Environment
from environments.errors import AgentError, BadArgumentsError, ConfigError, InfrastructureError, InputError, SandboxError, UnsupportedError
from environments.families import make_environment
from environments.protocols import Observation
from environments.resources import Resources
from environments.sandbox.base import DEFAULT, SandboxConfig, Snapshot
from environments.task import InitialState, ToolCall
from environments.tools import TOOLS, Toolbox, toolbox_for
from environments.vault import Vault
from tests.environments.small_tasks import settings_task
from tests.environments.tools.local_sandbox import LocalBackend, LocalSandbox

Build = Callable[..., Environment]


@pytest.fixture
def local() -> LocalBackend:
    return LocalBackend()


@pytest.fixture
def build(local: LocalBackend, tmp_path: Path) -> Build:
    def environment(names: Sequence[str] = ("bash",), files: dict[str, str] | None = None, artefacts: Sequence[str] = ()) -> Environment:
        task = settings_task(Vault(tmp_path / "vault"))
        tables = {**task.initial_state.tables, ARTEFACTS: tuple({"path": path} for path in artefacts)}
        state = InitialState(files=files or {}, tables=tables)
        task = task.model_copy(update={"tools": (*task.tools, *names), "initial_state": state})
        return make_environment(task, Resources(Vault(tmp_path / "vault"), sandboxes=local))

    return environment


def call(environment: Environment, tool: str, **arguments: Any) -> str:
    answer = environment.step(ToolCall(tool=tool, arguments=arguments))
    return answer.text if isinstance(answer, Observation) else answer


def test_a_task_that_names_no_such_tool_has_no_sandbox(build: Build, local: LocalBackend) -> None:
    with build(names=()) as environment:
        environment.setup()
        assert call(environment, "get", name="width") == "70"
    assert local.made == []
    assert toolbox_for(build(names=()).task, {}, Resources(Vault(Path())), ()) is None


def test_the_sandbox_is_made_at_setup_with_the_tasks_files_and_its_table_is_no_part_of_the_world(build: Build, local: LocalBackend) -> None:
    environment = build(("bash", "view", "edit", "create", "python"), {"a/b.txt": "one\n", "/workspace/c": "ü"}, ("x",))
    assert local.made == []
    assert [tool.name for tool in environment.tools] == ["get", "set", "submit", "bash", "view", "edit", "create", "python"]
    environment.setup()
    assert len(local.made) == 1
    assert call(environment, "bash", command="cat a/b.txt c") == "one\nü"
    assert call(environment, "edit", path="a/b.txt", old="one", new="two").startswith("a/b.txt: replaced 1")
    assert call(environment, "create", path="d", text="x").startswith("d: created")
    assert call(environment, "python", code="print(open('a/b.txt').read() + open('d').read())") == "two\nx"
    assert call(environment, "view", path="a/b.txt", start=1) == "     1\ttwo"
    assert ARTEFACTS not in environment.finalize().tables


def test_declared_files_are_the_outcome_and_nothing_else(build: Build, local: LocalBackend) -> None:
    environment = build(artefacts=("report.md", "src/", "never.txt", "dir", "../../etc/passwd"))
    environment.setup()
    call(
        environment,
        "bash",
        command="echo hi > report.md; mkdir -p src/deep dir; echo 1 > src/a; printf '\\0\\1' > src/deep/b; echo no > other",
    )
    assert environment.finalize().files == {"report.md": b"hi\n", "src/a": b"1\n", "src/deep/b": b"\0\1"}
    assert local.made[0].state == "closed"


def test_no_more_is_collected_than_fits(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.tools.toolbox._COLLECTED_BYTES", 10)
    monkeypatch.setattr("environments.tools.toolbox._COLLECTED_FILES", 3)
    environment = build(artefacts=("big", "out/"))
    environment.setup()
    call(environment, "bash", command="seq 100 > big; mkdir out; for i in a b c d; do echo $i > out/$i; done")
    assert environment.finalize().files == {f"out/{name}": f"{name}\n".encode() for name in "abc"}


@pytest.mark.parametrize("end", ["finalize", "close", "exit", "forget"])
def test_everything_is_closed_at_the_end(build: Build, local: LocalBackend, end: str) -> None:
    environment = build(("bash", "python"))
    environment.setup()
    call(environment, "bash", command="sleep 300 >/dev/null 2>&1 & get width")
    call(environment, "python", code="get('width')")
    folder = local.made[0].root
    if end == "forget":
        del environment
        gc.collect()
    elif end == "exit":
        with environment:
            pass
    else:
        getattr(environment, end)()
        environment.close()
    assert local.made[0].state == "closed"
    assert not folder.exists()


def test_a_sandbox_that_dies_is_a_broken_machine_not_an_agents_error(build: Build, local: LocalBackend) -> None:
    environment = build(artefacts=("x",))
    environment.setup()
    local.made[0].dead = True
    with pytest.raises(SandboxError, match="died"):
        call(environment, "bash", command="true")
    assert local.made[0].state == "closed"
    with pytest.raises(InfrastructureError, match="was not executed"):
        call(environment, "get", name="width")
    assert environment.finalize().files == {}


def test_an_outcome_that_cannot_be_read_is_none(build: Build, local: LocalBackend) -> None:
    environment = build(artefacts=("x",))
    environment.setup()
    call(environment, "submit")
    local.made[0].dead = True
    with pytest.raises(SandboxError, match="died"):
        environment.finalize()
    assert local.made[0].state == "closed"


def test_a_setup_that_fails_leaves_nothing(build: Build, local: LocalBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"\.\./x is outside"):
        build(files={"../x": ""}).setup()
    monkeypatch.setattr(LocalSandbox, "_serve", lambda *_: (_ for _ in ()).throw(SandboxError("no port")))
    environment = build()
    with pytest.raises(SandboxError, match="no port"):
        environment.setup()
    assert [made.state for made in local.made] == ["closed", "closed"]
    assert environment.finalize().files == {}


def test_a_backend_that_cannot_start_one_is_infrastructure(build: Build, tmp_path: Path) -> None:
    class Broken(LocalBackend):
        def create(self, config: SandboxConfig = DEFAULT, snapshot: Snapshot | None = None) -> LocalSandbox:
            raise SandboxError("no room", "wait")

    task = build().task
    environment = make_environment(task, Resources(Vault(tmp_path), sandboxes=Broken()))
    with pytest.raises(SandboxError, match="no room"):
        environment.setup()


@pytest.mark.parametrize(
    ("tool", "arguments", "error"),
    [
        ("bash", {"command": "a\0b"}, BadArgumentsError),
        ("bash", {"command": 3}, BadArgumentsError),
        ("bash", {"command": "true", "timeout_s": "1"}, BadArgumentsError),
        ("bash", {"command": "true", "timeout_s": 1e9}, BadArgumentsError),
        ("view", {"path": "."}, AgentError),
    ],
)
def test_bad_calls_are_the_agents(build: Build, tool: str, arguments: dict[str, Any], error: type[Exception]) -> None:
    with build() as environment:
        environment.setup()
        with pytest.raises(error):
            environment.step(ToolCall(tool=tool, arguments=arguments))
        assert call(environment, "bash", command="echo on") == "on"


def test_nothing_is_executed_before_a_tool_is_known(build: Build) -> None:
    with pytest.raises(ConfigError, match="there is no tool 'hammer'"):
        Toolbox(build().task, ("bash", "hammer"))
    environment = build()
    environment.setup()
    with pytest.raises(RuntimeError, match="equipped before its setup"):
        environment.equip(Toolbox(environment.task, ("bash",)))
    environment.close()


def test_a_familys_own_tool_goes_before_one_of_the_same_name(build: Build) -> None:
    own = {"bash": TOOLS["bash"]}
    task = build().task
    assert toolbox_for(task, own, Resources(Vault(Path()))) is None
    assert toolbox_for(task, own, Resources(Vault(Path())), ("bash",)) is None


def test_a_backend_without_services_still_runs_the_sandboxs_tools(
    build: Build, local: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    capabilities = LocalSandbox.capabilities
    monkeypatch.setattr(LocalSandbox, "capabilities", lambda self: replace(capabilities(self), services=False))
    environment = build(("bash", "python"))
    environment.setup()
    assert call(environment, "bash", command="echo 1") == "1"
    assert "NameError" in call(environment, "python", code="get('width')")
    assert "commands here" not in next(tool.description for tool in environment.tools if tool.name == "bash")
    environment.close()
    carried = make_environment(environment.task, Resources(Vault(Path()), sandboxes=local), carrier="python")
    with pytest.raises(UnsupportedError, match="has no services"):
        carried.setup()
    assert local.made[-1].state == "closed"


@pytest.mark.sandbox
def test_without_a_backend_the_strongest_that_works_is_taken(build: Build) -> None:
    task = build(("bash",)).task
    with make_environment(task, Resources(Vault(Path()))) as environment:
        environment.setup()
        assert call(environment, "bash", command="get width") == "70"
