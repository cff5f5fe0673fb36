"""Managing a context: what of a conversation stays when it nears the end of the window, as pure functions over its messages.

A plan says for each message of the next context whether it is an old one (kept verbatim, or without its reasoning) or a new
one. Messages are named by their position, so that a token history can follow the plan without tokenising anything again.
Strategies: DeepSeek-V3.2 report (discard 75 %, discard all, summary); reasoning: V3.2, V4 and Kimi K3 differ, all three are offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from environments.harness.config import ContextModule
from environments.task import Message

SUMMARY_REQUEST = (
    "The context is almost full and will be cleared. Write down, for yourself, everything you need to go on: what was asked, "
    "what you did and found out, what is left to do. Call no tool now."
)
REMOVED = "[removed to save space]"
_SUMMARY = "Your own summary of the work so far:\n"


@dataclass(frozen=True)
class Keep:
    """The old message at `index`, its exact tokens included; `thinking` False leaves its reasoning out."""

    index: int
    thinking: bool = True


Plan = list[Keep | Message]
"""The next context, in order."""


def placeholder(message: Message) -> Message:
    """What stands where a tool result was: the call stays answered."""
    return message.model_copy(update={"content": REMOVED, "images": ()})


def without_reasoning(messages: Sequence[Message], module: ContextModule) -> set[int]:
    """Positions of assistant messages whose reasoning may not stay, given all that was said since."""
    if module.reasoning == "always":
        return set()
    spoke = max((i for i, m in enumerate(messages) if m.role == "user"), default=-1)
    said = [i for i, m in enumerate(messages) if m.role == "assistant" and m.thinking and i < spoke]
    if module.reasoning == "until_user":
        return set(said)
    return {i for i in said if not messages[i].calls}


def forget_reasoning(messages: Sequence[Message], module: ContextModule) -> Plan | None:
    """The plan that drops reasoning which may not stay; None when all of it may."""
    gone = without_reasoning(messages, module)
    return [Keep(i, i not in gone) for i in range(len(messages))] if gone else None


def drop_results(messages: Sequence[Message], module: ContextModule, answers: Sequence[int]) -> Plan | None:
    """The plan that removes tool results by the module's strategy; None when there is nothing left to remove.

    Args:
        answers: positions of the tool results that take more room than what would stand there instead, oldest first.
    """
    count = len(answers) if module.strategy == "drop_all" else int(len(answers) * module.drop_share)
    gone = set(answers[:count])
    return [placeholder(m) if i in gone else Keep(i) for i, m in enumerate(messages)] if gone else None


def restart(pinned: int, summary: str) -> Plan:
    """The plan that goes on from the opening messages and the agent's summary."""
    return [*(Keep(i) for i in range(pinned)), Message(role="user", content=_SUMMARY + summary)]
