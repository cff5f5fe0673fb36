"""Presets all work on a task; recombined harnesses are deterministic, allowed, and counted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.errors import ConfigError
from environments.harness.config import HarnessConfig, ToolModule
from environments.harness.interfaces import TEXT_STYLES
from environments.harness.loop import run_messages
from environments.harness.memory import FileMemory
from environments.harness.presets import PRESETS
from environments.harness.sampler import MODULES, Constraints, HarnessSampler, options, usage
from environments.policies import ScriptedPolicy
from environments.resources import Resources
from environments.task import Message, ToolCall
from environments.vault import Vault
from tests.environments.small_tasks import make_resources, settings_task

WRITTEN = [h for h in PRESETS.values() if h.tools.interface not in ("bash", "code")]


@pytest.fixture
def resources(tmp_path: Path) -> Iterator[Resources]:
    with make_resources(Vault(tmp_path / "vault")) as made:
        made.memory = FileMemory(tmp_path / "notes")
        yield made


def spoken(harness: HarnessConfig, message: Message) -> Message:
    """A scripted message as an agent in this harness would say it."""
    calls = tuple(c.model_copy(update={"tool": harness.tools.names.get(c.tool, c.tool)}) for c in message.calls)
    if harness.tools.interface == "native":
        return message.model_copy(update={"calls": calls})
    write = TEXT_STYLES[harness.tools.interface].write
    return Message(role="assistant", content="\n".join(["So:", *map(write, calls)]))


@pytest.mark.parametrize("harness", WRITTEN, ids=lambda h: h.name)
def test_the_reference_passes_in_every_preset(harness: HarnessConfig, resources: Resources) -> None:
    task = settings_task(resources.vault)
    lines = [spoken(harness, m) for m in resources.vault.get_reference(task.reference_sha256)]
    trace = run_messages(ScriptedPolicy(*lines), task, resources, harness)
    assert trace.verdict is not None
    assert (trace.verdict.status, trace.malformed_calls) == ("pass", 0)
    assert [r.tool for r in trace.tool_records] == ["get", "set", "submit"]


@pytest.mark.parametrize("harness", [h for h in WRITTEN if h.subagents], ids=lambda h: h.name)
def test_sub_agents_start_under_the_name_that_the_preset_gives(harness: HarnessConfig, resources: Resources) -> None:
    task = settings_task(resources.vault)
    call = Message(role="assistant", calls=(ToolCall(tool="delegate", arguments={"prompts": ["a", "b"]}),))
    trace = run_messages(ScriptedPolicy(spoken(harness, call)), task, resources, harness)
    assert [(s.finished, s.result) for s in trace.subagents] == [(True, "done")] * 2
    assert trace.stop == "finished"


def test_presets_differ_and_have_names_of_their_own() -> None:
    assert len({h.sha256 for h in PRESETS.values()}) == len(PRESETS) >= 13
    assert all(name == h.name for name, h in PRESETS.items())


# --- recombination ---


@given(st.integers(0, 5), st.text(max_size=8), st.booleans(), st.booleans(), st.booleans(), st.booleans())
def test_a_draw_depends_on_seed_and_group_alone_and_keeps_the_constraints(
    seed: int, group: str, mcp: bool, memory: bool, subagents: bool, names: bool
) -> None:
    constraints = Constraints(mcp=mcp, memory=memory, subagents=subagents, names=names)
    presets = list(PRESETS.values())
    drawn = HarnessSampler(presets, constraints, seed).draw(group)
    other = HarnessSampler(presets, constraints, seed)
    other.draw("another group first")
    assert other.draw(group) == drawn
    assert drawn.tools.interface in constraints.interfaces
    assert mcp or drawn.tools.transport == "direct"
    assert memory or drawn.memory is None
    assert subagents or drawn.subagents is None
    assert names or not drawn.tools.names


def test_modules_of_all_presets_meet() -> None:
    presets = list(PRESETS.values())
    everything = Constraints(interfaces=("native", "json", "xml", "fence", "bash", "code"), memory=True)
    drawn = [HarnessSampler(presets, everything, 0).draw(str(i)) for i in range(400)]
    counted = usage(drawn)
    for module, expected in usage(presets).items():
        assert set(expected) <= set(counted[module]), module
        assert sum(counted[module].values()) == 400
    assert len({h.sha256 for h in drawn}) > 300
    assert not any(h.subagents and h.tools.interface in ("bash", "code") for h in drawn)


def test_without_recombination_presets_stay_whole() -> None:
    presets = [PRESETS["pi"], PRESETS["codex"]]
    drawn = [HarnessSampler(presets, seed=1, recombine=False).draw(str(i)) for i in range(40)]
    assert {(h.name, h.sha256) for h in drawn} == {(p.name, p.sha256) for p in presets}


def test_usage_counts_episodes() -> None:
    pi, codex = PRESETS["pi"], PRESETS["codex"]
    assert usage([pi, codex], {pi.sha256: 3})["context"] == {"summarise": 3}
    assert set(options(pi)) >= set(MODULES) - {"tools"}


def test_constraints_that_leave_nothing_are_refused() -> None:
    with pytest.raises(ConfigError, match="there is bash, allowed is native"):
        HarnessSampler([PRESETS["minimal"]], Constraints(interfaces=("native",)))
    with pytest.raises(ConfigError, match="there is nothing"):
        HarnessSampler([])
    assert HarnessSampler([HarnessConfig(name="x", tools=ToolModule(interface="xml"))]).draw("g").name == "x"
