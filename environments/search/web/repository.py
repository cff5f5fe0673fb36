"""Documents of a git repository's commit, as a searchable corpus of their own: README, documentation, docstrings."""

from __future__ import annotations

import hashlib
import logging
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

from environments.errors import CorruptArtifactError, EmptyCorpusError
from environments.protocols import Document, Hit
from environments.search.build import CorpusConfig, write_corpus
from environments.search.index import Corpus
from environments.search.markup import rst_links
from environments.search.sources import MIN_DOC_CHARS, package_documents
from environments.search.web import licence
from environments.search.web.cache import Cache
from environments.search.web.config import GitConfig
from environments.search.web.extract import MAX_TEXT_CHARS, decode
from environments.search.web.git import File, fetch_repository, is_licence, pinned_commit, repository_folder
from environments.search.web.guard import Guard
from environments.search.web.library import RetrievedDocument
from environments.search.web.outcome import Journal, NotRetrievedError, RefusedError

log = logging.getLogger(__name__)

_FORMAT = "1"
"""Raised when the same commit would give other documents."""
_PLAIN = CorpusConfig(packages=(), foldoc=False, python_manual=False, linux_manual=False, embeddings=False)
_NO_MODULES = frozenset({"setup", "conftest", "noxfile", "tasks", "fabfile", "versioneer"})


class GitSource:
    """A `SearchSource` over the documents of one commit. Picklable; reads only what lies in the cache."""

    def __init__(self, corpus: Corpus) -> None:
        self.corpus = corpus
        self.content_hash = corpus.content_hash

    def __reduce__(self) -> tuple[Any, ...]:
        return (GitSource, (self.corpus,))

    @property
    def commit(self) -> str:
        """The commit's full name."""
        return self.corpus.manifest.inputs["commit"]

    @property
    def licence(self) -> str:
        """SPDX identifier of the repository's licence, or `unknown`."""
        return self.corpus.manifest.inputs["licence"]

    def search(self, query: str, limit: int = 10) -> list[Hit]:
        """See `Corpus.search`."""
        return self.corpus.search(query, limit)

    def open(self, document_id: str) -> RetrievedDocument:
        """The document of that id. Raises KeyError when there is none."""
        document, inputs = self.corpus.open(document_id), self.corpus.manifest.inputs
        held = {f.name: getattr(document, f.name) for f in fields(Document)}
        digest = hashlib.sha256(document.text.encode("utf-8", "replace")).hexdigest()
        return RetrievedDocument(
            **held, address=inputs["url"], retrieved_at=inputs["retrieved_at"], sha256=digest, via="git", commit=self.commit
        )


def open_repository(config: GitConfig, guard: Guard, cache: Path) -> GitSource:
    """The documents of a repository: from the cache when they are there, else fetched.

    Raises:
        NotRetrievedError: it cannot be fetched, or holds nothing to read; its outcome says why.
        InputError: a local path that does not exist.
        DiskFullError: no space left in the cache.
    """
    folder, journal = repository_folder(cache, config), Journal(cache / "outcomes.jsonl")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with Cache(cache).lock(f"git:{folder.name}", config.fetch_s + 60.0):
            commit = config.commit or pinned_commit(folder)
            if commit and (held := _held(folder / commit, config)) is not None:
                journal.add(config.url, "cached", commit)
                return GitSource(held)
            if guard.config.offline:
                raise RefusedError("offline", "this commit is not in the cache, and the configuration says offline")
            commit, contents = fetch_repository(config, guard, folder)
            corpus = _build(config, commit, contents, folder / commit)
    except RefusedError as error:
        outcome = journal.add(config.url, error.kind, error.reason)
        raise NotRetrievedError(f"{config.url} could not be retrieved: {error.kind}, {error.reason}", "", outcome) from error
    size = sum(len(content) for _, content in contents)
    journal.add(config.url, "retrieved", f"{commit}: {len(corpus)} documents", size_bytes=size, sha256=corpus.content_hash)
    return GitSource(corpus)


def _held(folder: Path, config: GitConfig) -> Corpus | None:
    try:
        corpus = Corpus.load(folder)
    except CorruptArtifactError:
        return None
    same = corpus.manifest.inputs.get("bounds") == _bounds(config)
    return corpus if same else None


def _bounds(config: GitConfig) -> str:
    return f"{_FORMAT} {_name(config)} {config.max_file_bytes} {config.max_documents}"


