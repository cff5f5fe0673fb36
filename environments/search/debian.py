"""Documents that Debian packages install: FOLDOC (`dict-foldoc`), Python's manual (`python3.11-doc`), the kernel's (`linux-doc-*`).

Each is read where its package puts it and left out when it is not there; nothing is downloaded. FOLDOC's dictionary is
in dictzip format, which is gzip with an index, so the standard library reads it.
"""

from __future__ import annotations

import gzip
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from environments.errors import CorruptArtifactError
from environments.protocols import Document
from environments.search.markup import foldoc_links, rst_links
from environments.search.sources import MAX_TEXT_CHARS, MIN_DOC_CHARS, document_id

FOLDOC_DIRECTORY = Path("/usr/share/dictd")
DOC_DIRECTORY = Path("/usr/share/doc")

_BASE64 = {c: i for i, c in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}


def _number(text: str) -> int:
    """A dictd index number: base 64, most significant digit first."""
    value = 0
    for char in text:
        value = value * 64 + _BASE64[char]
    return value


def foldoc_documents(directory: Path = FOLDOC_DIRECTORY) -> Iterator[Document]:
    """Entries of the Free On-line Dictionary of Computing (licence GFDL-1.1-or-later); nothing when it is not installed.

    Raises:
        CorruptArtifactError: the dictionary or its index does not read.
    """
    index = directory / "foldoc.index"
    dictionary = next((p for p in (directory / "foldoc.dict.dz", directory / "foldoc.dict") if p.is_file()), None)
    if dictionary is None or not index.is_file():
        return
    try:
        data = gzip.decompress(dictionary.read_bytes()) if dictionary.suffix == ".dz" else dictionary.read_bytes()
        places: dict[tuple[int, int], None] = {}
        for line in index.read_text("utf-8", "replace").splitlines():
            word, start, count = line.split("\t")[:3]
            if not word.startswith("00-database"):
                places[_number(start), _number(count)] = None
    except (OSError, EOFError, ValueError, KeyError) as error:
        raise CorruptArtifactError(
            f"{dictionary} does not read as a dictd dictionary ({error})", "reinstall it: apt-get install --reinstall dict-foldoc"
        ) from error
    for offset, length in sorted(places):
        lines = data[offset : offset + length].decode("utf-8", "replace").split("\n")
        names = []
        while lines and lines[0] and not lines[0][0].isspace():
            names.append(lines.pop(0).strip())
        body = "\n".join(line[3:] if line.startswith("   ") else line for line in lines).strip()
        if not names or len(body) < MIN_DOC_CHARS:
            continue
        text = "\n".join([*names, "", body])[:MAX_TEXT_CHARS]
        yield Document(document_id("foldoc", names[0]), names[0], text, "foldoc", "GFDL-1.1-or-later", foldoc_links(body))


_UNDERLINE = re.compile(r"^([=\-~^\"'`#*+.:_<>])\1{2,}\s*$")
_COMMENT = re.compile(r"^\.\. (?!\w[\w:.-]*::|_).*(?:\n[ \t]+.*)*\n?", re.M)
_ROLE_IN_TITLE = re.compile(r":[\w:]+:`~?([^`<]*?)(?:\s*<[^>]*>)?`")


def _rst_title(text: str) -> str:
    """The first section title, roles and underlines removed; empty when there is none."""
    lines = text.split("\n")
    for above, below in itertools.pairwise(lines):
        if (
            above.strip()
            and not above[0].isspace()
            and not _UNDERLINE.match(above)
            and not above.startswith("..")
            and _UNDERLINE.match(below)
        ):
            title = _ROLE_IN_TITLE.sub(lambda m: m.group(1), above).replace("``", "").replace("`", "").strip()
            return re.sub(r"\s+", " ", title).strip()
    return ""


def rst_documents(root: Path, source: str, licence: str) -> Iterator[Document]:
    """Manual pages in reStructuredText below `root` (`*.rst.txt`, also gzipped), titled by their first heading."""
    if not root.is_dir():
        return
    for path in sorted([*root.rglob("*.rst.txt"), *root.rglob("*.rst.txt.gz")]):
        try:
            raw = path.read_bytes()
            text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8", "replace")
        except (OSError, EOFError):
            continue  # One unreadable page costs itself only.
        title = _rst_title(text)
        if not title or len(text) < 200 or path.name.startswith("index.rst"):
            continue
        body = _COMMENT.sub("", text).strip()[:MAX_TEXT_CHARS]
        yield Document(document_id(source, str(path.relative_to(root))), title, body, source, licence, rst_links(body))


def python_manual_documents(root: Path = DOC_DIRECTORY) -> Iterator[Document]:
    """Python's manual (licence PSF-2.0), when a `python3.*-doc` package is installed."""
    for folder in sorted(root.glob("python3.*/html/_sources")):
        yield from rst_documents(folder, "python-manual", "PSF-2.0")


def linux_manual_documents(root: Path = DOC_DIRECTORY) -> Iterator[Document]:
    """The kernel's manual (licence GPL-2.0), when a `linux-doc-*` package is installed."""
    for folder in sorted(root.glob("linux-doc-*/html/_sources"))[:1]:
        yield from rst_documents(folder, "linux-manual", "GPL-2.0")
