"""From a candidate to a task, in the roles of DeepSeek V4.1's builders: buildability, design, environment, self-test.

Each role either hands on or rejects with its reason. Accepted is only what has tests that fail before the fix and pass after
it, and none that the fix breaks, over repeated runs in fresh sandboxes with different hash seeds (V3.2's rule).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict

from environments.errors import InputError
from environments.protocols import Outcome
from environments.sandbox.base import Backend
from environments.task import Message, canonical_json
from environments.verifiers.repository_tests import RepositoryTests, encoded, suite_of
from environments.verifiers.suite import Suite, SuiteRun, run_suite, sandbox_config
from tasks.repository.candidate import Candidate, ManifestRow, Rejected, Stage
from tasks.repository.controls import functions_of, source_of, spoil
from tasks.repository.index import OfflineError
from tasks.repository.leaks import find_leaks
from tasks.repository.problem import edits, problem
from tasks.repository.tree import TreeError, is_config, is_history, is_test, text_of

RUNS = 3
"""Runs of each side. A test whose outcome differs among them is flaky and left out."""
MAX_LINES = 1_500
"""A larger difference is a release, not a fix."""
MAX_CONTROLS = 40
MAX_VIEW_BYTES = 8 << 20
_TOP = ("readme", "license", "licence", "copying", "setup.py")
OPEN_LICENCES = ("mit", "bsd", "apache", "psf", "python software foundation", "isc", "mpl", "mozilla", "unlicense", "zope", "zpl", "0bsd")
"""Words of the licences whose code may become training material; a user who may use others names them."""


class BuiltTask(BaseModel):
    """A task ready to be drafted. `payload` and `reference` go into the vault, never to an agent."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    row: ManifestRow
    prompt: str
    files: dict[str, str]
    """What the agent sees."""
    editable: tuple[str, ...]
    payload: dict[str, Any]
    reference: tuple[Message, ...]
    """The fix as calls of the agent's tools."""


class _Refused(Exception):
    def __init__(self, stage: Stage, reason: str) -> None:
        super().__init__(stage, reason)
        self.stage: Stage = stage
        self.reason = reason