def _name(config: GitConfig) -> str:
    last = config.url.rstrip("/").rpartition("/")[2].removesuffix(".git")
    return config.name or re.sub(r"[^A-Za-z0-9_.-]", "-", last) or "repository"


def _build(config: GitConfig, commit: str, contents: Sequence[tuple[File, bytes]], folder: Path) -> Corpus:
    stated = repository_licence(contents)
    source = f"git:{_name(config)}@{commit[:12]}"
    documents = list(repository_documents(contents, source, stated))
    if len(documents) > config.max_documents:
        log.warning("%s: %d documents, the first %d are kept", config.url, len(documents), config.max_documents)
    inputs = {
        "bounds": _bounds(config),
        "url": config.url,
        "commit": commit,
        "licence": stated,
        "retrieved_at": datetime.fromtimestamp(time.time(), UTC).isoformat(timespec="seconds"),
    }
    try:
        return write_corpus(folder, documents[: config.max_documents], _PLAIN, inputs)
    except EmptyCorpusError as error:
        raise RefusedError("no_text", f"commit {commit} holds no README, documentation or docstrings") from error


def repository_licence(contents: Sequence[tuple[File, bytes]]) -> str:
    """The licence of the licence files at the root; several are joined with AND, `unknown` when one of them is not known.

    Without any, what the SPDX lines of the sources say, when all that say something say the same.
    """
    names = [licence.of_text(content.decode("utf-8", "replace")) for f, content in contents if is_licence(f.path) and "/" not in f.path]
    if not names:
        names = sorted({_own(content) for f, content in contents if f.path.endswith(".py")} - {licence.UNKNOWN})
        return names[0] if len(names) == 1 else licence.UNKNOWN
    return licence.UNKNOWN if licence.UNKNOWN in names else " AND ".join(dict.fromkeys(names))


def _own(content: bytes) -> str:
    """What a file's own SPDX line says."""
    return licence.spdx_line(content[:5000].decode("utf-8", "replace"))


def repository_documents(contents: Sequence[tuple[File, bytes]], source: str, stated: str) -> Iterator[Document]:
    """Texts by path, then docstrings. A text's own SPDX line goes before the repository's licence; other such sources are left out."""
    python: list[tuple[File, bytes]] = []
    seen: set[bytes] = set()
    for file, content in contents:
        if file.path.endswith(".py"):
            if _own(content) in (licence.UNKNOWN, stated):
                python.append((file, content))
            else:  # its docstrings would be mixed with those of the repository's own licence
                log.info("%s: %s has a licence of its own and is left out", source, file.path)
            continue
        if is_licence(file.path):
            continue
        try:
            text = decode(content).replace("\0", " ")[:MAX_TEXT_CHARS]
        except RefusedError as error:
            log.info("%s: %s is left out: %s", source, file.path, error.reason)
            continue
        digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        if len(text.strip()) < MIN_DOC_CHARS or digest in seen:
            continue
        seen.add(digest)
        own = licence.spdx_line(text)
        yield Document(_id(source, file.path), file.path, text, source, own if own != licence.UNKNOWN else stated, rst_links(text))
    yield from _docstrings(python, source, stated)


def _docstrings(python: Sequence[tuple[File, bytes]], source: str, stated: str) -> Iterator[Document]:
    """Docstrings of the packages and modules at the root and under src/ and lib/, parsed in a folder of plain files."""
    if not python:
        return
    with tempfile.TemporaryDirectory(prefix="retrieval-") as temporary:
        root = Path(temporary)
        for file, content in python:
            path = root / PurePosixPath(file.path)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
            except OSError as error:  # a name longer than the file system takes, or one that differs in case only
                log.info("%s: %s is left out: %s", source, file.path, error)
        ids: set[str] = set()
        for place in (root, root / "src", root / "lib"):
            for path in sorted(place.iterdir()) if place.is_dir() else ():
                package = path.is_dir() and (path / "__init__.py").is_file()
                module = path.suffix == ".py" and path.stem not in _NO_MODULES
                if path.stem.isidentifier() and not path.stem.startswith(("_", "test")) and (package or module):
                    for document in package_documents(path, path.stem, source, stated):
                        if document.document_id not in ids:
                            ids.add(document.document_id)
                            yield replace(document, document_id=_id(source, document.title))


def _id(source: str, title: str) -> str:
    """Stable id: `git-` and 16 hex characters of the sha256 of source (which names the commit) and title."""
    named = f"{source}\0{title}".encode()
    return f"git-{hashlib.sha256(named).hexdigest()[:16]}"
