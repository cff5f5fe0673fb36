"""What a policy may sample next, so that every assistant message is well formed and every call fits its tool.

A pushdown automaton over tokens, with masks cached by state as in XGrammar (Dong et al., 2024): text takes every plain token,
tags are walked literally in both spellings, and arguments that are not text run a JSON automaton over each token's characters
(`xtml_json`). Calls are numbered 0, 1, ... in order; a message has no pictures. Every ASCII character must be a token, as in
byte-level vocabularies, or a state may allow nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from environments.errors import InputError, MalformedCallError
from environments.harness.xtml_ebnf import ebnf
from environments.harness.xtml_json import Json, json_complete, json_start, json_step
from environments.harness.xtml_tags import CLOSE, OPEN, SEP, Structure, TextTokenizer, argument_header, call_header
from environments.task import ToolParameter, ToolSpec

# --- the vocabulary ---------------------------------------------------------------------------------------------------


class _Node:
    __slots__ = ("children", "ids")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.ids: list[int] = []

    def add(self, text: str, token: int) -> None:
        node = self
        for char in text:
            node = node.children.setdefault(char, _Node())
        node.ids.append(token)

    def readable(self, state: Json) -> list[int]:
        """Tokens below this node whose characters the automaton can read."""
        found: list[int] = []
        todo = [(self, state)]
        while todo:
            node, state = todo.pop()
            for char, child in node.children.items():
                after = json_step(state, char)
                if after is not None:
                    found += child.ids
                    todo.append((child, after))
        return found


class Vocabulary:
    """What each token spells, prepared once per tokenizer. All characters beyond ASCII, whole or partial, count as one."""

    def __init__(self, tokenizer: TextTokenizer, size: int) -> None:
        """`size`: number of ids, reserved ones included."""
        self.structure = Structure(tokenizer)
        self.size = size
        ids = (i for i in range(size) if i not in self.structure.ids)
        self.texts = {i: re.sub(r"[^\x00-\x7f]", "\x80", text) for i in ids if (text := tokenizer.decode([i]))}
        """Plain tokens; ids that decode to nothing are none."""
        self.plain: npt.NDArray[np.bool_] = np.zeros(size, dtype=np.bool_)
        self.plain[list(self.texts)] = True
        self._all, self._marked = _Node(), _Node()
        for token, text in self.texts.items():
            self._all.add(text, token)
            if re.search(r'[\x00-\x1f"\\]', text):
                self._marked.add(text, token)
        self._marked_ids = frozenset(i for i, text in self.texts.items() if re.search(r'[\x00-\x1f"\\]', text))
        self._cache: dict[Json, tuple[Allowed, npt.NDArray[np.bool_]]] = {}

    def beginnings(self, text: str) -> Iterable[int]:
        """Tokens that spell a beginning of `text`."""
        node = self._all
        for char in text:
            below = node.children.get(char)
            if below is None:
                return
            node = below
            yield from node.ids

    def json(self, state: Json) -> tuple[Allowed, npt.NDArray[np.bool_]]:
        """Tokens that JSON in this state can go on with, described and as a mask."""
        known = self._cache.get(state)
        if known is None:
            if len(self._cache) >= 256:
                self._cache.clear()
            if state.mode in ("string", "key") and not state.text:
                allowed = Allowed(True, without=self._marked_ids.difference(self._marked.readable(state)))
            else:
                allowed = Allowed(False, frozenset(self._all.readable(state)))
            known = self._cache[state] = (allowed, self.mask(allowed))
        return known

    def mask(self, allowed: Allowed) -> npt.NDArray[np.bool_]:
        """A description as one boolean per id."""
        mask = self.plain.copy() if allowed.plain else np.zeros(self.size, dtype=np.bool_)
        mask[list(allowed.without)] = False
        mask[list(allowed.ids)] = True
        return mask


@dataclass(frozen=True, slots=True)
class Allowed:
    """The next token: `ids`, and if `plain` every token of text except those in `without`."""

    plain: bool
    ids: frozenset[int] = frozenset()
    without: frozenset[int] = frozenset()


# --- the automaton over tokens ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _State:
    phase: str
    """think, thought, response, answered, tools, call, argument, called or done."""
    calls: int = 0
    tool: ToolSpec | None = None
    given: frozenset[str] = frozenset()
    argument: str = ""
    json: Json | None = None


_TEXT = ("think", "response", "argument")
"""Phases that take any text, the last one unless it has JSON."""


class XtmlGrammar:
    """The assistant messages that some tools and settings admit. Shared by all its matchers."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        tools: Sequence[ToolSpec] = (),
        *,
        thinking: bool = True,
        tool_choice: str = "auto",
        max_calls: int = 16,
    ) -> None:
        """Build the grammar of what follows the generation prefix.

        Args:
            thinking: which prefix it is: thinking or instruct mode.
            tool_choice: `auto`, `none`, `required` (at least one call), or a tool's name (at least one call, of that tool alone).
            max_calls: calls in one message, at most.

        Raises:
            InputError: a tool name that is not among `tools` or not unique, or calls are required but there are no tools.
        """
        names = [t.name for t in tools]
        if len(set(names)) < len(names):
            raise InputError(f"two tools have one name: {', '.join(names)}", "name each tool once")
        if max_calls < 1:
            raise InputError(f"max_calls={max_calls} must be at least 1", "use tool_choice='none' to admit no calls")
        if tool_choice not in ("auto", "none", "required") and tool_choice not in names:
            raise InputError(f"there is no tool {tool_choice!r:.60} to choose", f"use auto, none, required or one of: {', '.join(names)}")
        if tool_choice == "required" and not tools:
            raise InputError("calls are required, but there are no tools", "pass tools, or another tool_choice")
        self.vocabulary = vocabulary
        self.thinking = thinking
        self.tools = [t for t in tools if tool_choice in ("auto", "required", t.name)]
        self.required = tool_choice not in ("auto", "none")
        self.max_calls = max_calls

    def matcher(self) -> Matcher:
        """A matcher before the first token."""
        return Matcher(self, _State("think" if self.thinking else "response"))

    def ebnf(self) -> str:
        """The same language as text, reserved tokens spelled out (see `xtml_ebnf`)."""
        return ebnf(self.tools, thinking=self.thinking, required=self.required, max_calls=self.max_calls)

    def tags(self, state: _State) -> dict[str, _State]:
        """Tags that may come next, without their ``[sep]``, and the states after them."""
        if state.phase == "think":
            return {f"{CLOSE}think": _State("thought")}
        if state.phase == "response":
            return {f"{CLOSE}response": _State("answered")}
        if state.phase in ("thought", "answered"):
            after = {f"{OPEN}response": _State("response")} if state.phase == "thought" else {}
            return after | ({f"{OPEN}tools": _State("tools")} if self.tools else {})
        if state.phase == "tools":
            after = {f"{CLOSE}tools": _State("called")} if state.calls else {}
            if state.calls < self.max_calls:
                for tool in self.tools:
                    after[OPEN + call_header(tool.name, state.calls)] = _State("call", state.calls, tool)
            return after
        if state.phase == "call":
            assert state.tool is not None
            parameters = state.tool.parameters
            after = {}
            if all(p.name in state.given for p in parameters if p.required):
                after[f"{CLOSE}call"] = _State("tools", state.calls + 1)
            for p in parameters:
                if p.name not in state.given:
                    for kind, json in _spellings(p):
                        after[OPEN + argument_header(p.name, kind)] = replace(state, phase="argument", argument=p.name, json=json)
            return after
        if state.phase == "argument" and (state.json is None or json_complete(state.json)):
            return {f"{CLOSE}arg": replace(state, phase="call", given=state.given | {state.argument}, argument="", json=None)}
        return {}

    def may_end(self, state: _State) -> bool:
        """Whether the message may end here."""
        return state.phase == "called" or (state.phase in ("thought", "answered") and not self.required)


