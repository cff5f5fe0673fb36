"""A page as text: its accessibility tree, what is in view, with numbers for what can be pointed at."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_LINE = re.compile(
    r"""^(?P<indent>\ *)-\ (?P<quote>')?(?P<role>[a-z]+)
    (?P<name>\ (?:"(?:[^"\\]|\\.)*"|/(?:[^/\\]|\\.)*/))?
    (?P<attributes>(?:\ \[[^\]]*\])*)(?P<rest>.*)$""",
    re.VERBOSE,
)
_ATTRIBUTE = re.compile(r" \[([^\]=]*)(?:=([^\]]*))?\]")
_HIDDEN = {"ref", "box", "cursor"}
_POINTED_AT = {
    *("button", "checkbox", "combobox", "gridcell", "link", "listbox", "menuitem", "menuitemcheckbox", "menuitemradio"),
    *("option", "radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem"),
}
"""Roles that get a number, as does whatever shows a pointer, and an element of no role with text: it may be editable."""


@dataclass
class PageText:
    """What an agent reads, and what its numbers stand for."""

    text: str
    refs: dict[int, str] = field(default_factory=dict)
    """Playwright's element reference by number."""
    above: int = 0
    below: int = 0
    """Lines out of view."""


def page_text(snapshot: str, height: int) -> PageText:
    """Turn an accessibility snapshot with boxes (`Page.aria_snapshot(mode="ai", boxes=True)`) into what is in view.

    Args:
        height: of the viewport, in CSS pixels.

    A line without a box, such as plain text, goes with the element that it is in; so does a frame's content.
    """
    shown: list[str] = []
    page = PageText("")
    inherited: list[tuple[int, str]] = []
    """Of the elements around a line: indentation, and `in`, `above` or `below`."""
    frames: list[int] = []
    for line in snapshot.splitlines():
        match = _LINE.match(line)
        indent = len(line) - len(line.lstrip())
        while inherited and inherited[-1][0] >= indent:
            inherited.pop()
        place = inherited[-1][1] if inherited else "in"
        attributes = dict(_ATTRIBUTE.findall(match["attributes"])) if match else {}
        ref = attributes.get("ref", "")
        while frames and frames[-1] >= indent:
            frames.pop()
        if not frames and (box := attributes.get("box")):
            _, y, width, tall = (float(number) for number in box.split(","))
            if width > 0 and tall > 0:  # an element without a size may have children with one
                place = "above" if y + tall <= 0 else "below" if y >= height else "in"
        inherited.append((indent, place))
        if match and match["role"] == "iframe":
            frames.append(indent)  # boxes in it are relative to it
        if place != "in":
            page.above += place == "above"
            page.below += place == "below"
            continue
        if match is None:
            shown.append(line)
            continue
        label = "".join(f" [{k}={v}]" if v else f" [{k}]" for k, v in attributes.items() if k not in _HIDDEN)
        role, holds_text = match["role"], match["rest"].rstrip("'") not in ("", ":")
        if ref and (role in _POINTED_AT or "cursor" in attributes or (role == "generic" and holds_text)):
            number = len(page.refs) + 1
            page.refs[number] = ref
            label = f" [{number}]{label}"
        shown.append(f"{match['indent']}- {match['quote'] or ''}{role}{match['name'] or ''}{label}{match['rest']}")
    page.text = "\n".join(shown)
    return page
