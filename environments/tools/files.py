"""`view`, `edit` and `create`: an agent's files, by exact text, with answers that help when something does not fit.

The shape is that of public coding agents: numbered lines to read, a replaced text that must occur exactly once to edit.
"""

from __future__ import annotations

import difflib
import heapq
import posixpath

from environments.errors import BadArgumentsError
from environments.protocols import Observation
from environments.sandbox.base import Sandbox
from environments.task import ToolParameter, ToolSpec
from environments.tools.observation import IMAGE_BYTES, OUTPUT_CHARS, as_image, cut_middle

_PATH = ToolParameter(name="path", description="Path in the workspace, absolute (/workspace/...) or relative to it.")

VIEW = ToolSpec(
    name="view",
    description="Show a file with numbered lines, a folder's names, or a PNG or JPEG picture.",
    parameters=(
        _PATH,
        ToolParameter(name="start", type="integer", description="First line to show, from 1.", required=False),
        ToolParameter(name="end", type="integer", description="Last line to show.", required=False),
    ),
)
EDIT = ToolSpec(
    name="edit",
    description="Replace text in a file. The old text must occur exactly once, with its exact spaces and line ends, unless all is true.",
    parameters=(
        _PATH,
        ToolParameter(name="old", description="Text to replace: whole lines with enough around them to be unique."),
        ToolParameter(name="new", description="What takes its place; empty deletes."),
        ToolParameter(name="all", type="boolean", description="Replace every occurrence.", required=False),
    ),
)
CREATE = ToolSpec(
    name="create",
    description="Write a new file, with its folders.",
    parameters=(
        _PATH,
        ToolParameter(name="text", description="The whole content."),
        ToolParameter(name="overwrite", type="boolean", description="Replace a file that exists.", required=False),
    ),
)

_NAMES = 200
"""Names of a folder that are shown."""
_LINE_CHARS = 2_000
_AROUND = 3
"""Lines shown before and after an edit."""
_SEARCHED_LINES = 20_000
_COMPARED_LINES = 20
_COMPARED_CHARS = 200
"""Bounds on the search for the nearest lines of a text that does not occur."""


def view(sandbox: Sandbox, path: str, start: int | None = None, end: int | None = None) -> Observation:
    """A file's lines from `start` to `end`, a folder's names or a picture.

    Raises:
        BadArgumentsError: the lines asked for are no range.
        SandboxError: the sandbox died.
    """
    if (start is not None and start < 1) or (end is not None and end < (start or 1)):
        raise BadArgumentsError(f"lines {start} to {end} are no range", "count from 1 and end at or after the start")
    try:
        data = sandbox.read(path)
    except BadArgumentsError as error:
        try:
            names = sandbox.list(path)
        except BadArgumentsError:
            return _failed(error)
        return Observation(_listing(sandbox, path, names))
    if image := as_image(data):
        if len(data) > IMAGE_BYTES:
            return Observation(
                f"{path} is a picture of {len(data)} bytes; at most {IMAGE_BYTES} can be shown. Make it smaller first.", failed=True
            )
        return Observation(f"{path}: {image.media_type}, {len(data)} bytes", (image,))
    text = _text(data)
    if text is None:
        return Observation(f"{path} is not text ({len(data)} bytes, begins with {data[:8].hex(' ')}). Look at it with code.", failed=True)
    if not text:
        return Observation(f"{path} is empty")
    lines = _lines(text)
    first = start or 1
    if first > len(lines):
        return Observation(f"{path} has {len(lines)} lines; there is no line {first}", failed=True)
    last = min(end or len(lines), len(lines))
    # Cut between lines and say how to go on, rather than in the middle: a reader of a file goes on from where it stopped.
    shown: list[str] = []
    size = 0
    for number in range(first, last + 1):
        line = _numbered(number, lines[number - 1])
        size += len(line) + 1
        if shown and size > OUTPUT_CHARS:
            shown.append(f"[lines {number} to {last} are left out; pass start={number} to go on]")
            break
        shown.append(line)
    else:
        if last < len(lines):
            shown.append(f"[{len(lines)} lines in all]")
    return Observation("\n".join(shown))


