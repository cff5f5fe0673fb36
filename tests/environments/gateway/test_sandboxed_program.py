"""A program inside a sandbox plays an episode through the gateway, its only route."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from environments.gateway.backends import EngineBackend
from environments.gateway.gateway import Gateway
from environments.protocols import GenerateRequest
from environments.sandbox.process import ProcessSandbox
from environments.task import Message
from tests.environments.gateway.engines import PreparedEngine, make_codec, say
from tests.environments.gateway.test_openai_client import assert_exact, loss

CODEC = make_codec()
PROGRAM = """
import json, os, urllib.request

def ask(path, body):
    headers = {"Authorization": "Bearer " + os.environ["KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request("http://127.0.0.1:8080/v1/" + path, json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request, timeout=20).read().decode()

tool = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}
messages = [{"role": "user", "content": "double " + os.environ["N"]}]
body = {"model": "m", "messages": messages, "tools": [tool]}
said = json.loads(ask("chat/completions", body))["choices"][0]["message"]
call = said["tool_calls"][0]
result = str(2 * json.loads(call["function"]["arguments"])["n"])
messages += [said, {"role": "tool", "tool_call_id": call["id"], "content": result}]
events = ask("chat/completions", {**body, "stream": True}).split("\\n\\n")
chunks = [json.loads(e[6:]) for e in events if e.startswith("data: {")]
print("".join(c["choices"][0]["delta"].get("content") or "" for c in chunks))
"""


def answer(request: GenerateRequest) -> Message:
    """Calls with the number that the user said, then repeats the tool's result."""
    said = CODEC.transcript(list(request.prefix)).split("[end_of_msg]")
    if "double" in said[-2]:
        return say("", "hm", ("search", {"n": int(said[-2].rsplit(" ", 1)[1])}))
    return say("it is  " + said[-2].rsplit("[sep]", 1)[1])


@pytest.mark.sandbox
def test_programs_in_sandboxes_are_recorded_each_in_its_session() -> None:
    engine = PreparedEngine(CODEC, [answer] * 6)
    with Gateway(EngineBackend(engine, CODEC, 4000)) as gateway, ProcessSandbox.create() as one, ProcessSandbox.create() as other:
        sessions = [gateway.open(), gateway.open()]
        listeners = [gateway.listen(box.serve(8080)) for box in (one, other)]
        assert [listener.url for listener in listeners] == ["http://127.0.0.1:8080"] * 2  # each its own loopback
        with ThreadPoolExecutor(2) as threads:
            runs = [
                threads.submit(box.exec, ["python3", "-c", PROGRAM], env={"KEY": session.token, "N": str(n)}, timeout_s=60)
                for n, (box, session) in enumerate(zip((one, other), sessions, strict=True), 11)
            ]
            results = [run.result() for run in runs]
        assert [(r.stdout, r.stderr) for r in results] == [("it is  22\n", ""), ("it is  24\n", "")]
        recordings = [gateway.drop(session) for session in sessions]
        for listener in listeners:
            listener.close()
        refused = other.exec(["python3", "-c", PROGRAM], env={"KEY": "gone", "N": "1"}, timeout_s=60)
        assert "refused" in refused.stderr or "reset" in refused.stderr.lower()
    for number, recording in enumerate(recordings, 11):
        mine = [pair for pair in engine.sampled if f"double {number}" in CODEC.transcript(pair[0])]
        assert [loss(s) for s in recording.segments] == [[t for _, body in mine for t in body]]
        assert [(r.tool, r.arguments, r.result) for r in recording.tool_records] == [("search", {"n": number}, str(2 * number))]
    assert_exact(engine, replace(recordings[0], segments=recordings[0].segments + recordings[1].segments))
