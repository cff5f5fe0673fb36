"""inspect-ai's own generate loop on the scripted episode of `benchmarks/harness_overhead.py`. Runs in the peers' environment.

Called with STEPS EPISODES; prints one JSON object. The model is inspect's `mockllm`, which answers from a list.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from importlib.metadata import version

from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.tool import Tool, tool

STORE = {"width": "70", "depth": "3", "length": "10"}


@tool
def get() -> Tool:
    async def execute(name: str) -> str:
        """Read a setting.

        Args:
            name: Name of the setting.
        """
        return STORE.get(name, "no such setting")

    return execute


def counted(output: ModelOutput) -> ModelOutput:
    """With a usage of its own: else the mock model asks a tokenizer, which is no part of the loop."""
    return output.model_copy(update={"usage": ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)})


async def main(steps: int, episodes: int) -> dict[str, float]:
    calls = [counted(ModelOutput.for_tool_call("mockllm", "get", {"name": "width"})) for _ in range(steps)]
    tools = [get()]
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(episodes):
        done = counted(ModelOutput.from_content("mockllm", "done"))
        model = get_model("mockllm/model", custom_outputs=[*calls, done], memoize=False)
        messages, _ = await model.generate_loop("What is the width?", tools=tools)
        assert len(messages) == 2 * steps + 1, len(messages)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"steps_per_s": steps * episodes / wall, "steps_per_cpu_s": steps * episodes / cpu}


if __name__ == "__main__":
    measured = asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
    print(json.dumps({**measured, "version": version("inspect-ai")}))