def _spellings(parameter: ToolParameter) -> list[tuple[str, Json | None]]:
    """Types that an argument may be declared with, and where its JSON starts."""
    if parameter.type == "string":
        return [("", None)]
    if parameter.type == "number":
        return [("number", json_start("number")), ("integer", json_start("integer"))]
    return [("json" if parameter.type in ("array", "object") else parameter.type, json_start(parameter.type))]


class Matcher:
    """One message under way. Cheap to copy."""

    def __init__(self, grammar: XtmlGrammar, state: _State, spelled: tuple[str, str] | None = None) -> None:
        self.grammar = grammar
        self._state = state
        self._spelled = spelled
        """Bracket and text so far of a tag that is being spelled out."""

    @property
    def done(self) -> bool:
        """True once the end token was accepted."""
        return self._state.phase == "done"

    def copy(self) -> Matcher:
        """An independent matcher at the same place."""
        return Matcher(self.grammar, self._state, self._spelled)

    def allowed(self) -> Allowed:
        """Which tokens may come next; none once `done`."""
        vocabulary, state, marks = self.grammar.vocabulary, self._state, self._marks()
        if self._spelled is not None or state.json is None:
            return Allowed(self._spelled is None and state.phase in _TEXT, marks)
        json, _ = vocabulary.json(state.json)
        return Allowed(json.plain, json.ids | marks, json.without)

    def mask(self) -> npt.NDArray[np.bool_]:
        """`allowed` as one boolean per id of the vocabulary."""
        if self._spelled is not None or self._state.json is None:
            return self.grammar.vocabulary.mask(self.allowed())
        mask = self.grammar.vocabulary.json(self._state.json)[1].copy()
        mask[list(self._marks())] = True
        return mask

    def _marks(self) -> frozenset[int]:
        """Tokens of structure, or of a tag's text, that may come next."""
        structure = self.grammar.vocabulary.structure
        tags = self.grammar.tags(self._state)
        ids: set[int] = set()
        if self._spelled is not None:
            bracket, read = self._spelled
            for tag in tags:
                if tag.startswith(bracket + read):
                    rest = tag[len(bracket) + len(read) :]
                    ids.update(self.grammar.vocabulary.beginnings(rest) if rest else [structure.sep])
            return frozenset(ids)
        for tag in tags:
            ids.add(structure.open if tag.startswith(OPEN) else structure.close)
            if (whole := structure.tokenizer.elements.get(tag + SEP)) is not None:
                ids.add(whole)
        if self.grammar.may_end(self._state):
            ids.add(structure.end)
        return frozenset(ids)

    def accept(self, token: int) -> None:
        """Go on by one token.

        Raises:
            MalformedCallError: it is not allowed here; the matcher stays where it is.
        """
        structure = self.grammar.vocabulary.structure
        text = self.grammar.vocabulary.texts.get(token, "")
        if self._spelled is not None:
            bracket, read = self._spelled
            tags = self.grammar.tags(self._state)
            if token == structure.sep and bracket + read in tags:
                self._state, self._spelled = tags[bracket + read], None
                return
            if text and any(tag.startswith(bracket + read + text) for tag in tags):
                self._spelled = bracket, read + text
                return
        elif text:
            if self._read(text):
                return
        elif token == structure.end:
            if self.grammar.may_end(self._state):
                self._state = _State("done")
                return
        else:
            name = structure.names.get(token, "")
            tags = self.grammar.tags(self._state)
            if name in (OPEN, CLOSE) and any(tag.startswith(name) for tag in tags):
                self._spelled = name, ""
                return
            if name.removesuffix(SEP) in tags:
                self._state = tags[name.removesuffix(SEP)]
                return
        raise MalformedCallError(
            f"token {token} ({text or structure.names.get(token, '')!r:.40}) is not allowed here", "sample under the mask"
        )

    def _read(self, text: str) -> bool:
        json = self._state.json
        if json is None:
            return self._state.phase in _TEXT
        for char in text:
            after = json_step(json, char)
            if after is None:
                return False
            json = after
        self._state = replace(self._state, json=json)
        return True
