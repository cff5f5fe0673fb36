"""The `ninefold` command line.

Exit codes: 0 done, 1 a bug or a failed check, 2 the input is wrong, 3 a machine part failed, 130 interrupted. An error on purpose
prints what is wrong and the fix, never a traceback.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

import typer

from environments.errors import InfrastructureError, InputError, NinefoldError, RunExistsError

EXIT_BUG, EXIT_INPUT, EXIT_INFRASTRUCTURE, EXIT_INTERRUPTED = 1, 2, 3, 130

app = typer.Typer(
    name="ninefold",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Grow a concept graph, synthesise verified tasks from it, train nine experts and distil them into one student.",
    epilog="Example: ninefold run --profile laptop --name first",
)

Name = Annotated[str, typer.Option("--name", help="Name of the run under runs/; the profile's name by default.")]
Profile = Annotated[str, typer.Option("--profile", help="laptop, gpu or cluster.")]
Config = Annotated[Path | None, typer.Option("--config", help="TOML file whose keys override the profile's.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Random seed; the configuration's by default.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue a run that exists; what is up to date is not done again.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Check everything, print the resolved configuration and the planned work, do nothing.")
]


def typed_errors(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn errors on purpose into a line, a fix and an exit code."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except NinefoldError as error:
            typer.echo(f"error: {error.message}", err=True)
            if error.fix:
                typer.echo(f"  fix: {error.fix}", err=True)
            code = (
                EXIT_INPUT if isinstance(error, InputError) else EXIT_INFRASTRUCTURE if isinstance(error, InfrastructureError) else EXIT_BUG
            )
            raise typer.Exit(code) from None
        except KeyboardInterrupt:
            typer.echo("interrupted; run again with --resume to continue", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None

    return wrapped


def _version(show: bool) -> None:
    if show:
        typer.echo(f"ninefold {metadata.version('ninefold')}")
        raise typer.Exit


@app.callback()
def main(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False) -> None:
    """See `ninefold COMMAND --help`; each shows an example."""


def _stage_command(target: str, flow: str, doc: str) -> None:
    """Register a command that takes the run to `target` by the flow `module:name`."""

    @typed_errors
    def command(
        name: Name = "",
        profile: Profile = "laptop",
        config: Config = None,
        seed: Seed = None,
        resume: Resume = False,
        dry_run: DryRun = False,
    ) -> None:
        launch(target, flow, name, profile, config, seed, resume, dry_run)

    command.__doc__ = doc
    command.__name__ = target
    example = f"ninefold {target} --profile laptop --name first" + ("" if target == "run" else " --resume")
    app.command(target, help=doc, epilog=f"Example: {example}")(command)


for _target, _flow, _doc in (
    ("run", "flows.post_train:post_train", "The whole pipeline: graph, tasks, dataset, nine experts, student, report."),
    ("synthesize", "flows.synthesize_tasks:synthesize_tasks", "Write candidate tasks from the graph's documents."),
    ("validate", "flows.harden_environments:validate_tasks", "Check every candidate by execution."),
    ("probe", "flows.harden_environments:harden_environments", "Attack every valid task, reject what can be hacked, publish the rest."),
    ("train", "flows.train_experts:train_experts", "Train the cold start and the nine experts."),
    ("distill", "flows.distill_student:distill_student", "Distil the nine experts into one student."),
    ("evaluate", "flows.evaluate_student:evaluate_student", "Evaluate cold start, experts and student on held-out tasks."),
):
    _stage_command(_target, _flow, _doc)


@app.command(epilog="Example: ninefold grow --seeds statistics,interpolation --nodes 200 --name first")
@typed_errors
def grow(
    seeds: Annotated[
        str | None, typer.Option("--seeds", help="Comma list, or a file with one a line; the configuration's by default.")
    ] = None,
    nodes: Annotated[int | None, typer.Option("--nodes", help="Nodes in the whole graph, seeds included.")] = None,
    depth: Annotated[int | None, typer.Option("--depth", help="Edges below a seed.")] = None,
    searches: Annotated[int | None, typer.Option("--searches", help="Budget of searches, of all readers together.")] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", help="Budget of a language model's tokens.")] = None,
    seconds: Annotated[float | None, typer.Option("--seconds", help="Budget of reading time.")] = None,
    brain: Annotated[str | None, typer.Option("--brain", help="embedded (needs no model) or language-model.")] = None,
    endpoint: Annotated[str | None, typer.Option("--endpoint", help="Base URL of an OpenAI-compatible server, e.g. sglang's.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Name under which the endpoint serves the model.")] = None,
    interface: Annotated[
        str | None, typer.Option("--interface", help="How it calls tools: native, or json, xml, fence in its text.")
    ] = None,
    start: Annotated[str | None, typer.Option("--from", help="Run whose graph is grown further, from what it left open.")] = None,
    workspace: Annotated[
        Path | None, typer.Option("--workspace", help="Folder of runs/ and data/; NINEFOLD_HOME or here by default.")
    ] = None,
    name: Name = "",
    profile: Profile = "laptop",
    config: Config = None,
    seed: Seed = None,
    resume: Resume = False,
    dry_run: DryRun = False,
) -> None:
    """Index the documents and grow the concept graph."""
    from flows.grow_options import graph_options, growth_lines

    if workspace is not None:
        os.environ["NINEFOLD_HOME"] = str(workspace.absolute())
    options = graph_options(seeds, nodes, depth, searches, tokens, seconds, brain, endpoint, model, interface, start)
    launch("grow", "flows.grow_graph:grow_graph", name, profile, config, seed, resume, dry_run, options)
    if dry_run:
        return
    from flows.context import run_name
    from flows.workspace import Workspace

    run = Workspace().existing(run_name(name, profile))
    if record := run.finished("grow"):
        for line in growth_lines(run, record, profile):
            typer.echo(line)


@app.command(epilog="Example: ninefold report --name first")
@typed_errors
def report(name: Name = "", profile: Profile = "laptop", config: Config = None, resume: Resume = True, dry_run: DryRun = False) -> None:
    """Write the offline report and summary.json of a run from its tables."""
    from flows.workspace import Workspace

    run = Workspace().existing(name or profile)
    if dry_run:
        typer.echo(f"would write {run.summary} and {run.report}")
        return
    from flows.steps.publishing import write_outputs

    typer.echo(f"report: {write_outputs(run).report}")


@app.command(epilog='Example: ninefold catalog --query "select * from runs"')
@typed_errors
def catalog(
    query: Annotated[str, typer.Option("--query", help="SQL to run on the catalogue; prints the rows.")] = "",
    profile: Profile = "laptop",
    config: Config = None,
    resume: Resume = True,
    dry_run: DryRun = False,
) -> None:
    """Build catalog.duckdb over all runs of the workspace and, with --query, ask it."""
    from flows.workspace import Workspace

    workspace = Workspace()
    if dry_run:
        typer.echo(f"would build {workspace.catalog} from {workspace.runs}/*/tables")
        return
    from flows.steps.publishing import ask_catalog, build_catalog

    typer.echo(f"catalogue: {build_catalog(workspace)}")
    if query:
        for line in ask_catalog(workspace, query):
            typer.echo(line)


@app.command(epilog="Example: ninefold shell --name first --task 3f2a --tools bash,python")
@typed_errors
def shell(
    task: Annotated[str, typer.Option("--task", help="Id of a task of the run, or the beginning of it.")],
    name: Name = "",
    profile: Profile = "laptop",
    harness: Annotated[str, typer.Option("--harness", help="Preset that shapes what the agent sees.")] = "endpoint",
    tools: Annotated[str, typer.Option("--tools", help="Tools beside the task's own, for example bash,python.")] = "",
    save: Annotated[Path | None, typer.Option("--save", help="Write the trace there as JSON, for `ninefold replay`.")] = None,
) -> None:
    """Open a task's sandbox and tools as an agent sees them, with you in its place. Calls come from the terminal or from a pipe."""
    from flows.shell import find_task, harness_named
    from flows.shell import shell as play
    from flows.workspace import Workspace

    run = Workspace().existing(name or profile)
    extra = tuple(t.strip() for t in tools.split(",") if t.strip())
    lines = iter(lambda: _asked("> "), None) if sys.stdin.isatty() else sys.stdin
    trace = play(run, find_task(run, task), harness_named(harness), extra, lines, typer.echo)
    if save is not None:
        save.write_text(trace.model_dump_json())
        typer.echo(f"trace: {save}")


