"""Functions of installed packages as tasks: taken out of their package, tested differentially, weak ones refused."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import toolz

from environments.hardening import HardeningConfig, probe, validate
from environments.protocols import Document
from environments.resources import Resources
from environments.sandbox import CodePool
from environments.vault import Vault
from environments.verifiers.equality import same_value
from kg.concept import Passage
from tasks.inputs import variations
from tasks.kinds.draft import Draft, Material
from tasks.kinds.reimplement import MAX_SHARE, MIN_HIDDEN, Refused, draft, draft_function, level_of, trivial_sources
from tasks.standalone import Documented, Package, _Cannot, _standalone, documented, plain
from tasks.synthesis import to_task

pytestmark = pytest.mark.sandbox
PACKAGES = ("toolz", "packaging", "dask", "networkx", "prefect", "jinja2", "sympy")
"""All come with the project's own dependencies; the first few suffice for the count."""
WANTED = 20


@pytest.fixture(scope="module")
def pool() -> Iterator[CodePool]:
    with CodePool() as made:
        yield made


def _passage(function: Documented) -> Passage:
    return Passage(f"doc:{function.title}", function.title, function.package, function.licence, function.doc[:200])


@pytest.fixture(scope="module")
def attempts(pool: CodePool) -> list[tuple[Documented, Draft | Refused]]:
    found: list[tuple[Documented, Draft | Refused]] = []
    for package in PACKAGES:
        for function in documented(package):
            if sum(isinstance(made, Draft) for _, made in found) >= WANTED:
                return found
            found.append((function, draft_function(random.Random(7), function, _passage(function), pool)))
    return found


def test_twenty_functions_of_installed_packages_become_tasks(attempts: list[tuple[Documented, Draft | Refused]]) -> None:
    made = [(function, task) for function, task in attempts if isinstance(task, Draft)]
    assert len(made) >= WANTED
    assert len({function.title for function, _ in made}) == len(made)
    assert all(function.licence and task.passages[0].licence == function.licence for function, task in made)
    assert {task.level for _, task in made} == {1, 2, 3}
    assert all(len(task.payload["inputs"]) == len(task.payload["outputs"]) >= MIN_HIDDEN for _, task in made)


def test_the_answers_are_the_packages_own(attempts: list[tuple[Documented, Draft | Refused]]) -> None:
    """The standalone source says what the installed package says: here the package may be imported."""
    checked = 0
    for function, task in attempts:
        name = function.title.rsplit(".", 1)[-1]
        real = getattr(toolz, name, None)
        if function.package != "toolz" or real is None or not isinstance(task, Draft):
            continue
        for given, expected in zip(task.payload["inputs"], task.payload["outputs"], strict=True):
            got = real(*given)
            assert same_value(list(got) if function.wrapper else got, expected), (name, given)
        checked += 1
    assert checked >= 8


def test_hidden_and_public_tests_do_not_meet_and_no_answer_is_too_common(attempts: list[tuple[Documented, Draft | Refused]]) -> None:
    for _, task in attempts:
        if isinstance(task, Draft):
            public = [row["arguments"] for row in task.initial_state.tables["examples"]]
            hidden = [str(given) for given in task.payload["inputs"]]
            assert not {
                str(ast.literal_eval(p.replace("true", "True").replace("false", "False").replace("null", "None"))) for p in public
            } & set(hidden)
            outputs = [repr(o) for o in task.payload["outputs"]]
            assert max(map(outputs.count, outputs)) <= MAX_SHARE * len(outputs)


def test_trivial_programs_fail_every_task(attempts: list[tuple[Documented, Draft | Refused]], pool: CodePool) -> None:
    for function, task in attempts:
        if not isinstance(task, Draft):
            continue
        inputs, outputs = task.payload["inputs"], task.payload["outputs"]
        for source in trivial_sources([(list(e.arguments), e.result) for e in function.examples], outputs)[::6]:
            got = pool.call(source, "solve", inputs)
            assert not all(not e and same_value(o, v) for o, v, e in zip(got.outputs, outputs, got.errors, strict=True))


def test_what_a_trivial_program_passes_is_refused_with_the_program(attempts: list[tuple[Documented, Draft | Refused]]) -> None:
    refused = {made.title: made.reason for _, made in attempts if isinstance(made, Refused)}
    assert "return a[0]" in refused["toolz.functoolz.identity"]
    assert "return a[0][0]" in refused["toolz.itertoolz.first"]
    assert all(refused.values())


