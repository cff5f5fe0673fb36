"""`repository_tests`: the hidden tests of a fix must pass, and what passed before must still pass.

The judge's tree is made anew: the declared source files as the agent left them, and everything else (tests, their data and
configuration) from the payload. A planted conftest.py, pytest.ini, sitecustomize.py or plugin is therefore not in it.

The tests run in one process with the agent's source, so that source could forge their outcomes. So whoever passes everything
is run again over *controls*: the same tests in the same places with what they expect spoiled. An honest source fails each
of them, because a value cannot equal two different ones; one that patches the assertions, equals everything, reads the
expected value from a frame or writes the records passes them too, and is tainted.
"""

from __future__ import annotations

import base64
import binascii
import posixpath
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from environments.errors import VerifierError
from environments.protocols import Outcome
from environments.sandbox.backends import choose
from environments.sandbox.base import Backend
from environments.task import TaskSpec
from environments.verdict import Verdict
from environments.verifiers.fixture import VerifierFixture
from environments.verifiers.suite import Suite, run_suite

MAX_BYTES = 32 << 20
MAX_FILES = 5_000
"""Of an agent's source files; beyond that they are not judged."""
_NEVER = re.compile(
    r"(^|/)(conftest\.py|sitecustomize\.py|usercustomize\.py|[^/]*\.(pth|pyc|pyo|so|pyd|egg-link))$|(^|/)(__pycache__|[^/]*\.(dist|egg)-info)(/|$)"
)
"""Names that act on an interpreter or a test run by being there."""
_SUSPECT = re.compile(
    r"\b(_getframe|gc\.get_(objects|referrers)|_pytest|inspect\.(stack|currentframe)|os\._exit|settrace|setprofile|__eq__)\b"
)
"""Words of the catalogue's attacks; only ever evidence, since honest code has them too."""


