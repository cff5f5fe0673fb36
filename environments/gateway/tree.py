"""What a session's program said and was told, as a tree of messages with exact tokens.

A program resends its whole history with every request. The longest path of the tree that says the same is its context; what it
changed or dropped forks. An assistant message that was sampled here keeps its sampled tokens wherever it turns up again, and
carries loss in the one segment in which it was sampled. Matching is deaf to what clients do to a message on its way back:
white space, the order of keys in arguments, thinking left out. Changed words, arguments or thinking make another message.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from environments.gateway.messages import Said, bare_id
from environments.task import Message, ToolCall, canonical_json
from environments.trace import Fork, Segment


@dataclass(frozen=True, eq=False)
class Sample:
    """One assistant message as the policy sampled it and as the client got it."""

    number: int
    """Of the reply within its session."""
    message: Message
    call_ids: tuple[str, ...]
    body: array[int]
    """Sampled tokens; empty for policies without."""
    logprobs: array[float]
    versions: array[int]
    malformed: tuple[tuple[int, int], ...] = ()
    """Token ranges of `body` that belong to refused calls."""


@dataclass(eq=False)
class Node:
    """One message in its context. `tokens` runs from the end of the parent's."""

    message: Message
    tokens: array[int]
    parent: Node | None = None
    sample: Sample | None = None
    """What was sampled, of an assistant message that came from here."""
    body: int = -1
    """Where the sampled body begins in `tokens`."""
    fresh: bool = False
    """It was sampled at this very place, rather than carried here by a fork."""
    children: list[Node] = field(default_factory=list)

    def path(self) -> list[Node]:
        """From the first message to this one."""
        out: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            out.append(node)
            node = node.parent
        return out[::-1]


def same_text(one: str, other: str) -> bool:
    """Equal but for white space."""
    return one == other or one.split() == other.split()


def same_reply(said: Said, sample: Sample) -> bool:
    """The client sends back what it got."""
    message, got = said.message, sample.message
    if len(message.calls) != len(got.calls) or not same_text(message.content, got.content):
        return False
    if message.thinking and not same_text(message.thinking, got.thinking):
        return False
    ids = said.call_ids or ("",) * len(message.calls)
    return all(_same_call(*pair) for pair in zip(message.calls, ids, got.calls, sample.call_ids, strict=True))


def _same_call(call: ToolCall, call_id: str, got: ToolCall, got_id: str) -> bool:
    if call.tool != got.tool:
        return False
    if got.malformed:  # clients repair or wrap what they cannot parse: only the id tells
        return bare_id(call_id) == got_id or call.malformed == got.malformed
    if call.malformed:
        return False
    return call.arguments == got.arguments or _canonical(call.arguments) == _canonical(got.arguments)


def _canonical(arguments: dict[str, Any]) -> str:
    """Equal for values that a client cannot tell apart: JavaScript has one kind of number, and keys in any order."""
    return canonical_json(_numbers(arguments))


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(value) + 0.0  # no minus zero
        except OverflowError:
            return str(value)
    return value


def _loose(message: Message) -> str:
    """Equal for messages that may be the same reply."""
    return canonical_json([" ".join(message.content.split()), [[c.tool, c.malformed or _canonical(c.arguments)] for c in message.calls]])