def test_the_package_cannot_be_imported_where_submissions_run(attempts: list[tuple[Documented, Draft | Refused]], pool: CodePool) -> None:
    tops = sorted({function.top for function, task in attempts if isinstance(task, Draft)})
    for top in tops:
        said = pool.call(f"def solve(n):\n    import {top}\n    return 1\n", "solve", [[1]])
        assert said.outputs == [None]
        assert "ModuleNotFoundError" in said.errors[0]


def test_a_function_that_can_be_imported_there_is_refused(pool: CodePool) -> None:
    text = "def solve(*a):\n    return a[0]\n"
    made = Documented("json.f", "json", "json", "1", "PSF-2.0", "x", "Some text that is long enough to tell.", (), "", text, 2)
    refused = draft_function(random.Random(0), made, _passage(made), pool)
    assert isinstance(refused, Refused)
    assert "can be imported" in refused.reason


def test_a_task_is_sound_and_no_attack_passes(attempts: list[tuple[Documented, Draft | Refused]], tmp_path: Path, pool: CodePool) -> None:
    drafts = [task for _, task in attempts if isinstance(task, Draft)]
    with Resources(Vault(tmp_path), pool=pool) as resources:
        for made in (drafts[0], drafts[len(drafts) // 2], drafts[-1]):
            spec = to_task(made, "n", "b", resources.vault)
            rows = validate(spec, resources, HardeningConfig(run="r", reference_runs=2))
            assert [f"{row.check_name}: {row.observed}" for row in rows if not row.ok] == []
            assert [p.exploit for p in probe(spec, resources, HardeningConfig(run="r")) if p.succeeded] == []


def test_it_is_drafted_from_a_document_about_the_function(attempts: list[tuple[Documented, Draft | Refused]]) -> None:
    function = next(f for f, task in attempts if isinstance(task, Draft) and f.package == "toolz")
    name = function.title.rsplit(".", 1)[-1]
    document = Document("d", f"toolz.{name}", f"toolz.{name}(...)\n\n{function.doc}", "toolz", function.licence)
    material = Material(("n",), (name,), (Document("e", "toolz", "text", "toolz", "BSD"), document))
    made = draft(random.Random(7), material, level_of(function))
    assert made is not None
    assert made.passages[0].document_id == "d"
    assert draft(random.Random(7), material, 4) is None
    assert draft(random.Random(7), Material(("n",), (), (Document("x", "no such.thing", "", "no-such-package", ""),)), 1) is None


def test_drafts_are_the_same_for_the_same_seed(attempts: list[tuple[Documented, Draft | Refused]], pool: CodePool) -> None:
    function, first = next((f, task) for f, task in attempts if isinstance(task, Draft))
    assert draft_function(random.Random(7), function, _passage(function), pool) == first


def test_what_a_function_needs_is_taken_along_and_no_more(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "base.py").write_text("import json\nLIMIT: int = 3\nUNUSED = json.dumps(1)\n\ndef helper(x):\n    return x * LIMIT\n")
    (package / "use.py").write_text(
        "from .base import helper\nimport numpy\n\ndef good(x: int) -> int:\n    '''Doc.'''\n    return helper(x)\n\n"
        "def bad(x):\n    return numpy.sum(x)\n"
    )
    read = Package("pkg", package)
    module = read.module("pkg.use")
    assert module is not None
    source = _standalone(read, module, "good", "")
    space: dict[str, object] = {}
    exec(source, space)
    assert space["solve"](5) == 15  # type: ignore[operator]
    assert "UNUSED" not in source
    with pytest.raises(_Cannot):
        _standalone(read, module, "bad", "")


@pytest.mark.parametrize("seed", range(3))
def test_variations_are_distinct_plain_and_repeatable(seed: int) -> None:
    seeds = [[1, "one two"], [[3, 1, 2], {"a": [1]}], [True, None], [[], ""]]
    made = variations(random.Random(seed), seeds, 50)
    assert made == variations(random.Random(seed), seeds, 50)
    assert len({repr(m) for m in made}) == len(made) >= 40
    assert all(map(plain, made))
    assert not {repr(m) for m in made} & {repr(s) for s in seeds}
