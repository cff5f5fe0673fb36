"""A real chat-completions server on loopback whose answers a test scripts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

from environments.task import Message

Answer = tuple[int, dict[str, str], bytes]
"""Status, further headers, body."""


@dataclass
class ChatServer:
    """`answer` maps a request's JSON to an answer; what arrived is kept."""

    answer: Callable[[dict[str, Any]], Answer]
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    url: str = ""


@contextmanager
def serve(answer: Callable[[dict[str, Any]], Answer]) -> Iterator[ChatServer]:
    """Serve until the block ends."""
    state = ChatServer(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            state.requests.append(request)
            state.headers.append(dict(self.headers))
            state.paths.append(self.path)
            status, headers, body = state.answer(request)
            try:
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                drip_s = float(headers.get("X-Drip", "0"))
                for i in range(0, len(body), 1 if drip_s else len(body) or 1):
                    self.wfile.write(body[i : i + (1 if drip_s else len(body))])
                    self.wfile.flush()
                    time.sleep(drip_s)
            except OSError:
                pass  # the client gave up, which is what some tests want

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingMixIn, TCPServer):  # http.server's own looks its host name up, which can take seconds
        daemon_threads = True

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def completion(message: dict[str, Any], finish: str = "stop", usage: dict[str, Any] | None = None) -> dict[str, Any]:
    """A response in the API's shape."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "scripted",
        "choices": [
            {
                "index": 0,
                "finish_reason": finish,
                "logprobs": None,
                "message": {"role": "assistant", "content": None, "refusal": None, **message},
            }
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18} if usage is None else usage,
    }


def ok(body: dict[str, Any]) -> Answer:
    return 200, {}, json.dumps(body).encode()


def calls(*made: tuple[str, str]) -> dict[str, Any]:
    """A message's `tool_calls` from (tool, arguments as text)."""
    return {"tool_calls": [{"id": f"x{i}", "type": "function", "function": {"name": n, "arguments": a}} for i, (n, a) in enumerate(made)]}


def from_reference(reference: Sequence[Message]) -> Callable[[dict[str, Any]], Answer]:
    """Answers each request with the reference's next message, by how many the history holds."""

    def answer(request: dict[str, Any]) -> Answer:
        message = reference[sum(m["role"] == "assistant" for m in request["messages"])]
        made = calls(*((c.tool, json.dumps(c.arguments)) for c in message.calls))
        return ok(completion({"content": message.content or None, "reasoning_content": message.thinking or None, **made}, "tool_calls"))

    return answer


def nothing(request: dict[str, Any]) -> Answer:
    """Ends its turn at once."""
    return ok(completion({"content": "I do nothing."}))
