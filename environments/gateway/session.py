"""One program's session: who it is, what it may spend, what it said, and what its calls returned."""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import threading
import time
from array import array
from dataclasses import dataclass, field, replace

from environments.errors import InputError, NinefoldError
from environments.gateway.backends import Backend, Draft, Finish, Turn
from environments.gateway.messages import ChatRequest, RequestError, Said, bare_id, declaration
from environments.gateway.tree import Node, Sample, Tree, opening_key
from environments.harness.config import effort_message
from environments.task import Effort, Message, ToolCall
from environments.trace import Segment, StopReason, ToolRecord


@dataclass(frozen=True)
class Limits:
    """What a session may spend. Requests under way at the same time may overspend the tokens together."""

    requests: int = 1_000
    """Answered requests, of all its agents."""
    output_tokens: int = 1_000_000
    """Tokens sampled in all."""
    wall_s: float = 3_600.0
    """Seconds since the session was opened, after which nothing is answered."""


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True)
class Recording:
    """What a `Trace` needs of a session."""

    segments: tuple[Segment, ...]
    tool_records: tuple[ToolRecord, ...]
    stop: StopReason | None
    """The budget that was spent, or `infrastructure`; None when the program was free to go on."""
    failure: str
    """What failed, where `stop` is `infrastructure`."""
    trainable: bool
    requests: int
    output_tokens: int
    thinking_tokens: int
    malformed_calls: int
    generate_s: float
    """Seconds that the policy took, summed."""


@dataclass(frozen=True)
class Reply:
    """A recorded answer, for a wire to spell."""

    number: int
    message: Message
    call_ids: tuple[str, ...]
    finish: Finish
    stop_sequence: str
    signature: str
    """Of the thinking; empty where there is none."""
    prompt_tokens: int
    output_tokens: int
    thinking_tokens: int
    pieces: tuple[tuple[str, float], ...] | None
    created: int
    """Seconds since the epoch."""


@dataclass
class Asked:
    """A turn under way."""

    turn: Turn
    at: Node
    """The deepest node that was there already."""
    new: list[Node]
    lead: array[int]
    """Option messages of this answer alone."""
    size: int
    opening: str
    """Which agent speaks."""
    began: float = field(default_factory=time.monotonic)