def edit(sandbox: Sandbox, path: str, old: str, new: str, every: bool = False) -> Observation:
    """Replace `old`, which must occur exactly once unless `every`; answers with the lines around the change.

    Raises:
        BadArgumentsError: `old` is empty, or equals `new`.
        SandboxError: the sandbox died.
    """
    if not old:
        raise BadArgumentsError("old is empty", "pass the text to replace; a new file is made by create")
    if old == new:
        raise BadArgumentsError("old and new are equal", "pass a change")
    try:
        text = _text(sandbox.read(path))
    except BadArgumentsError as error:
        return _failed(error)
    if text is None:
        return Observation(f"{path} is not text and cannot be edited here", failed=True)
    if "\r\n" in text and "\r\n" not in old and old not in text:
        old, new = old.replace("\n", "\r\n"), new.replace("\r\n", "\n").replace("\n", "\r\n")
    count = text.count(old)
    if count == 0:
        return Observation(f"the old text does not occur in {path}; nothing was changed. {_nearest(text, old)}", failed=True)
    if count > 1 and not every:
        where = ", ".join(str(number) for number in _line_numbers(text, old)[:10])
        return Observation(
            f"the old text occurs {count} times in {path}, at lines {where}{', ...' if count > 10 else ''}; nothing was changed. "
            "Add lines around it until it is unique, or pass all=true.",
            failed=True,
        )
    at = text.index(old)
    changed = text.replace(old, new)
    try:
        sandbox.write(path, changed.encode())
    except BadArgumentsError as error:
        return _failed(error)
    first = text.count("\n", 0, at) + 1
    said = f"{path}: replaced {count} occurrence{'s' if count > 1 else ''}"
    return Observation(cut_middle(said + "\n" + _excerpt(_lines(changed), first, new.count("\n") + 1)))


def create(sandbox: Sandbox, path: str, text: str, overwrite: bool = False) -> Observation:
    """Write a file. One that exists is kept unless `overwrite`. Raises SandboxError when the sandbox died."""
    parent, name = posixpath.split(path.rstrip("/"))
    try:
        exists = name in sandbox.list(parent or ".")
    except BadArgumentsError:
        exists = False
    if exists and not overwrite:
        return Observation(f"{path} exists; nothing was changed. Change it with edit, or pass overwrite=true.", failed=True)
    try:
        sandbox.write(path, text.encode())
    except BadArgumentsError as error:
        return _failed(error)
    return Observation(f"{path}: {'replaced' if exists else 'created'}, {len(_lines(text)) if text else 0} lines")


def _failed(error: BadArgumentsError) -> Observation:
    return Observation(str(error), failed=True)


def _text(data: bytes) -> str | None:
    """None when it is not UTF-8 text."""
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _lines(text: str) -> list[str]:
    """Lines as an editor numbers them: split at newlines alone, without an empty one after the last."""
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" and len(lines) > 1 else lines


def _numbered(number: int, line: str) -> str:
    line = line.removesuffix("\r")
    if len(line) > _LINE_CHARS:
        line = f"{line[:_LINE_CHARS]} [... {len(line) - _LINE_CHARS} more characters]"
    return f"{number:6}\t{line}"


def _excerpt(lines: list[str], first: int, count: int) -> str:
    start, end = max(1, first - _AROUND), min(len(lines), first + count - 1 + _AROUND)
    return "\n".join(_numbered(number, lines[number - 1]) for number in range(start, end + 1))


def _listing(sandbox: Sandbox, path: str, names: list[str]) -> str:
    if not names:
        return f"{path} is an empty folder"
    shown = []
    for name in names[:_NAMES]:
        try:
            inside = len(sandbox.list(posixpath.join(path, name)))
        except BadArgumentsError:
            shown.append(name)
        else:
            shown.append(f"{name}/ ({inside})" if inside else f"{name}/ (empty)")
    if len(names) > _NAMES:
        shown.append(f"[{len(names) - _NAMES} more names]")
    return "\n".join(shown)


def _line_numbers(text: str, part: str) -> list[int]:
    numbers, at = [], text.find(part)
    while at >= 0:
        numbers.append(text.count("\n", 0, at) + 1)
        at = text.find(part, at + len(part))
    return numbers


def _nearest(text: str, old: str) -> str:
    """The lines that resemble `old` most, as help to get it right."""
    lines, wanted = _lines(text)[:_SEARCHED_LINES], _lines(old)
    squeezed = [" ".join(line.split()) for line in wanted]
    anchor = max(range(len(squeezed)), key=lambda i: len(squeezed[i]))
    for i in range(len(lines) - len(wanted) + 1):
        if [" ".join(line.split()) for line in lines[i : i + len(wanted)]] == squeezed:
            return f"Only the white space differs at line {i + 1}:\n{_excerpt_exact(lines, i + 1, len(wanted))}"
    # One line decides where to look, and few are compared in full: both comparisons grow with the square of what they compare.
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(squeezed[anchor][:_COMPARED_CHARS])

    def ratio(i: int, quick: bool) -> float:
        matcher.set_seq1(lines[i].strip()[:_COMPARED_CHARS])
        return matcher.quick_ratio() if quick else matcher.ratio()

    candidates = heapq.nlargest(_COMPARED_LINES, range(len(lines)), key=lambda i: ratio(i, True))
    best = max(candidates, key=lambda i: ratio(i, False))
    if ratio(best, False) < 0.5:
        return "Nothing in it is similar; view the file first."
    return f"The nearest lines are:\n{_excerpt_exact(lines, max(0, best - anchor) + 1, len(wanted))}"


def _excerpt_exact(lines: list[str], first: int, count: int) -> str:
    return "\n".join(_numbered(number, lines[number - 1]) for number in range(first, min(len(lines), first + min(count, 20) - 1) + 1))
