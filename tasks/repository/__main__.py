"""`python -m tasks.repository`: fetch real fixes and build the repository tasks from them.

python -m tasks.repository                                  # the default fixes into data/repository
python -m tasks.repository --only parse --check             # those of one package, compared with the committed manifest
python -m tasks.repository --git https://... --limit 10     # the last fixing commits of any repository
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from environments.errors import InfrastructureError, NinefoldError
from environments.sandbox.backends import choose
from tasks.repository.build import OPEN_LICENCES, RUNS, BuiltTask, build
from tasks.repository.candidate import Candidate, Rejected
from tasks.repository.fixes import FIXES, Fix, fetch_all
from tasks.repository.git import clone, commit_candidates
from tasks.repository.store import committed_manifest, load, read_rejected, save, save_manifest


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tasks.repository", description="Build single-fix repository tasks from real fixes.")
    parser.add_argument("--folder", type=Path, default=Path("data/repository"), help="where tasks, sources and manifest go")
    parser.add_argument("--only", action="append", default=[], help="packages or names of fixes to build; may be repeated")
    parser.add_argument("--git", default="", help="address or folder of a repository to take commits from, instead of the default fixes")
    parser.add_argument("--limit", type=int, default=10, help="commits to try")
    parser.add_argument("--require", action="append", default=[], help="requirement of the repository's tests beside pytest")
    parser.add_argument("--licence", action="append", default=[], help="further licence whose code may be used")
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each side")
    parser.add_argument("--workers", type=int, default=1, help="fixes at a time")
    parser.add_argument("--check", action="store_true", help="fail unless the counts are those of the committed manifest")
    return parser.parse_args()


def _candidates(options: argparse.Namespace) -> Iterator[Candidate | Rejected | NinefoldError]:
    if options.git:
        name = options.git.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
        requirements = ("pytest>=8,<10", *options.require)
        yield from commit_candidates(clone(options.git, options.folder / "git"), name, options.limit, requirements=requirements)
        return
    chosen: tuple[Fix, ...] = tuple(f for f in FIXES if not options.only or f.package in options.only or f.name in options.only)
    if not chosen:
        raise SystemExit(f"no fix is called {options.only}; there are {', '.join(f.name for f in FIXES)}")
    yield from fetch_all(chosen, options.folder)


def main() -> int:
    """Exit status 0 when something was built (with `--check`: as committed), 1 otherwise, 2 when a machine part failed."""
    options = _arguments()
    backend, _ = choose()
    licences = (*OPEN_LICENCES, *(said.lower() for said in options.licence))

    def work(candidate: Candidate | Rejected | NinefoldError) -> BuiltTask | Rejected | NinefoldError:
        try:
            return build(candidate, backend, options.runs, licences) if isinstance(candidate, Candidate) else candidate
        except InfrastructureError as error:
            return error

    built: dict[str, BuiltTask] = {}
    rejected: dict[str, Rejected] = {}
    undecided = 0
    try:
        with ThreadPoolExecutor(options.workers) as pool:
            for result in pool.map(work, _candidates(options)):
                if isinstance(result, BuiltTask):
                    built[result.row.name] = result
                    save(options.folder, result)
                    counts = (
                        f"{result.row.fail_to_pass} fail to pass, {result.row.pass_to_pass} pass to pass, {result.row.controls} controls"
                    )
                    print(f"built     {result.row.name}: {counts}", flush=True)
                elif isinstance(result, Rejected):
                    rejected[result.name] = result
                    print(f"rejected  {result.name}: {result.stage}: {result.reason}", flush=True)
                else:
                    undecided += 1
                    print(f"undecided {result}", flush=True)
    except NinefoldError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = {task.row.name: task.row for task in load(options.folder)} | {name: task.row for name, task in built.items()}
    refused = {r.name: r for r in read_rejected(options.folder) if r.name not in built} | rejected
    save_manifest(options.folder, (row for name, row in rows.items() if name not in rejected), refused.values())
    print(f"{len(built)} built, {len(rejected)} rejected, {undecided} undecided: {options.folder}")
    return 2 if undecided else _compare(built) if options.check else int(not built)


def _compare(built: dict[str, BuiltTask]) -> int:
    """1 when something that was measured before came out otherwise."""
    known = {row.name: row for row in committed_manifest()}
    other = [n for n, t in built.items() if n in known and t.row.payload_sha256 != known[n].payload_sha256]
    for name in other:
        now, was = built[name].row, known[name]
        print(f"differs   {name}: {now.fail_to_pass}/{now.pass_to_pass} now, {was.fail_to_pass}/{was.pass_to_pass} committed")
    return int(bool(other) or not built)


if __name__ == "__main__":
    sys.exit(main())
