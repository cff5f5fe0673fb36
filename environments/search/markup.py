"""Cross-reference markup in documents: where it points, and the text without it.

Three kinds occur in the corpora: FOLDOC's ``{term}``, reStructuredText roles such as ``:func:`~pkg.name```, and the
"See Also" sections of numpydoc docstrings. A graph that must be grown without them reads stripped text.
"""

from __future__ import annotations

import re

_ROLE = re.compile(r":(?:[a-z]+:)?(?:func|meth|class|mod|ref|doc|term|attr|exc|obj|data|const|any|manpage):`([^`]+)`")
_FOLDOC = re.compile(r"\{([^{}]{1,120}?)\}", re.S)
_SEE_ALSO = re.compile(r"^([ \t]*)See Also[ \t]*\n[ \t]*-{4,}[ \t]*\n(.*?)(?=^[ \t]*\S[^\n]*\n[ \t]*[-=]{3,}[ \t]*\n|\Z)", re.M | re.S)
_RST_SEEALSO = re.compile(r"^([ \t]*)\.\. seealso::.*?(?=^\1\S|\Z)", re.M | re.S)
_ENTRY_NAMES = re.compile(r"^[ \t]*([A-Za-z_][\w.]*(?:[ \t]*,[ \t]*[A-Za-z_][\w.]*)*)[ \t]*(?::.*)?$", re.M)


def _role_target(inner: str) -> str:
    if match := re.search(r"<([^<>]+)>\s*$", inner):
        inner = match.group(1)
    return inner.strip().lstrip("~!.").removesuffix("()")


def _role_text(inner: str) -> str:
    if match := re.match(r"(.*?)\s*<[^<>]+>\s*$", inner, re.S):
        return match.group(1)
    return inner.strip().lstrip("~!.")


def _dedupe(names: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))


def rst_links(text: str) -> tuple[str, ...]:
    """Targets of reST roles and of numpydoc "See Also" entries, in order, without repeats."""
    found = [_role_target(m.group(1)) for m in _ROLE.finditer(text)]
    for section in _SEE_ALSO.finditer(text):
        for names in _ENTRY_NAMES.finditer(_ROLE.sub(lambda m: _role_target(m.group(1)), section.group(2))):
            found.extend(part.strip() for part in names.group(1).split(","))
    return _dedupe(found)


def foldoc_links(text: str) -> tuple[str, ...]:
    """Terms in braces, web addresses left out."""
    terms = [re.sub(r"\s+", " ", m.group(1)).strip() for m in _FOLDOC.finditer(text)]
    return _dedupe([re.sub(r"\s*\(.*\)$", "", term) for term in terms if not term.startswith("(") and "://" not in term])


def strip_links(text: str, source: str) -> str:
    """The text as plain prose: roles replaced by what they show, "See Also" sections dropped, FOLDOC braces removed."""
    if source == "foldoc":
        return _FOLDOC.sub(lambda m: m.group(1), text)
    if "See Also" in text:  # The plain tests keep the common case, a text without markup, fast.
        text = _SEE_ALSO.sub("", text)
    if "seealso::" in text:
        text = _RST_SEEALSO.sub("", text)
    if ":`" in text:
        text = _ROLE.sub(lambda m: _role_text(m.group(1)), text)
    return text