class Session:
    """Thread-safe. `token` is a secret: it is in no message and no representation."""

    def __init__(self, backend: Backend, limits: Limits, seed: int, effort: Effort | None) -> None:
        self.session_id = secrets.token_hex(8)
        self.token = secrets.token_urlsafe(32)
        self.backend, self.limits, self.seed, self.effort = backend, limits, seed, effort
        self.stop: StopReason | None = None
        self.error: NinefoldError | None = None
        """What failed behind the gateway."""
        self.requests = 0
        self.output_tokens = 0
        self.thinking_tokens = 0
        self.malformed_calls = 0
        self.generate_s = 0.0
        self._opened = time.monotonic()
        self._asked = 0
        self._tree = Tree()
        self._records: list[ToolRecord] = []
        self._open_calls: dict[str, tuple[int, int, ToolCall, float, int]] = {}
        """By id: step, conversation, call, when it was made, and how many were made with it."""
        self._conversations: dict[str, int] = {}
        self._steps: dict[int, int] = {}
        self._responses: dict[str, Node] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"Session({self.session_id})"

    # --- thinking signatures -------------------------------------------------------------------------------------------------

    def sign(self, thinking: str) -> str:
        """Proves that this session's policy thought so."""
        return base64.b64encode(hmac.digest(self.token.encode(), thinking.encode(), "sha256")).decode()

    def signed(self, thinking: str, signature: str) -> bool:
        return hmac.compare_digest(self.sign(thinking).encode(), signature.encode())

    # --- turns -----------------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises RequestError when the session may ask no more."""
        if self.error is not None:
            raise RequestError(f"this session failed: {self.error.message}", "start another", "engine")
        limits = self.limits
        spent: tuple[StopReason, str] | None = None
        if time.monotonic() - self._opened > limits.wall_s:
            spent = "wall", f"{limits.wall_s:g} s have passed"
        elif self._asked >= limits.requests:
            spent = "steps", f"all {limits.requests} requests are used"
        elif self.output_tokens >= limits.output_tokens:
            spent = "output_tokens", f"all {limits.output_tokens} output tokens are used"
        if spent:
            self.stop = self.stop or spent[0]
            raise RequestError(f"the budget is spent: {spent[1]}", "end here", "limit")

    def continued(self, response: str) -> list[Said]:
        """The history that ends with an earlier response. Raises RequestError when there is no such response."""
        with self._lock:
            node = self._responses.get(bare_id(response))
            if node is None:
                raise RequestError(f"there is no response {response!r:.60}", "send the history", "not_found", "previous_response_id")
            return [Said(n.message, n.sample.call_ids if n.sample else ()) for n in node.path() if not n.message.option]

    def count(self, request: ChatRequest) -> int:
        """Tokens of a request's prompt."""
        with self._lock:
            return self._place(request).size

    def ask(self, request: ChatRequest) -> Asked:
        """Find the request's context and say what to sample from. Raises RequestError: malformed, too long, or over a budget."""
        with self._lock:
            self.check()
            asked = self._place(request, record=True)
            left = self.backend.window - asked.size
            if left < 1:
                self.stop = self.stop or "context"
                raise RequestError(
                    f"prompt is too long: {asked.size} tokens > {self.backend.window - 1} maximum", "shorten the history", "context"
                )
            self.stop = None if self.stop == "context" else self.stop  # it made room
            self._asked += 1
            room = min(left, self.limits.output_tokens - self.output_tokens, request.max_tokens or left)
            asked.turn = replace(
                asked.turn,
                request_id=f"{self.session_id}-{self._asked}",
                key=(self.seed, self._asked * self.backend.window),
                max_new_tokens=room,
                stop=request.stop,
                temperature=request.temperature,
                logprobs=request.logprobs,
            )
            return asked

    def _place(self, request: ChatRequest, record: bool = False) -> Asked:
        """Walk the tree along the history; encode only what is new."""
        at, new = self._tree.root, list[Node]()
        matched: dict[str, int] = {}
        try:
            for said in self._opened_by(request):
                sample = self._tree.recognise(said) if said.message.role == "assistant" else None
                if sample is not None:
                    matched.update(zip(said.call_ids, (c.index for c in sample.message.calls), strict=False))
                elif matched.get(said.answers, said.message.index) != said.message.index:
                    # The model's own numbers, which the wire does not know.
                    said = Said(said.message.model_copy(update={"index": matched[said.answers]}), (), said.answers, said.failed)
                child = None if new else self._tree.child(at, said, sample)
                if child is not None:
                    at = child
                else:
                    new.append(self._node(said, sample))
                if record and said.answers:
                    self._answered(said)
            options = request.options
            lead = array("i")
            for option in options:
                lead.extend(self.backend.encode(option))
        except InputError as error:
            raise RequestError(f"the history cannot be encoded: {error.message}", error.fix) from error
        nodes = [*at.path(), *new]
        prefix = array("i")
        for node in nodes:
            prefix.extend(node.tokens)
        prefix.extend(lead)
        prefix.extend(self.backend.opening())
        messages = [*(n.message for n in nodes), *options]
        if not self.backend.trainable:  # a policy gets the tools themselves
            messages = [m for m in messages if m.option != "tools"]
        size = self.backend.size(messages, len(prefix))
        tools = () if request.tool_choice == "none" else tuple(t.spec for t in request.tools)
        return Asked(Turn("", messages, prefix, tools, (0, 0), 0), at, new, lead, size, opening_key(nodes))

    def _opened_by(self, request: ChatRequest) -> list[Said]:
        """The history with the tool declaration and the effort behind its leading system messages."""
        history = list(request.history)
        options = [declaration(request.tools)] if request.tools else []
        if self.effort is not None:
            options.append(effort_message(self.effort))
        lead = next((i for i, s in enumerate(history) if s.message.role != "system"), len(history))
        return [*history[:lead], *(Said(o) for o in options), *history[lead:]]

    def _node(self, said: Said, sample: Sample | None) -> Node:
        if sample is None:
            return Node(said.message, self.backend.encode(said.message))
        tokens, body = self.backend.reopened(sample.body)
        return Node(sample.message, tokens, sample=sample, body=body)

    def commit(self, asked: Asked, draft: Draft, delivered: bool = True) -> Reply:
        """Record an answer. One that the client did not wait for counts, but it is no part of any context."""
        with self._lock:
            number = self.requests
            self.requests += 1
            self.output_tokens += draft.output_tokens
            self.thinking_tokens += draft.thinking_tokens
            self.generate_s += time.monotonic() - asked.began
            if draft.finish == "length" and self.output_tokens >= self.limits.output_tokens:
                self.stop = self.stop or "output_tokens"
            ids = tuple(f"{self.session_id[:8]}{number:06d}{i:03d}" for i in range(len(draft.message.calls)))
            sample = Sample(number, draft.message, ids, draft.body, draft.logprobs, draft.versions, draft.malformed)
            if delivered:
                self._keep(asked, draft, sample)
            return Reply(
                number,
                draft.message,
                ids,
                draft.finish,
                draft.stop_sequence,
                self.sign(draft.message.thinking) if draft.message.thinking else "",
                asked.size,
                draft.output_tokens,
                draft.thinking_tokens,
                draft.pieces,
                int(time.time()),
            )

    def _keep(self, asked: Asked, draft: Draft, sample: Sample) -> None:
        tokens, body = self.backend.reopened(draft.body)
        node = Node(draft.message, asked.lead + tokens, sample=sample, body=len(asked.lead) + body, fresh=True)
        end = self._tree.attach(asked.at, [*asked.new, node])
        self._tree.add(sample)
        self._responses[response_id(self, sample.number)] = end
        conversation = self._conversations.setdefault(asked.opening, len(self._conversations))
        step = self._steps[conversation] = self._steps.get(conversation, 0) + 1
        names = {t.name for t in asked.turn.tools}
        now = time.monotonic()
        for call_id, call in zip(sample.call_ids, draft.message.calls, strict=True):
            self._open_calls[call_id] = (step, conversation, call, now, len(sample.call_ids))
            self.malformed_calls += bool(call.malformed) or call.tool not in names
        if draft.error:
            self.malformed_calls += 1
            self._records.append(
                ToolRecord(step=step, tool="", arguments={}, result=draft.error, error="MalformedCallError", conversation=conversation)
            )

    def _answered(self, said: Said) -> None:
        """Record the first answer to a call that was made here."""
        known = self._open_calls.pop(bare_id(said.answers), None)
        if known is None:
            return
        step, conversation, call, made, together = known
        error = "MalformedCallError" if call.malformed else "AgentError" if said.failed else ""
        self._records.append(
            ToolRecord(
                step=step,
                tool=call.tool,
                arguments=call.arguments,
                result=said.message.content,
                error=error,
                wall_s=(time.monotonic() - made) / together,
                conversation=conversation,
            )
        )

    def fail(self, error: NinefoldError) -> None:
        """A part behind the gateway failed: the session is over and has no score."""
        with self._lock:
            self.error = self.error or error
            self.stop = "infrastructure"

    def recording(self) -> Recording:
        """Everything so far."""
        with self._lock:
            return Recording(
                tuple(self._tree.segments()),
                tuple(self._records),
                self.stop,
                str(self.error) if self.error else "",
                self.backend.trainable,
                self.requests,
                self.output_tokens,
                self.thinking_tokens,
                self.malformed_calls,
                self.generate_s,
            )


def response_id(session: Session, number: int) -> str:
    """Names a reply on the wire, without its prefix."""
    return hashlib.sha256(f"{session.session_id}-{number}".encode()).hexdigest()[:24]
