"""What an API document says about itself: its summary, the topic its module names, where it was defined."""

from __future__ import annotations

import functools
import re

from environments.protocols import Document
from environments.search.markup import strip_links
from environments.search.signature import signature_line
from kg.equivalence import singular
from kg.words import ADJECTIVES, NOT_NOUN_START, PROPER, VAGUE, VERBS

_HEADING = re.compile(r"^(?:([=\-*#~^]{3,})\s*\n)?([^\n]{3,100})\n([=\-*#~^]{3,})\s*$", re.M)
_LEAD = re.compile(
    r"^(?:this (?:module|package|file|subpackage) (?:provides|implements|contains|defines|is for|has|offers)?\s*|"
    r"[`:~\w]*\w+\.\w+[`\w.]* is a (?:module|package) (?:implementing|for|with|containing|that provides) (?:various\s+)?|"
    r"(?:a |the )?(?:modules?|packages?|sub-?packages?|collection|set|library|suite) "
    r"(?:containing|of|for|with|related to|that provides|implementing)\s*|"
    r"(?:(?:fast|basic|various|several|some|simple|general|generic|public|python|pythonic|efficient|core|common|the)\s+)*"
    r"(?:functions?|routines?|tools?|utilit(?:y|ies)|helpers?|generators|methods?|classes|class|wrappers?|"
    r"implementations?|definitions?|support|facilities|operations|interface|code|api)"
    r"(?: (?:and|or) \w+)?"
    r"\s+(?:for|of|to|on|related to|that|which|used (?:in|for)|relating to|concerning|dealing with|involving)\s+)",
    re.I,
)
_DEFINED_IN = re.compile(r"^Defined in ([\w.]+)\.$", re.M)


def is_module(document: Document) -> bool:
    """True for the document of a Python module or package."""
    return document.text.startswith("module ")


def is_callable(document: Document) -> bool:
    """True for functions and classes with a signature; methods (whose parent is a class) are not counted."""
    if not signature_line(document):
        return False
    parts = document.title.split(".")
    if document.text.endswith(f"Method of {document.title.rpartition('.')[0]}."):
        return False
    return len(parts) >= 2 and not parts[-2][:1].isupper() and not document.title.endswith(("Error", "Warning", "Exception"))


def body(document: Document) -> str:
    """The text without its first line (signature, module line or headword) and without cross-reference markup."""
    head, _, rest = document.text.partition("\n")
    return strip_links(rest[:6000] if rest.strip() else head, document.source).strip()


@functools.lru_cache(maxsize=50_000)
def summary(document: Document) -> str:
    """The first sentence, at most 300 characters, on one line; headings and directives are passed over."""
    for paragraph in re.split(r"\n\s*\n", body(document)):
        text = re.sub(r"\s+", " ", paragraph).strip()
        if not text or text.startswith((".. ", ">>>", "-", "=", "*", "#")) or _HEADING.match(paragraph.strip()):
            continue
        return re.split(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!\b[A-Z]\.)\s+(?=[A-Z`])", text)[0][:300]
    return ""


def module_of(document: Document) -> str:
    """The public module that defines the object: from its "Defined in" line, else from its title."""
    if match := _DEFINED_IN.search(document.text):
        return match.group(1)
    return document.title if is_module(document) else document.title.rpartition(".")[0]


@functools.lru_cache(maxsize=10_000)
def module_label(document: Document) -> str:
    """The topic a module names for itself: its heading or its summary without the lead-in; else its own name in words. May be empty."""
    text = re.sub(r"^(?:\.\. [^\n]*\n+)+", "", body(document))
    label = ""
    match = _HEADING.search(text[:400])
    if match and match.start() <= 2:
        label = re.sub(r"\s*\([^)]*`?[\w.]+`?\s*\)|\s*:mod:\S+", "", match.group(2)).strip(" *-`")
    for candidate in (label, summary(document)):
        candidate = _nominal(candidate, document.title)
        if candidate:
            return candidate
    last = document.title.rpartition(".")[2].replace("_", " ").strip()
    prose = {singular(w) for w in re.findall(r"(?<![\w.`])[a-z]+(?![\w.`])", text)}
    plain = (
        last.isascii()
        and last.islower()
        and len(last) >= 5
        and last not in VAGUE
        and not last.endswith(("lib", "ic", "al"))
        and last not in ADJECTIVES
    )
    return last if plain and all(singular(word) in prose for word in last.split()) else ""


def _nominal(text: str, title: str) -> str:
    """A heading or sentence as a noun phrase of one to six words, or empty when it is not one."""
    last, top = title.rpartition(".")[2], title.partition(".")[0]
    text = re.sub(
        r"^(?:module\s+)?[`'\"]?(?:[\w.]+\.)?" + re.escape(last) + r"[`'\"]?(?:\s+-{1,3}\s+|\s*:\s+)", "", text.strip(), flags=re.I
    )
    text = text.rstrip(".: ")
    for _ in range(2):
        text = _LEAD.sub("", text).strip()
        text = re.sub(
            r"^(?:(?:the|a|an|various|several|some|and \w+ (?:for|to support)|(?:efficiently )?(?:dealing|working) with)\s+)+",
            "",
            text,
            flags=re.I,
        )
    text = re.sub(rf"\s+(?:module|package)? ?(?:for|in) {re.escape(top)}$", "", text, flags=re.I)
    text = re.sub(rf"^{re.escape(top)}\s+", "", text, flags=re.I)
    shorter = re.sub(
        r"\s+(?:(?:sub-?)?(?:module|package|library)|(?:functions?|routines?|algorithms?|utilit(?:y|ies)|tools|classes))$",
        "",
        text,
        flags=re.I,
    )
    if not shorter.endswith(("al", "ic", "ive", "ar", "ous", "ed")) or text.endswith(("module", "package")):
        text = shorter
    words = text.split()
    if not 1 <= len(words) <= 6 or re.search(r"[`:;,*_=<>\[\]{}()/\"|\d]|--", text) or "." in text:
        return ""
    if words[0].lower() in NOT_NOUN_START or words[-1].lower() in {"for", "of", "to", "in", "the", "a", "and", "is", "with", "by"}:
        return ""
    if text.lower() == title.partition(".")[0].lower() or all(w.lower() in VAGUE for w in words) or (len(words) == 1 and len(text) < 5):
        return ""
    if words[0].lower() in VERBS or re.search(r"docstring|\bits$", text):
        return ""
    if re.search(r"\b(?:is|are|was|can|should|will|has|have|that|this|which|you|it)\b", text, re.I):
        return ""
    capitals = [w for w in words if len(w) > 3 and w[0].isupper()]
    heading = len(capitals) > 1 and len(capitals) >= 0.6 * sum(len(w) > 3 for w in words)
    return " ".join(w.lower() if (i == 0 or heading) and w[1:] == w[1:].lower() and w not in PROPER else w for i, w in enumerate(words))