class Tree:
    """Nodes and samples of one session. Not thread-safe: the session locks."""

    def __init__(self) -> None:
        self.root = Node(Message(role="system"), array("i"))
        self._by_text: defaultdict[str, list[Sample]] = defaultdict(list)
        self._by_call: dict[str, Sample] = {}

    def add(self, sample: Sample) -> None:
        """Make a sample known, so that it is recognised when it comes back."""
        self._by_text[_loose(sample.message)].append(sample)
        for call_id in sample.call_ids:
            self._by_call[call_id] = sample

    def recognise(self, said: Said) -> Sample | None:
        """The sample that a client sends back, the latest first; one whose call ids it repeats goes before all others."""
        found = [s for s in {self._by_call[i] for i in map(bare_id, said.call_ids) if i in self._by_call} if same_reply(said, s)]
        if not found:
            found = [s for s in self._by_text.get(_loose(said.message), ()) if same_reply(said, s)]
        return max(found, key=lambda s: s.number, default=None)

    def child(self, parent: Node, said: Said, sample: Sample | None) -> Node | None:
        """The node below `parent` that says the same."""
        if said.message.role != "assistant":
            return next((n for n in parent.children if n.message == said.message), None)
        if sample is not None:
            here = next((n for n in parent.children if n.sample is sample), None)
            # Two samples may read the same: the one that was said here is the one that is meant.
            return here or next((n for n in reversed(parent.children) if n.sample is not None and same_reply(said, n.sample)), None)
        return next((n for n in parent.children if n.sample is None and n.message == said.message), None)

    def attach(self, parent: Node, nodes: Sequence[Node]) -> Node:
        """Hang a chain below `parent`, along nodes that have come to stand there meanwhile; returns its last node."""
        for node in nodes:
            twin = None if node.fresh else next((n for n in parent.children if n.message == node.message and n.sample is node.sample), None)
            if twin is None:
                node.parent = parent
                parent.children.append(node)
                twin = node
            parent = twin
        return parent

    def leaves(self) -> list[list[Node]]:
        """All paths to the end, in the order in which they were sampled first."""
        ends, stack = [], list(self.root.children)
        while stack:
            node = stack.pop()
            stack += node.children
            if not node.children:
                ends.append(node.path())
        return sorted(ends, key=lambda path: [n.sample.number for n in path if n.fresh and n.sample])

    # --- the record ----------------------------------------------------------------------------------------------------------

    def segments(self) -> list[Segment]:
        """One segment a path. Every sampled token carries loss in the first segment that holds it, and in no other.

        A path that repeats a reply of an earlier one, or its opening system messages, continues that one (`context`); any
        other but the first is another agent's (`subagent`).
        """
        out: list[Segment] = []
        holder: dict[int, int] = {}
        """Number of a sample -> the segment that has its loss."""
        openings: dict[str, int] = {}
        for path in self.leaves():
            number = len(out)
            shared = [holder[n.sample.number] for n in path if n.sample is not None and n.sample.number in holder]
            opening = opening_key(path)
            fork: Fork = "root"
            parent: int | None = None
            if shared:
                fork, parent = "context", shared[-1]
            elif opening in openings:
                fork, parent = "context", openings[opening]
            elif out:
                fork, parent = "subagent", 0
            out.append(_segment(number, parent, fork, path, set(holder)))
            openings[opening] = number
            for node in path:
                if node.fresh and node.sample is not None:
                    holder.setdefault(node.sample.number, number)
        return out


def opening_key(path: Sequence[Node]) -> str:
    """The system messages that a context begins with, tool declarations aside: what tells one agent from another."""
    return canonical_json(list(_opening(path)))


def _opening(path: Sequence[Node]) -> Iterator[str]:
    for node in path:
        if node.message.role != "system":
            return
        if not node.message.option:
            yield node.message.content


def _segment(number: int, parent: int | None, fork: Fork, path: Sequence[Node], seen: set[int]) -> Segment:
    tokens, logprobs, versions = array("i"), array("d"), array("i")
    mask, malformed = bytearray(), bytearray()
    for node in path:
        start, count = len(tokens), len(node.tokens)
        tokens.extend(node.tokens)
        logprobs.frombytes(bytes(8 * count))
        versions.extend([-1] * count)
        mask.extend(bytes(count))
        malformed.extend(bytes(count))
        if not node.fresh or node.sample is None or node.sample.number in seen:
            continue
        at, size = start + node.body, len(node.sample.body)
        logprobs[at : at + size] = node.sample.logprobs
        versions[at : at + size] = node.sample.versions
        mask[at : at + size] = b"\1" * size
        for low, high in node.sample.malformed:
            malformed[at + low : at + high] = b"\1" * (high - low)
    last = path[-1]
    if last.sample is not None:  # nothing but what was sampled ends a segment: what closes a cut message is for those who go on
        end = len(tokens) - len(last.tokens) + last.body + len(last.sample.body)
        for column in (tokens, logprobs, versions, mask, malformed):
            del column[end:]
    return Segment(
        segment_id=number,
        parent_id=parent,
        fork=fork,
        messages=tuple(n.message for n in path),
        tokens=tuple(tokens),
        logprobs=tuple(logprobs),
        versions=tuple(versions),
        loss_mask=tuple(mask),
        malformed=tuple(malformed) if any(malformed) else None,
    )