def _asked(prompt: str) -> str | None:
    import readline  # noqa: F401 - editing and history for input()

    try:
        return input(prompt)
    except EOFError:
        return None


@app.command(epilog="Example: ninefold replay best --name first")
@typed_errors
def replay(
    trace: Annotated[str, typer.Argument(help="An episode of the run (id or its beginning, `best`, `worst`) or a trace's JSON file.")],
    name: Name = "",
    profile: Profile = "laptop",
    html: Annotated[Path | None, typer.Option("--html", help="Where the page goes; runs/NAME/replays/ID.html by default.")] = None,
    tokenizer: Annotated[Path | None, typer.Option("--tokenizer", help="Folder of the tokenizer, for a trace from a file.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Write the page only.")] = False,
) -> None:
    """Step through one episode in the terminal, and write it as a page: messages, calls, pictures, tokens by log-prob, verdict."""
    from rich.console import Console

    from flows.replay import find_trace, step_through, write_page
    from flows.workspace import Workspace

    run = None if Path(trace).is_file() else Workspace().existing(name or profile)
    found = find_trace(trace, run, tokenizer)
    target = html or (run.root / "replays" if run else Path.cwd()) / f"{found.trace.trajectory_id}.html"
    if not quiet:
        stepping = sys.stdin.isatty() and sys.stdout.isatty()
        step_through(found, Console(), lambda: not stepping or _asked("[Enter] next, q ends ") == "")
    typer.echo(f"page: {write_page(found, target)}")