@dataclass(frozen=True)
class _Trial:
    """What the runs of both sides said."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    flaky: tuple[str, ...]


def build(candidate: Candidate, backend: Backend, runs: int = RUNS, licences: Iterable[str] = OPEN_LICENCES) -> BuiltTask | Rejected:
    """A task, or why there is none. Some ten runs of the package's tests.

    Raises:
        OfflineError: the requirements cannot be fetched; nothing is known about the candidate.
        SandboxError: a sandbox failed; nothing is known about it either.
    """
    try:
        return _Builder(candidate, backend, runs).build(tuple(licences))
    except _Refused as refused:
        return Rejected(name=candidate.name, stage=refused.stage, reason=refused.reason[:600])
    except TreeError as error:
        return Rejected(name=candidate.name, stage="buildability", reason=str(error)[:600])


class _Builder:
    """One candidate on its way through the roles."""

    def __init__(self, candidate: Candidate, backend: Backend, runs: int) -> None:
        self.candidate = candidate
        self.backend = backend
        self.runs = runs
        self.suite = Suite(candidate.tests, candidate.layout.roots, candidate.requirements, candidate.plugins)

    def build(self, licences: tuple[str, ...]) -> BuiltTask:
        candidate = self.candidate
        if not any(word in candidate.licence.lower() for word in licences):
            raise _Refused("environment", f"the licence {candidate.licence!r} is not among those that may be used")
        first = self._buildable()
        trial = self._design(first)
        view = self._view(trial)
        payload = self._payload(trial)
        payload |= self._controls(trial, payload)
        self._self_test(view, payload)
        text = problem(candidate, trial.fail_to_pass)
        row = ManifestRow(
            name=candidate.name,
            package=candidate.package,
            origin=candidate.origin,
            version=candidate.version,
            licence=candidate.licence,
            sources=candidate.sources,
            changed=candidate.changed,
            lines=candidate.size,
            fail_to_pass=len(trial.fail_to_pass),
            pass_to_pass=len(trial.pass_to_pass),
            flaky=trial.flaky,
            controls=len(payload["control_ids"]),
            runs=self.runs,
            requirements=candidate.requirements,
            payload_sha256=hashlib.sha256(canonical_json(payload).encode()).hexdigest(),
        )
        changed = {p: (view.get(p), text_of(candidate.after[p]) if p in candidate.after else None) for p in candidate.changed}
        editable = candidate.layout.editable
        return BuiltTask(row=row, prompt=text, files=view, editable=editable, payload=payload, reference=edits(changed))

    # --- buildability -------------------------------------------------------------------------------------------------------

    def _buildable(self) -> SuiteRun:
        candidate = self.candidate
        if not candidate.changed:
            raise _Refused("buildability", "the fix changes no file of the package")
        if not candidate.tests:
            raise _Refused("buildability", "the tree has no tests")
        if candidate.size > MAX_LINES:
            raise _Refused("buildability", f"the fix changes {candidate.size} lines, more than {MAX_LINES}")
        try:
            sandbox_config(candidate.requirements)
        except InputError as error:
            if isinstance(error, TreeError):
                raise
            raise OfflineError(f"{candidate.name}: {error.message}", error.fix) from error
        first = self._run("after", 0)
        if reason := first.reason():
            raise _Refused("buildability", reason)
        if not first.passed:
            raise _Refused("buildability", f"no test passes on the fixed tree: {next(iter(first.broken.values()), first.noise)[-300:]}")
        return first

    def _run(self, side: str, seed: int) -> SuiteRun:
        return run_suite(self.backend, self.suite, {**self._source(side), **self._fixed()}, seed)

    def _source(self, side: str) -> dict[str, bytes]:
        """The package's own files before or after the fix."""
        tree = self.candidate.before if side == "before" else self.candidate.after
        return {path: data for path, data in tree.items() if self.candidate.layout.holds(path) and text_of(data) is not None}

    def _fixed(self) -> dict[str, bytes]:
        """All that the judge's tree has beside them: the fixed tree's tests and configuration, data that is no text, a name and version."""
        candidate = self.candidate
        files = {
            path: data
            for path, data in candidate.after.items()
            if not is_history(path)
            and (is_test(path) or is_config(path) or _is_top(path) or (candidate.layout.holds(path) and text_of(data) is None))
        }
        return {**files, **self._metadata()}

    def _metadata(self) -> dict[str, bytes]:
        """Packages that ask for their own version find one, as they would where they are installed."""
        lines = (text_of(self.candidate.before.get("PKG-INFO", b"")) or "").splitlines()
        stated = dict(line.split(": ", 1) for line in lines[:6] if ": " in line)
        if "Name" not in stated or "Version" not in stated:
            return {}
        text = f"Metadata-Version: 2.1\nName: {stated['Name']}\nVersion: {stated['Version']}\n"
        folder = f"{stated['Name'].replace('-', '_')}-{stated['Version']}.dist-info"
        return {"/".join(filter(None, (self.candidate.layout.roots[0], folder, "METADATA"))): text.encode()}

    # --- design ----------------------------------------------------------------------------------------------------------------

    def _design(self, first: SuiteRun) -> _Trial:
        old = self._run("before", 0)
        if reason := old.reason():
            raise _Refused("design", f"before the fix {reason}")
        if not first.passed - old.passed:
            raise _Refused("design", "no test fails before the fix and passes after it")
        before = [old, *(self._run("before", seed) for seed in range(1, self.runs))]
        after = [first, *(self._run("after", seed) for seed in range(1, self.runs))]
        names = sorted({name for run in (*before, *after) for name in run.outcomes})
        flaky = tuple(n for n in names if any(len({r.outcomes.get(n, "absent") for r in side}) > 1 for side in (before, after)))
        steady = [n for n in names if n not in flaky]
        was = {n for n in steady if n in before[0].passed}
        now = {n for n in steady if n in after[0].passed}
        if broken := sorted(n for n in was - now if after[0].outcomes.get(n) != "skipped"):
            raise _Refused("design", f"the fix breaks {len(broken)} tests: {', '.join(broken[:3])}")
        # A test that was skipped before does not show the fault.
        wanted = tuple(n for n in steady if n in now - was and before[0].outcomes.get(n, "failed") == "failed")
        if not wanted:
            raise _Refused("design", f"no steady test fails before and passes after; flaky: {', '.join(flaky[:3]) or 'none'}")
        if not was & now:
            raise _Refused("design", "no test passes both before and after: nothing guards the rest of the package")
        return _Trial(wanted, tuple(sorted(was & now)), flaky)

    # --- environment -----------------------------------------------------------------------------------------------------------

    def _view(self, trial: _Trial) -> dict[str, str]:
        """What the agent sees: the tree before the fix without history, packaging and what the hidden tests hold."""
        candidate = self.candidate
        kept = {
            path: text
            for path, data in {**candidate.before, **self._metadata()}.items()
            if (candidate.layout.holds(path) or is_test(path) or is_config(path) or _is_top(path) or path.endswith("dist-info/METADATA"))
            and (not is_history(path) or path.endswith("dist-info/METADATA"))
            and (text := text_of(data)) is not None
        }
        if sum(map(len, kept.values())) > MAX_VIEW_BYTES:
            raise _Refused("environment", f"the tree holds more than {MAX_VIEW_BYTES >> 20} MiB of text")
        if unreadable := [p for p in candidate.changed if any(text_of(t.get(p, b"")) is None for t in (candidate.before, candidate.after))]:
            raise _Refused("environment", f"the fix changes {unreadable[0]}, which is no text")
        self._hides(trial, kept)
        return kept

    def _hides(self, trial: _Trial, view: Mapping[str, str]) -> None:
        """Refuses a view that holds a hidden test, laid out as it may be. A test that was there before the fix only shows the fault."""
        seen = {text for path, source in view.items() if path.endswith(".py") for text in functions_of(source).values()}
        others = "\n".join(source for path, source in view.items() if not path.endswith(".py"))
        for test in trial.fail_to_pass:
            path, _, rest = test.partition("::")
            name = rest.partition("[")[0].replace("::", ".")
            source = text_of(self.candidate.after.get(path, b"")) or ""
            new = functions_of(source).get(name)
            old = functions_of(text_of(self.candidate.before.get(path, b"")) or "").get(name)
            if new and new != old and (new in seen or source_of(source, name) in others):
                raise _Refused("environment", f"the hidden test {test} is in the agent's files")

    def _payload(self, trial: _Trial) -> dict[str, Any]:
        candidate = self.candidate
        return {
            "files": {path: encoded(data) for path, data in self._fixed().items()},
            "tests": list(candidate.tests),
            "roots": list(candidate.layout.roots),
            "editable": list(candidate.layout.editable),
            "changed": list(candidate.changed),
            "requirements": list(candidate.requirements),
            "plugins": list(candidate.plugins),
            "fail_to_pass": list(trial.fail_to_pass),
            "pass_to_pass": list(trial.pass_to_pass),
        }

    def _controls(self, trial: _Trial, payload: Mapping[str, Any]) -> dict[str, Any]:
        """Spoiled copies of the tests that show the fix, kept where the fixed tree fails them each time."""
        wanted: dict[str, list[str]] = {}
        for test in (*trial.fail_to_pass, *trial.pass_to_pass[:MAX_CONTROLS]):
            path, _, rest = test.partition("::")
            name = rest.partition("[")[0]
            if path.endswith(".py") and name not in wanted.setdefault(path, []) and sum(map(len, wanted.values())) < MAX_CONTROLS:
                wanted[path].append(name)
        true: dict[str, str] = {}
        spoiled: dict[str, str] = {}
        for path, names in wanted.items():
            texts = spoil(text_of(self.candidate.after[path]) or "", [n.replace("::", ".") for n in names])
            if all(texts):
                true[path], spoiled[path] = texts
        paths = [f"{path}::{name}" for path in spoiled for name in wanted[path]]
        if not paths:
            raise _Refused("design", "no test can be spoiled, so forged outcomes would not be seen")
        files = {**self._source("after"), **self._fixed(), **{p: t.encode() for p, t in spoiled.items()}}
        seen = [run_suite(self.backend, suite_of(payload), files, seed, paths) for seed in range(2)]
        failing = sorted(n for n in seen[0].outcomes if all(run.outcomes.get(n) == "failed" for run in seen))
        shown = {test.partition("[")[0] for test in trial.fail_to_pass}
        if not any(name.partition("[")[0] in shown for name in failing):
            raise _Refused("design", "no test that shows the fix can be spoiled, so a forged outcome would not be seen")
        # The true tests in the same layout, where they still say the same in it.
        alike = {**self._source("after"), **self._fixed(), **{p: t.encode() for p, t in true.items()}}
        run = run_suite(self.backend, suite_of(payload), alike)
        laid_out = true if run.passed >= {*trial.fail_to_pass, *trial.pass_to_pass} else {}
        return {"controls": spoiled, "control_ids": failing, "files": {**payload["files"], **laid_out}}

    # --- self-test -------------------------------------------------------------------------------------------------------------

    def _self_test(self, view: Mapping[str, str], payload: Mapping[str, Any]) -> None:
        candidate = self.candidate
        config = sandbox_config(candidate.requirements)
        places = [p for p in candidate.layout.editable if any(c == p or c.startswith(p) for c in candidate.changed)]
        names = [p.rstrip("/").rsplit("/", 1)[-1].removesuffix(".py") for p in places]
        if leaks := find_leaks(self.backend, config, view, candidate, names):
            raise _Refused("self-test", f"the solution can be read: {'; '.join(leaks[:3])}")
        verifier = RepositoryTests(self.backend)
        seen = {p: t.encode() for p, t in view.items()}
        untouched = verifier.judge(Outcome("", files=seen), payload)
        if untouched.status != "fail":
            raise _Refused("self-test", f"the tree without the fix is judged {untouched.status}")
        fixed = {p: d for p, d in seen.items() if p not in candidate.changed} | {
            p: candidate.after[p] for p in candidate.changed if p in candidate.after
        }
        solved = verifier.judge(Outcome("", files=fixed), payload)
        if solved.status != "pass":
            raise _Refused("self-test", f"the fix itself is judged {solved.status}: {solved.evidence}")


def _is_top(path: str) -> bool:
    return "/" not in path and path.lower().startswith(_TOP)
