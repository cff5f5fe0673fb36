"""The three families' worlds: what each tool answers, on good and on odd arguments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from environments.environment import Environment
from environments.errors import BadArgumentsError, InputError
from environments.families import TOOLS, make_environment
from environments.families.search import SearchEnvironment, excerpt, short_title
from environments.resources import Resources
from environments.search import Corpus, CorpusConfig, build_corpus
from environments.task import InitialState, ToolCall
from environments.vault import Vault
from environments.verifiers import judge
from tests.environments.small_tasks import DOUBLE, coding_task, make_resources, search_task, settings_task

any_text = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
odd_numbers = st.sampled_from(["0", "-1", "²", "١", " 1 ", "1.0", "9" * 400, "--5", "-", "", "+5", "1_0", "0x1", "½", "１"])


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    with make_resources(Vault(tmp_path_factory.mktemp("vault"))) as made:
        yield made


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    config = CorpusConfig(packages=("toolz",), foldoc=False, python_manual=False, linux_manual=False, embeddings=False)
    return build_corpus(tmp_path_factory.mktemp("corpus") / "toolz", config)


def begin(environment: Environment) -> Environment:
    environment.setup()
    return environment


def do(environment: Environment, tool: str, **arguments: str) -> str:
    return environment.step(ToolCall(tool=tool, arguments=dict(arguments)))


# --- search ---


def test_search_open_submit(resources: Resources) -> None:
    task = search_task(resources.vault)
    world = begin(make_environment(task, resources))
    assert do(world, "search", query="textwrap.wrap") == "1 textwrap.wrap"
    assert do(world, "open", result="1", find="width") == "textwrap.wrap(text, width=70) breaks lines."
    assert do(world, "open", result=" 1 ", find="nowhere") == "not found"
    assert do(world, "open", result="2", find="width") == "no result 2"
    assert do(world, "submit", answer="113") == "submitted"
    assert world.submitted
    assert judge(task, world.finalize(), resources).status == "pass"


def test_open_before_a_search_finds_nothing(resources: Resources) -> None:
    world = begin(make_environment(search_task(resources.vault), resources))
    assert do(world, "open", result="1", find="width") == "no result 1"


def test_search_over_a_real_corpus_finds_the_named_document_first(resources: Resources, corpus: Corpus) -> None:
    world = begin(make_environment(search_task(resources.vault), Resources(resources.vault, corpus)))
    assert do(world, "search", query="toolz.sliding_window").splitlines()[0] == "1 toolz.sliding_window"
    assert "n" in do(world, "open", result="1", find="n")
    assert do(world, "search", query="") == "nothing found"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(query=any_text, number=st.one_of(odd_numbers, any_text), find=any_text)
def test_no_query_number_or_word_breaks_a_search(resources: Resources, corpus: Corpus, query: str, number: str, find: str) -> None:
    world = begin(make_environment(search_task(resources.vault), Resources(resources.vault, corpus)))
    assert do(world, "search", query=query)
    assert do(world, "open", result=number, find=find)
    assert do(world, "search", query=f'toolz "{query}" OR NEAR(')
    shown = do(world, "open", result="1", find=find)
    assert shown == "not found" or len(shown) <= len(find) + SearchEnvironment.WINDOW_CHARS


@pytest.mark.parametrize("query", ['"', "title:", "a AND", "NEAR(", "*", "^", "(", "-", "a\0b", "'; DROP TABLE documents; --"])
def test_query_syntax_is_text(query: str, resources: Resources, corpus: Corpus) -> None:
    world = begin(make_environment(search_task(resources.vault), Resources(resources.vault, corpus)))
    assert do(world, "search", query=query)


def test_excerpt_shows_the_word_whole_and_cuts_at_spaces() -> None:
    text = "bisect(f, a, b, args=(), xtol=2e-12, rtol=8.881784197001252e-16, maxiter=100, full_output=False, disp=True)"
    shown = excerpt(text, "maxiter", 40)
    assert "maxiter=100," in shown.split()
    assert set(shown.split()) <= set(text.split())
    assert excerpt(text, "max", 40) == "not found"  # whole words only
    assert excerpt(text, "", 40) == "not found"
    assert excerpt(text, "(", 4000) == text
    assert excerpt("a\n\n  b", "a", 40) == "a b"
    assert excerpt("f(method='single', note=\"x\")", "method", 40) == "f(method=single, note=x)"


def test_short_titles() -> None:
    assert short_title("scipy.optimize.bisect") == "optimize.bisect"
    assert short_title("print") == "print"
    assert short_title("Free Software, and more. Yes") == "Free Software, and more. Yes"


def test_recorded_values_are_handed_in_unless_an_answer_is(resources: Resources) -> None:
    world = begin(make_environment(search_task(resources.vault), resources))
    with pytest.raises(BadArgumentsError, match="nothing was recorded"):
        do(world, "submit")
    assert [do(world, "record", value=v) for v in ("30", "ba")] == ["recorded", "recorded"]
    assert do(world, "submit") == "submitted"
    assert world.finalize().submission == "30,ba"
    again = begin(make_environment(search_task(resources.vault), resources))
    do(again, "record", value="30")
    do(again, "submit", answer="31")
    assert again.finalize().submission == "31"


# --- assistant ---


def test_settings_are_read_written_and_judged(resources: Resources) -> None:
    task = settings_task(resources.vault)
    world = begin(make_environment(task, resources))
    assert do(world, "get", name="width") == "70"
    assert do(world, "set", name="width", value="113") == "ok"
    assert do(world, "get", name="width") == "113"
    assert do(world, "get", name="height") == "no such setting"
    assert do(world, "set", name="height", value="1") == "no such setting"
    assert do(world, "submit") == "submitted"
    outcome = world.finalize()
    assert judge(task, outcome, resources).status == "pass"
    assert outcome.tool_calls == 6
    # The task itself is untouched: the next episode starts anew.
    again = begin(make_environment(task, resources))
    assert do(again, "get", name="width") == "70"


def test_a_side_effect_fails(resources: Resources) -> None:
    task = settings_task(resources.vault)
    world = begin(make_environment(task, resources))
    do(world, "set", name="width", value="113")
    do(world, "set", name="depth", value="4")
    do(world, "submit")
    assert judge(task, world.finalize(), resources).status == "fail"


def test_a_write_that_the_store_loses_is_lost_once_and_shows_on_reading(resources: Resources) -> None:
    sound = settings_task(resources.vault)
    tables = {**sound.initial_state.tables, "lost_writes": ({"name": "width"},)}
    task = sound.model_copy(update={"initial_state": InitialState(tables=tables)})
    world = begin(make_environment(task, resources))
    assert do(world, "get", name="lost_writes") == "no such setting"
    assert do(world, "set", name="width", value="113") == "ok"
    assert do(world, "get", name="width") == "70, stale"
    assert do(world, "get", name="depth") == "3"
    assert judge(task, world.outcome, resources).status == "fail"
    assert do(world, "set", name="width", value="113") == "ok"
    assert do(world, "get", name="width") == "113"
    do(world, "submit")
    outcome = world.finalize()
    assert list(outcome.tables) == ["settings"]
    assert judge(task, outcome, resources).status == "pass"


@pytest.mark.parametrize(("value", "stored"), [("-5", "-5"), (" 7\n", "7"), ("mean", "mean"), ("", "")])
def test_values_are_text_without_the_space_around_it(value: str, stored: str, resources: Resources) -> None:
    world = begin(make_environment(settings_task(resources.vault), resources))
    assert do(world, "set", name="width", value=value) == "ok"
    assert do(world, "get", name="width") == stored


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=any_text, value=st.one_of(odd_numbers, any_text))
def test_no_name_or_value_breaks_the_store(resources: Resources, name: str, value: str) -> None:
    world = begin(make_environment(settings_task(resources.vault), resources))
    assert do(world, "get", name=name) in ("no such setting", "3", "10", "70")
    assert do(world, "set", name="width", value=value) == "ok"


# --- coding ---


@pytest.mark.sandbox
def test_run_tests_says_what_went_wrong_and_submit_is_judged_by_hidden_tests(resources: Resources) -> None:
    task = coding_task(resources.vault)
    world = begin(make_environment(task, resources))
    assert do(world, "run_tests", source=DOUBLE) == "passed"
    assert do(world, "run_tests", source="def solve(n):\n    return 3 * n") == "solve(2) is 6, not 11"
    assert "ZeroDivisionError" in do(world, "run_tests", source="def solve(n):\n    return n // 0")
    assert "SyntaxError" in do(world, "run_tests", source="def solve(n)\n    return n")
    assert do(world, "run_tests", source="")
    assert do(world, "run_tests", source="def solve(n):\n    return object()") != "passed"
    assert do(world, "run_tests", source="import os\nos._exit(0)") != "passed"
    assert do(world, "submit", source=DOUBLE) == "submitted"
    assert judge(task, world.finalize(), resources).status == "pass"


@pytest.mark.sandbox
def test_public_examples_alone_do_not_pass(resources: Resources) -> None:
    task = coding_task(resources.vault)
    world = begin(make_environment(task, resources))
    source = "def solve(n):\n    return {2: 11, 3: 13}.get(n)"
    assert do(world, "run_tests", source=source) == "passed"
    do(world, "submit", source=source)
    assert judge(task, world.finalize(), resources).status == "fail"


@pytest.mark.sandbox
def test_submit_without_a_source_hands_in_what_was_tested_last(resources: Resources) -> None:
    task = coding_task(resources.vault)
    world = begin(make_environment(task, resources))
    with pytest.raises(BadArgumentsError, match="nothing was tested"):
        do(world, "submit")
    with pytest.raises(BadArgumentsError, match="run_tests lacks source"):
        do(world, "run_tests")
    do(world, "run_tests", source="def solve(n):\n    return 3 * n")
    do(world, "run_tests", source=DOUBLE)
    assert do(world, "submit") == "submitted"
    outcome = world.finalize()
    assert outcome.submission == DOUBLE
    assert judge(task, outcome, resources).status == "pass"


@pytest.mark.sandbox
def test_an_endless_source_is_cut_off(resources: Resources, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.families.coding.CodingEnvironment.TIMEOUT_S", 0.3)
    world = begin(make_environment(coding_task(resources.vault), resources))
    assert "tim" in do(world, "run_tests", source="while True: pass")
    assert do(world, "run_tests", source=DOUBLE) == "passed"


@pytest.mark.sandbox
def test_values_compare_by_type(resources: Resources) -> None:
    task = coding_task(resources.vault, public=((2, 11), (3, 13)))
    world = begin(make_environment(task, resources))
    assert do(world, "run_tests", source="def solve(n):\n    return str(2 * n + 7)") == f"solve(2) is {json.dumps('11')}, not 11"


# --- choosing a family ---


def test_a_missing_corpus_and_an_unknown_family_are_named(resources: Resources, tmp_path: Path) -> None:
    task = search_task(resources.vault)
    with pytest.raises(InputError, match="needs a corpus"):
        make_environment(task, Resources(Vault(tmp_path)))
    with pytest.raises(InputError, match="'web' has no environment"):
        make_environment(task.model_copy(update={"family": "web"}), resources)


def test_every_tool_is_described() -> None:
    assert [t.name for t in TOOLS] == ["search", "open", "record", "submit", "get", "set", "submit", "run_tests", "submit"]
    assert all(t.description and all(p.description for p in t.parameters) for t in TOOLS)
