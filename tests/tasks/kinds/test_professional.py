"""Professional deliverables: the reference audits for real, every defence holds, partial credit is as documented."""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Iterator
from decimal import Decimal

import openpyxl
import pytest

from environments.hardening import replay
from environments.protocols import Outcome
from environments.resources import Resources
from environments.task import Message
from environments.verifiers import judge, judge_payload, professional
from environments.verifiers.professional import FIXTURES, ProfessionalVerifier, numbers_in, workbook
from tasks.kinds.draft import Draft, call
from tasks.kinds.professional import KINDS_BY_LEVEL, draft
from tasks.kinds.professional.ledger import draw
from tests.tasks.kinds import play


@pytest.fixture(scope="module")
def resources(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Resources]:
    with play.resources(tmp_path_factory.mktemp("professional")) as made:
        yield made


def made(level: int, seed: int = 0) -> Draft:
    return next(d for s in range(seed, seed + 20) if (d := draft(random.Random(s), play.MATERIAL, level)) is not None)


@pytest.mark.sandbox
@pytest.mark.parametrize("level", [1, 2, 3])
def test_reference_passes_over_many_ledgers(level: int, resources: Resources) -> None:
    for seed in range(4):
        found = made(level, 10 * seed)
        verdict = play.verdict_of(found, found.demonstrations[0].messages, resources)
        assert verdict.score == 1, verdict
        assert {kind for _, kind in found.payload["findings"]} == set(KINDS_BY_LEVEL[level])


@pytest.mark.slow
@pytest.mark.sandbox
def test_the_gate_finds_it_sound(resources: Resources) -> None:
    play.assert_sound(made(2), resources)


@pytest.mark.sandbox
def test_careless_audits_score_low(resources: Resources) -> None:
    found = made(3)
    read, audit, write, submit = found.demonstrations[0].messages

    def changed(message: Message, old: str, new: str) -> Message:
        code = str(message.calls[0].arguments["code"])
        assert old in code
        return call("python", code=code.replace(old, new))

    every_row = changed(audit, 'kind = ""', 'kind = "duplicate"')
    no_rates = changed(audit, '* rates[row["currency"]]', "")
    listed, unconverted = (play.verdict_of(found, (read, m, write, submit), resources) for m in (every_row, no_rates))
    assert listed.status == unconverted.status == "fail"
    assert listed.parts["findings"] < 0.35  # all true findings are listed: precision alone is lost
    assert listed.parts["cells"] == 1
    assert unconverted.parts["cells"] < 0.9
    assert unconverted.parts["memo"] < 0.7
    nothing = play.verdict_of(found, (read, submit), resources)
    assert nothing.score == 0


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "part", ["macro", "hidden", "huge", "bomb", "doctype", "formula", "text_numbers", "extra_column", "external", "directory_lies"]
)
def test_defences(part: str, resources: Resources) -> None:
    found = made(1)
    task = play.task_of(found, resources)
    good = replay(task, found.demonstrations[0].messages, resources).outcome
    assert judge(task, good, resources).status == "pass"
    data = good.files["report.xlsx"]
    book = openpyxl.load_workbook(io.BytesIO(data))
    buffer = io.BytesIO(data)
    if part in ("macro", "bomb", "doctype", "external"):
        name, text = {
            "macro": ("xl/vbaProject.bin", b"x"),
            "bomb": ("xl/media/x.bin", bytes(8 << 20)),
            "doctype": ("xl/theme/t.xml", b'<!DOCTYPE x [<!ENTITY a "b">]><x/>'),
            "external": ("xl/externalLinks/externalLink1.xml", b"<x/>"),
        }[part]
        with zipfile.ZipFile(buffer, "a", zipfile.ZIP_DEFLATED) as out:
            out.writestr(name, text)
    elif part == "huge":
        buffer = io.BytesIO(data + bytes(professional.FILE_BYTES))
    elif part == "directory_lies":
        buffer = io.BytesIO(data.replace(b"PK\x01\x02", b"PK\x01\x03", 1))
    else:
        sheet = book["totals"]
        if part == "hidden":
            sheet.sheet_state = "hidden"
        elif part == "formula":
            sheet["C2"] = f"={sheet['C2'].value}"
        elif part == "text_numbers":
            sheet["C2"] = str(sheet["C2"].value)
        else:
            for row in range(1, sheet.max_row + 1):
                sheet.cell(row, 4).value = 1
        buffer = io.BytesIO()
        book.save(buffer)
    verdict = judge(task, Outcome("", files={**good.files, "report.xlsx": buffer.getvalue()}), resources)
    assert verdict.status == "fail"
    if part in ("formula", "text_numbers", "extra_column"):
        assert 0 < verdict.parts["cells"] < 1
    else:
        assert verdict.parts["cells"] == verdict.parts["findings"] == 0
        assert verdict.evidence["report"]


def test_numbers_are_normalised() -> None:
    assert numbers_in("1,234.50 and 1 234.5 or 1'234.5") == {Decimal("1234.5")}
    assert numbers_in("E7 costs -3") == {Decimal(-3)}
    assert numbers_in("1,2 1.2.3") - {Decimal(2), Decimal(1)} == set()


@pytest.mark.parametrize("level", [1, 2, 3])
def test_planted_faults_are_the_only_ones(level: int) -> None:
    for seed in range(20):
        ledger = draw(random.Random(seed), level)
        assert len({row["entry"] for row in ledger.entries}) == len(ledger.entries)
        assert len({entry for entry, _ in ledger.findings}) == len(ledger.findings)
        assert ledger.overstated > 0
    assert made(level) == made(level)


@pytest.mark.parametrize("fixture", FIXTURES, ids=lambda f: f"{f.case}-{f.name}")
def test_fixture(fixture: professional.VerifierFixture, resources: Resources) -> None:
    task = play.task_of(made(1), resources)
    for _ in range(fixture.runs):
        verdict = judge_payload(task, fixture.outcome, fixture.payload, resources)
        assert (verdict.status, verdict.score) == (
            fixture.status,
            None if fixture.score is None else pytest.approx(fixture.score, abs=1e-8),
        )


def test_fixture_fails_every_mutation(resources: Resources) -> None:
    task, full = play.task_of(made(1), resources), FIXTURES[0]
    verifier = ProfessionalVerifier()
    for name, payload in verifier.mutations(full.payload):
        assert verifier.verify(task, full.outcome, payload).status == "fail", name
    for name, outcome in verifier.wrong_outcomes(full.outcome, full.payload):
        assert verifier.verify(task, outcome, full.payload).status == "fail", name
    assert workbook({"a": [[1]]}).startswith(b"PK")
