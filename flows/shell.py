"""`ninefold shell`: a task as an agent meets it, with a person in the agent's place."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable

from environments.errors import ConfigError, InputError
from environments.harness.config import HarnessConfig
from environments.harness.episode import Episode
from environments.harness.loop import conclude, open_episode
from environments.harness.presets import PRESETS
from environments.resources import Resources
from environments.task import Message, TaskSpec, ToolCall, ToolParameter, ToolSpec
from environments.trace import Segment, Trace
from flows.steps.candidates import resources
from flows.workspace import RunDirectory
from tasks.catalog import load_run
from tasks.catalog_queries import tasks_named

HELP = """A call: TOOL VALUE..., with the values in order or as name=value; quotes work as in a shell. Or a JSON object:
{"tool": "search", "arguments": {"query": "bisect"}}. A value of several lines:
create path=a.py text=<<END, then the lines, then END.
:tools  what there is      :prompt  the task again      :quit  give up; the task is judged as it is"""
Say = Callable[[str], None]


def find_task(run: RunDirectory, wanted: str) -> TaskSpec:
    """A candidate or published task of a run, by its id or the beginning of it.

    Raises:
        InputError: there is none, or more than one.
    """
    with load_run(run.root, skip_corrupt=True) as connection:
        found = tasks_named(connection, wanted)
    if len(found) > 1:
        raise InputError(f"several tasks of run {run.name!r} begin with {wanted!r:.40}", f"write more: {', '.join(i for i, _ in found)}")
    if not found:
        raise InputError(
            f"run {run.name!r} has no task {wanted!r:.40}", "take an id from `ninefold catalog --query 'select task_id, prompt from tasks'`"
        )
    return TaskSpec.model_validate_json(found[0][1])


def harness_named(name: str) -> HarnessConfig:
    """A preset. Raises ConfigError."""
    if name not in PRESETS:
        raise ConfigError(f"there is no harness {name!r:.40}", f"use one of: {', '.join(PRESETS)}")
    return PRESETS[name]


def shell(run: RunDirectory, task: TaskSpec, harness: HarnessConfig, tools: tuple[str, ...], lines: Iterable[str], say: Say) -> Trace:
    """Play one episode from lines of input, and judge it.

    Args:
        tools: offered beside the task's own, for example `bash` and `python`.

    Raises:
        InputError: the run has no corpus yet, or there is no such tool.
    """
    corpus = run.finished("corpus")
    if corpus is None:
        raise InputError(f"the run {run.name!r} has no corpus", "run `ninefold run --resume`")
    with resources(run, str(corpus.result["corpus"])) as shared:
        return play(shared, task, harness, tools, lines, say)


def play(shared: Resources, task: TaskSpec, harness: HarnessConfig, tools: tuple[str, ...], lines: Iterable[str], say: Say) -> Trace:
    """As `shell`, with resources at hand."""
    with open_episode(task, shared, harness, extra_tools=tools) as episode:
        opening = list(episode.messages)
        say("\n\n".join(f"[{m.role}{' ' + m.option if m.option else ''}] {m.content}" for m in opening))
        say(f"\n{_state(episode)}  :help tells how to call them.")
        source = iter(lines)
        while episode.stop is None:
            line = next(source, ":quit").strip()
            if not line:
                continue
            if line in (":quit", ":q"):
                break
            if line.startswith(":"):
                say(_told(line, episode, opening))
                continue
            try:
                call = read_call(_whole(line, source), {t.name: t for t in episode.main.tools})
            except InputError as error:
                say(str(error))
                continue
            for answer in episode.act(Message(role="assistant", calls=(call,))):
                say(answer.content)
                for i, image in enumerate(answer.images):
                    say(f"[image {i + 1}: {image.media_type}, {len(image.data) * 3 // 4} bytes]")
        if episode.failure:
            say(f"a machine part failed: {episode.failure}")
        stop, verdict = conclude(episode, shared)
    if verdict is not None:
        say(f"verdict: {verdict.status}" + ("" if verdict.score is None else f", score {verdict.score:g}"))
        say(json.dumps(verdict.evidence, indent=1, ensure_ascii=False))
    return Trace(
        trajectory_id=f"shell-{task.task_id}",
        task_id=task.task_id,
        domain=task.domain,
        effort=None,
        harness_sha256=harness.sha256,
        policy="person",
        trainable=False,
        segments=(Segment(messages=tuple(episode.messages)),),
        tool_records=tuple(episode.records),
        stop=stop,
        output_tokens=0,
        thinking_tokens=0,
        malformed_calls=episode.malformed,
        verdict=verdict,
    )


def read_call(text: str, tools: dict[str, ToolSpec]) -> ToolCall:
    """A line as a call.

    Raises:
        InputError: it cannot be read, with how to write it.
    """
    if text.startswith("{"):
        try:
            value = json.loads(text)
            return ToolCall(tool=value["tool"], arguments=value.get("arguments", {}))
        except (ValueError, KeyError, TypeError) as error:
            how = 'write {"tool": "name", "arguments": {"parameter": "value"}}'
            raise InputError(f"that is no call in JSON ({error!s:.60})", how) from error
    try:
        name, *words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"that cannot be split into words ({error})", "close the quotation mark") from error
    parameters = {p.name: p for p in tools[name].parameters} if name in tools else {}
    arguments: dict[str, object] = {}
    order = list(parameters)
    for word in words:
        key, sign, value = word.partition("=")
        if sign and key in parameters:
            arguments[key] = _typed(parameters[key], value)
            continue
        free = next((p for p in order if p not in arguments), None)
        if free is None:
            raise InputError(f"{name} takes no further value {word!r:.40}", f"it takes: {', '.join(order) or 'nothing'}")
        arguments[free] = _typed(parameters[free], word)
    return ToolCall(tool=name, arguments=arguments)


def _typed(parameter: ToolParameter, text: str) -> object:
    if parameter.type == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text  # the environment says what it wants instead


def _whole(line: str, source: Iterable[str]) -> str:
    """A line with what follows `<<END` put in its place, quoted."""
    head, sign, end = line.rpartition("<<")
    if not sign or not end.isidentifier():
        return line
    body = []
    for more in source:
        if more.strip() == end:
            break
        body.append(more.rstrip("\n"))
    return head + shlex.quote("\n".join(body) + "\n")


def _state(episode: Episode) -> str:
    budgets = episode.task.budgets
    return f"Tools: {', '.join(t.name for t in episode.main.tools)}. {budgets.steps} steps, {budgets.submissions} submission(s)."


def _told(line: str, episode: Episode, opening: list[Message]) -> str:
    if line == ":tools":
        return "\n".join(
            f"{t.name}({', '.join(p.name + ('' if p.required else '?') + ': ' + p.type for p in t.parameters)}): {t.description}"
            for t in episode.main.tools
        )
    if line == ":prompt":
        return "\n".join(m.content for m in opening if m.role == "user")
    return HELP