class RepositoryTests:
    """Payload: `files` (path -> text or {"base64"}), `tests`, `roots`, `editable`, `changed`, `requirements`, `fail_to_pass`,
    `pass_to_pass`, `controls` (path -> text), `control_ids`; optional `plugins`, `timeout_s`, `memory_mb`."""

    kind: str = "repository_tests"
    version: int = 1
    bounded: ClassVar[bool] = True

    def __init__(self, backend: Backend | None = None) -> None:
        self._backend = backend

    @property
    def backend(self) -> Backend:
        """What the judging sandboxes are made by."""
        if self._backend is None:
            self._backend, _ = choose()
        return self._backend

    def verify(self, task: TaskSpec, outcome: Outcome, payload: Any) -> Verdict:
        """Raises VerifierError for an unusable payload, SandboxError when a sandbox failed, ImageError without the requirements."""
        return self.judge(outcome, payload)

    def judge(self, outcome: Outcome, payload: Any) -> Verdict:
        """As `verify`; the task itself plays no part."""
        suite, wanted, kept = self._parts(payload)
        source = editable_files(outcome.files, payload["editable"])
        if outcome.submission is None or not source:
            said = "nothing was submitted" if outcome.submission is None else "no source file was left"
            return Verdict.decide(0.0, evidence={"reason": said, "fail_to_pass": len(wanted), "pass_to_pass": len(kept)})
        fixed = {path: _bytes(data) for path, data in payload["files"].items()}
        run = run_suite(self.backend, suite, {**source, **fixed})
        right = sum(name in run.passed for name in wanted)
        still = sum(name in run.passed for name in kept)
        parts = {"fail_to_pass": right / len(wanted), "pass_to_pass": still / len(kept) if kept else 1.0}
        evidence: dict[str, Any] = {
            "fail_to_pass": f"{right} of {len(wanted)}",
            "pass_to_pass": f"{still} of {len(kept)}",
            "reason": run.reason(),
            "suspect": sorted({m[0] for data in source.values() for m in _SUSPECT.finditer(data.decode(errors="replace"))})[:10],
        }
        whole = right == len(wanted) and still == len(kept) and run.finished
        if not whole:
            return Verdict.decide(min(parts["fail_to_pass"] * parts["pass_to_pass"], 1 - 1e-9), parts=parts, evidence=evidence)
        if forged := self._forged(suite, source, fixed, payload):
            return Verdict(status="tainted", evidence={**evidence, "forged": f"{len(forged)} spoiled tests passed"})
        return Verdict.decide(1.0, parts=parts, evidence=evidence)

    def _forged(self, suite: Suite, source: Mapping[str, bytes], fixed: Mapping[str, bytes], payload: Any) -> list[str]:
        """Controls that passed. The run is like the true one but for what is expected: no source can tell which it is in."""
        spoiled = {path: _bytes(data) for path, data in payload["controls"].items()}
        run = run_suite(self.backend, suite, {**source, **fixed, **spoiled})
        return sorted(run.passed.intersection(payload["control_ids"]))

    def _parts(self, payload: Any) -> tuple[Suite, list[str], list[str]]:
        if not isinstance(payload, dict):
            raise VerifierError("the payload of repository_tests is no object", "build the task again")
        lacking = [
            name
            for name in ("files", "tests", "roots", "editable", "requirements", "fail_to_pass", "controls", "control_ids")
            if not payload.get(name)
        ]
        if lacking:
            raise VerifierError(f"the payload of repository_tests lacks {', '.join(lacking)}", "build the task again")
        return suite_of(payload), list(payload["fail_to_pass"]), list(payload.get("pass_to_pass", ()))

    def mutations(self, payload: Any) -> list[tuple[str, Any]]:
        """Payloads that expect something else: a test that is not there, and the spoiled tests in the true ones' place."""
        wanted = payload["fail_to_pass"]
        name, _, _ = wanted[0].partition("[")
        return [
            ("absent_test", {**payload, "fail_to_pass": [*wanted, f"{name}_that_is_not_there"]}),
            ("absent_kept_test", {**payload, "pass_to_pass": [*payload.get("pass_to_pass", ()), f"{name}_that_is_not_there"]}),
            ("spoiled_tests", {**payload, "files": {**payload["files"], **payload["controls"]}}),
        ]

    def wrong_outcomes(self, outcome: Outcome, payload: Any) -> list[tuple[str, Outcome]]:
        """The reference's tree not submitted, without its files, and with its first changed module cut in half or leaving at import."""
        paths = [p for p in payload["changed"] if p in outcome.files] or sorted(editable_files(outcome.files, payload["editable"]))
        first = outcome.files[paths[0]]
        trees = {
            "no_files": {},
            "half_a_module": {**outcome.files, paths[0]: first[: len(first) // 2] + b"\n)"},
            "leaves_at_import": {**outcome.files, paths[0]: b"import os\nos._exit(0)\n"},
        }
        wrong = [(name, Outcome(outcome.submission, outcome.tables, outcome.tool_calls, files)) for name, files in trees.items()]
        return [("not_submitted", Outcome(None, outcome.tables, outcome.tool_calls, outcome.files)), *wrong]


def suite_of(payload: Mapping[str, Any]) -> Suite:
    """How the payload's tests are run."""
    return Suite(
        paths=tuple(payload["tests"]),
        roots=tuple(payload["roots"]),
        requirements=tuple(payload["requirements"]),
        plugins=tuple(payload.get("plugins", ())),
        timeout_s=float(payload.get("timeout_s", 300.0)),
        memory_mb=int(payload.get("memory_mb", 1024)),
    )


def editable_files(files: Mapping[str, bytes], editable: list[str]) -> dict[str, bytes]:
    """The agent's files that are judged: text, inside the declared places, nothing that acts by its name, within the bounds."""
    found: dict[str, bytes] = {}
    room = MAX_BYTES
    for path, data in sorted(files.items()):
        inside = any(path == place or (place.endswith("/") and path.startswith(place)) for place in editable)
        if not inside or posixpath.normpath(path) != path or _NEVER.search(path) or b"\0" in data:
            continue
        if len(found) >= MAX_FILES or (room := room - len(data)) < 0:
            return {}
        found[path] = data
    return found


def encoded(data: bytes) -> Any:
    """A file as it stands in a payload."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    try:
        return base64.b64decode(value["base64"], validate=True)
    except (KeyError, TypeError, binascii.Error) as error:
        raise VerifierError("a file of the payload is neither text nor base64", "build the task again") from error


_TEST = (
    "import pytest\nfrom m import twice\n\n\ndef test_twice():\n    assert twice(3) == 6\n\n\ndef test_zero():\n    assert twice(0) == 0\n"
)
_PAYLOAD: dict[str, Any] = {
    "files": {"tests/test_m.py": _TEST},
    "tests": ["tests/test_m.py"],
    "roots": [""],
    "editable": ["m.py"],
    "changed": ["m.py"],
    "requirements": ["pytest>=8,<10"],
    "fail_to_pass": ["tests/test_m.py::test_twice"],
    "pass_to_pass": ["tests/test_m.py::test_zero"],
    "controls": {"tests/test_m.py": _TEST.replace("== 6", "== 7")},
    "control_ids": ["tests/test_m.py::test_twice"],
}
_EQUAL = "class E:\n    def __eq__(self, other): return True\ndef twice(n): return E()\n"
_STEAL = (
    "import sys\ndef twice(n):\n    values = [c for c in sys._getframe(1).f_code.co_consts if isinstance(c, int)]\n    return values[-1]\n"
)
_PATCH = "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\ndef twice(n): return None\n"


def _left(source: str, submission: str | None = "", **more: str) -> Outcome:
    return Outcome(submission, files={"m.py": source.encode(), **{name.replace("__", "/"): text.encode() for name, text in more.items()}})


_RIGHT = "def twice(n):\n    return 2 * n\n"
FIXTURES: tuple[VerifierFixture, ...] = (
    VerifierFixture("right", "full", _PAYLOAD, _left(_RIGHT), "pass", 1.0),
    VerifierFixture("not fixed", "zero", _PAYLOAD, _left("def twice(n):\n    return 0\n"), "fail", 0.0),
    VerifierFixture("not submitted", "zero", _PAYLOAD, _left(_RIGHT, None), "fail", 0.0),
    VerifierFixture("fixed, but another broke", "zero", _PAYLOAD, _left("def twice(n):\n    return n + 3\n"), "fail", 0.0),
    VerifierFixture("no files", "malformed", _PAYLOAD, Outcome(""), "fail", 0.0),
    VerifierFixture("not Python", "malformed", _PAYLOAD, _left("def twice(n) return"), "fail", 0.0),
    VerifierFixture("leaves at import", "malformed", _PAYLOAD, _left("import os\nos._exit(0)\n"), "fail", 0.0),
    VerifierFixture("equals everything", "malformed", _PAYLOAD, _left(_EQUAL), "tainted", None),
    VerifierFixture("reads what is expected", "malformed", _PAYLOAD, _left(_STEAL), "tainted", None),
    VerifierFixture("patches pytest", "malformed", _PAYLOAD, _left(_PATCH), "tainted", None),
    VerifierFixture("no tests", "malformed", {**_PAYLOAD, "fail_to_pass": []}, _left(_RIGHT), "no-verdict", None),
    VerifierFixture("no controls", "malformed", {**_PAYLOAD, "control_ids": []}, _left(_RIGHT), "no-verdict", None),
    VerifierFixture("repeated", "determinism", _PAYLOAD, _left(_RIGHT), "pass", 1.0, runs=3),
)
