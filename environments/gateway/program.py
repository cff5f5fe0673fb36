"""A public agent's own program as the shell: it runs in the task's sandbox and reaches the policy, and nothing else, through the gateway.

The task's tools are commands in its sandbox. What the policy sampled is recorded token by token behind the wire that the
program speaks, so its traces train like any other's (Kimi K3 report, section 4.2.1).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

from pydantic import Field

from environments.environment import Answer
from environments.errors import InfrastructureError
from environments.families import make_environment
from environments.gateway.gateway import Gateway
from environments.gateway.session import Limits
from environments.harness.interfaces import TEXT_STYLES
from environments.resources import Resources
from environments.task import Effort, Frozen, TaskSpec, ToolCall, ToolSpec, content_hash
from environments.tools import Toolbox
from environments.tools.bash import BASH
from environments.tools.service import PRELUDE
from environments.trace import StopReason, ToolRecord, Trace
from environments.verdict import Verdict
from environments.verifiers import judge

PORT = 8080
"""Of the gateway, on the sandbox's own loopback."""
PROMPT_FILE = "TASK.md"


class Program(Frozen):
    """How an agent's program is started. It finds the task in `TASK.md` and the policy where OpenAI's and Anthropic's clients look."""

    name: str
    command: str
    """Run by bash in the workspace, for example `my-agent --prompt-file TASK.md`."""
    env: dict[str, str] = Field(default_factory=dict)
    model: str = "policy"
    """Value of the variable MODEL."""


def run_program(
    program: Program, gateway: Gateway, task: TaskSpec, resources: Resources, effort: Effort | None = None, seed: int = 0
) -> Trace:
    """Run one whole episode in the program, and judge it.

    An infrastructure failure, of the sandbox, the engine or the verifier's sandbox, gives a trace without a verdict.

    Raises:
        MissingDependencyError: no sandbox works on this machine.
    """
    started = time.monotonic()
    budgets = task.budgets
    environment = make_environment(task, resources, carrier=BASH.name)
    records: list[ToolRecord] = []

    def hear(call: ToolCall, answer: Answer, error: str) -> None:
        text = answer if isinstance(answer, str) else answer.text
        records.append(ToolRecord(step=len(records) + 1, tool=call.tool, arguments=call.arguments, result=text, error=error))

    environment.on_call = hear
    session = gateway.open(Limits(budgets.steps, budgets.output_tokens, budgets.wall_s), seed, effort)
    verdict: Verdict | None = None
    failure = ""
    output = ""
    with environment:
        try:
            environment.setup()
            toolbox = environment.equipment
            assert isinstance(toolbox, Toolbox)  # a carrier brings one
            sandbox = toolbox.sandbox
            assert sandbox is not None
            sandbox.write(PROMPT_FILE, _prompt(task, environment.TOOLS.values()).encode())
            listener = gateway.listen(sandbox.serve(PORT))
            try:
                done = sandbox.exec(
                    ["bash", "-c", f". {PRELUDE}\n{program.command}"], env=_variables(program, session.token), timeout_s=budgets.wall_s
                )
                output = done.stdout + done.stderr
                timed_out = done.timed_out
            finally:
                listener.close()
            outcome = environment.finalize()
            recording = gateway.drop(session)
            stop: StopReason = recording.stop or ("wall" if timed_out else "submitted" if environment.submitted else "finished")
            if stop != "infrastructure":
                verdict = judge(task, outcome, resources)
        except InfrastructureError as error:
            stop, failure = "infrastructure", str(error)
            recording = gateway.drop(session)
    return Trace(
        trajectory_id=uuid.uuid4().hex[:16],
        task_id=task.task_id,
        domain=task.domain,
        effort=effort,
        harness_sha256=content_hash(program)[:16],
        policy=gateway.backend.name,
        trainable=recording.trainable,
        segments=recording.segments,
        tool_records=(*records, _said(program, output or failure or recording.failure)),
        stop=stop,
        output_tokens=recording.output_tokens,
        thinking_tokens=recording.thinking_tokens,
        malformed_calls=recording.malformed_calls + sum(bool(r.error) for r in records),
        timings={"generate": recording.generate_s, "total": time.monotonic() - started},
        verdict=verdict,
    )


def _prompt(task: TaskSpec, tools: Iterable[ToolSpec]) -> str:
    """The task's messages, and its tools as commands; `tool NAME` also reaches those that a shell has a builtin for."""
    commands = [f"tool {TEXT_STYLES['bash'].declare(t)}" for t in tools if t.name in task.tools]
    return "\n\n".join([*(m.content for m in task.prompt), "\n".join(["Commands in this machine's shell:", *commands])]) + "\n"


def _variables(program: Program, token: str) -> dict[str, str]:
    base = f"http://127.0.0.1:{PORT}"
    return {
        "OPENAI_BASE_URL": f"{base}/v1",
        "OPENAI_API_KEY": token,
        "ANTHROPIC_BASE_URL": base,
        "ANTHROPIC_API_KEY": token,
        "MODEL": program.model,
        "NO_PROXY": "127.0.0.1",
        **program.env,
    }


def _said(program: Program, output: str) -> ToolRecord:
    """The program itself, as the last record: what it printed, or what failed."""
    return ToolRecord(step=0, tool=program.name, arguments={"command": program.command}, result=output[-4000:])
