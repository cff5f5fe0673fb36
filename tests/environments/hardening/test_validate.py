"""Sound tasks pass every check; each way of being unsound is named by the check that finds it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from environments.errors import SandboxError
from environments.families import make_environment
from environments.hardening import HardeningConfig, replay, validate
from environments.records import ValidationRow
from environments.resources import Resources
from environments.task import TaskSpec
from environments.vault import Vault
from environments.verdict import Verdict
from environments.verifiers import register
from tests.environments.hardening.planted import SOUND, register_planted
from tests.environments.hardening.worlds import BUDGETS, coding_task, make_resources, message, search_task, settings_task

CONFIG = HardeningConfig(run="r", reference_runs=3)


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    register_planted()
    with make_resources(Vault(tmp_path_factory.mktemp("vault"))) as made:
        yield made


def failed(rows: list[ValidationRow]) -> dict[str, str]:
    return {row.check_name: row.observed for row in rows if not row.ok}


@pytest.mark.sandbox
@pytest.mark.parametrize("family", list(SOUND))
def test_a_sound_task_passes_every_check(family: str, resources: Resources) -> None:
    task = SOUND[family](resources.vault)
    rows = validate(task, resources, CONFIG)
    assert failed(rows) == {}
    names = [row.check_name for row in rows]
    assert names[:6] == ["reference", "repeat", "budgets", "null", "empty", "malformed"]
    assert sum(name.startswith("mutation:outcome:") for name in names) >= 4
    assert {"mutation:zero", "mutation:constant"} <= set(names)
    assert any(name.startswith("mutation:partial") for name in names)
    repeat = rows[1]
    assert (repeat.runs, repeat.expected, repeat.run, repeat.task_id) == (3, "pass", "r", task.task_id)
    assert (repeat.verifier_sha256, repeat.verifier_version) == (task.hidden_verifier.sha256, 1)


def test_reference_runs_are_configurable(resources: Resources) -> None:
    rows = validate(search_task(resources.vault), resources, HardeningConfig(reference_runs=8))
    assert rows[1].runs == 8
    with pytest.raises(ValueError, match="reference_runs"):
        HardeningConfig(reference_runs=0)


def with_reference(task: TaskSpec, resources: Resources, *messages: Any) -> TaskSpec:
    return TaskSpec.model_validate({**task.model_dump(), "reference_sha256": resources.vault.put_reference(list(messages))})


def test_a_wrong_reference_is_found(resources: Resources) -> None:
    task = with_reference(search_task(resources.vault), resources, message("submit", answer="114"))
    assert failed(validate(task, resources, CONFIG)) == {"reference": "fail", "repeat": "fail"}


def test_a_reference_that_makes_invalid_calls_or_outruns_its_budget_is_found(resources: Resources) -> None:
    clumsy = with_reference(search_task(resources.vault), resources, message("shout", text="?"), message("submit", answer="113"))
    assert failed(validate(clumsy, resources, CONFIG)) == {"budgets": "over budget"}
    short = search_task(resources.vault, budgets=BUDGETS.model_copy(update={"steps": 2}))
    assert failed(validate(short, resources, CONFIG))["budgets"] == "over budget"
    assert replay(short, resources.vault.get_reference(short.reference_sha256), resources).stop == "steps"


def test_a_missing_reference_is_found(resources: Resources) -> None:
    task = TaskSpec.model_validate({**search_task(resources.vault).model_dump(), "reference_sha256": "0" * 64})
    rows = validate(task, resources, CONFIG)
    assert failed(rows) == {"reference": "no reference or payload"}
    assert "vault entry" in rows[0].detail


@pytest.mark.parametrize(
    ("kind", "finds"),
    [
        ("weak_tolerance", "mutation:partial"),
        ("weak_missing", "null"),
        ("weak_prefix", "empty"),
        ("weak_occurs", "malformed"),
        ("weak_words", "reference"),
    ],
)
def test_a_careless_answer_verifier_is_found(kind: str, finds: str, resources: Resources) -> None:
    # The 5,000 nines of the malformed check contain "9".
    task = search_task(resources.vault, kind=kind, answer=9, addend=2) if kind == "weak_occurs" else search_task(resources.vault, kind=kind)
    verifier = _Borrowing(kind, "exact_number", resources)
    register(f"borrowed_{kind}", lambda _: verifier)
    borrowed = TaskSpec.model_validate(
        {**task.model_dump(), "hidden_verifier": task.hidden_verifier.model_copy(update={"kind": f"borrowed_{kind}"}).model_dump()}
    )
    assert finds in failed(validate(borrowed, resources, CONFIG))


@pytest.mark.parametrize(
    ("kind", "finds"),
    [
        ("weak_names", "null"),
        ("weak_change", "mutation:partial:settings.2.value"),
        ("weak_changed_cells", "mutation:outcome:cell:settings.0.value"),
    ],
)
def test_a_careless_state_verifier_is_found(kind: str, finds: str, resources: Resources) -> None:
    task = settings_task(resources.vault)
    register(f"borrowed_{kind}", lambda _: _Borrowing(kind, "final_state", resources))
    borrowed = TaskSpec.model_validate(
        {**task.model_dump(), "hidden_verifier": task.hidden_verifier.model_copy(update={"kind": f"borrowed_{kind}"}).model_dump()}
    )
    assert finds in failed(validate(borrowed, resources, CONFIG))


class _Borrowing:
    """A careless verifier with the mutations of a careful one."""

    version, bounded = 1, True

    def __init__(self, kind: str, careful: str, resources: Resources) -> None:
        from environments.verifiers import verifier_for

        self.kind = f"borrowed_{kind}"
        self.weak: Any = verifier_for(kind, resources)
        real: Any = verifier_for(careful, resources)
        self.mutations, self.wrong_outcomes = real.mutations, real.wrong_outcomes

    def verify(self, task: TaskSpec, outcome: Any, payload: Any) -> Verdict:
        verdict = self.weak.verify(task, outcome, payload)
        assert isinstance(verdict, Verdict)
        return verdict


def with_kind(task: TaskSpec, kind: str) -> TaskSpec:
    return TaskSpec.model_validate({**task.model_dump(), "hidden_verifier": {**task.hidden_verifier.model_dump(), "kind": kind}})


def test_a_verifier_that_flips_is_found(resources: Resources) -> None:
    flips = itertools.cycle([1.0, 1.0, 0.0])

    class Flipping(_Borrowing):
        def verify(self, task: TaskSpec, outcome: Any, payload: Any) -> Verdict:
            return Verdict.decide(next(flips) if outcome.submission == "113" else 0.0)

    verifier = Flipping("weak_state", "exact_number", resources)
    register("flipping", lambda _: verifier)
    assert failed(validate(with_kind(search_task(resources.vault), "flipping"), resources, CONFIG))["repeat"] == "flips"


def test_a_crashing_verifier_never_passes_or_fails(resources: Resources) -> None:
    class Crashing(_Borrowing):
        def verify(self, task: TaskSpec, outcome: Any, payload: Any) -> Verdict:
            raise KeyError("artefact")

    register("crashing", lambda _: Crashing("weak_state", "exact_number", resources))
    found = failed(validate(with_kind(search_task(resources.vault), "crashing"), resources, CONFIG))
    assert set(found.values()) == {"no-verdict"}
    assert {"reference", "null", "empty"} <= set(found)


def test_a_verifier_without_mutations_is_not_taken_on_trust(resources: Resources) -> None:
    class Bare:
        kind, version, bounded = "bare", 1, True

        def verify(self, task: TaskSpec, outcome: Any, payload: Any) -> Verdict:
            return Verdict.decide(1.0 if outcome.submission == "113" else 0.0)

    register("bare", lambda _: Bare())
    assert failed(validate(with_kind(search_task(resources.vault), "bare"), resources, CONFIG)) == {"mutation:none": "not run"}


@pytest.mark.sandbox
def test_a_coding_task_whose_reference_depends_on_chance_is_found(resources: Resources) -> None:
    source = "import os\ndef solve(n):\n    return 2 * n + 7 + (os.urandom(1)[0] > 100)\n"
    rows = validate(coding_task(resources.vault, source=source), resources, HardeningConfig(reference_runs=8))
    assert {"reference", "repeat"} & set(failed(rows))


def test_infrastructure_failures_leave_validate(resources: Resources) -> None:
    def broken(task: TaskSpec, resources: Resources) -> Any:
        environment = make_environment(task, resources)

        def setup() -> None:
            raise SandboxError("no box")

        environment.setup = setup  # type: ignore[method-assign]
        return environment

    with pytest.raises(SandboxError, match="no box"):
        validate(search_task(resources.vault), resources, CONFIG, broken)
