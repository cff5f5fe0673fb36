"""verifiers' ToolEnv loop on the scripted episode of `benchmarks/harness_overhead.py`. Runs in the peers' environment.

Called with STEPS EPISODES; prints one JSON object. It is verifiers 0.1's loop: later versions run an agent's program behind
an HTTP server, which is more work than a loop. The client answers from a list, without a network.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from importlib.metadata import version
from typing import Any

import verifiers as vf
from datasets import Dataset
from verifiers.clients import Client
from verifiers.types import Response, ResponseMessage, ToolCall

STORE = {"width": "70", "depth": "3", "length": "10"}


def get(name: str) -> str:
    """Read a setting.

    Args:
        name: Name of the setting.
    """
    return STORE.get(name, "no such setting")


class Scripted(Client):  # type: ignore[type-arg]
    """Answers from a list."""

    def __init__(self, said: list[Response]) -> None:
        super().__init__(None)
        self.said = iter(said)

    def setup_client(self, config: Any) -> None: ...
    async def to_native_tool(self, tool: Any) -> Any:
        return tool

    async def to_native_prompt(self, messages: Any) -> Any:
        return messages, {}

    async def get_native_response(self, prompt: Any, model: str, sampling_args: Any, tools: Any = None, **_: Any) -> Response:
        return next(self.said)

    async def raise_from_native_response(self, response: Any) -> None: ...
    async def from_native_response(self, response: Response) -> Response:
        return response

    async def close(self) -> None: ...


def response(call: ToolCall | None) -> Response:
    calls, why = ([call], "tool_calls") if call else (None, "stop")
    message = ResponseMessage(content=None if call else "done", tool_calls=calls, finish_reason=why, is_truncated=False)
    return Response(id="r", created=0, model="scripted", usage=None, message=message)


async def main(steps: int, episodes: int) -> dict[str, float]:
    calls = [response(ToolCall(id=f"c{i}", name="get", arguments='{"name": "width"}')) for i in range(steps)]
    prompt = [{"role": "user", "content": "What is the width?"}]
    environment = vf.ToolEnv(tools=[get], max_turns=steps + 5, dataset=Dataset.from_list([{"prompt": prompt, "answer": ""}]))
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(episodes):
        client = Scripted([*calls, response(None)])
        state = await environment.rollout({"prompt": prompt, "example_id": 0}, client, "scripted")
        assert len(state["trajectory"]) == steps + 1, state["error"]
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"steps_per_s": steps * episodes / wall, "steps_per_cpu_s": steps * episodes / cpu}


if __name__ == "__main__":
    measured = asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
    print(json.dumps({**measured, "version": version("verifiers")}))
