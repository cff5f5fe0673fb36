"""Texts to grow from, beside the default corpus: dictionaries and manuals as Debian packages them, unpacked into a folder.

`make setup-references` fetches and unpacks them. What a text says because the reference hierarchy says it is left out:
GCIDE's entries from WordNet 1.5 are dropped.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

from environments.errors import MissingDependencyError
from environments.protocols import Document
from environments.search.debian import rst_documents
from environments.search.sources import document_id

_HEAD = re.compile(r"^(?P<word>[A-Z][^\\\n]{1,40}?)\s+\\[^\\\n]+\\[^\n]*", re.M)
_BASE64 = {c: i for i, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}
_WORDNET = "@@WordNet@@"
_FIX = "make setup-references"


def dictd_entries(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """(headword, text) of a dictionary in dictd's format, in file order; every text once.

    Raises:
        MissingDependencyError: the dictionary is not there.
    """
    index, dictionary = folder / f"{name}.index", folder / f"{name}.dict.dz"
    if not (index.is_file() and dictionary.is_file()):
        raise MissingDependencyError(f"the dictionary {name} is not in {folder}", _FIX)
    data = gzip.decompress(dictionary.read_bytes())
    places: dict[tuple[int, int], str] = {}
    for line in index.read_text("utf-8", "replace").splitlines():
        word, start, length = line.split("\t")[:3]
        if not word.startswith("00-database") and not word.startswith("00database"):
            places.setdefault((_number(start), _number(length)), word)
    for (offset, size), word in sorted(places.items()):
        yield word, data[offset : offset + size].decode("utf-8", "replace")


def _number(text: str) -> int:
    value = 0
    for char in text:
        value = value * 64 + _BASE64[char]
    return value


def jargon(folder: Path) -> Iterator[Document]:
    """The Jargon File (public domain)."""
    for word, text in dictd_entries(folder, "jargon"):
        body = re.sub(r"[{}]", "", text.partition("\n")[2])
        body = re.sub(r"^\s*(?:/[^/\n]+/,?\s*)?(?:n|adj|v|vt|vi|adv|interj|abbrev|prov)\.[^\n]*\n", "", body)
        if len(body.strip()) >= 30:
            yield Document(document_id("jargon", word), word, f"{word}\n\n{_flat(body)}", "jargon", "public domain")


def gcide(folder: Path) -> Iterator[Document]:
    """Nouns of the GNU Collaborative International Dictionary of English (GPL-2.0-or-later), one document a headword.

    Markup, etymologies and quotations are taken out; senses that it took over from WordNet are left out.
    """
    found: dict[str, list[str]] = {}
    for _, text in dictd_entries(folder, "gcide"):
        text = _unbracketed(text)
        heads = list(_HEAD.finditer(text))
        for place, head in enumerate(heads):
            end = heads[place + 1].start() if place + 1 < len(heads) else len(text)
            line, _, body = text[head.start() : end].partition("\n")
            if re.search(r",\s*(?:n\.|prop\. n|n pl)", line) or not re.search(r",\s*(?:a|v|adv|p|imp|prep|conj|interj)\.", line):
                found.setdefault(head.group("word").strip(), []).extend(_senses(body))
    for word, senses in found.items():
        if senses:
            title = word if word[1:] != word[1:].lower() else word.lower()
            text = f"{title}\n\n" + "\n\n".join(dict.fromkeys(senses))
            yield Document(document_id("gcide", title), title, text[:20_000], "gcide", "GPL-2.0-or-later")


def _unbracketed(text: str) -> str:
    """Without what stands in square brackets (pronunciation, etymology, sources); WordNet's mark stays."""
    text = re.sub(r"\[[^\]]*WordNet[^\]]*\]", _WORDNET, text)
    while (shorter := re.sub(r"\[[^\[\]]*\]", "", text)) != text:
        text = shorter
    return text


def _senses(body: str) -> Iterator[str]:
    """Definitions of an entry; those marked as WordNet's are left out with what belongs to them."""
    for sense in re.split(r"(?=^\s{3,}\d+\.\s)", body, flags=re.M):
        if _WORDNET in sense or "WordNet" in sense:
            continue
        kept = []
        for paragraph in re.split(r"\n\s*\n", sense):
            if re.match(r"^\s{9,}", paragraph) or not re.search(r"[a-z]{3}", paragraph):
                continue  # A quotation stands further in.
            text = re.sub(r"[{}]", "", re.sub(r"\s--\s?[A-Z][\w. ()]+$", "", paragraph.rstrip()))
            kept.append(_flat(re.sub(r"^\s*\d+\.\s*(?:\([A-Z][^)]*\)\s*)?", "", text)))
        if joined := "\n\n".join(k for k in kept if len(k) > 10):
            yield joined


def _flat(text: str) -> str:
    return "\n\n".join(re.sub(r"\s+", " ", p).strip() for p in re.split(r"\n\s*\n", text)).strip()


def manuals(root: Path) -> Iterator[Document]:
    """The kernel's manual (GPL-2.0) and scikit-learn's user guide (BSD-3-Clause) below an unpacked package's `usr/share/doc`.

    Raises:
        MissingDependencyError: neither is there.
    """
    kernel, learn = sorted(root.glob("linux-doc-*/html/_sources")), root / "python-sklearn-doc/html/_sources"
    if not kernel or not learn.is_dir():
        raise MissingDependencyError(f"the manuals are not in {root}", _FIX)
    yield from rst_documents(kernel[0], "linux-manual", "GPL-2.0")
    yield from rst_documents(learn, "scikit-learn-manual", "BSD-3-Clause")
