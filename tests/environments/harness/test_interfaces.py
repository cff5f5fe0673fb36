"""Calls written into text: what is written is read back, and what cannot be read is refused, never lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from environments.errors import MalformedCallError
from environments.harness.interfaces import TEXT_STYLES, BashStyle, CodeStyle
from environments.task import ToolCall, ToolParameter, ToolSpec

TYPES = ("string", "integer", "number", "boolean", "array", "object")
TOOL = ToolSpec(name="do", description="Does it.", parameters=tuple(ToolParameter(name=t, type=t, required=False) for t in TYPES))  # type: ignore[arg-type]
TOOLS = {"do": TOOL}
text = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)
looks = st.sampled_from(["</tool_call>", "<tool_call>", "</parameter>", "</invoke>", "```", "\n```\n", '"', "\\", "{", "<", "&lt;"])
texts = st.lists(st.one_of(text, looks), max_size=4).map("".join)
values: dict[str, st.SearchStrategy[Any]] = {
    "string": texts,
    "integer": st.integers(),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "array": st.lists(texts, max_size=2),
    "object": st.dictionaries(texts, st.integers(), max_size=2),
}
calls = st.fixed_dictionaries({}, optional=values).map(lambda arguments: ToolCall(tool="do", arguments=arguments))


@pytest.mark.parametrize("style", ["json", "xml", "fence"])
@given(said=st.lists(calls, max_size=3), around=st.sampled_from(["", "I think\n", "a < b\n"]))
def test_what_is_written_is_read_back(style: Any, said: list[ToolCall], around: str) -> None:
    written = TEXT_STYLES[style]
    try:
        pieces = [written.write(c) for c in said]
    except MalformedCallError:
        assert style == "xml"  # it cannot spell its own closing tags
        assert any(t in str(c.arguments) for c in said for t in ("</parameter>", "</invoke>"))
        return
    read = written.read(around + "\n".join(pieces) + "\n" + around, TOOLS)
    assert [r.call for r in read] == [c.model_copy(update={"index": i}) for i, c in enumerate(said)]
    content = around + "\n".join(pieces) + "\n" + around
    assert [content[r.start : r.end] for r in read] == pieces


@pytest.mark.parametrize("style", [BashStyle(), CodeStyle()])
@given(source=texts)
def test_a_block_is_the_argument_of_its_tool(style: BashStyle | CodeStyle, source: str) -> None:
    call = ToolCall(tool=style.tool, arguments={style.argument: source})
    try:
        said = style.write(call)
    except MalformedCallError:
        assert "```" in source
        return
    (read,) = style.read(f"First this.\n{said}\nThen more.", {})
    ends = source if source.endswith("\n") else source + "\n"
    assert read.call.arguments == {style.argument: ends}


@pytest.mark.parametrize(
    ("style", "said", "tool"),
    [
        ("json", "<tool_call>{broken</tool_call>", ""),
        ("json", '<tool_call>{"name": "do", "arguments": [1]}</tool_call>', "do"),
        ("json", '<tool_call>{"name": "do", "arguments": {}, "more": 1}</tool_call>', "do"),
        ("json", '<tool_call>{"name": "do", "arguments": {}}', "do"),
        ("json", '<tool_call>{"name": "do", "arguments": {"number": NaN}}</tool_call>', ""),
        ("json", '<tool_call>{"name": "do", "arguments": {"string": "\\ud800"}}</tool_call>', ""),
        ("json", "<tool_call></tool_call>", ""),
        ("xml", '<invoke name="do"><parameter name="integer">five</parameter></invoke>', "do"),
        ("xml", '<invoke name="do"><parameter name="integer">5</parameter>', "do"),
        ("xml", '<invoke name="do">words</invoke>', "do"),
        ("xml", '<invoke name="do"><parameter name="string">a</parameter><parameter name="string">b</parameter></invoke>', "do"),
        ("fence", "```call do\n[1]\n```", "do"),
        ("fence", '```call do\n{"string": "x"}', "do"),
        ("fence", "```call\n{}\n```", ""),
        ("bash", "```bash\nls\n```\n```bash\nls\n```", "bash"),
        ("bash", "```bash\nls", "bash"),
        ("code", "```python\n1\n", "python"),
    ],
)
def test_what_cannot_be_read_is_a_malformed_call(style: Any, said: str, tool: str) -> None:
    (read,) = TEXT_STYLES[style].read(said, TOOLS)
    assert read.call.malformed
    assert read.call.tool == tool
    assert (read.start, read.end) == (0, len(said))


@pytest.mark.parametrize("style", list(TEXT_STYLES))
def test_text_without_a_call_is_just_text(style: Any) -> None:
    assert TEXT_STYLES[style].read("```\nls\n```\n<b>no call</b> {}", TOOLS) == []