@app.command(epilog="Example: ninefold serve --port 4200")
@typed_errors
def serve(
    port: Annotated[int, typer.Option("--port", help="Port of the UI and API on 127.0.0.1.")] = 4200,
    profile: Profile = "laptop",
    config: Config = None,
    resume: Resume = True,
    dry_run: DryRun = False,
) -> None:
    """Start server, work pools, workers and deployments on loopback; Ctrl-C stops them all."""
    from flows.serve import plan_lines, serve_forever

    if dry_run:
        for line in plan_lines(port):
            typer.echo(line)
        return
    serve_forever(port, announce=typer.echo)


@app.command(epilog="Example: ninefold doctor")
@typed_errors
def doctor(
    profile: Profile = "laptop",
    config: Config = None,
    resume: Resume = True,
    dry_run: DryRun = False,
    port: Annotated[int, typer.Option("--port", help="Port that `ninefold serve` would use.")] = 4200,
) -> None:
    """Check this machine: one line each, `ok` or the fix."""
    from flows.doctor import CHECKS, check_all

    if dry_run:
        for check in CHECKS:
            typer.echo(f"would check {check}")
        return
    failed = 0
    for finding in check_all(port):
        typer.echo(finding.line())
        failed += not finding.ok and finding.needed
    if failed:
        raise typer.Exit(EXIT_BUG)


def launch(
    target: str,
    flow: str,
    name: str,
    profile: str,
    config: Path | None,
    seed: int | None,
    resume: bool,
    dry_run: bool,
    options: dict[str, Any] | None = None,
) -> None:
    """Check the input, then run the flow with a Prefect API, and print what came out."""
    from flows.config import load_config, to_toml
    from flows.context import run_name
    from flows.stages import GROUPS, Plan
    from flows.workspace import Workspace

    resolved = load_config(profile, config, seed, options)
    workspace = Workspace()
    run = workspace.run(run_name(name, profile))
    if (run.root / "config.toml").exists() and not resume:
        raise RunExistsError(
            f"a run named {run.name!r} exists in {workspace.runs}", "add --resume to continue it, or choose another --name"
        )
    if dry_run:
        typer.echo(to_toml(resolved))
        typer.echo(f"run {run.name} in {run.root}:")
        for stage, done in Plan(run, resolved).todo(GROUPS[target]):
            typer.echo(f"  {'up to date' if done else 'to do     '}  {stage.name:<20} {stage.says}")
        return
    _log_to_console()
    from flows.server import api, terminate_on_sigterm

    terminate_on_sigterm()
    with api(workspace) as url:
        from importlib import import_module

        module, _, function = flow.partition(":")
        getattr(import_module(module), function)(
            name=run.name,
            profile=profile,
            config=str(config.absolute()) if config else None,
            seed=seed,
            resume=resume,
            **({"options": options} if options else {}),
        )
        typer.echo(f"prefect: {url.removesuffix('/api')}", err=True)
    _print_outcome(run.name, target)


def _print_outcome(name: str, target: str) -> None:
    from flows.console import print_summary
    from flows.summary import read_summary
    from flows.workspace import Workspace

    workspace = Workspace()
    run = workspace.run(name)
    typer.echo(f"{target}: finished, see {run.root}")
    if target == "run":
        print_summary(read_summary(run), run, workspace)


def _log_to_console() -> None:
    """Our own progress on stderr; Prefect's console log is left to errors, its API keeps everything."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "flows,kg,tasks,environments")
    from rich.logging import RichHandler

    handler: logging.Handler
    if sys.stderr.isatty():
        handler = RichHandler(show_path=False, show_level=False)
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
    for package in ("flows", "kg", "tasks", "environments"):
        logger = logging.getLogger(package)
        logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        logger.propagate = False


if __name__ == "__main__":
    app()
