"""General-agent tasks: two readings of every constraint agree, hardening hardens, the solution is proved, exploits fail."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator

import pytest

from environments.families.general_agent import SCHEMAS, GeneralAgentEnvironment, database
from environments.resources import Resources
from environments.task import TaskSpec, ToolCall
from environments.verifiers import general_agent as judge
from environments.verifiers.general_agent import GeneralAgentVerifier
from tasks.kinds.draft import Draft
from tasks.kinds.general_agent import SIZES, draft
from tasks.kinds.general_agent.harden import LIMITS, RATES, K, harden
from tasks.kinds.general_agent.players import PLAYERS, pass_at_k, solved
from tasks.kinds.general_agent.proof import unproved
from tasks.kinds.general_agent.solution import objections, program
from tasks.kinds.general_agent.world import draw, proposal
from tests.tasks.kinds import play


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    with play.resources(tmp_path_factory.mktemp("general")) as made:
        yield made


def made(level: int, start: int = 0) -> Draft:
    return next(d for seed in range(start, start + 60) if (d := draft(random.Random(seed), play.MATERIAL, level)) is not None)


@pytest.mark.parametrize("schema", sorted(SCHEMAS))
def test_expression_and_query_agree_on_every_plan(schema: str) -> None:
    rng = random.Random(schema)
    world = draw(rng, SCHEMAS[schema], 3, 3)
    tables, seen = world.tables(), set()
    proposals = [proposal(rng, world, world.plans) for _ in range(60)]
    for plan in world.plans:
        rows = [{"slot": r["slot"], "option": r["id"]} for r in world.rows(plan)]
        db = database(tables["slots"], tables["options"], tables["links"], rows)
        for constraint in proposals:
            seen.add(constraint.name.split("_")[0])
            assert bool(db.execute(constraint.sql).fetchone()[0]) == constraint.holds(world.rows(plan), world.links), constraint
        db.close()
    assert {"total", "each", "spread", "exactly", "links", "if"} <= seen


@pytest.mark.parametrize("level", [1, 2, 3])
def test_each_step_is_harder_and_still_passable(level: int) -> None:
    rng = random.Random(level)
    found = [h for _ in range(8) if (h := harden(rng, draw(rng, rng.choice(list(SCHEMAS.values())), *SIZES[level]), level, level > 1))]
    assert found
    for problem, history in found:
        rates = [step.pass_rate for step in history]
        assert all(later < earlier or later == 1 for earlier, later in itertools.pairwise(rates))
        assert all(step.pass_at_k > 0 for step in history)
        feasible = [step.feasible for step in history]
        assert all(a > b > 0 for a, b in itertools.pairwise(feasible))
        assert RATES[level][0] < rates[-1] <= RATES[level][1]
        assert LIMITS[level][0] <= len(problem.constraints) <= LIMITS[level][1]
        assert feasible[-1] == len(problem.feasible)


def test_players_differ_in_strength() -> None:
    rng = random.Random(5)
    totals = dict.fromkeys(PLAYERS, 0)
    for _ in range(6):
        if (found := harden(rng, draw(rng, SCHEMAS["trip"], 3, 8), 2, True)) is not None:
            for name, player in PLAYERS.items():
                totals[name] += solved(found[0], player, 40, "s")
    assert totals["random"] < totals["greedy"] < totals["search"]


def test_pass_at_k() -> None:
    assert pass_at_k(10, 0, 3) == 0
    assert pass_at_k(10, 10, 3) == 1
    assert pass_at_k(4, 1, 2) == pytest.approx(0.5)
    assert pass_at_k(48, 41, K) == 1


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os", "import of os"),
        ("open('/etc/passwd')", "name open"),
        ("x = ().__class__", "attribute __class__"),
        ("x = find_stays\nx('night 1')", "call of x"),
        ("(lambda: 1)()", "Lambda is not allowed"),
        ("find_stays = 1", "find_stays is given another meaning"),
        ("book_stay('night 1', 'S1234')", "literal 'S1234' of the database"),
        ("print(__builtins__)", "name __builtins__"),
        ("with x: pass", "With is not allowed"),
        ("x = [len][0]('a')", "call of a computed function"),
        ("import json as len", "import of json"),
        ("x = (", "it does not parse"),
    ],
)
def test_static_check_refuses_every_other_way(source: str, said: str) -> None:
    assert any(reason.startswith(said) for reason in objections(source, SCHEMAS["trip"].tools, ["S1234"]))


@pytest.mark.sandbox
@pytest.mark.parametrize("level", [1, 2, 3])
def test_solution_is_proved_at_run_time(level: int, resources: Resources) -> None:
    found = made(level, 100 * level)
    task = play.task_of(found, resources)
    source = found.demonstrations[0].messages[0].calls[0].arguments["code"]
    assert unproved(source, task, found.payload, resources, random.Random(1)) == []


@pytest.mark.sandbox
def test_a_memorised_plan_and_a_bare_one_are_not_proved(resources: Resources) -> None:
    found = made(2)
    task = play.task_of(found, resources)
    schema = next(s for s in SCHEMAS.values() if s.tools[0] in task.tools)
    split = "".join(
        f"{schema.tools[3]}({row['slot']!r}, {row['id'][0]!r} + {row['id'][1:]!r})\n" for row in task.initial_state.tables["options"]
    )
    reasons = unproved(split, task, found.payload, resources, random.Random(1))
    assert any(r.startswith("twin: fail") for r in reasons)
    assert any("read no" in r for r in reasons)


@pytest.mark.slow
@pytest.mark.sandbox
@pytest.mark.parametrize("level", [1, 3])
def test_the_gate_finds_it_sound(level: int, resources: Resources) -> None:
    play.assert_sound(made(level), resources)


def test_same_seed_same_draft() -> None:
    assert made(2) == made(2)


@pytest.mark.parametrize("fixture", judge.FIXTURES, ids=lambda f: f"{f.case}-{f.name}")
def test_fixture(fixture: object, resources: Resources) -> None:
    assert isinstance(fixture, judge.VerifierFixture)
    from environments.verifiers import judge_payload

    task = play.task_of(play.spoiled(made(1), initial_state=fixture.initial_state), resources)
    for _ in range(fixture.runs):
        verdict = judge_payload(task, fixture.outcome, fixture.payload, resources)
        assert (verdict.status, verdict.score) == (
            fixture.status,
            None if fixture.score is None else pytest.approx(fixture.score, abs=1e-8),
        )


def test_tools_answer_what_cannot_be(resources: Resources) -> None:
    found = made(1)
    task: TaskSpec = play.task_of(found, resources)
    find, details, link, choose, clear, plan = next(s for s in SCHEMAS.values() if s.tools[0] in task.tools).tools
    slots = [str(row["name"]) for row in task.initial_state.tables["slots"]]
    environment = GeneralAgentEnvironment(task)
    environment.setup()

    def said(tool: str, **arguments: str) -> str:
        return str(environment.step(ToolCall(tool=tool, arguments=arguments)))

    ids = json.loads(said(find, slot=slots[0]))
    assert said(find, slot="' OR 1=1 --") == "there is no such slot"
    assert said(details, option="x") == "no such id"
    assert said(link, a="x", b="y") == "no such pair"
    assert said(choose, slot=slots[1], option=ids[0]) == "that is no option for it"
    assert said(choose, slot=slots[0], option=ids[0]) == said(choose, slot=slots[0], option=ids[1]) == "ok"
    assert json.loads(said(plan)) == {slots[0]: ids[1]}
    assert said(clear, slot=slots[0]) == "ok"
    said("submit")
    assert GeneralAgentVerifier().verify(task, environment.finalize(), found.payload).score == 0


def test_program_is_clean_for_every_schema() -> None:
    rng = random.Random(9)
    for schema in SCHEMAS.values():
        problem = next(h[0] for _ in range(40) if (h := harden(rng, draw(rng, schema, 3, 6), 1, False)) is not None)
        assert objections(program(problem), schema.tools) == []
